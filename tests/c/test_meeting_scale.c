/* What a start costs where there are many ranks: see meeting_sim.h, and benchmarks/simulate_meeting.c for more of it. */
#include "check.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/shared_memory.h"
#include "core/thread.h"
#include "meeting_sim.h"
#include "net/sock.h"
#include "store/meeting_internal.h"

#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define NHOSTS 8
#define CARD_NBYTES 128 /* at most, of a process with an address */
#define LINES_NBYTES 1024

static bool
run(int nranks, bool is_by_keys, meeting_sim_bill *bill)
{
    meeting_sim_shape shape = {.nranks = nranks, .nhosts = NHOSTS, .is_by_keys = is_by_keys};
    return meeting_sim_run(&shape, bill);
}

/* Requests: the same for each rank, whatever their number. Bytes: what is another process's own for each of them, a card for each
 * host, and a constant; of many ranks, that comes to each host once, or a few times where a rank is kept from its core for long. */
static void
check_growth(int size, bool is_by_keys, uint64_t most, uint64_t most_of_last)
{
    meeting_sim_bill bill;
    uint64_t count = (uint64_t)size;
    uint64_t ncards = count * 32 + NHOSTS * CARD_NBYTES;
    uint64_t nreaders = size > 100 ? 4 * NHOSTS : count; /* of the cards */
    uint64_t nlast = is_by_keys ? 3 * count * CARD_NBYTES : 0;
    REQUIRE(run(size, is_by_keys, &bill));
    CHECK(bill.store.nrequests >= (count - 1) * most + most_of_last);
    CHECK(bill.store.nrequests <= (count - 1) * most + most_of_last + (size > 100 ? nreaders + 1 : 0));
    CHECK(bill.most_of_a_rank.nrequests <= (most > most_of_last ? most : most_of_last) + 2);
    CHECK(bill.most_of_a_rank.nbytes <= LINES_NBYTES + ncards + nlast);
    CHECK(bill.store.nbytes <= count * LINES_NBYTES + nreaders * ncards + nlast);
}

TEST(what_a_meeting_costs)
{
    check_growth(64, false, 2, 1);
    check_growth(256, false, 2, 1);
    check_growth(512, false, 2, 1);
}

/* The last one that comes reads what each has published. */
TEST(what_a_meeting_by_keys_costs)
{
    check_growth(64, true, 5, 7);
    check_growth(256, true, 5, 7);
}

TEST(which_links_a_start_takes)
{
    meeting_sim_bill bill;
    REQUIRE(run(256, false, &bill));
    int nlocal = 256 / NHOSTS;
    const meeting_sim_links *first = bill.of_rank_0;
    const meeting_sim_links *last = bill.of_last;
    for (int step = MEETING_SIM_MET; step <= MEETING_SIM_ALL_REDUCE_64_MIB; step++) {
        CHECK_INT(first[step].nnear, nlocal - 1); /* its host */
        CHECK_INT(first[step].nfar, NHOSTS - 1);  /* the other hosts' leaders */
        CHECK_INT(last[step].nnear, 1);           /* its leader */
    }
    CHECK_INT(last[MEETING_SIM_MET].nfar, 0);
    CHECK_INT(last[MEETING_SIM_ALL_REDUCE_8_B].nfar, 0); /* too little to share out */
    CHECK(last[MEETING_SIM_ALL_REDUCE_64_MIB].nfar <= NHOSTS - 1);
    CHECK(last[MEETING_SIM_ALL_TO_ALL_8_B].nfar <= 2 * 8); /* steps of doubling distance */
    CHECK_INT(last[MEETING_SIM_ALL_TO_ALL_64_KIB].nfar, 256 - nlocal);
}

TEST(memory_for_a_rank_that_one_never_talks_to)
{
    meeting_sim_bill bill;
    REQUIRE(run(256, false, &bill));
    CHECK(bill.nbytes_for_another < 1000);
}

/* ---- cards that come to a host once */

static bool
find_host(dd_bytes card, uint8_t host[DD_MEETING_HOST_BYTES])
{
    memset(host, 0, DD_MEETING_HOST_BYTES);
    memcpy(host, card.data, card.len < 5 ? card.len : 5);
    return card.len > 0;
}

