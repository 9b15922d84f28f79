/* UCC's interface, declared by dldist: types, values, and one list of functions.
 *
 * The build needs no file of UCC's. Layouts match versions 1.2 to 1.9 on 64-bit machines. UCC's
 * structs grow only at their ends, and their masks tell which fields are used. Fields and functions
 * have UCC's names, so that a text search finds them. */
#ifndef DD_UCC_UCC_API_H
#define DD_UCC_UCC_API_H

#include <stddef.h>
#include <stdint.h>

#define DD_UCC_MAJOR 1
#define DD_UCC_MINOR_MIN 2 /* first version that can gather and scatter blocks of different sizes */

/* ---- handles and values */

typedef struct dd_ucc_opaque_lib *dd_ucc_lib_handle;
typedef struct dd_ucc_opaque_lib_config *dd_ucc_lib_config;
typedef struct dd_ucc_opaque_context *dd_ucc_context_handle;
typedef struct dd_ucc_opaque_context_config *dd_ucc_context_config;
typedef struct dd_ucc_opaque_team *dd_ucc_team_handle;

/* UCC's results. Errors are negative; for values not listed here use ucc_status_string. */
typedef enum dd_ucc_status {
    DD_UCC_OK = 0,
    DD_UCC_INPROGRESS = 1,
    DD_UCC_ERR_NOT_SUPPORTED = -1,
    DD_UCC_ERR_NOT_IMPLEMENTED = -2,
    DD_UCC_ERR_NO_MEMORY = -4,
    DD_UCC_ERR_NO_MESSAGE = -6 /* UCC's generic error */
} dd_ucc_status;

typedef enum dd_ucc_thread_mode { DD_UCC_THREAD_MULTIPLE = 2 } dd_ucc_thread_mode;

/* UCC's collectives. Values are single bits, so that they can form sets. */
typedef enum dd_ucc_coll_type {
    DD_UCC_ALLGATHER = 1 << 0,
    DD_UCC_ALLGATHERV = 1 << 1,
    DD_UCC_ALLREDUCE = 1 << 2,
    DD_UCC_ALLTOALLV = 1 << 4,
    DD_UCC_BARRIER = 1 << 5,
    DD_UCC_BCAST = 1 << 6,
    DD_UCC_GATHERV = 1 << 10,
    DD_UCC_REDUCE = 1 << 11,
    DD_UCC_REDUCE_SCATTER = 1 << 12,
    DD_UCC_REDUCE_SCATTERV = 1 << 13,
    DD_UCC_SCATTERV = 1 << 15
} dd_ucc_coll_type;

typedef enum dd_ucc_memory_type { DD_UCC_MEMORY_HOST = 0 } dd_ucc_memory_type;

typedef uint64_t dd_ucc_datatype;
#define DD_UCC_DATATYPE(number) ((dd_ucc_datatype)(number) << 3)

typedef enum dd_ucc_op {
    DD_UCC_SUM = 0,
    DD_UCC_PROD = 1,
    DD_UCC_MAX = 2,
    DD_UCC_MIN = 3,
    DD_UCC_BAND = 7,
    DD_UCC_BOR = 8,
    DD_UCC_BXOR = 9
} dd_ucc_op;

/* ---- the library and its contexts */

#define DD_UCC_LIB_THREAD_MODE UINT64_C(1)
#define DD_UCC_LIB_COLL_TYPES UINT64_C(2)

/* UCC's ucc_lib_params and ucc_lib_attr, which have the same layout. */
typedef struct dd_ucc_lib_params {
    uint64_t mask;
    dd_ucc_thread_mode thread_mode;
    uint64_t coll_types;
    uint64_t reduction_types;
    int sync_type;
} dd_ucc_lib_params;

/* Caller-supplied out-of-band all_gather, for bootstrapping UCC; at most one is in progress. */
typedef struct dd_ucc_oob_coll {
    dd_ucc_status (*allgather)(void *src, void *recv, size_t size, void *coll_info, void **request);
    dd_ucc_status (*req_test)(void *request);
    dd_ucc_status (*req_free)(void *request);
    void *coll_info;
    uint32_t n_oob_eps;
    uint32_t oob_ep;
} dd_ucc_oob_coll;

