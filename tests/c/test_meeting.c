/* Meetings by themselves: in one request or by keys, and what they cost for many ranks. */
#include "check.h"
#include "core/mem.h"
#include "core/thread.h"
#include "store/keyspace.h"
#include "store/meeting_internal.h"
#include "store/tcp_client_internal.h"
#include "transport/card.h"

#include <netinet/in.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 8
#define CARD_NBYTES 128 /* at most, of a process with an address */
#define RANKS_A_HOST 64

/* ---- a few ranks on threads */

static bool
read_card(dd_bytes card, dd_meeting_member *member)
{
    char text[32];
    if (card.len == 0 || card.len >= sizeof text || card.data[0] != '#') {
        return false;
    }
    memcpy(text, card.data, card.len);
    text[card.len] = '\0';
    strcpy(member->host, "somewhere");
    member->pid = atoll(text + 1);
    return true;
}

static const dd_meeting_kind plain_kind = {
    .noun = "party", .of_interrupted = "went home", .read_card = read_card};
static const dd_meeting_kind final_kind = {
    .noun = "party", .of_interrupted = "went home", .is_final = true, .read_card = read_card};

typedef struct guest {
    dd_meeting meeting;
    dd_meeting_end end;
    dd_wait wait;
    dd_status status;
    dd_error error;
    char card[16];
    pthread_t thread;
} guest;

static void
guest_init(guest *g, dd_store *store, int rank, int size, int64_t timeout_ns)
{
    *g = (guest){.wait = dd_wait_after(timeout_ns)};
    snprintf(g->card, sizeof g->card, "#%d", 100 + rank);
    g->meeting =
        (dd_meeting){.kind = &plain_kind, .store = store, .name = BYTES("party"), .rank = rank, .size = size};
}

static void *
run_guest(void *arg)
{
    guest *g = arg;
    g->meeting.card = dd_bytes_of_string(g->card);
    g->status = dd_meet(&g->meeting, &g->end, &g->wait, &g->error);
    return NULL;
}

static void
run_guests(guest *guests, int count)
{
    for (int i = 0; i < count; i++) {
        CHECK_OK(dd_thread_start(&guests[i].thread, "guest", run_guest, &guests[i], check_err()));
    }
    for (int i = 0; i < count; i++) {
        pthread_join(guests[i].thread, NULL);
    }
}

static void
check_met(guest *guests, int size)
{
    for (int i = size - 1; i >= 0; i--) {
        if (!CHECK_OK(guests[i].status)) {
            fprintf(stderr, "%s\n", guests[i].error.message);
            continue;
        }
        CHECK(guests[i].end.id == guests[0].end.id);
        CHECK_INT(guests[i].end.generation, guests[0].end.generation);
        for (int rank = 0; rank < size; rank++) {
            CHECK_BYTES(guests[i].end.cards[rank], dd_bytes_of_string(guests[rank].card));
        }
        dd_meeting_end_fini(&guests[i].end);
    }
}

/* ---- over a server: some ask in one request, others, like those with a store of another kind, by keys */

typedef struct place {
    dd_tcp_server *server;
    dd_store *native[MAX_RANKS];
    dd_store_ops in_one;
    dd_store_ops by_keys;
} place;

static dd_status
run_by_keys(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
            dd_error *err)
{
    return request->op == DD_STORE_MEET ? dd_store_run_generic(store, request, result, wait, err)
                                        : tcp_run(store, request, result, wait, err);
}

static void
place_open(place *p, int size)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_tcp_server_options serve = {.host = "127.0.0.1",
                                   .listen_fd = -1,
                                   .handshake_timeout_ns = 5 * DD_NS_PER_S * check_slow(),
                                   .limits = DD_TCP_LIMITS_DEFAULT};
    REQUIRE_OK(dd_tcp_server_open(&p->server, &serve, &wait, check_err()));
    for (int i = 0; i < size; i++) {
        dd_tcp_store_options options = {.host = "127.0.0.1",
                                        .port = dd_tcp_server_port(p->server),
                                        .timeout_ns = 10 * DD_NS_PER_S * check_slow(),
                                        .world_size = -1};
        REQUIRE_OK(dd_tcp_store_open(&p->native[i], &options, &wait, check_err()));
    }
    p->in_one = *p->native[0]->ops;
    p->by_keys = p->in_one;
    p->by_keys.run = run_by_keys;
}

