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

/* Limit of unanswered questions of one rank; the transport holds more until answers are sent. */
#define WINDOW_ANSWERS_MAX 256u
#define WINDOW_SMALL_NBYTES ((size_t)4096) /* limit in bytes of data that is sent from a copy */
/* Step in bytes of copying memory that its owner wants back; between steps, the lock is free. */
#define WINDOW_PIECE_NBYTES ((size_t)128 << 10)

/* Control data of a pad, which follows the words in the same shared memory. */
typedef struct window_control {
    _Alignas(128) dd_park_bits sleeper; /* set while the pad's owner sleeps (core/park.h) */
    _Atomic uint32_t is_closed;         /* set once, by the owner */
} window_control;

/* A rank as seen from this rank. Fields are const after open, or guarded by the engine's lock. */
typedef struct window_member {
    uint8_t *data; /* NULL if it is empty or not mapped here */
    size_t nbytes;
    _Atomic uint32_t *words; /* the rank's pad, [channel][source]; NULL if it is not mapped here */
    window_control *control; /* NULL if the pad is not mapped here */
    bool is_direct;
    bool is_closed;    /* guarded: true once the rank's notice of closing has arrived */
    uint32_t nputs;    /* guarded: number of puts sent to the rank by commands */
    uint32_t ninplace; /* guarded: how many of the nputs puts are known to be in place */
} window_member;

typedef enum window_state {
    WINDOW_OPEN,
    WINDOW_CLOSED,
    WINDOW_ENDED, /* the group was closed or has failed */
} window_state;

typedef struct window_hub window_hub;

struct dd_window {
    atomic_uint refs;
    atomic_int state; /* a window_state; written with the engine's lock */
    dd_group *group;  /* owned reference */
    window_hub *hub;
    uint64_t id;       /* unique in the group; starts at 1 */
    dd_region *region; /* region that contains this rank's memory, or NULL; owned reference */
    dd_region *pad;    /* this rank's pad, owned */
    size_t pad_nbytes; /* const after open, like the next two fields */
    int nchannels;
    bool needs_messages; /* some ranks are not direct: they need prompt answers */
    dd_list link;        /* in hub->windows; guarded by the engine's lock */
    window_member members[];
};

/* A kind of operation. A call of this kind waits for a word or for a message. */
typedef struct window_op {
    const char *label;
    const char *missing; /* after a timeout, completes the error text "rank 2 has not ..." */
    enum { WINDOW_NO_WORD, WINDOW_WORD_SIGNAL, WINDOW_WORD_ROOM, WINDOW_WORD_OWN_ROOM } word;
    dd_window_command_type command; /* command to send to a rank that is not direct */
    bool needs_channel;
    bool needs_open; /* fail early if the other rank has closed the window */
} window_op;

typedef struct window_args {
    const window_op *op;
    dd_block block; /* source of a put or target of a get */
    dd_window_target target;
    int channel;
} window_args;

/* An operation that must wait; or a command or answer of this rank, which no caller waits for: its
 * work is done from the start. The work has the reference count. Guarded by the engine's lock. */
typedef struct window_call {
    dd_work work; /* must be first */
    window_args args;
    window_hub *hub;
    dd_window *window; /* NULL once the call waits for a message, since it may outlive the window */
    uint64_t window_id;
    dd_list link; /* in hub->waiting or hub->moving */
    int64_t deadline_ns;
    dd_timer late; /* runs at the deadline, while the call is in a list */
    bool uses_messages;
    bool is_moving;           /* true while its message is in progress */
    uint32_t id;              /* id of the question that it sends or grants */
    bool is_wanted;           /* true if its data must be copied: the owner wants the memory back */
    uint32_t nputs;           /* of a get: number of puts in place once it is answered */
    struct window_call *next; /* next flush of the same caller */
    dd_message message;       /* a put, command or answer; for a question, the receive of its answer */
    dd_signature signature;   /* signature of `message` */
    uint8_t refusal;          /* room for the one-byte refusal of a question for no bytes */
    uint8_t *copy;            /* copy of data whose memory is wanted back, or NULL */
    size_t ncopied;
    size_t data_nbytes; /* size of `bytes` */
    uint8_t bytes[];    /* small data to send */
} window_call;

