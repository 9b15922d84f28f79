/* The inside of windows.
 *
 * A rank is *direct* when its memory and its pad are mapped here. Then a put is a copy and a signal an addition, and neither needs the
 * engine's lock or a system call, unless somebody sleeps: whoever changes a word looks whether the other side sleeps, and whoever falls
 * asleep says so first and then looks at the words once more. Both are sequentially consistent, so one of them sees the other.
 * Everything for other ranks goes by notes (window_wire.h), data and signals alike, so that they stay in order.
 *
 * Everything that waits is a *call* of one operation (window_op). It is in one of two lists of the hub and ends in one way,
 * window_end_call_locked, whatever ends it: success, its deadline, an interrupt, closing, a rank that leaves, the group's failure.
 *
 * Files: window.c has the hub, closing, questions and words; window_open.c opens; window_call.c has calls, window_signal.c and window_move.c
 * the operations, window_send.c the notes of this rank and window_serve.c those of others. */
#ifndef DD_WINDOW_WINDOW_INTERNAL_H
#define DD_WINDOW_WINDOW_INTERNAL_H

#include "group/group_guest.h"
#include "window/window.h"
#include "window/window_wire.h"

/* So many gets may be unanswered by a rank; further ones wait here until it is their turn. A rank that lets more answers than that pile
 * up, unread, is not running this code. */
#define WINDOW_GETS_MAX 256u
#define WINDOW_ANSWERS_MAX (4 * WINDOW_GETS_MAX)
/* Up to this size, data are sent from a copy. */
#define WINDOW_SMALL_NBYTES ((size_t)4096)
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
    bool is_closed; /* guarded: it has said so in a note */
} window_member;

/* What is known of the signals of one channel between this rank and another, where they go by notes; and of the puts, where "taken" is
 * "in place". Guarded by the engine's lock. */
typedef struct window_tally {
    uint32_t nsent;
    uint32_t ntaken;    /* of them, as far as is known */
    uint32_t nasked;    /* nsent when it was asked */
    bool is_asking;     /* DONE is on its way */
    bool is_to_be_told; /* the other way round: its signals here; DONE is owed */
} window_tally;

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
    bool has_far_members;   /* some are not direct: they are answered soon, also when nobody here waits */
    window_tally *tallies;  /* [channel][rank]; the last row is that of the puts */
    atomic_int nto_be_told; /* of the tallies */
    dd_list link;           /* in the hub's windows; guarded by the engine's lock */
    bool has_slept;         /* the same: its control says that it is asleep */
    window_member members[];
};

typedef struct window_op window_op;
typedef struct window_letter window_letter;

/* A call that waits. Guarded by the engine's lock. */
typedef struct window_call {
    dd_work work; /* first */
    const window_op *op;
    dd_list link;   /* in the hub's waiting or moving until it is done */
    dd_list asking; /* of a get: in one of its source's lists until it is answered; else in none */
    window_hub *hub;
    dd_window *window; /* of what waits for words; NULL of puts and gets, which may outlive it */
    uint64_t window_id;
    int rank;
    int channel;
    int64_t deadline_ns;
    uint32_t goal;         /* of a flush: so many puts in place */
    window_letter *letter; /* of a put: with what is under way of its data */
    bool is_held;          /* of a get: it is still to be asked */
    dd_window_note note;   /* of a get */
    void *target;          /* of a get; NULL: its caller has given up */
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
    bool has_slept;     /* one of the windows has */
    dd_list windows;
    dd_list letters;
    dd_list waiting;         /* window_call: for words that change; looked at in every round */
    dd_list moving;          /* window_call: puts and gets by notes */
    dd_task task;            /* in the engine while there are calls */
    window_source sources[]; /* [size] */
};

static inline size_t
window_word(const dd_window *window, int channel, int source)
{
    return (size_t)channel * (size_t)window->hub->size + (size_t)source;
}

/* Channel nchannels, or DD_WINDOW_NO_CHANNEL: of the puts. */
static inline window_tally *
window_tally_of(const dd_window *window, uint32_t channel, int rank)
{
    uint32_t nchannels = (uint32_t)window->nchannels;
    return &window->tallies[window_word(window, (int)(channel < nchannels ? channel : nchannels), rank)];
}

/* A note for a rank, and what goes with it. */
typedef struct window_order {
    int rank;
    dd_window_note note;
    const void *data; /* of a note that has some; up to WINDOW_SMALL_NBYTES they are copied */
    window_call *put; /* ended when all is with the transport; NULL: none */
    bool is_lent;     /* the data are the window's */
    bool is_answer;   /* the rank has asked for it */
} window_order;

/* ---- window.c */

/* The group's, made where there is none yet; and a number for a window of it. */
dd_status window_find_hub(dd_group *group, window_hub **hub, uint64_t *id, dd_error *err) DD_MUST_CHECK;
/* "put on window 3 of group "dp" (rank 0 of 2)" in front of the message. */
void window_describe(const window_hub *hub, const char *what, uint64_t window, dd_error *err);
/* The end of a call, before its caller hears of it. A rank may have closed a window because the group has failed, of which this rank
 * is about to hear: if so, DD_CLOSED becomes that error. What this rank tells the others of a failure gets a moment to be on its way. */
