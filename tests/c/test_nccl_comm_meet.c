/* Ranks that meet in a store, with an NCCL that only creates ids. */
#include "check.h"
#include "core/thread.h"
#include "nccl/comm/meet.h"
#include "store_calls.h"

#include <stdio.h>
#include <string.h>

#define MAX_RANKS 8

static atomic_int nmade;

static dd_nccl_result
make_id(dd_nccl_unique_id *id)
{
    memset(id->bytes, 'a' + atomic_fetch_add(&nmade, 1), sizeof id->bytes);
    return DD_NCCL_SUCCESS;
}

static _Atomic(const char *) last_text;

static dd_nccl_result
make_no_id(dd_nccl_unique_id *id)
{
    (void)id;
    last_text = "no interface is up";
    return DD_NCCL_SYSTEM_ERROR;
}

static const char *
error_text(dd_nccl_result result)
{
    return result == DD_NCCL_SYSTEM_ERROR ? "unhandled system error" : "other";
}

static const char *
last_error(dd_nccl_comm_handle comm)
{
    (void)comm;
    return last_text;
}

static dd_nccl_result
init_scalable(dd_nccl_comm_handle *comm, int nranks, int rank, int nids, dd_nccl_unique_id *ids,
              dd_nccl_abi_config *config)
{
    (void)comm, (void)nranks, (void)rank, (void)nids, (void)ids, (void)config;
    return DD_NCCL_INTERNAL_ERROR;
}

typedef struct meeter {
    dd_nccl_lib lib;
    dd_nccl_meeting meeting;
    atomic_bool *stop;
    int nids;
    dd_wait wait;
    pthread_t thread;
    dd_nccl_unique_id ids[MAX_RANKS];
    dd_status status;
    dd_error error;
} meeter;

typedef struct party {
    dd_store *store;
    int size;
    meeter ranks[MAX_RANKS];
} party;

static void *
run_meeter(void *arg)
{
    meeter *m = arg;
    m->meeting.lib = &m->lib;
    m->status = dd_nccl_meet(&m->meeting, m->ids, m->nids, m->stop, &m->wait, &m->error);
    return NULL;
}

static void
party_init(party *p, int size, int nids, int64_t timeout_ns)
{
    *p = (party){.size = size};
    CHECK_OK(dd_hash_store_open(&p->store, DD_NS_PER_S, check_err()));
    for (int i = 0; i < size; i++) {
        meeter *m = &p->ranks[i];
        m->lib = (dd_nccl_lib){.version = 22703, .version_text = "2.27.3", .path = "libnccl.so.2"};
        m->lib.api.ncclGetUniqueId = make_id;
        m->lib.api.ncclGetErrorString = error_text;
        m->lib.api.ncclGetLastError = last_error;
        m->lib.api.ncclCommInitRankScalable = init_scalable;
        m->meeting = (dd_nccl_meeting){.store = p->store, .prefix = BYTES("nccl/0"), .rank = i, .size = size};
        m->nids = nids;
        m->wait = dd_wait_after(timeout_ns * check_slow());
    }
}

/* Run the ranks from `first` on. */
static void
party_run(party *p, int first)
{
    for (int i = first; i < p->size; i++) {
        CHECK_OK(dd_thread_start(&p->ranks[i].thread, "meeter", run_meeter, &p->ranks[i], check_err()));
    }
    for (int i = first; i < p->size; i++) {
        pthread_join(p->ranks[i].thread, NULL);
    }
}

static void
party_fini(party *p)
{
    dd_store_release(p->store);
}

TEST(all_ranks_receive_the_unique_ids_of_the_roots)
{
    for (int nids = 1; nids <= 3; nids++) {
        party p;
        party_init(&p, 5, nids, 5 * DD_NS_PER_S);
        party_run(&p, 0);
        for (int i = 0; i < p.size; i++) {
            CHECK_INT(p.ranks[i].status, DD_OK);
            CHECK(memcmp(p.ranks[i].ids, p.ranks[0].ids, (size_t)nids * sizeof p.ranks[i].ids[0]) == 0);
        }
        for (int i = 1; i < nids; i++) {
            CHECK(p.ranks[0].ids[i].bytes[0] != p.ranks[0].ids[i - 1].bytes[0]);
        }
        int64_t nkeys = 0;
        dd_wait wait = dd_wait_after(DD_NS_PER_S);
        CHECK_OK(dd_store_num_keys(p.store, &nkeys, &wait, check_err()));
        CHECK_INT(nkeys, 4); /* number of ranks, size, result, and number of the last meeting */
        party_fini(&p);
    }
}

