/* A proxy between clients and a TCPStore server. Its threads forward bytes and change a few of the
 * server's, so that it looks like another server. */
#ifndef DD_TESTS_PLAIN_PROXY_H
#define DD_TESTS_PLAIN_PROXY_H

#include <stdint.h>

typedef struct plain_proxy plain_proxy;

typedef enum plain_proxy_mode {
    PROXY_PLAIN, /* changes the answer to the offer: clients take the server for PyTorch's */
    /* changes nothing: clients find no Unix socket for its port, as on another host */
    PROXY_FAITHFUL
} plain_proxy_mode;

/* Return NULL after a failed CHECK. */
plain_proxy *plain_proxy_start(uint16_t server_port, plain_proxy_mode mode);
uint16_t plain_proxy_port(const plain_proxy *proxy);
/* Close all connections, but accept new ones. */
void plain_proxy_cut(plain_proxy *proxy);
void plain_proxy_stop(plain_proxy *proxy); /* the proxy may be NULL */

#endif