static void
place_close(place *p, int size)
{
    for (int i = 0; i < size; i++) {
        p->native[i]->ops = &p->in_one;
        dd_store_release(p->native[i]);
    }
    dd_tcp_server_release(p->server);
}

TEST(ranks_meet_in_one_request_and_by_keys_alike)
{
    enum { SIZE = 6 };
    place p = {0};
    place_open(&p, SIZE);
    for (int mix = 0; mix < 3; mix++) { /* all in one request, every other, none */
        for (int again = 0; again < 3; again++) {
            guest guests[SIZE];
            for (int i = 0; i < SIZE; i++) {
                bool is_by_keys = mix == 2 || (mix == 1 && i % 2 == again % 2);
                p.native[i]->ops = is_by_keys ? &p.by_keys : &p.in_one;
                guest_init(&guests[i], p.native[i], i, SIZE, 20 * DD_NS_PER_S * check_slow());
            }
            run_guests(guests, SIZE);
            check_met(guests, SIZE);
        }
    }
    place_close(&p, SIZE);
}

static void
check_time_outs(const dd_meeting_kind *kind, dd_store *store)
{
    guest guests[3];
    for (int i = 0; i < 2; i++) {
        guest_init(&guests[i], store, i, 3, 300 * DD_NS_PER_MS * check_slow());
        guests[i].meeting.kind = kind;
    }
    run_guests(guests, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(guests[i].status, DD_OP_TIMED_OUT);
        CHECK_CONTAINS(guests[i].error.message, "party \"party\"");
        CHECK_CONTAINS(guests[i].error.message, "0 (somewhere, pid 100");
        CHECK_CONTAINS(guests[i].error.message, "missing: 2");
        CHECK_INT(guests[i].error.culprit.rank, 2);
    }
    /* A name that was met at in vain is as good as new, for another number of ranks, too. */
    for (int i = 0; i < 2; i++) {
        guest_init(&guests[i], store, i, 2, 20 * DD_NS_PER_S * check_slow());
        guests[i].meeting.kind = kind;
    }
    run_guests(guests, 2);
    check_met(guests, 2);
}

TEST(time_outs_name_who_is_missing)
{
    place p = {0};
    place_open(&p, 1);
    check_time_outs(&plain_kind, p.native[0]);
    check_time_outs(&final_kind, p.native[0]);
    p.native[0]->ops = &p.by_keys;
    check_time_outs(&plain_kind, p.native[0]);
    check_time_outs(&final_kind, p.native[0]);
    place_close(&p, 1);
}

TEST(a_latecomer_to_a_final_meeting_hears_once_how_it_has_ended)
{
    place p = {0};
    place_open(&p, 1);
    for (int by_keys = 0; by_keys < 2; by_keys++) {
        guest guests[2];
        p.native[0]->ops = by_keys ? &p.by_keys : &p.in_one;
        guest_init(&guests[0], p.native[0], 0, 2, 100 * DD_NS_PER_MS);
        guest_init(&guests[1], p.native[0], 1, 2, 20 * DD_NS_PER_S * check_slow());
        guests[0].meeting.kind = guests[1].meeting.kind = &final_kind;
        run_guest(&guests[0]);
        CHECK_STATUS(guests[0].status, DD_OP_TIMED_OUT);
        run_guest(&guests[1]);
        CHECK_STATUS(guests[1].status, DD_OP_TIMED_OUT);
        CHECK_CONTAINS(guests[1].error.message, "1 of 2 have come: 0 (somewhere, pid 100); missing: 1");
        guests[0].wait = guests[1].wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
        run_guests(guests, 2);
        check_met(guests, 2);
    }
    place_close(&p, 1);
}