TEST(a_communicator_of_one_rank_needs_no_store)
{
    party p;
    party_init(&p, 1, 1, DD_NS_PER_S);
    p.ranks[0].meeting.store = NULL;
    party_run(&p, 0);
    CHECK_INT(p.ranks[0].status, DD_OK);
    party_fini(&p);
}

TEST(different_nccl_versions_are_reported_on_every_rank)
{
    party p;
    party_init(&p, 4, 1, 5 * DD_NS_PER_S);
    p.ranks[2].lib.version = 22105;
    party_run(&p, 0);
    for (int i = 0; i < p.size; i++) {
        CHECK_INT(p.ranks[i].status, DD_MISMATCH);
        CHECK_CONTAINS(p.ranks[i].error.message, "rank 0 ");
        CHECK_CONTAINS(p.ranks[i].error.message, "has 2.27.3");
        CHECK_CONTAINS(p.ranks[i].error.message, "rank 2 ");
        CHECK_CONTAINS(p.ranks[i].error.message, "has 2.21.5");
        CHECK_INT(p.ranks[i].error.blamed.rank, 2);
    }
    party_fini(&p);
}

TEST(different_settings_are_reported_on_every_rank)
{
    for (int odd = 0; odd < 3; odd += 2) {
        party p;
        party_init(&p, 3, 1, 5 * DD_NS_PER_S);
        p.ranks[odd].meeting.has_grouped_messages = true;
        party_run(&p, 0);
        for (int i = 0; i < p.size; i++) {
            CHECK_INT(p.ranks[i].status, DD_MISMATCH);
            CHECK_CONTAINS(p.ranks[i].error.message, odd == 0 ? "grouped messages on rank 0 " : "on rank 2 ");
            CHECK_CONTAINS(p.ranks[i].error.message,
                           odd == 0 ? "own calls on rank 1" : "own calls on rank 0");
            CHECK_INT(p.ranks[i].error.blamed.rank, odd == 0 ? 1 : 2);
        }
        party_fini(&p);
    }
}

TEST(different_encryption_settings_are_reported_on_every_rank)
{
    static const struct {
        uint64_t first;
        uint64_t third;
        const char *texts[2];
    } CASES[] = {{7, 0, {"rank 0 (", "does not encrypt; set the same DLDIST_NCCL_ENCRYPTION on all ranks"}},
                 {0, 7, {"rank 2 (", "does not encrypt; set the same DLDIST_NCCL_ENCRYPTION on all ranks"}},
                 {7, 8, {"rank 0 (", "encrypts with another key; set the same DLDIST_SECRET on all ranks"}}};
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
        party p;
        party_init(&p, 3, 1, 5 * DD_NS_PER_S);
        p.ranks[0].lib.encryption = p.ranks[1].lib.encryption = CASES[c].first;
        p.ranks[2].lib.encryption = CASES[c].third;
        party_run(&p, 0);
        for (int i = 0; i < p.size; i++) {
            CHECK_INT(p.ranks[i].status, DD_MISMATCH);
            CHECK_CONTAINS(p.ranks[i].error.message, CASES[c].texts[0]);
            CHECK_CONTAINS(p.ranks[i].error.message, CASES[c].texts[1]);
            CHECK_INT(p.ranks[i].error.blamed.rank, 2);
        }
        party_fini(&p);
    }
}

TEST(all_ranks_receive_the_reason_of_a_root_that_fails)
{
    party p;
    party_init(&p, 4, 2, 5 * DD_NS_PER_S);
    p.ranks[2].lib.api.ncclGetUniqueId = make_no_id; /* the root of the second half */
    party_run(&p, 0);
    for (int i = 0; i < p.size; i++) {
        CHECK_INT(p.ranks[i].status, DD_BACKEND);
        CHECK_CONTAINS(p.ranks[i].error.message, "rank 2 could not create NCCL's unique id");
        CHECK_CONTAINS(p.ranks[i].error.message,
                       "ncclSystemError (2): unhandled system error: no interface is up");
        CHECK_INT(p.ranks[i].error.blamed.rank, 2);
    }
    party_fini(&p);
}

