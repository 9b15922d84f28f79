/* Raw bytes of the TCPStore protocol, for tests that build messages by hand. */
#ifndef DD_TESTS_TCP_RAW_H
#define DD_TESTS_TCP_RAW_H

#include "core/bytes.h"
#include "store/tcp_server.h"

#include <stdarg.h>

/* Append fields to a message. Each letter of `fields` takes one argument: k and v a const char *, K
 * a dd_bytes, i and # a long long, u an unsigned, b an int. */
void raw_pack(dd_blob *out, const char *fields, ...);

/* Start a server on 127.0.0.1 with any port; exit the test's process on failure. */
dd_tcp_server *raw_server(const dd_tcp_server_options *options);
/* Return the default options of raw_server, for tests to change. */
dd_tcp_server_options raw_options(void);

/* Open a blocking connection whose reads and writes time out after some seconds. */
int raw_connect(uint16_t port);
/* Open a connection and send the magic number. */
int raw_open(uint16_t port);
void raw_send(int fd, dd_bytes bytes);
/* Send an operation and its fields, in one send. */
void raw_ask(int fd, int op, const char *fields, ...);
/* Return true if exactly these fields arrive next. */
bool raw_expect(int fd, const char *fields, ...);
/* As above on a tagged connection. An answer also has a status and its length. */
void raw_ask_tagged(int fd, unsigned tag, int op, const char *fields, ...);
bool raw_expect_answer(int fd, unsigned tag, int status, const char *fields, ...);
/* Return true if the other end closes, possibly after some bytes. */
bool raw_is_closed(int fd);
/* Return true if nothing arrives for a short time. */
bool raw_is_silent(int fd);

#endif
