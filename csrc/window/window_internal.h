/* Declarations shared by the files of windows.
 *
 * A rank is *direct* if its memory and its pad are mapped here. A put to a direct rank is a copy,
 * and a signal an addition. Neither needs the engine's lock or a system call, unless the other rank
 * sleeps (core/park.h): words change only by sequentially consistent additions and exchanges. Data
 * and signals for other ranks are sent as commands (window_wire.h), which keeps them in order.
 *
 * There are six operations (window_op). An operation that cannot finish immediately becomes a
 * *call*, and waits
 * - for a word in memory: wait_signal, and signal_alone to a direct rank. These calls are checked
 *   whenever something has changed.
 * - for a message: put and signal until the transport has their data; get, flush (a get of no
 *   bytes) and signal_alone until they are answered. The transport matches the answer with the
 *   call, and ends the call if the other rank is lost.
 * Notes that no caller waits for are calls as well, whose work is done from the start.
 *
 * Files: window.c: operations; window_call.c: start, wait and end of calls; window_messages.c:
 * messages in both directions; window_open.c: opening and closing. */
#ifndef DD_WINDOW_WINDOW_INTERNAL_H
#define DD_WINDOW_WINDOW_INTERNAL_H

#include "core/park.h"
#include "group/extension.h"
#include "window/window.h"
#include "window/window_wire.h"

/* Maximum number of one rank's questions that are being answered; the transport holds more. */
#define WINDOW_ANSWERS_MAX 256u
#define WINDOW_SMALL_NBYTES ((size_t)4096) /* data up to this size in bytes is sent from a copy */
/* Bytes of wanted-back memory that are copied in one step; between steps, the lock is free. */
#define WINDOW_PIECE_NBYTES ((size_t)128 << 10)

/* Control data of a pad, stored after the words in the same shared memory. */
typedef struct window_control {
    _Alignas(128) dd_park_bits sleeper; /* set while the pad's owner sleeps (core/park.h) */
    _Atomic uint32_t is_closed;         /* set once, when the pad's owner closes the window */
} window_control;

/* A rank as seen from this rank. Fields are const after open, or guarded by the engine's lock. */
typedef struct window_member {
    uint8_t *data; /* the rank's memory; NULL if empty or not mapped here */
    size_t nbytes;
    dd_dtype dtype;
    _Atomic uint32_t *words; /* the rank's pad, [channel][source]; NULL if not mapped here */
    window_control *control; /* NULL if the pad is not mapped here */
    bool is_direct;
    bool is_closed;    /* guarded by lock: the rank's notice of closing has arrived */
    uint32_t nputs;    /* guarded by lock: number of puts sent to the rank as commands */
    uint32_t ninplace; /* guarded by lock: number of these puts known to be in place */
} window_member;

typedef enum window_state {
    WINDOW_OPEN,
    WINDOW_CLOSED,
    WINDOW_ENDED, /* the group was closed or has failed */
} window_state;

typedef struct window_hub window_hub;

struct dd_window {
    atomic_uint refs;
    atomic_int state; /* a window_state; written with the engine's lock held */
    dd_group *group;  /* owned reference */
    window_hub *hub;
    uint64_t id;       /* unique number of the window in its group, from 1 */
    dd_region *region; /* the region that contains this rank's memory, or NULL; owned reference */
    dd_region *pad;    /* this rank's pad, owned */
    size_t pad_nbytes; /* bytes of each pad; const after open, like the next two fields */
    int nchannels;
    bool needs_messages; /* some ranks are not direct, and need prompt answers */
    dd_list link;        /* in hub->windows; guarded by the engine's lock */
    window_member members[];
};

/* A kind of operation. Calls of a kind wait either for a word or for a message. */
typedef struct window_op {
    const char *label;
    const char *missing; /* completes the text "rank 2 has not ..." after a timeout */
    enum { WINDOW_NO_WORD, WINDOW_WORD_SIGNAL, WINDOW_WORD_ROOM, WINDOW_WORD_OWN_ROOM } word;
    dd_window_command_type command; /* command to send to a rank that is not direct */
    bool needs_channel;
    bool needs_open; /* fail early if the other rank has closed the window */
} window_op;

typedef struct window_args {
    const window_op *op;
    dd_block block; /* the source of a put, or the target of a get */
    dd_window_target target;
    int channel;
} window_args;

/* An operation that must wait; or a command or answer for which no caller waits: its work is done
 * from the start. The work has the reference count. Guarded by the engine's lock. */
typedef struct window_call {
    dd_work work; /* must be first: a work is cast to its call */
    window_args args;
    window_hub *hub;
    dd_window *window; /* NULL once the call waits for a message, which it may outlive */
    uint64_t window_id;
    dd_list link; /* entry in hub->waiting or hub->moving */
    int64_t deadline_ns;
    dd_timer late; /* runs out at the call's deadline, while the call is in a list */
    bool uses_messages;
    bool is_moving;           /* the call's message is in progress */
    uint32_t id;              /* id of the question that the call sends or grants */
    bool is_wanted;           /* the data must be copied: its owner wants the memory back */
    uint32_t nputs;           /* of a get: number of puts in place once it is answered */
    struct window_call *next; /* next flush of the same caller, or NULL */
    dd_message message;       /* a put, command or answer; for a question, the receive of its answer */
    dd_signature signature;   /* signature of `message` */
    uint8_t refusal;          /* space for a refusal (one byte) of a question for no bytes */
    uint8_t *copy;            /* copy of data whose owner wants the memory back, or NULL */
    size_t ncopied;
    size_t data_nbytes; /* number of bytes in `bytes` */
    uint8_t bytes[];    /* small data to send, stored in the call */
} window_call;