TEST(ranks_that_do_not_join_before_the_timeout_are_named)
{
    static const int NAMES[] = {3, 5, 6, 9};
    party p;
    party_init(&p, 4, 1, 200 * DD_NS_PER_MS);
    for (int i = 0; i < p.size; i++) {
        p.ranks[i].meeting.names = NAMES;
    }
    p.size = 3; /* the last rank does not join */
    party_run(&p, 0);
    for (int i = 0; i < p.size; i++) {
        CHECK_INT(p.ranks[i].status, DD_OP_TIMED_OUT);
        CHECK_CONTAINS(p.ranks[i].error.message, "3 of 4 have joined: 3 (");
        CHECK_CONTAINS(p.ranks[i].error.message, "missing: 9");
        CHECK_INT(p.ranks[i].error.blamed.rank, 9);
    }
    party_fini(&p);

    party_init(&p, 4, 1, 200 * DD_NS_PER_MS);
    party_run(&p, 1); /* the first rank does not join */
    for (int i = 1; i < p.size; i++) {
        CHECK_INT(p.ranks[i].status, DD_OP_TIMED_OUT);
        CHECK_CONTAINS(p.ranks[i].error.message, "3 of 4 have joined: 1 (");
        CHECK_CONTAINS(p.ranks[i].error.message, "missing: 0");
        CHECK_INT(p.ranks[i].error.blamed.rank, 0);
    }
    party_fini(&p);
}

TEST(a_rank_that_joins_after_the_timeout_fails_without_waiting)
{
    party p;
    party_init(&p, 2, 1, 50 * DD_NS_PER_MS);
    run_meeter(&p.ranks[0]);
    CHECK_INT(p.ranks[0].status, DD_OP_TIMED_OUT);
    p.ranks[1].wait = dd_wait_after(DD_NEVER_NS);
    run_meeter(&p.ranks[1]);
    CHECK_INT(p.ranks[1].status, DD_OP_TIMED_OUT);
    CHECK_CONTAINS(p.ranks[1].error.message, "1 of 2 have joined: 0 (");
    CHECK_CONTAINS(p.ranks[1].error.message, "missing: 1");
    party_fini(&p);
}

TEST(waiting_for_the_other_ranks_can_be_interrupted)
{
    atomic_bool stop = true;
    party p;
    party_init(&p, 2, 1, DD_NEVER_NS / 1000);
    p.ranks[0].stop = &stop;
    run_meeter(&p.ranks[0]);
    run_meeter(&p.ranks[1]); /* reads the keys that rank 0 left */
    for (int i = 0; i < p.size; i++) {
        CHECK_INT(p.ranks[i].status, DD_ABORTED);
        CHECK_CONTAINS(p.ranks[i].error.message, "cancelled");
    }
    party_fini(&p);
}

TEST(two_communicators_created_under_one_store_prefix_do_not_mix)
{
    party p;
    party_init(&p, 2, 1, 5 * DD_NS_PER_S);
    party_run(&p, 0);
    char first = p.ranks[0].ids[0].bytes[0];
    p.ranks[0].meeting.use = 1;
    p.ranks[1].meeting.use = 1;
    party_run(&p, 0);
    CHECK_INT(p.ranks[1].status, DD_OK);
    CHECK(p.ranks[1].ids[0].bytes[0] == p.ranks[0].ids[0].bytes[0]);
    CHECK(p.ranks[1].ids[0].bytes[0] != first);
    party_fini(&p);
}

static void
party_refresh(party *p, int64_t timeout_ns)
{
    for (int i = 0; i < p->size; i++) {
        p->ranks[i].wait = dd_wait_after(timeout_ns * check_slow());
    }
}

static void
check_meets(party *p)
{
    party_refresh(p, 20 * DD_NS_PER_S);
    party_run(p, 0);
    for (int i = 0; i < p->size; i++) {
        CHECK_INT(p->ranks[i].status, DD_OK);
        CHECK(p->ranks[i].ids[0].bytes[0] == p->ranks[0].ids[0].bytes[0]);
    }
}

TEST(ranks_can_meet_again_under_the_same_store_prefix)
{
    party p;
    party_init(&p, 4, 1, 5 * DD_NS_PER_S);
    char last = 0;
    for (int i = 0; i < 5; i++) {
        check_meets(&p);
        CHECK(p.ranks[0].ids[0].bytes[0] != last);
        last = p.ranks[0].ids[0].bytes[0];
    }
    party_fini(&p);
}