typedef struct dd_ucc_mem_map_params {
    void *segments;
    uint64_t n_segments;
} dd_ucc_mem_map_params;

#define DD_UCC_CONTEXT_OOB UINT64_C(4)

typedef struct dd_ucc_context_params {
    uint64_t mask;
    int type;
    int sync_type;
    dd_ucc_oob_coll oob;
    uint64_t ctx_id;
    dd_ucc_mem_map_params mem_params;
} dd_ucc_context_params;

/* ---- teams */

#define DD_UCC_TEAM_EP UINT64_C(4)
#define DD_UCC_TEAM_EP_RANGE UINT64_C(16)
#define DD_UCC_TEAM_SIZE UINT64_C(32)
#define DD_UCC_TEAM_OOB UINT64_C(128)

typedef enum dd_ucc_ep_range { DD_UCC_EP_RANGE_CONTIG = 0 } dd_ucc_ep_range;

typedef struct dd_ucc_team_params {
    uint64_t mask;
    uint64_t flags;
    int ordering;
    uint64_t outstanding_colls;
    uint64_t ep;
    uint64_t *ep_list;
    dd_ucc_ep_range ep_range;
    uint64_t team_size;
    int sync_type;
    dd_ucc_oob_coll oob;
    void *p2p_conn[5];
    dd_ucc_mem_map_params mem_params;
    uint64_t ep_map[4];
    uint64_t id;
} dd_ucc_team_params;

/* ---- collectives */

typedef struct dd_ucc_request {
    dd_ucc_status status; /* state, which UCC's inline function ucc_collective_test reads */
} dd_ucc_request;

typedef struct dd_ucc_buffer {
    void *buffer;
    uint64_t count;
    dd_ucc_datatype datatype;
    dd_ucc_memory_type mem_type;
} dd_ucc_buffer;

/* ucc_coll_buffer_info_v: an array with one block for each rank. */
typedef struct dd_ucc_buffer_v {
    void *buffer;
    const uint64_t *counts;
    const uint64_t *displacements;
    dd_ucc_datatype datatype;
    dd_ucc_memory_type mem_type;
} dd_ucc_buffer_v;

typedef union dd_ucc_buffer_of {
    dd_ucc_buffer info;
    dd_ucc_buffer_v info_v;
} dd_ucc_buffer_of;

#define DD_UCC_ARGS_FLAGS UINT64_C(1)

#define DD_UCC_FLAG_IN_PLACE UINT64_C(1)
#define DD_UCC_FLAG_COUNT_64BIT UINT64_C(4)
#define DD_UCC_FLAG_DISPLACEMENTS_64BIT UINT64_C(8)

typedef struct dd_ucc_coll_args {
    uint64_t mask;
    dd_ucc_coll_type coll_type;
    dd_ucc_buffer_of src;
    dd_ucc_buffer_of dst;
    dd_ucc_op op;
    uint64_t flags;
    uint64_t root;
    int error_type;
    uint16_t tag;
    void *global_work_buffer;
    void *cb[2];
    double timeout;
    uint64_t active_set[3];
    void *src_memh; /* src_memh and dst_memh exist since UCC 1.5 */
    void *dst_memh;
    uint64_t later[8]; /* must be zero; room for later UCC versions, which copy a larger struct */
} dd_ucc_coll_args;

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "counts and offsets are handed over as they are");
_Static_assert(sizeof(dd_ucc_lib_params) == 40, "ucc_lib_params");
_Static_assert(sizeof(dd_ucc_oob_coll) == 40, "ucc_oob_coll");
_Static_assert(offsetof(dd_ucc_context_params, oob) == 16, "ucc_context_params.oob");
_Static_assert(sizeof(dd_ucc_context_params) == 80, "ucc_context_params");
_Static_assert(offsetof(dd_ucc_team_params, ep) == 32, "ucc_team_params.ep");
_Static_assert(offsetof(dd_ucc_team_params, team_size) == 56, "ucc_team_params.team_size");
_Static_assert(offsetof(dd_ucc_team_params, oob) == 72, "ucc_team_params.oob");
_Static_assert(offsetof(dd_ucc_team_params, mem_params) == 152, "ucc_team_params.mem_params");
_Static_assert(sizeof(dd_ucc_team_params) == 208, "ucc_team_params");
_Static_assert(offsetof(dd_ucc_buffer, mem_type) == 24, "ucc_coll_buffer_info.mem_type");
_Static_assert(offsetof(dd_ucc_buffer_v, mem_type) == 32, "ucc_coll_buffer_info_v.mem_type");
_Static_assert(offsetof(dd_ucc_coll_args, dst) == 56, "ucc_coll_args.dst");
_Static_assert(offsetof(dd_ucc_coll_args, op) == 96, "ucc_coll_args.op");
_Static_assert(offsetof(dd_ucc_coll_args, root) == 112, "ucc_coll_args.root");
_Static_assert(offsetof(dd_ucc_coll_args, tag) == 124, "ucc_coll_args.tag");
_Static_assert(offsetof(dd_ucc_coll_args, cb) == 136, "ucc_coll_args.cb");
_Static_assert(offsetof(dd_ucc_coll_args, active_set) == 160, "ucc_coll_args.active_set");
_Static_assert(offsetof(dd_ucc_coll_args, later) == 200, "ucc_coll_args");

