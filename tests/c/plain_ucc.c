#include "plain_ucc.h"

#include "check.h"
#include "plain_library.h"
#include "stubs/carrier_stub.h"
#include "ucc/ucc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY DD_STUBS_DIR "/libcarriers.so"
#define MAX_RANKS PLAIN_LIBRARY_MAX_RANKS

plain_ucc_script plain_ucc;
plain_ucc_counts plain_ucc_live;

/* Guards all worlds. */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

typedef struct ucc_world ucc_world;

struct dd_ucc_opaque_context {
    struct dd_ucc_opaque_context *next; /* all contexts that were created */
    dd_ucc_oob_coll oob;
    dd_ucc_team_handle team;
    bool is_ended;
};

struct dd_ucc_opaque_team {
    struct dd_ucc_opaque_team *next;
    dd_ucc_context_handle context;
    int rank;
    int nlooks; /* while it is being destroyed */
    ucc_world *own;
    ucc_world *worlds[MAX_RANKS]; /* each rank's world; all ranks use rank 0's */
    void *exchange;
    struct ucc_request *current; /* there is only one collective at a time */
};

typedef struct ucc_request {
    dd_ucc_request base; /* must be first */
    dd_ucc_team_handle team;
    dd_carried_call call;
    bool is_done; /* guarded by mu */
} ucc_request;

/* guarded by mu */
struct ucc_world {
    ucc_world *next;
    ucc_request *posted[MAX_RANKS];
};

/* These lists keep objects reachable that a test does not destroy. */
static dd_ucc_context_handle all_contexts;
static dd_ucc_team_handle all_teams;
static ucc_world *all_worlds;

#define NEW(list)                         \
    ({                                    \
        __typeof__(list) made_;           \
        made_ = calloc(1, sizeof *made_); \
        pthread_mutex_lock(&mu);          \
        made_->next = (list);             \
        (list) = made_;                   \
        pthread_mutex_unlock(&mu);        \
        made_;                            \
    })

static bool
is_failing(const char *function, int rank)
{
    return plain_ucc.failing != NULL && strcmp(plain_ucc.failing, function) == 0 &&
           (plain_ucc.failing_ranks >> rank & 1) != 0;
}

#define FAIL_IF_CONFIGURED(rank)        \
    if (is_failing(__func__, (rank))) { \
        return plain_ucc.failure;       \
    }

/* ---- the library */

static void
ucc_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major = 1;
    *minor = plain_ucc.minor;
    *release = 7;
}

static const char *
ucc_get_version_string(void)
{
    return "plain";
}

static const char *
ucc_status_string(dd_ucc_status status)
{
    return status == DD_UCC_ERR_NO_MEMORY ? "no memory" : "it does not go";
}

static dd_ucc_status
ucc_lib_config_read(const char *env_prefix, const char *filename, dd_ucc_lib_config *config)
{
    CHECK(strcmp(env_prefix, "TORCH") == 0 && filename == NULL);
    FAIL_IF_CONFIGURED(0)
    *config = NULL;
    plain_ucc_live.nconfigs++;
    return DD_UCC_OK;
}

static void
ucc_lib_config_release(dd_ucc_lib_config config)
{
    (void)config;
    plain_ucc_live.nconfigs--;
}

static dd_ucc_status
ucc_init_version(unsigned api_major, unsigned api_minor, const dd_ucc_lib_params *params,
                 dd_ucc_lib_config config, dd_ucc_lib_handle *lib)
{
    (void)config;
    CHECK(api_major == 1 && api_minor == 2 && params->thread_mode == DD_UCC_THREAD_MULTIPLE);
    FAIL_IF_CONFIGURED(0)
    *lib = NULL;
    plain_ucc_live.nlibs++;
    return DD_UCC_OK;
}

static dd_ucc_status
ucc_lib_get_attr(dd_ucc_lib_handle lib, dd_ucc_lib_params *attr)
{
    (void)lib;
    FAIL_IF_CONFIGURED(0)
    attr->thread_mode = plain_ucc.thread_mode;
    attr->coll_types = DD_UCC_ALLREDUCE | DD_UCC_BARRIER;
    return DD_UCC_OK;
}

static dd_ucc_status
ucc_finalize(dd_ucc_lib_handle lib)
{
    (void)lib;
    plain_ucc_live.nlibs--;
    return DD_UCC_OK;
}

/* ---- contexts */

