/* The inside of windows.
 *
 * A rank is *direct* when its memory and its pad are mapped here. Then a put is a copy and a signal an addition, and neither needs the
 * engine's lock or a system call, unless the other rank sleeps (core/park.h): words are changed by sequentially consistent additions and exchanges.
 * Everything for other ranks goes by notes (window_wire.h), data and signals alike, so that they stay in order.
 *
 * Whatever is asked of a window is one of six operations (window_op). One that is not done at once becomes a *call*, and waits
 * - for a word in memory: wait_signal, and signal_alone to a direct rank. They are looked at whenever something has changed.
 * - for a message: put and signal until the transport has theirs; get, flush (a get of nothing) and signal_alone until they are
 *   answered. The transport finds the answer's call, and ends it when the other side is gone.
 * Notes that nobody waits for are calls, too, which are done from the start.
 *
 * Files: window.c has the operations; window_call.c how calls begin, wait and end; window_far.c what goes by messages, both ways;
 * window_open.c how a window comes and goes. */
#ifndef DD_WINDOW_WINDOW_INTERNAL_H
#define DD_WINDOW_WINDOW_INTERNAL_H

#include "core/park.h"
#include "group/guest.h"
#include "window/window.h"
#include "window/window_wire.h"

/* How many questions of a rank are answered at a time; the transport holds further ones until it has taken some of the answers. */
#define WINDOW_ANSWERS_MAX 256u
/* Up to this size, data are sent from a copy. */
#define WINDOW_SMALL_NBYTES ((size_t)4096)
/* Memory that is wanted back is copied in pieces, between which the lock is free. */
#define WINDOW_PIECE_NBYTES ((size_t)128 << 10)

/* Behind the words of a pad, in the memory that the ranks of a host share. */
typedef struct window_control {
    _Alignas(128) dd_park_bits sleeper; /* its rank */
    _Atomic uint32_t is_closed;         /* set once */
} window_control;

/* A rank, as seen from here. const after open, but for what is said to be guarded by the engine's lock. */
typedef struct window_member {
    uint8_t *data; /* NULL: not mapped here, or nothing */
    size_t nbytes;
    _Atomic uint32_t *words; /* [channel][source]; NULL: not mapped here */
    window_control *control; /* the same */
    bool is_direct;
    bool is_closed;    /* guarded: it has said so in a note */
    uint32_t nputs;    /* guarded: sent by notes */
    uint32_t ninplace; /* guarded: of them, as far as an answer has told */
} window_member;

typedef enum window_state {
    WINDOW_OPEN,
    WINDOW_CLOSED,
    WINDOW_OVER, /* the group has failed or was closed */
} window_state;

typedef struct window_hub window_hub;

struct dd_window {
    atomic_uint refs;
    atomic_int state; /* window_state; written with the engine's lock */
    dd_group *group;  /* counted */
    window_hub *hub;
    uint64_t id;       /* of the group's windows, from 1 */
    dd_region *region; /* of our memory; counted, NULL: none */
    dd_region *pad;    /* ours, owned */
    size_t pad_nbytes; /* const after open, as are these */
    int nchannels;
    bool has_far_members; /* some are not direct: they are answered soon, also when nobody here waits */
    dd_list link;         /* in the hub's windows; guarded by the engine's lock */
    window_member members[];
};

/* An operation. What it waits for is a word or a message. */
typedef struct window_op {
    const char *what;
    const char *lack; /* completes "rank 2 has not ..." when the time is over */
    enum { WINDOW_NO_WORD, WINDOW_WORD_SIGNAL, WINDOW_WORD_ROOM, WINDOW_WORD_OWN_ROOM } word;
    dd_window_note_type note; /* for a rank that is not direct */
    bool needs_channel;
    bool needs_open; /* fails at once when the rank has closed the window */
} window_op;

/* What is asked of a window. */
typedef struct window_args {
    const window_op *op;
    dd_block block; /* source or target */
    dd_window_place place;
    int channel;
} window_args;

/* An operation that has to wait, or a note or an answer of ours. Counted by its work, which is done when its caller need not wait any more. Guarded
 * by the engine's lock. */
typedef struct window_call {
    dd_work work; /* first */
    window_args args;
    window_hub *hub;
    dd_window *window; /* NULL once it waits for a message, and may outlive the window */
    uint64_t window_id;
    dd_list link; /* in hub->waiting or hub->moving */
    int64_t deadline_ns;
    dd_timer late; /* set while it is in one of those lists */
    bool is_far;
    bool is_moving;           /* its message is under way */
    uint32_t id;              /* of a question, or of the one that is to be granted */
    bool is_wanted;           /* its data are being copied, since their owner wants the memory back */
    uint32_t nputs;           /* of a get: so many are in place when it is answered */
    struct window_call *next; /* of the flushes of one caller */
    dd_message message;       /* a put, a note or an answer; of a question, the receive of its answer */
    dd_signature signature;   /* the message's */
    uint8_t refusal;          /* where the answer to a question that wants no bytes goes */
    uint8_t *copy;            /* of the data that are wanted back */
    size_t ncopied;
    size_t kept_nbytes; /* of `bytes` */
    uint8_t bytes[];    /* data to send, if they are few */
} window_call;

