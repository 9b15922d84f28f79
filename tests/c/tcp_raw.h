/* Raw bytes of the TCPStore protocol, for tests that speak it by hand. */
#ifndef DD_TESTS_TCP_RAW_H
#define DD_TESTS_TCP_RAW_H

#include "core/bytes.h"
#include "store/tcp_server.h"

#include <stdarg.h>

/* Appends fields to a message. A letter of `fields` takes one argument: k, v const char *; K dd_bytes; i, # long long;
 * u unsigned; b int. */
void raw_pack(dd_blob *out, const char *fields, ...);

/* A server on 127.0.0.1 with any port; ends the test's process when there is none. */
dd_tcp_server *raw_server(const dd_tcp_server_options *options);
/* Its options, before changes. */
dd_tcp_server_options raw_options(void);

/* A blocking connection whose reads and writes give up after some seconds. */
int raw_connect(uint16_t port);
/* The same, after the magic number. */
int raw_open(uint16_t port);
void raw_send(int fd, dd_bytes bytes);
/* An operation and its fields, in one send. */
void raw_ask(int fd, int op, const char *fields, ...);
/* Whether exactly these fields arrive next. */
bool raw_expect(int fd, const char *fields, ...);
/* The same on a tagged connection: the request has a tag; the answer has it, too, a status and its length. */
void raw_ask_tagged(int fd, unsigned tag, int op, const char *fields, ...);
bool raw_expect_answer(int fd, unsigned tag, int status, const char *fields, ...);
/* Whether the other end closes, perhaps after some bytes. */
bool raw_is_closed(int fd);
/* Whether nothing arrives for a moment. */
bool raw_is_silent(int fd);

#endif