static dd_ucc_status
ucc_context_config_read(dd_ucc_lib_handle lib, const char *filename, dd_ucc_context_config *config)
{
    (void)lib;
    CHECK(filename == NULL);
    FAIL_IF_CONFIGURED(0)
    *config = NULL;
    plain_ucc_live.nconfigs++;
    return DD_UCC_OK;
}

static dd_ucc_status
ucc_context_config_modify(dd_ucc_context_config config, const char *component, const char *name,
                          const char *value)
{
    (void)config;
    CHECK(component == NULL && strcmp(name, "ESTIMATED_NUM_EPS") == 0 && atoi(value) > 0);
    FAIL_IF_CONFIGURED(0)
    return DD_UCC_OK;
}

static void
ucc_context_config_release(dd_ucc_context_config config)
{
    (void)config;
    plain_ucc_live.nconfigs--;
}

/* Exchange the ranks of all members. */
static dd_ucc_status
introduce(const dd_ucc_oob_coll *oob)
{
    uint32_t all_cards[MAX_RANKS] = {0};
    uint32_t self = oob->oob_ep;
    void *request = NULL;
    dd_ucc_status status = oob->allgather(&self, all_cards, sizeof self, oob->coll_info, &request);
    if (status != DD_UCC_OK) {
        return status;
    }
    do {
        status = oob->req_test(request);
    } while (status == DD_UCC_INPROGRESS);
    CHECK_INT(oob->req_free(request), DD_UCC_OK);
    for (uint32_t i = 0; i < oob->n_oob_eps && status == DD_UCC_OK; i++) {
        CHECK_INT(all_cards[i], i);
    }
    return status;
}

static dd_ucc_status
ucc_context_create(dd_ucc_lib_handle lib, const dd_ucc_context_params *params, dd_ucc_context_config config,
                   dd_ucc_context_handle *made)
{
    (void)lib;
    (void)config;
    FAIL_IF_CONFIGURED((int)params->oob.oob_ep)
    dd_ucc_status status = introduce(&params->oob);
    if (status == DD_UCC_OK) {
        *made = NEW(all_contexts);
        (*made)->oob = params->oob;
        plain_ucc_live.ncontexts++;
    }
    return status;
}

static dd_ucc_status
ucc_context_progress(dd_ucc_context_handle context)
{
    FAIL_IF_CONFIGURED((int)context->oob.oob_ep)
    pthread_mutex_lock(&mu);
    ucc_request *request = context->team->current;
    if (request != NULL && request->is_done) {
        request->base.status = plain_ucc.outcome;
        context->team->current = NULL;
    }
    pthread_mutex_unlock(&mu);
    return DD_UCC_OK;
}

/* Like UCC, use one more exchange. */
static dd_ucc_status
ucc_context_destroy(dd_ucc_context_handle context)
{
    void *request = NULL;
    CHECK_INT(context->oob.allgather(NULL, NULL, 0, context->oob.coll_info, &request), DD_UCC_OK);
    while (context->oob.req_test(request) == DD_UCC_INPROGRESS) {
    }
    CHECK_INT(context->oob.req_free(request), DD_UCC_OK);
    plain_ucc_live.ncontexts--;
    context->is_ended = true;
    return DD_UCC_OK;
}

void
plain_ucc_end_contexts(void)
{
    for (dd_ucc_context_handle context = all_contexts; context != NULL; context = context->next) {
        if (!context->is_ended) {
            CHECK_INT(ucc_context_destroy(context), DD_UCC_OK);
        }
    }
}

/* ---- teams */

static dd_ucc_status
ucc_team_create_post(dd_ucc_context_handle *contexts, uint32_t num_contexts, const dd_ucc_team_params *params,
                     dd_ucc_team_handle *team)
{
    CHECK_INT(num_contexts, 1);
    FAIL_IF_CONFIGURED((int)params->ep)
    dd_ucc_team_handle self = NEW(all_teams);
    self->context = contexts[0];
    contexts[0]->team = self;
    self->rank = (int)params->ep;
    self->own = NEW(all_worlds);
    *team = self;
    plain_ucc_live.nteams++;
    return params->oob.allgather(&self->own, self->worlds, sizeof self->own, params->oob.coll_info,
                                 &self->exchange);
}

