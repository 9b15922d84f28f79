/* Where calls come from: stacks of the caller's language, each kept once.
 *
 * A frame is known by two numbers that its owner gives it (the code object and the instruction, say), so that looking up a
 * stack that has been seen costs a few nanoseconds. Its frames are told once, in text, and kept: dumps need no interpreter. The table
 * is bounded; a stack that does not fit is stack 0, which has no frames. Any thread. */
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
    bool is_hidden; /* part of its stacks, and not shown */
} dd_call_site;

dd_status dd_call_sites_create(size_t max_stacks, dd_call_sites **sites, dd_error *err) DD_MUST_CHECK;
void dd_call_sites_destroy(dd_call_sites *sites); /* NULL is fine */

/* The stack of these frames (at most DD_STACK_MAX_FRAMES), innermost first; 0 when it is not there. Then `can_add` says whether there
 * is room for it. */
uint32_t dd_call_sites_find(const dd_call_sites *sites, const dd_call_site_key *keys, size_t nframes,
                            bool *can_add);
/* The same, and adds it, with what its frames are; texts are copied. 0: there is no room. The owner keeps each `code` alive as long as
 * the table. */
uint32_t dd_call_sites_add(dd_call_sites *sites, const dd_call_site_key *keys, const dd_call_site *frames,
                           size_t nframes);

/* The frames of a stack that are shown, innermost first; valid as long as the table. Returns how many. */
size_t dd_call_sites_get(const dd_call_sites *sites, uint32_t stack, const dd_call_site **frames);

#endif
