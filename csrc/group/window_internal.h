/* The inside of windows.
 *
 * A rank is *direct* when its memory and its pad are mapped here; else everything for it goes by notes (window_wire.h), data and
 * signals alike, so that they stay in order. What is direct needs neither the engine's lock nor a system call, unless somebody
 * sleeps: who changes a word looks whether the other side does, and who falls asleep says so first and looks at his words then. Both
 * are sequentially consistent, so that one of them sees the other.
 *
 * Files: window.c opens, closes and answers questions; window_signal.c has signals and whoever waits for them; window_data.c has put,
 * get and flush, as calls; window_note.c sends notes; window_serve.c takes those of others. */
#ifndef DD_GROUP_WINDOW_INTERNAL_H
#define DD_GROUP_WINDOW_INTERNAL_H

#include "group/group_internal.h"
#include "group/window.h"
#include "group/window_wire.h"

#define WINDOW_DATA_CHANNEL 1 /* notes are requests, on channel 0 */
/* A rank waits with further gets while so many are unanswered by the one they are for. Who lets it come to so many answers that he
 * does not take is not one of ours. */
#define WINDOW_GETS_MAX 256u
#define WINDOW_ANSWERS_MAX (4 * WINDOW_GETS_MAX)

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
    uint64_t nputs;    /* guarded: by notes */
    uint64_t nflushed; /* guarded: of them, known to be in place */
} window_member;

/* What is known of the signals of one channel between this rank and another, where they go by notes. Guarded by the engine's lock. */
typedef struct window_tally {
    uint32_t nsent;
    uint32_t ntaken;    /* of them, as far as is known; equal: the word there is 0 */
    uint32_t nasked;    /* nsent when it was asked */
    bool is_asking;     /* TAKEN is on its way */
    bool is_to_be_told; /* the other way round: its signals here; TAKEN is owed */
} window_tally;

typedef enum window_state {
    WINDOW_OPEN,
    WINDOW_CLOSED,
    WINDOW_OVER, /* the group has failed or was closed */
} window_state;

struct dd_window {
    atomic_uint refs;
    atomic_int state;  /* window_state; written with the engine's lock */
    dd_group *group;   /* counted */
    uint64_t id;       /* of the group's windows, from 1 */
    dd_region *region; /* of our memory; counted, NULL: none */
    dd_region *pad;    /* ours, owned */
    size_t pad_nbytes; /* const after open, as are these */
    int nchannels;
    bool
        has_far_members; /* some are not direct: what they ask for is answered soon, also when no call is under way */
    window_tally *tallies;  /* [channel][rank] */
    atomic_int nto_be_told; /* of the tallies */

    /* guarded by the engine's lock */
    dd_list link; /* in the hub's windows */
    dd_task task; /* in the engine while somebody waits */
    bool is_in_hub;
    bool is_task_in;
    bool has_slept;
    dd_list waiters; /* window_waiter */

    window_member members[];
};

/* A put, get or flush by notes, as the group knows it. */
typedef struct window_call {
    group_call base; /* in the hub's calls until it is done */
    dd_list asking;  /* in the hub's questions until it is answered; of a put in no list */
    uint64_t id;
    uint64_t window;
    int rank;
    size_t nbytes;
    void *target;        /* of a get; NULL: whoever has asked has gone */
    bool is_held;        /* its turn to be asked has not come */
    dd_window_note note; /* what to ask then */
} window_call;

/* A note on its way out, with its data. */
typedef struct window_letter {
    dd_list link; /* in the hub's letters */
    struct window_hub *hub;
    dd_message note;
    dd_message data;
    int nleft;                   /* of the two, under way */
    window_call *put;            /* whose data these are; NULL: nobody waits for them */
    struct window_source *asker; /* whom it answers; NULL: nobody has asked */
    uint64_t lender;             /* the window whose memory the data are in; 0: none */
    void *copy;                  /* of the data, since their owner has gone */
    size_t kept_nbytes;          /* of all this */
    uint8_t bytes[];             /* of the note, with what is inline */
} window_letter;

/* What goes on with one rank. Its notes are taken one after the other. */
typedef struct window_source {
    struct window_hub *hub;
    int rank;
    bool is_busy;         /* a note is being taken */
    dd_message message;   /* the note, then its data */
    dd_window_note note;  /* at hand, while its data come */
    dd_window *window;    /* whose memory they go to; NULL: none */
    window_call *call;    /* that has asked for them; NULL: none */
    unsigned nasked;      /* questions of ours that it has not answered */
    unsigned nanswers;    /* ours to it, on their way */
    uint64_t told_closed; /* the last window of which it has been told; 0: none */
    uint8_t bytes[DD_WINDOW_NOTE_NBYTES + DD_WINDOW_INLINE_MAX];
} window_source;

/* What a group has for its windows. Guarded by the engine's lock. */
typedef struct window_hub {
    dd_group *group;
    uint64_t nwindows;   /* ids given out */
    uint64_t nquestions; /* ids given out */
    size_t nheld;        /* of the questions: their turn to be asked has not come */
    bool is_over;        /* nothing is sent or taken any more */
    size_t kept_nbytes;  /* in letters */
    dd_list windows;
    dd_list calls;
    dd_list questions;
    dd_list letters;
    window_source *sources[]; /* [size]; NULL until there has been a note or a question */
} window_hub;

