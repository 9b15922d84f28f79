/* A go-between for clients of a TCPStore server, which makes it look like another: threads that forward bytes and
 * change a few of the server's. */
#ifndef DD_TESTS_PLAIN_PROXY_H
#define DD_TESTS_PLAIN_PROXY_H

#include <stdint.h>

typedef struct plain_proxy plain_proxy;

typedef enum plain_proxy_mode {
    PROXY_PLAIN,   /* puts the answer to the offer right: clients take the server for PyTorch's */
    PROXY_FAITHFUL /* changes nothing: clients find no Unix socket of its port, as on another host */
} plain_proxy_mode;

/* NULL after a failed CHECK. */
plain_proxy *plain_proxy_start(uint16_t server_port, plain_proxy_mode mode);
uint16_t plain_proxy_port(const plain_proxy *proxy);
/* Ends all connections, but takes new ones. */
void plain_proxy_cut(plain_proxy *proxy);
void plain_proxy_stop(plain_proxy *proxy); /* NULL is fine */

#endif