static dd_ucc_status
ucc_team_create_test(dd_ucc_team_handle team)
{
    const dd_ucc_oob_coll *oob = &team->context->oob;
    FAIL_IF_CONFIGURED(team->rank)
    if (plain_ucc.has_no_end) {
        return DD_UCC_INPROGRESS;
    }
    dd_ucc_status status = oob->req_test(team->exchange);
    if (status != DD_UCC_INPROGRESS) {
        CHECK_INT(oob->req_free(team->exchange), DD_UCC_OK);
    }
    return status;
}

static dd_ucc_status
ucc_team_destroy(dd_ucc_team_handle team)
{
    FAIL_IF_CONFIGURED(team->rank)
    if (team->nlooks < plain_ucc.nlooks_at_end) {
        team->nlooks++;
        return DD_UCC_INPROGRESS;
    }
    plain_ucc_live.nteams--;
    return DD_UCC_OK;
}

/* ---- collectives */

static dd_ucc_status
ucc_collective_init(dd_ucc_coll_args *args, dd_ucc_request **made, dd_ucc_team_handle team)
{
    FAIL_IF_CONFIGURED(team->rank)
    ucc_request *request = calloc(1, sizeof *request);
    bool is_barrier = args->coll_type == DD_UCC_BARRIER;
    request->base.status = DD_UCC_INPROGRESS;
    request->team = team;
    request->call = (dd_carried_call){.coll = DD_COLL_BARRIER, .dtype = DD_DTYPE_UINT8};
    if (!is_barrier && CHECK_INT(args->coll_type, DD_UCC_ALLREDUCE) && CHECK_INT(args->op, DD_UCC_SUM)) {
        bool is_in_place = (args->flags & DD_UCC_FLAG_IN_PLACE) != 0;
        request->call = (dd_carried_call){
            .coll = DD_COLL_ALL_REDUCE,
            .dtype = args->dst.info.datatype == DD_UCC_DATATYPE(3) ? DD_DTYPE_INT64 : DD_DTYPE_FLOAT32,
            .op = DD_REDOP_SUM,
            .input = is_in_place ? args->dst.info.buffer : args->src.info.buffer,
            .output = args->dst.info.buffer,
            .count = args->dst.info.count};
    }
    *made = &request->base;
    plain_ucc_live.nrequests++;
    return DD_UCC_OK;
}

/* Once all ranks have posted, the last one carries out the collective for all of them. */
static dd_ucc_status
ucc_collective_post(dd_ucc_request *base)
{
    ucc_request *request = (ucc_request *)base;
    dd_ucc_team_handle team = request->team;
    ucc_world *world = team->worlds[0];
    int nranks = (int)team->context->oob.n_oob_eps;
    const dd_carried_call *calls[MAX_RANKS];
    int nposted = 0;
    FAIL_IF_CONFIGURED(team->rank)
    pthread_mutex_lock(&mu);
    world->posted[team->rank] = request;
    team->current = request;
    for (int i = 0; i < nranks && world->posted[i] != NULL; i++) {
        calls[nposted++] = &world->posted[i]->call;
    }
    if (nposted == nranks && !plain_ucc.is_stuck) {
        plain_library_do(calls, nranks);
        for (int i = 0; i < nranks; i++) {
            world->posted[i]->is_done = true;
            world->posted[i] = NULL;
        }
    }
    pthread_mutex_unlock(&mu);
    return DD_UCC_OK;
}

static dd_ucc_status
ucc_collective_finalize(dd_ucc_request *request)
{
    free(request);
    plain_ucc_live.nrequests--;
    return DD_UCC_OK;
}

/* ---- control by tests */

void
plain_ucc_reset(void)
{
    plain_ucc = (plain_ucc_script){.minor = 4, .thread_mode = DD_UCC_THREAD_MULTIPLE, .failing_ranks = ~0u};
    plain_ucc_live = (plain_ucc_counts){0};
}

dd_status
plain_ucc_open(dd_carrier_library **library, dd_error *err)
{
    static const dd_ucc_api PLAIN = {
#define MEMBER(name, returns, parameters) .name = name,
        DD_UCC_FUNCTIONS(MEMBER)
#undef MEMBER
            .ucc_get_version = ucc_get_version,
    };
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    carrier_stub *stub = handle != NULL ? dlsym(handle, "dd_stub_carriers") : NULL;
    dd_dylib_search offset = {.explicit_path = LIBRARY};
    if (!CHECK(stub != NULL)) {
        return DD_NOT_SUPPORTED;
    }
    stub->ucc = PLAIN;
    return dd_ucc_open(&offset, library, err);
}