static const dd_meeting_kind sharing_kind = {
    .noun = "party", .of_interrupted = "went home", .find_host = find_host};

/* A rank of two, after the meeting: its cards are apart. */
typedef struct taker {
    dd_meeting meeting;
    meeting_call call;
    dd_wait wait;
    uint64_t id;
    dd_meeting_end end;
    size_t nbytes;
    dd_status status;
    pthread_t thread;
} taker;

static void *
take(void *arg)
{
    taker *self = arg;
    self->status = meeting_take_cards(&self->call, self->nbytes, &self->end, check_err());
    return NULL;
}

static bool
taker_init(taker *self, dd_store *store, int rank, uint64_t id, size_t nbytes)
{
    *self = (taker){
        .meeting =
            {.kind = &sharing_kind, .store = store, .rank = rank, .size = 2, .card = BYTES("host one")},
        .wait = dd_wait_after(60 * DD_NS_PER_S * check_slow()),
        .id = id,
        .end.id = id,
        .nbytes = nbytes,
    };
    self->call.meeting = &self->meeting;
    return CHECK_OK(
        meeting_place_init(&self->call.place, store, "dldist/", BYTES("party"), &self->wait, check_err()));
}

static void
check_taken(taker *self)
{
    if (CHECK_OK(self->status)) {
        CHECK(self->end.id == self->id); /* the group's: another meeting's is another */
        CHECK_TEXT(self->end.cards[0], "host one");
        CHECK_TEXT(self->end.cards[1], "host two");
        dd_meeting_end_fini(&self->end);
    }
    meeting_place_fini(&self->call.place);
}

static const char TWO_CARDS[] = "\0\10\0host one"
                                "\5\3\0two";

/* That has the cards. */
static dd_store *
open_store(void)
{
    dd_store *store = NULL;
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    if (CHECK_OK(dd_hash_store_open(&store, DD_NS_PER_S, check_err()))) {
        CHECK_OK(dd_store_set(store, BYTES("dldist/party/0/cards"),
                              dd_bytes_of(TWO_CARDS, sizeof TWO_CARDS - 1), &wait, check_err()));
    }
    return store;
}

static uint64_t
make_id(void)
{
    return (uint64_t)getpid() << 32 | (uint64_t)dd_clock_now_ns() >> 10;
}

TEST(the_first_rank_of_a_host_hands_the_cards_on)
{
    taker first;
    uint64_t id = make_id();
    dd_store *store = open_store();
    REQUIRE(taker_init(&first, store, 0, id, sizeof TWO_CARDS - 1));
    uint8_t host[DD_MEETING_HOST_BYTES];
    find_host(first.meeting.card, host);
    dd_addr addr = meeting_share_addr(host, id);
    CHECK_OK(dd_thread_start(&first.thread, "first", take, &first, check_err()));
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    int fd = -1;
    while (dd_sock_connect(&addr, &fd, &wait, NULL) != DD_OK && !dd_wait_is_over(&wait)) {
    }
    int memory = -1;
    uint8_t byte;
    size_t moved = 0;
    CHECK_OK(dd_sock_wait(fd, POLLIN, &wait, check_err()));
    CHECK(dd_sock_try_recv_fd(fd, &byte, 1, &memory, &moved) == DD_IO_OK);
    size_t nbytes = 0;
    CHECK_OK(dd_shared_memory_measure(memory, &nbytes, check_err()));
    CHECK_INT(nbytes, sizeof TWO_CARDS - 1);
    pthread_join(first.thread, NULL);
    dd_sock_close(fd);
    dd_sock_close(memory);
    check_taken(&first);
    dd_store_release(store);
}

/* Somebody who listens in the place of a rank. */
typedef struct impostor {
    int listener;
    bool answers; /* with memory that is something else; else not at all */
    atomic_bool is_over;
    pthread_t thread;
} impostor;