/* The first rank joins long after the others, which find the result of an earlier meeting. */
TEST(the_result_of_an_earlier_rendezvous_is_ignored)
{
    party p;
    party_init(&p, 3, 1, 5 * DD_NS_PER_S);
    check_meets(&p);
    char last = p.ranks[0].ids[0].bytes[0];
    party_refresh(&p, 20 * DD_NS_PER_S);
    for (int i = 1; i < 3; i++) {
        CHECK_OK(dd_thread_start(&p.ranks[i].thread, "meeter", run_meeter, &p.ranks[i], check_err()));
    }
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    const dd_bytes endpoints[] = {BYTES("dldist/nccl/0/0/1/rank/1"), BYTES("dldist/nccl/0/0/1/rank/2")};
    CHECK_OK(dd_store_wait(p.store, endpoints, 2, &wait, check_err()));
    run_meeter(&p.ranks[0]);
    for (int i = 1; i < 3; i++) {
        pthread_join(p.ranks[i].thread, NULL);
        CHECK_INT(p.ranks[i].status, DD_OK);
        CHECK(p.ranks[i].ids[0].bytes[0] == p.ranks[0].ids[0].bytes[0]);
        CHECK(p.ranks[i].ids[0].bytes[0] != last);
    }
    party_fini(&p);
}

TEST(ranks_can_meet_after_a_failed_rendezvous)
{
    party p;
    party_init(&p, 3, 1, 5 * DD_NS_PER_S);
    p.ranks[1].lib.version = 22105; /* all ranks receive the failure */
    party_run(&p, 0);
    CHECK_INT(p.ranks[2].status, DD_MISMATCH);
    p.ranks[1].lib.version = 22703;
    check_meets(&p);

    p.size = 2; /* the third rank joins after the end */
    p.ranks[0].wait = dd_wait_after(50 * DD_NS_PER_MS);
    p.ranks[1].wait = dd_wait_after(20 * DD_NS_PER_MS);
    party_run(&p, 0);
    CHECK_INT(p.ranks[0].status, DD_OP_TIMED_OUT);
    CHECK_INT(p.ranks[1].status, DD_OP_TIMED_OUT);
    p.size = 3;
    p.ranks[2].wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    run_meeter(&p.ranks[2]);
    CHECK_INT(p.ranks[2].status, DD_OP_TIMED_OUT);
    CHECK_CONTAINS(p.ranks[2].error.message, "missing: 2");
    check_meets(&p);

    party_refresh(&p, 50 * DD_NS_PER_MS); /* a rank that timed out does not join again */
    p.size = 2;
    party_run(&p, 0);
    p.size = 3;
    p.ranks[2].wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    run_meeter(&p.ranks[2]);
    party_refresh(&p, 50 * DD_NS_PER_MS);
    run_meeter(&p.ranks[0]);
    CHECK_INT(p.ranks[0].status, DD_OP_TIMED_OUT);
    CHECK_CONTAINS(p.ranks[0].error.message, "1 of 3 have joined: 0 (");
    CHECK_CONTAINS(p.ranks[0].error.message, "missing: 1, 2");
    party_fini(&p);
}

/* Data in the store comes from a peer, and may be malformed. */
TEST(malformed_rendezvous_data_in_the_store_is_an_error)
{
    const struct {
        dd_bytes end;
        dd_status status;
        const char *text;
    } bad[] = {
        {BYTES("short"), DD_STORE, "got \"short\", expected \"ok 2\" and an id"},
        {BYTES("ok 2 1\n"), DD_STORE, "the payload of rank 0 is missing"},
        {BYTES("ok 2 1\n\0\0\0\0\5\0short"), DD_PROTOCOL, "malformed data of rank 0: got 0 bytes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        party p;
        dd_wait wait = dd_wait_after(DD_NS_PER_S);
        party_init(&p, 2, 1, 5 * DD_NS_PER_S);
        CHECK_OK(dd_store_set(p.store, BYTES("dldist/nccl/0/0/0/end"), bad[i].end, &wait, check_err()));
        run_meeter(&p.ranks[0]);
        CHECK_INT(p.ranks[0].status, bad[i].status);
        CHECK_CONTAINS(p.ranks[0].error.message, bad[i].text);
        party_fini(&p);
    }
    party p;
    party_init(&p, 2, 1, 5 * DD_NS_PER_S);
    p.ranks[1].nids = 2; /* the ranks disagree about the roots */
    party_run(&p, 0);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(p.ranks[i].status, DD_PROTOCOL);
        CHECK_CONTAINS(p.ranks[i].error.message, "ranks disagree on the number of NCCL unique ids");
    }
    party_fini(&p);
}

