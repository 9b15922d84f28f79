/* Somebody on the way: changes what this process sends over TCP, at one place of all its bytes. The sender notices nothing. */
#ifndef DD_TESTS_WIRE_MISCHIEF_H
#define DD_TESTS_WIRE_MISCHIEF_H

#include <stdbool.h>
#include <stddef.h>

typedef enum mischief_kind {
    MISCHIEF_FLIP,   /* one bit is another */
    MISCHIEF_DROP,   /* the rest of this send is lost */
    MISCHIEF_REPEAT, /* this send comes twice */
    MISCHIEF_INSERT, /* a few bytes of somebody else's come before it */
    MISCHIEF_CUT,    /* the stream ends */
    MISCHIEF_COUNT,
} mischief_kind;

/* After `after` more bytes over TCP; once. `bit` says which, and what is inserted. */
void wire_mischief_arm(mischief_kind kind, size_t after, unsigned bit);
/* Turns it off. Whether it has been done; *nbytes: how many bytes have been sent since it was armed. */
bool wire_mischief_disarm(size_t *nbytes);

#endif