/* ---- window.c */

/* DD_OK, or why nothing can be done: bad arguments, a closed window, a group that is over. channel may be DD_NO_CHANNEL. */
dd_status window_check(dd_window *window, const char *what, int rank, int channel,
                       dd_error *err) DD_MUST_CHECK;
/* The same for what this rank has to do something for: a direct one that has closed the window does not. */
dd_status window_check_open(dd_window *window, const char *what, int rank, int channel,
                            dd_error *err) DD_MUST_CHECK;
/* "put on window 3 of group "dp" (rank 0 of 2)" in front of the message. */
void window_describe(const dd_window *window, const char *what, dd_error *err);
/* "rank 2 (node-b, pid 77) has closed the window" */
dd_status window_error_closed(const dd_window *window, int rank, dd_error *err);
/* At the end of a call that has failed, before its caller hears of it. A rank may have closed a window
 * because the group has failed, of which this rank is about to hear: if so, DD_CLOSED becomes that error.
 * What this rank tells the others of a failure gets a moment to be on its way. */
dd_status window_find_cause(dd_window *window, const char *what, dd_status status, dd_error *err);
dd_status window_error_gone(const dd_group *group, int rank, dd_error *err);
/* Names the rank as the culprit. */
void window_blame(const dd_group *group, int rank, dd_error *err);
dd_window *window_find_locked(const window_hub *hub, uint64_t id); /* NULL: closed, or never opened */
/* With the lock, for a rank that is reached by notes: whether it is still there, and the window open on both sides. */
dd_status window_check_far_locked(const dd_window *window, int rank, dd_error *err) DD_MUST_CHECK;
static inline bool
window_has_closed(const window_member *member)
{
    return member->is_direct && atomic_load(&member->control->is_closed) != 0;
}

/* ---- window_signal.c */

static inline size_t
window_word(const dd_window *window, int channel, int source)
{
    return (size_t)channel * (size_t)window->group->size + (size_t)source;
}
/* One more signal for a direct rank. */
void window_signal_direct(dd_window *window, int rank, int channel);
/* A signal of `source` has come by a note. */
void window_on_signal_locked(dd_window *window, int source, int channel);
void window_on_ask_locked(dd_window *window, int source, int channel);
void window_on_taken_locked(dd_window *window, int source, int channel);
/* Who waits gets what there is. True when somebody did. */
bool window_progress_locked(dd_window *window);
/* Ends who waits for this rank, or for any. */
void window_fail_waiters_locked(dd_window *window, int rank, const dd_error *cause);
void window_task_init(dd_window *window);
/* Makes a direct rank look at its words, if it sleeps. */
void window_wake(dd_window *window, int rank);

/* ---- window_data.c */

/* The call ends with this now. Its memory is not touched any more: a put goes on from a copy, what a get brings is thrown away. */
void window_call_give_up_locked(window_call *call, const dd_error *cause);
/* It is answered, or never will be: lets it go. Completes it if that has not happened; cause NULL for success. */
void window_call_answer_locked(window_call *call, const dd_error *cause);
/* One question less is with the rank: the next one that is held is asked. */
void window_call_ask_next_locked(window_source *source);

/* ---- window_note.c */

/* A note for a rank, and what goes with it. */
typedef struct window_order {
    int rank;
    dd_window_note note;
    const void *data;     /* note.nbytes of them; up to DD_WINDOW_INLINE_MAX they are copied */
    window_call *put;     /* completed when all is with the transport; NULL: none */
    bool is_lent;         /* the data are the window's */
    window_source *asker; /* whom it answers; NULL: nobody has asked */
} window_order;
dd_status window_note_post_locked(window_hub *hub, const window_order *order, dd_error *err) DD_MUST_CHECK;
/* One that somebody waits for: without memory for it the group fails. */
void window_note_post_or_fail_locked(window_hub *hub, const window_order *order);
dd_status window_note_post_signal_locked(dd_window *window, int rank, int channel,
                                         dd_error *err) DD_MUST_CHECK;
dd_status window_note_post_ask_locked(dd_window *window, int rank, int channel, dd_error *err) DD_MUST_CHECK;
void window_note_post_taken_locked(dd_window *window, int rank, int channel);
/* The put's memory is its caller's again. */
void window_note_detach_put_locked(window_hub *hub, const window_call *put);
/* The window's memory is its owner's again; its far members are told. */
void window_note_retire_locked(dd_window *window);
void window_note_end_all_locked(window_hub *hub, const dd_error *cause);

/* ---- window_serve.c */

/* NULL: there is no memory. */
window_source *window_serve_source_locked(window_hub *hub, int rank);
/* Notes of the rank are here that have not been taken. */
bool window_serve_is_busy_locked(const window_hub *hub, int rank);
/* Nothing is written any more into the memory of this window, or of this call (the other is NULL). */
void window_serve_forget_locked(window_hub *hub, const dd_window *window, const window_call *call);
void window_serve_end_locked(window_hub *hub, const dd_error *cause);

#endif