/* Incoming messages from one rank, whose commands are handled one at a time. */
typedef struct window_source {
    window_hub *hub;
    int rank;
    bool is_busy;              /* a command is being handled; the context may hold later ones */
    bool is_full;              /* a question must wait until answers are sent; implies is_busy */
    dd_message message;        /* the receive of the command's data */
    dd_window_command command; /* the command that is being handled, or the last one */
    unsigned nanswers;         /* number of answers to the rank being sent or waiting for a word */
    uint64_t reported_closed;  /* id of the last window reported closed, after a put; or 0 */
} window_source;

/* State of all windows of a group. Guarded by the engine's lock, except constants. */
struct window_hub {
    dd_group_extension extension; /* must be first */
    dd_group *group;              /* const, like the next four fields */
    dd_engine *engine;
    dd_context *context; /* must not be used once is_ended is set */
    int rank;
    int size;
    bool is_ended;        /* set by on_end: nothing is sent or handled any longer */
    uint64_t nwindows;    /* number of window ids that have been allocated */
    uint32_t last_id;     /* id of this rank's latest question */
    size_t moving_nbytes; /* bytes of all calls in `moving`, including copies of data */
    unsigned nwanted;     /* number of calls whose is_wanted is true */
    atomic_int ngrants;   /* number of signal_alone questions that wait here */
    bool has_slept;       /* this rank is marked as asleep in its windows' controls */
    dd_list windows;
    dd_list waiting;         /* window_calls that wait for a word; checked in every round */
    dd_list moving;          /* window_calls whose message is in progress */
    dd_task task;            /* in the engine while callers wait */
    window_source sources[]; /* [size]: the messages of each rank */
};

static inline size_t
window_word(const dd_window *window, int channel, int source)
{
    return (size_t)channel * (size_t)window->hub->size + (size_t)source;
}

/* ---- window_call.c */

/* Report the failure of a call, after sending pending failure notices. If the group has failed, its
 * cause replaces a DD_CLOSED: a rank may have closed the window because of that failure. */
dd_status window_end_failed(window_hub *hub, const char *label, dd_status status,
                            dd_error *err) DD_MUST_CHECK;
/* Check the arguments and, as far as possible without the lock, that both sides have the window
 * open. */
dd_status window_check(const dd_window *window, const window_args *args, dd_error *err) DD_MUST_CHECK;
/* Take or add a signal if the operation's word is mapped and has the required value. True if
 * done. */
bool window_try_word(const dd_window *window, const window_args *args);
void window_wake(dd_window *window, int rank); /* call after a change to a word of the rank */
bool window_progress_locked(window_hub *hub);  /* end all calls that can end; true if one did */
/* End the calls of `window` (NULL: of all windows) that wait for a word of `rank` (or DD_ANY_RANK),
 * except the calls that can succeed now. */
void window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause);
dd_status window_error_closed(const window_hub *hub, int rank, dd_error *err);
dd_task window_make_task(const window_hub *hub);

/* Create a call with one reference and space for data_nbytes bytes. NULL if out of memory. */
window_call *window_make_call(window_hub *hub, int rank, const char *label, int64_t start_ns,
                              size_t data_nbytes);
/* Start a call. After a success, the call is done or in a list of the hub. */
dd_status window_begin(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Wait until the call is done or its deadline has passed. An interrupt abandons the call. */
dd_status window_finish(window_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void window_abandon(window_call *call); /* the call's caller no longer waits */
/* Add the call to its list, and report it to the group. */
void window_add_locked(window_call *call);
/* Complete the call's work, unless it is done. `cause` is NULL for success. */
void window_complete_locked(window_call *call, const dd_error *cause);
/* Complete the call, then remove it from its list. */
void window_end_wait_locked(window_call *call, const dd_error *cause);
/* Remove the call from its list, and release the list's reference. */
void window_remove_locked(window_call *call);

/* ---- window_messages.c */

/* Send the command of a call. The call may be done then; otherwise it ends with its message. */
dd_status window_send_call_locked(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Abandon the message of a call. The call ends now, or once its data has been copied. */
void window_abandon_message_locked(window_call *call, const dd_error *cause);
/* Copy one piece of memory that its owner wants back. Return false if there was nothing to copy. */
bool window_copy_wanted_locked(window_hub *hub);
/* Call after taking a signal from `source`. */
void window_on_signal_taken(dd_window *window, int source);
/* Close the window for messages: answers in progress continue from copies
 * (window_copy_wanted_locked), questions are refused, and the other ranks are notified. */
void window_close_messages_locked(dd_window *window);
/* Find the group's hub, or create it, and allocate the id of a new window. */
dd_status window_find_hub(dd_group *group, window_hub **hub, uint64_t *id, dd_error *err) DD_MUST_CHECK;

#endif
