/* Communicators that are split from others, and the effect of an abort on them. */
#include "test_nccl_comm_rig.h"

#include <stdlib.h>
#include <string.h>

#define NEWEST "2.32.3"
#define SPLIT_FROM "the communicator that it was split from was aborted: enough"
#define SHARES "a communicator that shares its resources was aborted: enough"

typedef struct family {
    comm_rig rig;
    dd_nccl_comm *top;
    dd_nccl_comm *child;
    dd_nccl_comm *sibling;
    dd_nccl_comm *grandchild;
} family;

static dd_nccl_comm *
split_off(dd_nccl_comm *parent, const dd_nccl_config *config)
{
    dd_nccl_comm *child = NULL;
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_nccl_comm_split(parent, 0, 0, config, &child, NULL, &wait, check_err()));
    return child;
}

/* Open communicators of one rank. If they share resources, all share one abort flag. */
static bool
family_open(family *f, bool is_nonblocking, bool shares)
{
    dd_nccl_unique_id id;
    dd_nccl_config config;
    *f = (family){0};
    if (!comm_rig_open(&f->rig, NEWEST)) {
        return false;
    }
    dd_nccl_config_init(&config);
    config.values.blocking = !is_nonblocking;
    config.values.splitShare = shares;
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    dd_nccl_comm_spec spec = {.lib = f->rig.lib, .cuda = f->rig.cuda, .size = 1, .config = &config};
    if (!CHECK_OK(dd_nccl_make_unique_id(f->rig.lib, &id, check_err())) ||
        !CHECK_OK(dd_nccl_comm_init(&spec, &id, 1, &f->top, NULL, &wait, check_err()))) {
        return false;
    }
    f->child = split_off(f->top, NULL); /* has the configuration of its parent */
    f->sibling = split_off(f->top, &config);
    f->grandchild = split_off(f->child, NULL);
    return f->child != NULL && f->sibling != NULL && f->grandchild != NULL;
}

static void
family_close(family *f)
{
    dd_nccl_comm_release(f->grandchild);
    dd_nccl_comm_release(f->sibling);
    dd_nccl_comm_release(f->child);
    dd_nccl_comm_release(f->top);
    comm_rig_close(&f->rig);
}

static void
check_aborted(dd_nccl_comm *comm, const char *reason)
{
    dd_nccl_comm_handle handle;
    CHECK_STATUS(comm_rig_enter(comm, &handle), DD_ABORTED);
    CHECK_CONTAINS(check_message(), reason);
    CHECK(dd_nccl_comm_pointer(comm) == NULL);
}

static void
check_works(dd_nccl_comm *comm)
{
    dd_nccl_comm_handle handle;
    if (CHECK_OK(comm_rig_enter(comm, &handle))) {
        dd_nccl_comm_leave(comm);
    }
}

static void
check_descent(bool is_nonblocking)
{
    family f;
    REQUIRE(family_open(&f, is_nonblocking, false));
    CHECK_OK(dd_nccl_comm_abort(f.child, "enough", check_err()));
    check_aborted(f.child, "was aborted: enough");
    check_aborted(f.grandchild, SPLIT_FROM);
    check_works(f.top);
    check_works(f.sibling);
    CHECK_INT(f.rig.on_nccl.live("comm"), 2);
    CHECK_OK(dd_nccl_comm_abort(f.top, "enough", check_err()));
    check_aborted(f.sibling, SPLIT_FROM);
    CHECK_INT(f.rig.on_nccl.live("comm"), 0);
    family_close(&f);
}

TEST(aborting_a_communicator_aborts_those_split_from_it)
{
    check_descent(false);
    check_descent(true);
}

TEST(an_abort_reaches_grandchildren_even_if_their_parent_has_ended)
{
    family f;
    REQUIRE(family_open(&f, false, false));
    CHECK_OK(dd_nccl_comm_destroy(f.child, check_err()));
    dd_nccl_comm_release(f.sibling);
    f.sibling = NULL;
    CHECK_OK(dd_nccl_comm_abort(f.top, "enough", check_err()));
    check_aborted(f.grandchild, SPLIT_FROM);
    family_close(&f);

    REQUIRE(family_open(&f, false, false));
    dd_nccl_comm_release(f.child); /* its record was freed */
    f.child = NULL;
    CHECK_OK(dd_nccl_comm_abort(f.top, "enough", check_err()));
    check_aborted(f.grandchild, SPLIT_FROM);
    family_close(&f);

    REQUIRE(family_open(&f, false, false));
    dd_nccl_comm_release(f.top);
    f.top = NULL;
    check_works(f.child); /* the parent was destroyed, not aborted */
    CHECK_OK(dd_nccl_comm_abort(f.child, "enough", check_err()));
    check_aborted(f.grandchild, SPLIT_FROM);
    check_works(f.sibling);
    family_close(&f);
}

