#include "nccl/driver/lib.h"

#include "core/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct loaded_lib {
    dd_nccl_lib base; /* must be first, for casts */
    dd_dylib dylib;
} loaded_lib;

#define SYMBOL_REQUIRED(name, since, returns, params) {#name, offsetof(dd_nccl_api, name), false},
#define SYMBOL_OPTIONAL(name, since, returns, params, capability) {#name, offsetof(dd_nccl_api, name), true},

static const dd_dylib_symbol NCCL_SYMBOLS[] = {DD_NCCL_REQUIRED(SYMBOL_REQUIRED)
                                                   DD_NCCL_OPTIONAL(SYMBOL_OPTIONAL)};

typedef struct capability_info {
    const char *name;
    int since;
    size_t offset;
} capability_info;

#define CAPABILITY_INFO(name, since, returns, params, capability) {#name, since, offsetof(dd_nccl_api, name)},

static const capability_info CAPABILITIES[] = {DD_NCCL_OPTIONAL(CAPABILITY_INFO)};

const char *
dd_nccl_version_print(int version, char *out)
{
    (void)snprintf(out, 16, "%d.%d.%d", version / 10000 % 1000, version / 100 % 100, version % 100);
    return out;
}

const char *
dd_nccl_result_name(dd_nccl_result result)
{
    switch ((int)result) {
#define RESULT_NAME(name, value, theirs, since) \
    case value:                                 \
        return #theirs;
        DD_NCCL_RESULT_LIST(RESULT_NAME)
#undef RESULT_NAME
    default:
        return "ncclResult";
    }
}

static dd_status
read_nccl_version(void *ctx, dd_error *err)
{
    loaded_lib *lib = ctx;
    if (lib->base.api.ncclGetVersion == NULL) {
        return dd_error_set(err, DD_NOT_SUPPORTED, "%s is not NCCL: no ncclGetVersion", lib->dylib.path);
    }
    dd_nccl_result result = lib->base.api.ncclGetVersion(&lib->base.version);
    if (result != DD_NCCL_SUCCESS) {
        return dd_error_set(err, DD_BACKEND, "ncclGetVersion of %s: %s (%d)", lib->dylib.path,
                            dd_nccl_result_name(result), (int)result);
    }
    dd_nccl_version_print(lib->base.version, lib->base.version_text);
    if (lib->base.version < DD_NCCL_VERSION_MIN) {
        char needed[16];
        return dd_error_set(err, DD_NOT_SUPPORTED,
                            "%s is too old: got NCCL %s (code %d), expected %s or newer", lib->dylib.path,
                            lib->base.version_text, lib->base.version,
                            dd_nccl_version_print(DD_NCCL_VERSION_MIN, needed));
    }
    return DD_OK;
}

dd_status
dd_nccl_lib_open(const dd_dylib_search *where, dd_nccl_lib **opened, dd_error *err)
{
    static const dd_dylib_spec SPEC = {.label = "NCCL",
                                       .sonames = {"libnccl.so.2", "libnccl.so"},
                                       .probe = "ncclGetVersion",
                                       .symbols = NCCL_SYMBOLS,
                                       .nsymbols = sizeof NCCL_SYMBOLS / sizeof NCCL_SYMBOLS[0],
                                       .check = read_nccl_version};
    loaded_lib *lib = dd_mem_zalloc(sizeof *lib);
    if (lib == NULL) {
        return dd_error_no_memory(err, sizeof *lib);
    }
    dd_status status = dd_dylib_load(&SPEC, where, &lib->dylib, &lib->base.api, lib, err);
    if (status != DD_OK) {
        dd_nccl_lib_close(&lib->base);
        return status;
    }
    lib->base.path = lib->dylib.path;
    *opened = &lib->base;
    return DD_OK;
}

void
dd_nccl_lib_close(dd_nccl_lib *base)
{
    if (base != NULL) {
        loaded_lib *lib = (loaded_lib *)base;
        dd_dylib_fini(&lib->dylib);
        dd_mem_free(lib);
    }
}

bool
dd_nccl_has(const dd_nccl_lib *lib, dd_nccl_capability capability)
{
    const void *function;
    memcpy(&function, (const char *)&lib->api + CAPABILITIES[capability].offset, sizeof function);
    return function != NULL;
}

const char *
dd_nccl_capability_name(dd_nccl_capability capability)
{
    return CAPABILITIES[capability].name;
}

static dd_status
too_old(const dd_nccl_lib *lib, const char *label, int since, dd_error *err)
{
    char needed[16];
    return dd_error_set(err, DD_NOT_SUPPORTED, "%s needs NCCL %s or newer, this is %s (%s)", label,
                        dd_nccl_version_print(since, needed), lib->version_text, lib->path);
}

dd_status
dd_nccl_need(const dd_nccl_lib *lib, dd_nccl_capability capability, dd_error *err)
{
    if (dd_nccl_has(lib, capability)) {
        return DD_OK;
    }
    return too_old(lib, CAPABILITIES[capability].name, CAPABILITIES[capability].since, err);
}

dd_status
dd_nccl_need_version(const dd_nccl_lib *lib, const char *label, int since, dd_error *err)
{
    return lib->version >= since ? DD_OK : too_old(lib, label, since, err);
}

void
dd_nccl_note_last_error(const dd_nccl_lib *lib, dd_nccl_comm_handle comm, dd_nccl_last_error *before)
{
    const char *last = lib->api.ncclGetLastError(comm);
    before->comm = comm;
    before->text[0] = '\0';
    if (last != NULL && last[0] != '\0') {
        (void)snprintf(before->text, sizeof before->text, "%s", last);
    }
}