/* What a peer sends is no reason to reserve memory, or to trust anything. */
/* A rank that comes to a meeting, as a request. */
typedef struct arrival {
    dd_bytes place;
    int rank;
    int size;
    dd_bytes published;
} arrival;

static dd_store_request
request_of(const arrival *from)
{
    return (dd_store_request){.op = DD_STORE_MEET,
                              .keys = &from->place,
                              .nkeys = 1,
                              .values = &from->published,
                              .number = dd_store_meet_number(from->rank, from->size, false)};
}

static dd_status
come(dd_keyspace *ks, const arrival *from, dd_store_result *reply)
{
    dd_store_request request = request_of(from);
    return dd_keyspace_meet(ks, &request, reply, check_err());
}

static void
set(dd_keyspace *ks, const char *key, const char *value)
{
    dd_bytes bytes[] = {dd_bytes_of_string(key), dd_bytes_of_string(value)};
    dd_store_request request = {.op = DD_STORE_SET, .keys = bytes, .nkeys = 1, .values = bytes + 1};
    bool is_answered = false;
    CHECK_OK(dd_keyspace_answer(ks, &request, &(dd_store_result){0}, &is_answered, check_err()));
}

TEST(a_server_takes_no_nonsense)
{
    dd_keyspace ks;
    dd_keyspace_init(&ks);
    static const struct {
        int rank;
        int size;
        const char *published;
    } bad[] = {{-1, 2, "12345678card"}, {2, 2, "12345678card"}, {0, 0, "12345678card"}, {0, 1, "short"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dd_store_result reply = {0};
        arrival request = {.place = BYTES("place"),
                           .rank = bad[i].rank,
                           .size = bad[i].size,
                           .published = dd_bytes_of_string(bad[i].published)};
        CHECK_STATUS(come(&ks, &request, &reply), DD_INVALID_ARGUMENT);
        dd_blob_fini(&reply.value);
    }
    CHECK_INT(ks.nvalues, 0);
    /* Somebody has counted two thousand million ranks. */
    dd_store_result reply = {0};
    arrival huge = {
        .place = BYTES("place"), .rank = 0, .size = 2147483647, .published = BYTES("12345678card")};
    set(&ks, "place/0/count", "2147483646");
    CHECK_OK(come(&ks, &huge, &reply));
    CHECK_INT(reply.state, DD_MEET_WAITING);
    /* And three, of whom one has left nothing. */
    huge.size = 3;
    huge.place = BYTES("other");
    set(&ks, "other/0/count", "2");
    CHECK_STATUS(come(&ks, &huge, &reply), DD_STORE);
    CHECK_CONTAINS(check_message(), "the card of rank 1 is missing");
    /* Meetings that are over are passed by, a few in each request. */
    for (int i = 0; i < 40; i++) {
        char key[32];
        snprintf(key, sizeof key, "over/%d/end", i);
        set(&ks, key, "off");
        snprintf(key, sizeof key, "over/%d/size", i);
        set(&ks, key, "7 0\n");
    }
    huge.place = BYTES("over");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(come(&ks, &huge, &reply));
        CHECK_INT(reply.state, i < 2 ? DD_MEET_AGAIN : DD_MEET_WAITING);
    }
    CHECK_INT(reply.number, 40);
    dd_blob_fini(&reply.value);
    dd_keyspace_fini(&ks);
}

