/* Internals of windows.
 *
 * A rank is *direct* if its memory and its pad are mapped here. Then a put is a copy and a signal
 * an addition. Neither needs the engine's lock or a system call, unless the other rank sleeps
 * (core/park.h): words are changed by sequentially consistent additions and exchanges. Data and
 * signals for other ranks are notes (window_wire.h), so that they stay in order.
 *
 * There are six operations (window_op). One that is not done immediately becomes a *call*, and
 * waits
 * - for a word in memory: wait_signal, and signal_alone to a direct rank. These calls are checked
 *   whenever something has changed.
 * - for a message: put and signal until the transport has their data; get, flush (a get of no
 *   bytes) and signal_alone until they are answered. The transport finds the answer's call, and
 *   ends it if the other side is lost.
 * Notes that no caller waits for are calls as well, done from the start.
 *
 * Files: window.c: operations; window_call.c: start, wait and end of calls; window_messages.c: messages,
 * both ways; window_open.c: opening and closing. */
#ifndef DD_WINDOW_WINDOW_INTERNAL_H
#define DD_WINDOW_WINDOW_INTERNAL_H

#include "core/park.h"
#include "group/extension.h"
#include "window/window.h"
#include "window/window_wire.h"

/* Limit of a rank's questions in progress; the transport holds more until answers are sent. */
#define WINDOW_ANSWERS_MAX 256u
#define WINDOW_SMALL_NBYTES ((size_t)4096) /* data of up to this size are sent from a copy */
/* Memory that its owner wants back is copied in pieces, between which the lock is free. */
#define WINDOW_PIECE_NBYTES ((size_t)128 << 10)

/* Follows the words of a pad, in the memory that the ranks of a host share. */
typedef struct window_control {
    _Alignas(128) dd_park_bits sleeper; /* its owner, when asleep */
    _Atomic uint32_t is_closed;         /* set once */
} window_control;

/* A rank as seen from here. const after open, unless marked as guarded (by the engine's lock). */
typedef struct window_member {
    uint8_t *data; /* NULL if it is not mapped here or empty */
    size_t nbytes;
    _Atomic uint32_t *words; /* [channel][source]; NULL if it is not mapped here */
    window_control *control; /* NULL if it is not mapped here */
    bool is_direct;
    bool is_closed;    /* guarded: its notice has arrived */
    uint32_t nputs;    /* guarded: number of puts sent by notes */
    uint32_t ninplace; /* guarded: number of those known to be in place */
} window_member;

typedef enum window_state {
    WINDOW_OPEN,
    WINDOW_CLOSED,
    WINDOW_ENDED, /* the group has failed or was closed */
} window_state;

typedef struct window_hub window_hub;

struct dd_window {
    atomic_uint refs;
    atomic_int state; /* window_state; written with the engine's lock */
    dd_group *group;  /* counted */
    window_hub *hub;
    uint64_t id;       /* unique in the group, from 1 */
    dd_region *region; /* contains this rank's memory; counted, NULL if there is none */
    dd_region *pad;    /* this rank's, owned */
    size_t pad_nbytes; /* const after open, like the next two */
    int nchannels;
    bool has_far_members; /* some are not direct: answered soon, even if no caller waits here */
    dd_list link;         /* in the hub's windows; guarded by the engine's lock */
    window_member members[];
};

/* A kind of operation. It waits for a word or for a message. */
typedef struct window_op {
    const char *what;
    const char *lack; /* completes "rank 2 has not ..." after a timeout */
    enum { WINDOW_NO_WORD, WINDOW_WORD_SIGNAL, WINDOW_WORD_ROOM, WINDOW_WORD_OWN_ROOM } word;
    dd_window_note_type note; /* for a rank that is not direct */
    bool needs_channel;
    bool needs_open; /* fails early if the rank has closed the window */
} window_op;

typedef struct window_args {
    const window_op *op;
    dd_block block; /* source or target */
    dd_window_target target;
    int channel;
} window_args;

/* An operation that must wait, or a note or an answer of this rank. Counted by its work, which is
 * done when no caller needs to wait. Guarded by the engine's lock. */
typedef struct window_call {
    dd_work work; /* must be first */
    window_args args;
    window_hub *hub;
    dd_window *window; /* NULL once it waits for a message: it may then outlive the window */
    uint64_t window_id;
    dd_list link; /* in hub->waiting or hub->moving */
    int64_t deadline_ns;
    dd_timer late; /* set while it is in one of those lists */
    bool is_far;
    bool is_moving;           /* its message is under way */
    uint32_t id;              /* of its question, or of the question that it grants */
    bool is_wanted;           /* its data are being copied: their owner wants the memory back */
    uint32_t nputs;           /* for a get: number of puts in place once it is answered */
    struct window_call *next; /* for the flushes of one caller */
    dd_message message;       /* a put, note or answer; for a question, the receive of its answer */
    dd_signature signature;   /* the message's */
    uint8_t refusal;          /* receives the answer to a question for no bytes */
    uint8_t *copy;            /* of data wanted back */
    size_t ncopied;
    size_t kept_nbytes; /* size of `bytes` */
    uint8_t bytes[];    /* small data to send */
} window_call;