static void *
pose(void *arg)
{
    impostor *self = arg;
    int memory = -1;
    CHECK_OK(dd_shared_memory_create("nonsense", 4096, &memory, check_err()));
    while (!atomic_load(&self->is_over)) {
        int fd = -1;
        size_t moved = 0;
        dd_wait moment = dd_wait_after(10 * DD_NS_PER_MS);
        (void)!dd_sock_wait(self->listener, POLLIN, &moment, NULL);
        if (self->answers && dd_sock_try_accept(self->listener, &fd) == DD_IO_OK) {
            (void)dd_sock_try_send_fd(fd, "", 1, memory, &moved);
            dd_sock_close(fd);
        }
    }
    dd_fork_close(memory);
    return NULL;
}

static void
check_impostor(bool answers)
{
    taker self;
    impostor other = {.listener = -1, .answers = answers};
    uint64_t id = make_id();
    uint8_t host[DD_MEETING_HOST_BYTES];
    dd_store *store = open_store();
    REQUIRE(taker_init(&self, store, 1, id, sizeof TWO_CARDS - 1));
    find_host(self.meeting.card, host);
    dd_addr addr = meeting_share_addr(host, id);
    REQUIRE_OK(dd_sock_listen(&addr, &other.listener, check_err()));
    CHECK_OK(dd_thread_start(&other.thread, "impostor", pose, &other, check_err()));
    take(&self);
    atomic_store(&other.is_over, true);
    pthread_join(other.thread, NULL);
    dd_sock_close(other.listener);
    check_taken(&self);
    dd_store_release(store);
}

TEST(whoever_hears_nothing_gets_the_cards_from_the_store)
{
    check_impostor(false);
}

TEST(whoever_hears_nonsense_gets_the_cards_from_the_store)
{
    check_impostor(true);
}

static const dd_meeting_kind lonely_kind = {.noun = "party", .of_interrupted = "went home"};

TEST(whoever_may_not_share_gets_the_cards_from_the_store)
{
    taker self;
    dd_store *store = open_store();
    REQUIRE(taker_init(&self, store, 0, make_id(), sizeof TWO_CARDS - 1));
    self.meeting.kind = &lonely_kind;
    take(&self);
    check_taken(&self);
    dd_store_release(store);
}

TEST(cards_without_memory)
{
    dd_store *store = open_store();
    dd_status status = DD_OUT_OF_MEMORY;
    for (long nth = 0; nth < 60 && status == DD_OUT_OF_MEMORY; nth++) {
        taker self;
        REQUIRE(taker_init(&self, store, 0, make_id(), sizeof TWO_CARDS - 1));
        self.meeting.kind = &lonely_kind;
        (void)dd_mem_fail_after(nth);
        take(&self);
        (void)dd_mem_fail_after(-1);
        status = self.status;
        dd_meeting_end_fini(&self.end);
        meeting_place_fini(&self.call.place);
    }
    CHECK_OK(status);
    dd_store_release(store);
}

TEST(a_store_without_the_cards_is_a_failure)
{
    taker self;
    dd_store *store = open_store();
    REQUIRE(taker_init(&self, store, 0, make_id(), 77));
    take(&self);
    CHECK_STATUS(self.status, DD_STORE);
    meeting_place_fini(&self.call.place);
    dd_store_release(store);
}

static bool
wants_out(void *ctx)
{
    return *(bool *)ctx;
}

TEST(a_rank_that_waits_for_cards_can_be_interrupted)
{
    taker self;
    bool is_wanted = true;
    int listener = -1;
    uint64_t id = make_id();
    uint8_t host[DD_MEETING_HOST_BYTES];
    dd_store *store = open_store();
    REQUIRE(taker_init(&self, store, 1, id, sizeof TWO_CARDS - 1));
    find_host(self.meeting.card, host);
    dd_addr addr = meeting_share_addr(host, id);
    REQUIRE_OK(dd_sock_listen(&addr, &listener, check_err()));
    self.wait.is_interrupted = wants_out;
    self.wait.ctx = &is_wanted;
    take(&self);
    CHECK_STATUS(self.status, DD_INTERRUPTED);
    dd_sock_close(listener);
    meeting_place_fini(&self.call.place);
    dd_store_release(store);
}