/* Continue an FNV-1a hash with n bytes. */
static uint64_t
hash_more(uint64_t hash, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ (uint8_t)bytes[i]) * 1099511628211u;
    }
    return hash;
}

bool
dd_nccl_is_of_the_call(dd_nccl_result result)
{
    return result == DD_NCCL_INVALID_ARGUMENT || result == DD_NCCL_INVALID_USAGE;
}

/* Return true if the text `last` explains this failure: it is new, or the failure is repeated. */
static bool
explains(const char *last, const dd_nccl_last_error *before, const char *call, dd_nccl_result result)
{
    static _Atomic uint64_t explained; /* hash of the failure that set the last new text; relaxed */
    char code = (char)result;
    uint64_t failure = hash_more(hash_more(14695981039346656037u, &code, 1), last, strlen(last));
    if (dd_nccl_is_of_the_call(result)) {
        failure = hash_more(failure, call, strcspn(call, " "));
    }
    if (strncmp(last, before->text, sizeof before->text - 1) != 0) {
        atomic_store_explicit(&explained, failure, memory_order_relaxed);
    }
    return atomic_load_explicit(&explained, memory_order_relaxed) == failure;
}

dd_status
dd_nccl_check(const dd_nccl_lib *lib, const dd_nccl_last_error *before, dd_nccl_result result, dd_error *err,
              const char *label, ...)
{
    if (result == DD_NCCL_SUCCESS || result == DD_NCCL_IN_PROGRESS) {
        return DD_OK;
    }
    char call[256];
    va_list args;
    va_start(args, label);
    (void)vsnprintf(call, sizeof call, label, args);
    va_end(args);
    const char *text = lib->api.ncclGetErrorString(result);
    const char *last = lib->api.ncclGetLastError(before->comm);
    bool has_last = last != NULL && last[0] != '\0' && explains(last, before, call, result);
    return dd_error_set(err, DD_BACKEND, "%s: %s (%d): %s%s%s", call, dd_nccl_result_name(result),
                        (int)result, text != NULL ? text : "unknown to this NCCL", has_last ? ": " : "",
                        has_last ? last : "");
}

dd_status
dd_nccl_set_encryption(dd_nccl_lib *lib, const char *psk, uint64_t print, dd_error *err)
{
    dd_status status = dd_nccl_need(lib, DD_NCCL_CAN_ENCRYPTION, err);
    if (status != DD_OK) {
        return status;
    }
    if (strlen(psk) < 32) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "NCCL's secret is too short: got %zu bytes, expected at least 32", strlen(psk));
    }
    dd_nccl_abi_encryption config = {
        .size = sizeof config,
        .magic = DD_NCCL_MAGIC,
        .version = DD_NCCL_VERSION_KNOWN,
        .mode = DD_NCCL_ENCRYPTION_MODE_PSK,
        .psk = psk,
    };
    dd_nccl_last_error before;
    dd_nccl_note_last_error(lib, NULL, &before);
    status = dd_nccl_check(lib, &before, lib->api.ncclSetEncryption(&config), err, "ncclSetEncryption");
    if (status == DD_OK) {
        lib->encryption = print;
    }
    return status;
}

typedef struct dtype_info {
    bool is_known;
    dd_nccl_dtype theirs;
    int since;
} dtype_info;

#define SINCE_FP8 22403

static const dtype_info DTYPES[DD_DTYPE_COUNT] = {
    [DD_DTYPE_INT8] = {true, DD_NCCL_DTYPE_INT8, 0},
    [DD_DTYPE_UINT8] = {true, DD_NCCL_DTYPE_UINT8, 0},
    [DD_DTYPE_INT32] = {true, DD_NCCL_DTYPE_INT32, 0},
    [DD_DTYPE_UINT32] = {true, DD_NCCL_DTYPE_UINT32, 0},
    [DD_DTYPE_INT64] = {true, DD_NCCL_DTYPE_INT64, 0},
    [DD_DTYPE_UINT64] = {true, DD_NCCL_DTYPE_UINT64, 0},
    [DD_DTYPE_FLOAT16] = {true, DD_NCCL_DTYPE_FLOAT16, 0},
    [DD_DTYPE_BFLOAT16] = {true, DD_NCCL_DTYPE_BFLOAT16, 0},
    [DD_DTYPE_FLOAT8_E4M3FN] = {true, DD_NCCL_DTYPE_FLOAT8_E4M3, SINCE_FP8},
    [DD_DTYPE_FLOAT8_E5M2] = {true, DD_NCCL_DTYPE_FLOAT8_E5M2, SINCE_FP8},
    [DD_DTYPE_FLOAT32] = {true, DD_NCCL_DTYPE_FLOAT32, 0},
    [DD_DTYPE_FLOAT64] = {true, DD_NCCL_DTYPE_FLOAT64, 0},
};

bool
dd_nccl_dtype_find(dd_dtype dtype, dd_nccl_dtype *nccl_dtype, int *since)
{
    const dtype_info *info = &DTYPES[dtype];
    *nccl_dtype = info->theirs;
    *since = info->since;
    return info->is_known;
}

dd_status
dd_nccl_dtype_of(const dd_nccl_lib *lib, dd_dtype dtype, dd_nccl_dtype *nccl_dtype, dd_error *err)
{
    int since;
    if (!dd_nccl_dtype_find(dtype, nccl_dtype, &since)) {
        return dd_error_set(err, DD_NOT_SUPPORTED, "NCCL has no dtype %s", dd_dtype_name(dtype));
    }
    return dd_nccl_need_version(lib, dd_dtype_name(dtype), since, err);
}