TEST(aborting_only_one_communicator_leaves_its_children_usable)
{
    family f;
    REQUIRE(family_open(&f, false, false));
    CHECK_OK(dd_nccl_comm_abort_alone(f.top, "enough", check_err()));
    check_aborted(f.top, "was aborted: enough");
    check_works(f.child);
    check_works(f.grandchild);
    family_close(&f);
}

static void
check_sharing(bool is_alone)
{
    family f;
    REQUIRE(family_open(&f, false, true));
    dd_status (*abort_one)(dd_nccl_comm *, const char *, dd_error *) =
        is_alone ? dd_nccl_comm_abort_alone : dd_nccl_comm_abort;
    CHECK_OK(abort_one(f.grandchild, "enough", check_err()));
    check_aborted(f.top, SHARES);
    check_aborted(f.sibling, "was aborted: enough");
    check_aborted(f.child, "was aborted: enough");
    CHECK_INT(f.rig.on_nccl.live("comm"), 0);
    family_close(&f);
}

TEST(an_abort_reaches_all_communicators_that_share_resources)
{
    check_sharing(false);
    check_sharing(true);
    /* in NCCL it overrides the configuration */
    CHECK(setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "0", 1) == 0);
    family f;
    REQUIRE(family_open(&f, false, true));
    CHECK_OK(dd_nccl_comm_abort(f.child, "enough", check_err()));
    check_works(f.top);
    family_close(&f);
    CHECK(unsetenv("NCCL_COMM_SPLIT_SHARE_RESOURCES") == 0);
}

/* ---- with an owner */

typedef struct owner {
    atomic_int ntaken;
    atomic_int naborts;
    char reason[256];
    bool is_ending;
} owner;

static bool
try_acquire(void *ctx)
{
    owner *o = ctx;
    atomic_fetch_add(&o->ntaken, 1);
    return !o->is_ending;
}

static void
abort_owner(void *ctx, const char *reason)
{
    owner *o = ctx;
    atomic_fetch_add(&o->naborts, 1);
    (void)strncpy(o->reason, reason, sizeof o->reason - 1);
}

TEST(an_abort_calls_the_owner_of_a_child_communicator_to_abort_it)
{
    family f;
    owner o = {0};
    REQUIRE(family_open(&f, false, false));
    dd_nccl_comm_set_owner(f.child, &(dd_nccl_comm_owner){&o, try_acquire, abort_owner});
    CHECK_OK(dd_nccl_comm_abort(f.top, "enough", check_err()));
    CHECK_INT(o.naborts, 1);
    CHECK(strcmp(o.reason, SPLIT_FROM) == 0);
    check_works(f.child); /* aborting it is up to the owner */
    check_aborted(f.grandchild, SPLIT_FROM);
    CHECK_OK(dd_nccl_comm_abort(f.child, "enough", check_err()));
    CHECK_INT(o.naborts, 1);
    family_close(&f);

    o = (owner){.is_ending = true};
    REQUIRE(family_open(&f, false, false));
    dd_nccl_comm_set_owner(f.child, &(dd_nccl_comm_owner){&o, try_acquire, abort_owner});
    CHECK_OK(dd_nccl_comm_abort(f.top, "enough", check_err()));
    CHECK_INT(o.naborts, 0);
    check_aborted(f.child, SPLIT_FROM);
    family_close(&f);
}

/* ---- threads inside */

typedef struct waiter {
    dd_nccl_comm *comm;
    atomic_bool is_inside;
} waiter;

static void *
stay_inside(void *arg)
{
    waiter *w = arg;
    dd_nccl_comm_handle handle;
    CHECK_OK(comm_rig_enter(w->comm, &handle));
    atomic_store(&w->is_inside, true);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    while (!dd_nccl_comm_has_ended(w->comm) && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    dd_nccl_comm_leave(w->comm);
    return NULL;
}

TEST(an_abort_waits_for_a_thread_that_uses_a_child_communicator)
{
    family f;
    REQUIRE(family_open(&f, true, false));
    waiter w = {.comm = f.grandchild};
    pthread_t thread;
    REQUIRE_OK(dd_thread_start(&thread, "waiter", stay_inside, &w, check_err()));
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    while (!atomic_load(&w.is_inside) && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_OK(dd_nccl_comm_abort(f.top, "enough", check_err()));
    CHECK_INT(f.rig.on_nccl.live("comm"), 0);
    pthread_join(thread, NULL);
    check_aborted(f.grandchild, SPLIT_FROM);
    family_close(&f);
}
