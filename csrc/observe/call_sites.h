/* Call sites: call stacks of the program's language, each stored once. The caller identifies a
 * frame by two numbers, such as its code object and its instruction, so finding a known stack takes
 * a few nanoseconds. The frames are stored as text, so that dumps need no interpreter. The table is
 * bounded; a stack that does not fit is stack 0, which has no frames. Thread-safe. */
#ifndef DD_OBSERVE_CALL_SITES_H
#define DD_OBSERVE_CALL_SITES_H

#include "core/bytes.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_STACK_MAX_FRAMES 16

typedef struct dd_call_sites dd_call_sites;

typedef struct dd_call_site_key {
    uintptr_t code;
    int32_t instruction;
} dd_call_site_key;

typedef struct dd_call_site {
    const char *function;
    const char *file;
    int line;
    bool is_hidden; /* the frame distinguishes stacks, but is not shown in dumps */
} dd_call_site;

dd_status dd_call_sites_create(size_t max_stacks, dd_call_sites **sites, dd_error *err) DD_MUST_CHECK;
void dd_call_sites_destroy(dd_call_sites *sites); /* NULL is allowed */

/* Find the stack that has these frames (at most DD_STACK_MAX_FRAMES), innermost first. Return 0 if
 * the stack is unknown; *can_add is then true if the table has space for the stack. */
uint32_t dd_call_sites_find(const dd_call_sites *sites, const dd_call_site_key *keys, size_t nframes,
                            bool *can_add);
/* Find the stack or add it, with the texts of its frames. Return 0 if there is no space. The caller
 * must keep the object behind each `code` alive as long as the table. */
uint32_t dd_call_sites_add(dd_call_sites *sites, const dd_call_site_key *keys, const dd_call_site *frames,
                           size_t nframes);

/* Get a stack's shown frames, innermost first, and return their number. The frames stay valid as
 * long as the table. */
size_t dd_call_sites_get(const dd_call_sites *sites, uint32_t stack, const dd_call_site **frames);

#endif