TEST(the_number_of_unique_ids_follows_the_ranks_per_root)
{
    dd_nccl_lib lib = {.version = 22203};
    CHECK_INT(dd_nccl_meet_nids(&lib, 100, 10), 1); /* not supported */
    lib.api.ncclCommInitRankScalable = init_scalable;
    CHECK_INT(dd_nccl_meet_nids(&lib, 100, 0), 1);
    CHECK_INT(dd_nccl_meet_nids(&lib, 100, 10), 10);
    CHECK_INT(dd_nccl_meet_nids(&lib, 101, 10), 11);
    CHECK_INT(dd_nccl_meet_nids(&lib, 3, 128), 1);
}

/* ---- a store that inspects all data passed to it, even data that it does not keep */

#define KEY "a key that is nowhere to be read"
#define PART_BYTES 8u

typedef struct spy_store {
    dd_store head;
    dd_store *underlying;
    atomic_int nparts; /* data with a part of the key */
    atomic_int nids;   /* data with an id */
} spy_store;

/* Even a part of the key must not be stored. */
static bool
has_part_of_key(dd_bytes bytes)
{
    for (size_t at = 0; at + PART_BYTES < sizeof KEY; at++) {
        if (memmem(bytes.data, bytes.len, &KEY[at], PART_BYTES) != NULL) {
            return true;
        }
    }
    return false;
}

static bool
has_id(dd_bytes bytes)
{
    for (char letter = 'a'; letter < 'a' + MAX_RANKS; letter++) {
        dd_nccl_unique_id id;
        memset(id.bytes, letter, sizeof id.bytes);
        if (memmem(bytes.data, bytes.len, id.bytes, sizeof id.bytes) != NULL) {
            return true;
        }
    }
    return false;
}

static void
look_at(spy_store *spy, const dd_bytes *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        spy->nparts += has_part_of_key(list[i]);
        spy->nids += has_id(list[i]);
    }
}

static size_t
count_values(const dd_store_request *request)
{
    return request->values == NULL               ? 0
           : request->op == DD_STORE_MULTI_SET   ? request->nkeys
           : request->op == DD_STORE_COMPARE_SET ? 2
                                                 : 1;
}

static dd_status
spy_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
        dd_error *err)
{
    spy_store *spy = (spy_store *)store;
    look_at(spy, request->keys, request->nkeys);
    look_at(spy, request->values, count_values(request));
    return dd_store_run(spy->underlying, request, result, wait, err);
}

static void
spy_destroy(dd_store *store)
{
    dd_store_release(((spy_store *)store)->underlying);
}

static const dd_store_ops spy_ops = {
    .kind = "SpyStore",
    .run = spy_run,
    .clone = dd_store_clone_handle,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = spy_destroy,
};

/* Use the spy instead of the party's store, which it wraps. */
static void
party_spy(party *p, spy_store *spy)
{
    *spy = (spy_store){.underlying = p->store};
    dd_store_init(&spy->head, &spy_ops, DD_NS_PER_S);
    p->store = &spy->head;
    for (int i = 0; i < p->size; i++) {
        p->ranks[i].meeting.store = p->store;
    }
}

static char psk_copy[64];

static dd_nccl_result
keep_key(const dd_nccl_abi_encryption *encryption)
{
    snprintf(psk_copy, sizeof psk_copy, "%s", encryption->psk);
    return DD_NCCL_SUCCESS;
}

TEST(the_encryption_key_is_never_written_to_the_store)
{
    spy_store spy;
    party p;
    party_init(&p, 3, 1, 5 * DD_NS_PER_S);
    party_spy(&p, &spy);
    for (int i = 0; i < p.size; i++) {
        dd_nccl_lib *lib = &p.ranks[i].lib;
        lib->api.ncclSetEncryption = keep_key;
        CHECK_OK(dd_nccl_set_encryption(lib, KEY, 7, check_err()));
        CHECK(lib->encryption == 7);
    }
    CHECK(strcmp(psk_copy, KEY) == 0);
    check_meets(&p);
    CHECK(spy.nids > 0); /* the spy does see the data */
    CHECK_INT(spy.nparts, 0);
    p.ranks[2].lib.encryption = 8; /* even to report that keys differ */
    party_refresh(&p, 5 * DD_NS_PER_S);
    party_run(&p, 0);
    CHECK_INT(p.ranks[0].status, DD_MISMATCH);
    CHECK_INT(spy.nparts, 0);
    look_at(&spy, (dd_bytes[]){BYTES("..." KEY "...")}, 1); /* the spy would have found it */
    CHECK_INT(spy.nparts, 1);
    party_fini(&p);
}