/* ---- functions */

/* X(name, result, parameters): functions that every UCC must have. */
#define DD_UCC_FUNCTIONS(X)                                                                               \
    X(ucc_get_version_string, const char *, (void))                                                       \
    X(ucc_status_string, const char *, (dd_ucc_status status))                                            \
    X(ucc_lib_config_read, dd_ucc_status,                                                                 \
      (const char *env_prefix, const char *filename, dd_ucc_lib_config *config))                          \
    X(ucc_lib_config_release, void, (dd_ucc_lib_config config))                                           \
    X(ucc_init_version, dd_ucc_status,                                                                    \
      (unsigned api_major, unsigned api_minor, const dd_ucc_lib_params *params, dd_ucc_lib_config config, \
       dd_ucc_lib_handle *lib))                                                                           \
    X(ucc_lib_get_attr, dd_ucc_status, (dd_ucc_lib_handle lib, dd_ucc_lib_params * attr))                 \
    X(ucc_finalize, dd_ucc_status, (dd_ucc_lib_handle lib))                                               \
    X(ucc_context_config_read, dd_ucc_status,                                                             \
      (dd_ucc_lib_handle lib, const char *filename, dd_ucc_context_config *config))                       \
    X(ucc_context_config_modify, dd_ucc_status,                                                           \
      (dd_ucc_context_config config, const char *component, const char *name, const char *value))         \
    X(ucc_context_config_release, void, (dd_ucc_context_config config))                                   \
    X(ucc_context_create, dd_ucc_status,                                                                  \
      (dd_ucc_lib_handle lib, const dd_ucc_context_params *params, dd_ucc_context_config config,          \
       dd_ucc_context_handle *context))                                                                   \
    X(ucc_context_progress, dd_ucc_status, (dd_ucc_context_handle context))                               \
    X(ucc_context_destroy, dd_ucc_status, (dd_ucc_context_handle context))                                \
    X(ucc_team_create_post, dd_ucc_status,                                                                \
      (dd_ucc_context_handle * contexts, uint32_t num_contexts, const dd_ucc_team_params *params,         \
       dd_ucc_team_handle *team))                                                                         \
    X(ucc_team_create_test, dd_ucc_status, (dd_ucc_team_handle team))                                     \
    X(ucc_team_destroy, dd_ucc_status, (dd_ucc_team_handle team))                                         \
    X(ucc_collective_init, dd_ucc_status,                                                                 \
      (dd_ucc_coll_args * args, dd_ucc_request * *request, dd_ucc_team_handle team))                      \
    X(ucc_collective_post, dd_ucc_status, (dd_ucc_request * request))                                     \
    X(ucc_collective_finalize, dd_ucc_status, (dd_ucc_request * request))

#define DD_UCC_POINTER(name, returns, params) returns(*name) params;

typedef struct dd_ucc_api {
    DD_UCC_FUNCTIONS(DD_UCC_POINTER)
    /* Loaded before all other functions, to check UCC's version. */
    void (*ucc_get_version)(unsigned *major, unsigned *minor, unsigned *release);
} dd_ucc_api;

#endif
