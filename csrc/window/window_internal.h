/* The inside of windows.
 *
 * A rank is *direct* when its memory and its pad are mapped here. Then a put is a copy and a signal an addition, and neither needs the
 * engine's lock or a system call, unless somebody sleeps: whoever changes a word looks whether the other side sleeps, and whoever falls
 * asleep says so first and then looks at the words once more. Both are sequentially consistent, so one of them sees the other.
 * Everything for other ranks goes by notes (window_wire.h), data and signals alike, so that they stay in order.
 *
 * Whatever is asked of a window is one of six operations (window_op). Two kinds of them wait:
 * - for a word in memory: wait_signal, and signal_alone. They are looked at whenever something has changed.
 * - for a note: put and signal until the transport has theirs, get and flush (a get of nothing) until they are answered.
 * One that has to wait becomes a *call*. Every call begins, waits and ends in window_call.c, whatever ends it: success, its deadline,
 * an interrupt, closing, a rank that leaves, the group's failure.
 *
 * Files: window.c has the operations, window_call.c the calls, window_send.c what this rank asks of others by notes, window_serve.c what
 * others ask of it, window_open.c how a window comes and goes. Below window.c, only window_call.c and window_send.c know each other. */
#ifndef DD_WINDOW_WINDOW_INTERNAL_H
#define DD_WINDOW_WINDOW_INTERNAL_H

#include "group/group_guest.h"
#include "window/window.h"
#include "window/window_wire.h"

/* So many gets may be unanswered by a rank; further ones wait here until it is their turn. A rank that leaves more answers than that
 * unread is not running this code. */
#define WINDOW_GETS_MAX 256u
#define WINDOW_ANSWERS_MAX (4 * WINDOW_GETS_MAX)
/* Memory that is wanted back is copied in pieces, between which the lock is free. */
#define WINDOW_PIECE_NBYTES ((size_t)128 << 10)

/* Behind the words of a pad, in the memory that the ranks of a host share. */
typedef struct window_control {
    _Alignas(128) _Atomic uint32_t is_asleep; /* set by its rank; cleared by whoever rings */
    _Atomic uint32_t is_closed;               /* set once */
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
    uint32_t ninplace; /* guarded: of them, as far as a flush has found out */
} window_member;

/* What is known of the signals of one channel between this rank and another, where they go by notes. Guarded by the engine's lock. */
enum {
    WINDOW_SENT = 1,  /* some went there since it was last asked whether all are taken */
    WINDOW_ASKED = 2, /* it was asked, and has not answered */
    WINDOW_OWED = 4,  /* the other way round: it has asked, and not all of its signals are taken */
};

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
    uint8_t *signals;     /* [channel][rank]: WINDOW_SENT and so on */
    atomic_int nowed;     /* of them, those with WINDOW_OWED */
    dd_list link;         /* in the hub's windows; guarded by the engine's lock */
    window_member members[];
};