/* Incoming messages of one rank. Its commands are handled one at a time. */
typedef struct window_source {
    window_hub *hub;
    int rank;
    bool is_busy;              /* a command is being handled; the context may hold more */
    bool is_full;              /* true if a question waits for answers to be sent; implies is_busy */
    dd_message message;        /* receive of the command's data */
    dd_window_command command; /* the command being handled, or the last one */
    unsigned nanswers;         /* answers to the rank that are being sent, or wait for a word */
    uint64_t reported_closed;  /* last window reported to the rank as closed, after a put; or 0 */
} window_source;

/* State of all windows of a group. Guarded by the engine's lock, except constants. */
struct window_hub {
    dd_group_extension extension; /* must be first */
    dd_group *group;              /* const, like the next four fields */
    dd_engine *engine;
    dd_context *context; /* not used once is_ended is set */
    int rank;
    int size;
    bool is_ended;        /* set by on_end: from then on nothing is sent or handled */
    uint64_t nwindows;    /* number of window ids allocated */
    uint32_t last_id;     /* id of this rank's last question */
    size_t moving_nbytes; /* bytes of all calls in `moving`, copies of data included */
    unsigned nwanted;     /* number of calls whose is_wanted is true */
    atomic_int ngrants;   /* number of signal_alone questions that wait here; written with the lock */
    bool has_slept;       /* true if the windows' controls mark this rank as asleep */
    dd_list windows;
    dd_list waiting;         /* window_call entries that wait for a word, checked in every round */
    dd_list moving;          /* window_call entries whose messages are in progress */
    dd_task task;            /* in the engine while callers wait */
    window_source sources[]; /* one for each rank */
};

static inline size_t
window_word(const dd_window *window, int channel, int source)
{
    return (size_t)channel * (size_t)window->hub->size + (size_t)source;
}

/* ---- window_call.c */

/* Report the failure of a call, after sending pending failure notices. A rank may have closed the
 * window because the group has failed, perhaps unnoticed here: the group's cause then replaces
 * DD_CLOSED. */
dd_status window_end_failed(window_hub *hub, const char *label, dd_status status,
                            dd_error *err) DD_MUST_CHECK;
/* Check the arguments, and, as far as known without the lock, that both sides have the window
 * open. */
dd_status window_check(const dd_window *window, const window_args *args, dd_error *err) DD_MUST_CHECK;
/* Take or add a signal if the operation waits for a mapped word that has the required value. */
bool window_try_word(const dd_window *window, const window_args *args);
void window_wake(dd_window *window, int rank); /* call after changing a word of the rank */
bool window_progress_locked(window_hub *hub);  /* end all calls that can end; returns true if any */
/* End the calls in `window` (NULL for all windows) that wait for a word of `rank` (or DD_ANY_RANK),
 * except calls that can succeed now. */
void window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause);
dd_status window_error_closed(const window_hub *hub, int rank, dd_error *err);
dd_task window_make_task(const window_hub *hub);

/* Create a call with one reference and data_nbytes bytes of data. NULL if there is no memory. */
window_call *window_make_call(window_hub *hub, int rank, const char *label, int64_t start_ns,
                              size_t data_nbytes);
/* Start a call. On success, it is done or in a list of the hub. */
dd_status window_begin(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Wait until the call is done, at the latest at its deadline. An interrupt abandons the call. */
dd_status window_finish(window_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void window_abandon(window_call *call); /* abandon a call: its caller no longer waits */
/* Add the call to its list, and report it to the group. */
void window_add_locked(window_call *call);
/* Complete the call's work if it is not done. `cause` is NULL for success. */
void window_complete_locked(window_call *call, const dd_error *cause);
/* Complete the call, then remove it from its list. */
void window_end_wait_locked(window_call *call, const dd_error *cause);
/* Remove the call from its list, and release the list's reference. */
void window_remove_locked(window_call *call);

/* ---- window_messages.c */

/* Send the command of a call. The call may then be done; otherwise it ends with its message. */
dd_status window_send_call_locked(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Abandon the message of a call. The call ends now, or after its data has been copied. */
void window_abandon_message_locked(window_call *call, const dd_error *cause);
/* Copy one piece of memory that its owner wants back. Returns false if nothing was left. */
bool window_copy_wanted_locked(window_hub *hub);
void window_on_signal_taken(dd_window *window, int source); /* call after taking a signal of `source` */
/* Close the window for messages. Answers in progress continue from copies
 * (window_copy_wanted_locked), questions are refused, and other ranks are notified. */
void window_close_messages_locked(dd_window *window);
/* Find the group's hub, creating it if necessary, and allocate the id of a new window. */
dd_status window_find_hub(dd_group *group, window_hub **hub, uint64_t *id, dd_error *err) DD_MUST_CHECK;

#endif