/* What comes from one rank. Its notes are taken one at a time. */
typedef struct window_source {
    window_hub *hub;
    int rank;
    bool is_busy; /* a note is being taken; others may have come and be held */
    bool
        is_full; /* the note is a question that is held itself, until there are fewer answers; then it is busy, too */
    dd_message message;   /* that note's */
    dd_window_note note;  /* the same */
    unsigned nanswers;    /* ours to it: on their way, or waiting for a word */
    uint64_t told_closed; /* the last window of which it has been told after a put; 0: none */
} window_source;

/* What a group has for its windows. Guarded by the engine's lock, but for what is const. */
struct window_hub {
    dd_group_guest guest; /* first */
    dd_group *group;      /* const, as are these */
    dd_engine *engine;
    dd_context *context; /* not to be used when is_over */
    int rank;
    int size;
    bool is_over;       /* nothing is sent or taken any more */
    uint64_t nwindows;  /* ids given out */
    uint32_t last_id;   /* of questions */
    size_t kept_nbytes; /* of all that is moving, with what keeps it */
    unsigned nwanted;   /* calls that are being copied */
    atomic_int ngrants; /* signals of others that wait for room; written with the lock */
    bool has_slept;     /* the windows' controls say that this rank is asleep */
    dd_list windows;
    dd_list waiting;         /* window_call: for words that change; looked at in every round */
    dd_list moving;          /* window_call: whose messages are under way */
    dd_task task;            /* in the engine while callers wait */
    window_source sources[]; /* [size] */
};

static inline size_t
window_word(const dd_window *window, int channel, int source)
{
    return (size_t)channel * (size_t)window->hub->size + (size_t)source;
}

/* ---- window_call.c */

/* The end of a failure, before the caller hears of it. A rank may have closed a window because the group has failed, of which this
 * rank has not heard yet: then that is what the call says. */
dd_status window_conclude(window_hub *hub, const char *what, dd_status status, dd_error *err) DD_MUST_CHECK;
/* Checks arguments, and that the window is open on both sides as far as can be seen without the lock. */
dd_status window_check(const dd_window *window, const window_args *args, dd_error *err) DD_MUST_CHECK;
/* Takes what the operation waits for, if that is a word in memory and as it should be. */
bool window_try_word(const dd_window *window, const window_args *args);
void window_wake(dd_window *window, int rank); /* after changing a word that the rank may be waiting for */
bool window_progress_locked(window_hub *hub);  /* ends calls whose words are there; true when there was one */
/* Ends the calls that wait for a word of a rank (or DD_ANY_RANK) in a window (NULL: in any), after a last look whether they can succeed. */
void window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause);
dd_status window_error_closed(const window_hub *hub, int rank, dd_error *err);
dd_task window_make_task(const window_hub *hub);

/* With one reference, and room for so many bytes. NULL: there is no memory. */
window_call *window_make_call(window_hub *hub, int rank, const char *what, int64_t start_ns,
                              size_t kept_nbytes);
/* It waits from now on, or is done. */
dd_status window_begin(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Waits until it is done, at its deadline at the latest. An interrupt gives it up. */
dd_status window_finish(window_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void window_abandon(window_call *call); /* its caller waits no longer */
/* Puts it into its list, and tells the group that somebody waits for it. */
void window_enter_locked(window_call *call);
/* Tells its caller how it has ended, unless that is known. `cause` NULL for success. */
void window_complete_locked(window_call *call, const dd_error *cause);
void window_end_wait_locked(window_call *call,
                            const dd_error *cause); /* both, for one that waits for a word */
void window_leave_locked(window_call *call);        /* the list, and with it its reference */

/* ---- window_far.c */

/* Sends what the call wants by a note. It may be done then, or ends with its message. */
dd_status window_send_call_locked(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Its caller does not wait any longer. Its message ends now, or when its data have been copied. */
void window_give_up_message_locked(window_call *call, const dd_error *cause);
/* Copies one piece of what is wanted back. False: nothing was left. */
bool window_rescue_locked(window_hub *hub);
/* After a signal of the rank has been taken, which may be waiting for that. */
void window_note_taken(dd_window *window, int source);
/* The far side of closing: answers go on from copies (window_rescue_locked), questions are refused, and the others are told. */
void window_close_far_locked(dd_window *window);
/* The group's, made where there is none yet; and a number for a window of it. */
dd_status window_find_hub(dd_group *group, window_hub **hub, uint64_t *id, dd_error *err) DD_MUST_CHECK;

#endif