/* What is left of a meeting does not grow with its ranks; who comes to it late goes on to the next one. */
TEST(keys_of_ranks_go_with_the_meeting)
{
    enum { SIZE = 5 };
    dd_keyspace ks;
    dd_keyspace_init(&ks);
    for (int rank = 0; rank < SIZE; rank++) {
        char published[32];
        snprintf(published, sizeof published, "nonce-%02d#%d", rank, rank);
        dd_store_result reply = {0};
        arrival request = {
            .place = BYTES("place"), .rank = rank, .size = SIZE, .published = dd_bytes_of_string(published)};
        CHECK_OK(come(&ks, &request, &reply));
        CHECK_INT(reply.state, rank < SIZE - 1 ? DD_MEET_WAITING : DD_MEET_ENDED);
        dd_blob_fini(&reply.value);
    }
    CHECK_INT(ks.nvalues, 4); /* how it has ended, the count, the size; and which one is next */
    /* This rank has read the generation before it was moved on. */
    dd_bytes generation = BYTES("place/generation");
    dd_store_request forget = {.op = DD_STORE_DELETE_KEY, .keys = &generation, .nkeys = 1};
    dd_store_result forgotten = {0};
    bool is_answered = false;
    CHECK_OK(dd_keyspace_answer(&ks, &forget, &forgotten, &is_answered, check_err()));
    CHECK(forgotten.flag);
    dd_store_result reply = {0};
    arrival late = {.place = BYTES("place"), .rank = 2, .size = SIZE, .published = BYTES("anothernonce")};
    CHECK_OK(come(&ks, &late, &reply));
    CHECK_INT(reply.state, DD_MEET_WAITING);
    CHECK_INT(reply.number, 1);
    CHECK(reply.flag);
    dd_blob_fini(&reply.value);
    dd_keyspace_fini(&ks);
}

TEST(coming_without_memory)
{
    dd_status status = DD_OUT_OF_MEMORY;
    for (long nth = 0; nth < 60 && status == DD_OUT_OF_MEMORY; nth++) {
        dd_store *store = NULL;
        guest g;
        REQUIRE_OK(dd_hash_store_open(&store, DD_NS_PER_S, check_err()));
        guest_init(&g, store, 0, 1, DD_NS_PER_S * check_slow());
        g.meeting.card = dd_bytes_of_string(g.card);
        (void)dd_mem_fail_after(nth);
        status = dd_meet(&g.meeting, &g.end, &g.wait, check_err());
        (void)dd_mem_fail_after(-1);
        dd_meeting_end_fini(&g.end);
        dd_store_release(store);
    }
    CHECK_OK(status);
}

/* ---- ends, which others write to the store, too */

/* In a block of just its size, for the sanitizer. */
static dd_status
decode_copy(dd_bytes end, int size, dd_meeting_end *out)
{
    uint8_t *copy = malloc(end.len > 0 ? end.len : 1);
    memcpy(copy, end.data, end.len);
    dd_status status = meeting_decode_end(size, dd_bytes_of(copy, end.len), out, check_err());
    free(copy);
    return status;
}

TEST(ends_cut_anywhere_or_with_any_byte_changed)
{
    static const char *const PUBLISHED[] = {"12345678host-a one", "12345678host-a two", "12345678host-b",
                                            "12345678"};
    enum { SIZE = 4 };
    dd_blob_list list;
    dd_blob end = {0};
    dd_meeting_end read = {0};
    REQUIRE_OK(dd_blob_list_init(&list, SIZE, check_err()));
    for (size_t i = 0; i < SIZE; i++) {
        REQUIRE_OK(dd_blob_assign(&list.items[i], dd_bytes_of_string(PUBLISHED[i]), check_err()));
    }
    REQUIRE_OK(meeting_encode_end(77, &list, &end, check_err()));
    REQUIRE_OK(decode_copy(dd_blob_view(&end), SIZE, &read));
    CHECK_INT(read.id, 77);
    for (size_t i = 0; i < SIZE; i++) {
        CHECK_BYTES(read.cards[i], dd_bytes_of_string(PUBLISHED[i] + 8));
    }
    dd_meeting_end_fini(&read);
    for (size_t len = 0; len < end.len; len++) {
        CHECK_STATUS(decode_copy(dd_bytes_of(end.data, len), SIZE, &read), DD_STORE);
    }
    CHECK_STATUS(decode_copy(dd_blob_view(&end), SIZE + 1, &read), DD_STORE);
    for (size_t at = 0; at < end.len; at++) {
        uint8_t old = end.data[at];
        for (unsigned value = 0; value < 256; value++) {
            end.data[at] = (uint8_t)value;
            dd_status status = decode_copy(dd_blob_view(&end), SIZE, &read);
            REQUIRE(status == DD_OK || status == DD_STORE);
            dd_meeting_end_fini(&read);
        }
        end.data[at] = old;
    }
    dd_blob_fini(&end);
    dd_blob_list_fini(&list);
}