/* An operation. What it waits for is a word or a note. */
typedef struct window_op {
    const char *what;
    const char *lack; /* completes "rank 2 has not ..." when the time is over */
    enum { WINDOW_NO_WORD, WINDOW_WORD_SIGNAL, WINDOW_WORD_ROOM } word;
    dd_window_note_type note; /* with WINDOW_NO_WORD: DD_WINDOW_PUT, DD_WINDOW_GET */
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

typedef struct window_letter window_letter;

/* An operation that has to wait. Counted by its work. Guarded by the engine's lock. */
typedef struct window_call {
    dd_work work; /* first */
    window_args args;
    window_hub *hub;
    dd_window *window; /* NULL once it waits for a note, and may outlive the window */
    uint64_t window_id;
    dd_list link;   /* in one of the hub's lists until it is done */
    dd_list asking; /* of a get: in one of its source's lists until it is answered; else in none */
    int64_t deadline_ns;
    bool is_far;
    bool is_held;             /* of a get: it is still to be asked */
    bool is_given_up;         /* of a get: its target is no longer to be written to */
    window_letter *letter;    /* of a put: with what is under way of its data */
    uint32_t nputs;           /* of a flush: so many are in place when it is answered */
    struct window_call *next; /* the same: of the flushes of one caller */
} window_call;

/* A note on its way out, with its data. */
struct window_letter {
    dd_list link; /* in the hub's letters */
    window_hub *hub;
    dd_message message;
    dd_signature signature; /* of the message: its numbers */
    window_call *put;       /* whose data these are; NULL: nobody waits for them */
    bool is_answer;
    bool is_leaving; /* its put has been given up: the data are being copied */
    uint64_t lender; /* the window whose memory the data are in; 0: none */
    uint8_t *copy;   /* of the data, since their owner wants them back */
    size_t ncopied;
    size_t kept_nbytes; /* of all this */
    uint8_t bytes[];    /* data, if they are few */
};

/* What is under way with one rank. Its notes are taken one at a time. */
typedef struct window_source {
    window_hub *hub;
    int rank;
    bool is_busy;        /* a note is being taken; others may have come and be held */
    dd_message message;  /* that note's */
    dd_window_note note; /* the same */
    dd_list asked;       /* window_call: gets that it has not answered */
    dd_list held;        /* gets that are still to be asked */
    unsigned nasked;
    unsigned nanswers;    /* ours to it, on their way */
    uint64_t told_closed; /* the last window of which it has been told; 0: none */
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
    size_t kept_nbytes; /* in letters */
    unsigned nleaving;  /* of the letters */
    bool has_slept;     /* the windows' controls say that this rank is asleep */
    dd_list windows;
    dd_list letters;
    dd_list waiting;         /* window_call: for words that change; looked at in every round */
    dd_list moving;          /* window_call: for notes */
    dd_task task;            /* in the engine while there are calls */
    window_source sources[]; /* [size] */
};

static inline size_t
window_word(const dd_window *window, int channel, int source)
{
    return (size_t)channel * (size_t)window->hub->size + (size_t)source;
}

/* ---- window_call.c */

/* The end of a failure of a call, before its caller hears of it. A rank may have closed a window because the group has failed, of which
 * this rank has not heard yet: then that is what the call says. */
dd_status window_conclude(window_hub *hub, const char *what, dd_status status, dd_error *err) DD_MUST_CHECK;
dd_status window_error_closed(const window_hub *hub, int rank, dd_error *err);
bool window_has_closed_locked(const dd_window *window, int rank);
/* Checks arguments, and that the window is open on both sides as far as can be seen without the lock. */
dd_status window_check(const dd_window *window, const window_args *args, dd_error *err) DD_MUST_CHECK;

/* Takes what the operation waits for, if that is a word in memory and as it should be. */
bool window_try_word(const dd_window *window, const window_args *args);
void window_wake(dd_window *window, int rank); /* after changing a word that the rank may be waiting for */

/* With one reference. */
dd_status window_make_call(dd_window *window, const window_args *args, int64_t start_ns, int64_t deadline_ns,
                           window_call **call, dd_error *err) DD_MUST_CHECK;
/* It waits from now on, or is done. */
dd_status window_begin(window_call *call, dd_error *err) DD_MUST_CHECK;
/* Waits until it is done, at its deadline at the latest. An interrupt gives it up. */
dd_status window_finish(window_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Its caller does not wait any longer; it may be done. */
void window_give_up(window_call *call, const dd_error *cause);
/* `cause` NULL for success. The call is not done yet. */
void window_end_call_locked(window_call *call, const dd_error *cause);
bool window_progress_locked(window_hub *hub); /* ends calls whose words are there; true when there was one */
/* Ends the calls that wait for a word of a rank (or DD_ANY_RANK) in a window (NULL: in any), after a last look whether they can succeed. */
void window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause);
dd_task window_make_task(const window_hub *hub);

/* ---- window_send.c */

dd_status window_send_locked(window_hub *hub, int rank, const dd_window_note *note, const void *data,
                             window_call *put, dd_error *err) DD_MUST_CHECK;
/* The same for a note that the other side waits for: if there is no memory for it, the group fails. */
void window_send_or_fail_locked(window_hub *hub, int rank, const dd_window_note *note, const void *data);
/* Asks for what the call wants by a note, now or when it is its turn. *is_done: nothing is left to wait for. */
dd_status window_send_call_locked(window_call *call, bool *is_done, dd_error *err) DD_MUST_CHECK;
/* Of a signal_alone to a rank that is not direct. True: it has ended; the error says so if it failed. */
bool window_try_alone_locked(window_call *call, dd_error *error);
/* The first get that was asked has been answered. */
void window_end_get_locked(window_source *source, const dd_error *cause);
void window_end_gets_locked(window_source *source, const dd_error *cause);
/* After a get has ended by itself. */
void window_abandon_get_locked(window_call *get);
/* The data of the note at hand are not written any more; what is still to come of them is thrown away. */
void window_forget_data_locked(window_source *source);
/* The memory of a window, or of puts that were given up (lender 0), is wanted back: copies one piece of what is still to be sent from
 * it. False: nothing was left. `put`: one that goes on from its copy from now on, or NULL. */
bool window_rescue_locked(window_hub *hub, uint64_t lender, window_call **put);
void window_end_letters_locked(window_hub *hub, const dd_error *cause);

/* ---- window_serve.c */

/* The group's, made where there is none yet; and a number for a window of it. */
dd_status window_find_hub(dd_group *group, window_hub **hub, uint64_t *id, dd_error *err) DD_MUST_CHECK;
/* After a signal of the rank has been taken, which may be waiting for that. */
void window_note_taken(dd_window *window, int source, int channel);

#endif