dd_status window_conclude(window_hub *hub, const char *what, dd_status status, dd_error *err);
dd_status window_error_closed(const window_hub *hub, int rank, dd_error *err);
dd_window *window_find_locked(const window_hub *hub, uint64_t id); /* NULL: closed, or never opened */
void window_leave_hub(dd_window *window);
bool window_has_closed_locked(const dd_window *window, int rank);

/* ---- window_open.c */

void window_destroy(dd_window *window); /* also one that is half open */

/* ---- window_call.c */

/* The word in memory that a call waits for, and takes: a signal of the rank, of which it takes one; or that the rank has taken all of this
 * one's, which then signals. */
typedef enum window_wish {
    WINDOW_WISH_NONE,
    WINDOW_WISH_SIGNAL,
    WINDOW_WISH_ROOM,
} window_wish;

/* An operation. */
struct window_op {
    const char *what;
    const char *lack; /* completes "rank 2 has not ..." when the time is over */
    bool needs_channel;
    bool needs_open; /* fails at once when the rank has closed the window */
    window_wish wish;
    /* Where it waits for a rank's notes, with the lock. True: it has ended; the error says so if it failed. */
    bool (*try_far_locked)(window_call *call, dd_error *error);
};

/* Checks arguments, and that the window is open on both sides as far as can be seen without the lock. */
dd_status window_check(const dd_window *window, const window_op *op, dd_window_place place, size_t nbytes,
                       int channel, dd_error *err) DD_MUST_CHECK;
/* For a call that is about to wait: checks the group, the window and the rank. */
dd_status window_check_locked(const dd_window *window, const window_op *op, int rank,
                              dd_error *err) DD_MUST_CHECK;
/* The caller sets the deadline and, for anything but a put or get, window, channel and goal. */
void window_init_call(window_call *call, const dd_window *window, const window_op *op, int rank,
                      int64_t start_ns);
void window_enter_locked(window_call *call);
/* Ends a call if what it waits for is there, or can no longer come. True: it has ended. */
bool window_settle_locked(window_call *call);
bool window_progress_locked(window_hub *hub); /* the same for all; true when one has ended */
/* `cause` NULL for success. The call is not done yet. */
void window_end_call_locked(window_call *call, const dd_error *cause);
/* Ends the calls that wait for a rank (or DD_ANY_RANK) by a window (NULL: by any), after a last look whether they can succeed. */
void window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause);
/* Waits, without the lock, until the call is done, at its deadline at the latest. An interrupt gives it up. */
dd_status window_finish(window_call *call, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_task window_make_task(const window_hub *hub);

/* ---- window_signal.c */

_Atomic uint32_t *window_find_word(const dd_window *window, const window_op *op, int rank,
                                   int channel); /* NULL: none */
/* Of a word, which may be NULL: whether it is as wished; and takes it if it is. */
bool window_is_word_there(const window_op *op, _Atomic uint32_t *word);
bool window_try_word(const window_op *op, _Atomic uint32_t *word);

void window_wake(dd_window *window, int rank); /* after changing a word that the rank may be waiting for */
void window_signal_direct(dd_window *window, int rank, int channel);
/* A put, or a signal alone, by a note. */
dd_status window_send_put_locked(dd_window *window, const window_order *order, dd_error *err) DD_MUST_CHECK;
/* What a note of `source` says: a signal; ASK; DONE. */
void window_on_signal_locked(dd_window *window, int source, int channel);
void window_on_ask_locked(dd_window *window, int source, uint32_t channel);
void window_on_done_locked(dd_window *window, int source, uint32_t channel);

/* ---- window_send.c */

dd_status window_send_locked(window_hub *hub, const window_order *order, dd_error *err) DD_MUST_CHECK;
/* The same for a note that the other side waits for: if there is no memory for it, the group fails. */
void window_send_or_fail_locked(window_hub *hub, const window_order *order);
/* The memory of a window, or of puts that were given up (lender 0), is wanted back: copies one piece of what is still to be sent from
 * it. False: nothing was left. `put`: one that goes on from its copy from now on, or NULL. */
bool window_rescue_locked(window_hub *hub, uint64_t lender, window_call **put);
void window_end_letters_locked(window_hub *hub, const dd_error *cause);

/* ---- window_serve.c */

void window_init_source(window_source *source, window_hub *hub, int rank);
/* Asks now, or when it is the get's turn. */
dd_status window_ask_for_locked(window_source *source, window_call *get, dd_error *err) DD_MUST_CHECK;
/* After the get has ended: its target is not written to any more. */
void window_abandon_get_locked(window_call *get);
void window_end_gets_locked(window_source *source, const dd_error *cause);
/* Messages do not write to the window's memory any more. */
void window_stop_writing_locked(const dd_window *window);
void window_stop_serving_locked(window_hub *hub, const dd_error *cause);
dd_message *window_on_request(dd_group_guest *guest, int rank, const dd_request *request);
void window_on_goodbye(dd_group_guest *guest, int rank);

#endif