/* ---- what it costs: the real code of a server and of its clients, one rank after the other */

typedef struct traffic {
    uint64_t nrequests;
    uint64_t nbytes;
} traffic;

typedef struct bill {
    traffic most_of_a_rank; /* but for the last */
    traffic last;
    traffic store;
} bill;

/* A HashStore that counts. */
typedef struct counted_store {
    dd_store head;
    dd_store *inner;
    traffic now;
} counted_store;

static counted_store *
count(dd_store *store, size_t nbytes)
{
    counted_store *self = DD_CONTAINER_OF(store, counted_store, head);
    self->now.nrequests++;
    self->now.nbytes += nbytes;
    return self;
}

static dd_status
counted_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
            dd_error *err)
{
    counted_store *self = count(store, request->op == DD_STORE_ADD ? 16 : 0);
    dd_status status = dd_store_run(self->inner, request, result, wait, err);
    for (size_t i = 0; i < request->nkeys; i++) {
        self->now.nbytes += request->keys[i].len + (result->list.count > i ? result->list.items[i].len : 0);
    }
    if (request->op == DD_STORE_COMPARE_SET) {
        self->now.nbytes += request->values[0].len + request->values[1].len;
    }
    self->now.nbytes += result->value.len;
    return status;
}

static const dd_store_ops counted_ops = {.kind = "counted", .run = counted_run};

static void
add_up(bill *total, traffic one, bool is_last)
{
    traffic *of_rank = is_last ? &total->last : &total->most_of_a_rank;
    of_rank->nrequests = one.nrequests > of_rank->nrequests ? one.nrequests : of_rank->nrequests;
    of_rank->nbytes = one.nbytes > of_rank->nbytes ? one.nbytes : of_rank->nbytes;
    total->store.nrequests += one.nrequests;
    total->store.nbytes += one.nbytes;
}

/* The card of a process on one of many hosts, as a group publishes it, and a nonce. */
static dd_blob
publish(int rank)
{
    dd_blob bytes = {0};
    dd_blob encoded = {0};
    dd_card card = {.pid = 100000 + rank};
    int host = rank / RANKS_A_HOST;
    uint64_t random[2] = {(uint64_t)(rank + 1) * UINT64_C(0x9e3779b97f4a7c15),
                          (uint64_t)(rank + 1) * UINT64_C(0xbf58476d1ce4e5b9)};
    memcpy(card.uid.bytes, random, sizeof card.uid.bytes);
    memset(card.host_id, host + 1, sizeof card.host_id);
    snprintf(card.host, sizeof card.host, "node-%04d", host);
    card.has_unix = true;
    dd_addr_list addrs = {.count = 1};
    struct sockaddr_in *in = (struct sockaddr_in *)&addrs.items[0].storage;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(0x0a000000 + (unsigned)host);
    in->sin_port = htons((uint16_t)(20000 + rank));
    addrs.items[0].len = sizeof *in;
    CHECK_OK(dd_card_encode(&card, &addrs, &encoded, check_err()));
    CHECK_OK(dd_blob_append(&bytes, random, 8, check_err()));
    CHECK_OK(dd_blob_append(&bytes, encoded.data, encoded.len, check_err()));
    CHECK(encoded.len <= CARD_NBYTES);
    dd_blob_fini(&encoded);
    return bytes;
}

static arrival
arrival_of(int rank, int size, const dd_blob *published)
{
    return (arrival){.place = BYTES("default_pg/1/dldist/default"),
                     .rank = rank,
                     .size = size,
                     .published = dd_blob_view(published)};
}