/* Incoming messages of one rank. Its notes are taken one at a time. */
typedef struct window_source {
    window_hub *hub;
    int rank;
    bool is_busy; /* a note is being taken; the context may hold more */
    /* The note is a question, held until fewer answers are pending; is_busy is then set. */
    bool is_full;
    dd_message message;       /* of that note */
    dd_window_note note;      /* that note */
    unsigned nanswers;        /* answers to it that are being sent, or wait for a word */
    uint64_t reported_closed; /* last window reported to it as closed after a put; 0 if none */
} window_source;

/* State of a group's windows. Guarded by the engine's lock, except for constants. */
struct window_hub {
    dd_group_extension extension; /* must be first */
    dd_group *group;              /* const, like the next four */
    dd_engine *engine;
    dd_context *context; /* not used once is_ended is set */
    int rank;
    int size;
    bool is_ended;      /* after on_end: nothing is sent or taken */
    uint64_t nwindows;  /* number of ids allocated */
    uint32_t last_id;   /* id of the last question */
    size_t kept_nbytes; /* size of all calls in `moving`, with their copies of data */
    unsigned nwanted;   /* calls whose data are being copied */
    atomic_int ngrants; /* other ranks' signals that wait for a word; written with the lock */
    bool has_slept;     /* the windows' controls mark this rank as asleep */
    dd_list windows;
    dd_list waiting;         /* window_call: wait for a word, checked in every round */
    dd_list moving;          /* window_call: messages under way */
    dd_task task;            /* in the engine while callers wait */
    window_source sources[]; /* [size] */
};

static inline size_t
window_word(const dd_window *window, int channel, int source)
{
    return (size_t)channel * (size_t)window->hub->size + (size_t)source;
}

/* ---- window_call.c */

/* Finish a failed call: send pending failure notices first. A rank may have closed a window because
 * the group has failed, perhaps unnoticed here: the group's cause then replaces DD_CLOSED. */
dd_status window_end_failed(window_hub *hub, const char *what, dd_status status, dd_error *err) DD_MUST_CHECK;
/* Check arguments, and that the window is open on both sides, as far as known without the lock. */
dd_status window_check(const dd_window *window, const window_args *args, dd_error *err) DD_MUST_CHECK;
/* Take or add a signal if the operation waits for a word in memory that has the right value. */
bool window_try_word(const dd_window *window, const window_args *args);
void window_wake(dd_window *window, int rank); /* call after changing a word of the rank */
bool window_progress_locked(window_hub *hub);  /* end calls that can end; true if any */
/* End the calls that wait for a word of `rank` (or DD_ANY_RANK) in `window` (NULL for any), unless
 * they can succeed now. */
void window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause);
dd_status window_error_closed(const window_hub *hub, int rank, dd_error *err);
dd_task window_make_task(const window_hub *hub);

/* Make a call with one reference, and room for kept_nbytes. NULL if there is no memory. */
window_call *window_make_call(window_hub *hub, int rank, const char *what, int64_t start_ns,
                              size_t kept_nbytes);
/* Start a call: on success it waits, or is done. */
dd_status window_begin(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Wait until the call is done, at its deadline at the latest. An interrupt abandons it. */
dd_status window_finish(window_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void window_cancel(window_call *call);     /* its caller waits no longer */
void window_add_locked(window_call *call); /* add to its list, and report it to the group */
/* Complete the call's work, unless it is done already. `cause` NULL for success. */
void window_complete_locked(window_call *call, const dd_error *cause);
void window_end_wait_locked(window_call *call, const dd_error *cause); /* complete, then leave */
void window_remove_locked(window_call *call); /* remove from its list, dropping that reference */

/* ---- window_messages.c */

/* Send the call's note. The call may then be done, or ends with its message. */
dd_status window_send_call_locked(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Abandon the message of a call. It ends now, or once its data have been copied. */
void window_cancel_message_locked(window_call *call, const dd_error *cause);
/* Copy one piece of memory that its owner wants back. False if nothing was left. */
bool window_copy_wanted_locked(window_hub *hub);
void window_note_taken(dd_window *window, int source); /* call after taking a signal of `source` */
/* Close the window for messages: answers continue from copies (window_copy_wanted_locked), questions are
 * refused, other ranks are notified. */
void window_close_far_locked(dd_window *window);
/* Find the group's hub, or create it, and allocate the id of a new window. */
dd_status window_find_hub(dd_group *group, window_hub **hub, uint64_t *id, dd_error *err) DD_MUST_CHECK;

#endif
