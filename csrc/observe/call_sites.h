/* Where calls come from: stacks of the caller's language, each kept once.
 *
 * A frame is known by two numbers that its owner gives it (the code object and the instruction, say), so that looking up a
 * stack that has been seen costs a few nanoseconds. What the numbers mean is told once, in text, and stays: dumps need no interpreter. The table is
 * bounded; what does not fit any more is stack 0, which has no frames. Any thread. */
#ifndef DD_OBSERVE_CALL_SITES_H
#define DD_OBSERVE_CALL_SITES_H

#include "core/bytes.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_STACK_MAX_FRAMES 16

typedef struct dd_call_sites dd_call_sites;

typedef struct dd_frame_key {
    uintptr_t code;
    int32_t instruction;
} dd_frame_key;

typedef struct dd_frame {
    const char *function;
    const char *file;
    int line;
    bool is_hidden; /* part of its stacks, and not shown */
} dd_frame;

dd_status dd_call_sites_create(size_t max_frames, size_t max_stacks, dd_call_sites **sites,
                               dd_error *err) DD_MUST_CHECK;
void dd_call_sites_destroy(dd_call_sites *sites); /* NULL is fine */

/* The stack of these frames (at most DD_STACK_MAX_FRAMES), innermost first. 0 when one of the frames is not known yet: then `unknown` is its
 * index, and the caller tells (dd_call_sites_tell) and asks again; and 0 with `unknown` == nframes when there is no room for it. */
uint32_t dd_call_sites_find(dd_call_sites *sites, const dd_frame_key *frames, size_t nframes,
                            size_t *unknown);
/* What a frame is; the text is copied. False: there is no room, and never will be. Else the owner keeps `code` alive as long as the
 * table. */
bool dd_call_sites_tell(dd_call_sites *sites, dd_frame_key key, const dd_frame *frame);

/* The frames of a stack, innermost first; valid as long as the table. Returns how many. */
size_t dd_call_sites_get(dd_call_sites *sites, uint32_t stack, dd_frame frames[DD_STACK_MAX_FRAMES]);

#endif