/* All but the last rank ask for the end, and have it when it is there. */
static void
add_waiting(bill *total, int size, size_t end_nbytes)
{
    total->most_of_a_rank.nrequests++;
    total->most_of_a_rank.nbytes += end_nbytes;
    total->store.nrequests += (uint64_t)(size - 1);
    total->store.nbytes += (uint64_t)(size - 1) * end_nbytes;
}

/* The request MEET as a server of ours serves it, and one for the end. */
static bill
meet_in_one_request(int size)
{
    bill total = {0};
    dd_keyspace ks;
    dd_keyspace_init(&ks);
    size_t end_nbytes = 0;
    for (int rank = 0; rank < size; rank++) {
        dd_blob published = publish(rank);
        arrival request = arrival_of(rank, size, &published);
        dd_store_result reply = {0};
        CHECK_OK(come(&ks, &request, &reply));
        bool is_last = rank == size - 1;
        CHECK_INT(reply.state, is_last ? DD_MEET_ENDED : DD_MEET_WAITING);
        end_nbytes = reply.value.len;
        traffic one = {.nrequests = 1, .nbytes = request.place.len + request.published.len + reply.value.len};
        add_up(&total, one, is_last);
        dd_blob_fini(&reply.value);
        dd_blob_fini(&published);
    }
    add_waiting(&total, size, end_nbytes);
    dd_keyspace_fini(&ks);
    return total;
}

static bill
meet_by_keys(int size)
{
    bill total = {0};
    counted_store counted = {.head = {.ops = &counted_ops, .root = &counted.head}};
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    size_t end_nbytes = 0;
    CHECK_OK(dd_hash_store_open(&counted.inner, DD_NS_PER_S, check_err()));
    for (int rank = 0; rank < size; rank++) {
        dd_blob published = publish(rank);
        arrival request = arrival_of(rank, size, &published);
        dd_store_result reply = {0};
        counted.now = (traffic){0};
        dd_store_request meet = request_of(&request);
        CHECK_OK(dd_store_run_generic(&counted.head, &meet, &reply, &wait, check_err()));
        end_nbytes = reply.value.len;
        add_up(&total, counted.now, rank == size - 1);
        dd_blob_fini(&reply.value);
        dd_blob_fini(&published);
    }
    add_waiting(&total, size, end_nbytes);
    dd_store_release(counted.inner);
    return total;
}

static void
print_bill(const char *how, int size, const bill *b)
{
    printf("| %s | %d | %llu | %llu | %.0f | %llu | %.1f |\n", how, size,
           (unsigned long long)b->most_of_a_rank.nrequests, (unsigned long long)b->last.nrequests,
           (double)b->most_of_a_rank.nbytes / 1e3, (unsigned long long)b->store.nrequests,
           (double)b->store.nbytes / 1e6);
}

static void
check_growth(const char *how, bill (*meet)(int size), uint64_t most, uint64_t most_of_last)
{
    static const int SIZES[] = {64, 128, 256, 4096};
    bool is_shown = getenv("DLDIST_MEETING_TABLE") != NULL;
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
        int size = SIZES[i];
        bill b = meet(size);
        if (is_shown) {
            print_bill(how, size, &b);
        }
        /* Requests: the same for each rank, whatever their number. Bytes: what is another process's own for each of them, a
         * card for each host, and a constant. */
        CHECK_INT(b.most_of_a_rank.nrequests, most);
        CHECK_INT(b.last.nrequests, most_of_last);
        CHECK(b.store.nrequests <= (uint64_t)size * most + most_of_last);
        CHECK(b.most_of_a_rank.nbytes <=
              1024 + (uint64_t)size * 32 + (uint64_t)(size / RANKS_A_HOST) * CARD_NBYTES);
        CHECK(b.last.nbytes <= 2048 + (uint64_t)size * 4 * CARD_NBYTES);
    }
}

TEST(what_a_meeting_costs)
{
    check_growth("one request", meet_in_one_request, 2, 1);
    check_growth("by keys", meet_by_keys, 5, 7);
}
