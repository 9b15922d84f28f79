/* Configurations as each version reads them. */
#include "nccl_stub.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define UNDEFINED_INT (INT_MIN)
#define UNDEFINED_TEXT (NULL)

/* Return the size of this version's struct, rounded up as a compiler does. */
static size_t
own_size(void)
{
    size_t end = offsetof(dd_nccl_abi_config, blocking);
#define COUNT_FIELD(name, alias, since, type)                                               \
    if (nccl_stub_version >= (since)) {                                                     \
        end = offsetof(dd_nccl_abi_config, name) + sizeof(((dd_nccl_abi_config *)0)->name); \
    }
    DD_NCCL_CONFIG_FIELDS(COUNT_FIELD)
#undef COUNT_FIELD
    return (end + 7) / 8 * 8;
}

static void
set_undefined(dd_nccl_abi_config *config)
{
#define UNDEFINED_OF_INT UNDEFINED_INT
#define UNDEFINED_OF_TEXT UNDEFINED_TEXT
#define UNDEFINE(name, alias, since, type) config->name = UNDEFINED_OF_##type;
    DD_NCCL_CONFIG_FIELDS(UNDEFINE)
#undef UNDEFINE
}

/* Reset fields that are newer than the caller's version or than this version. */
static void
forget_newer(dd_nccl_abi_config *config, unsigned version)
{
#define FORGET(name, alias, since, type)                         \
    if (version < (since) || nccl_stub_version < (int)(since)) { \
        config->name = UNDEFINED_OF_##type;                      \
    }
    DD_NCCL_CONFIG_FIELDS(FORGET)
#undef FORGET
}

static bool
is_flag(int value)
{
    return value == UNDEFINED_INT || value == 0 || value == 1;
}

static dd_nccl_result
check_ctas(int least, int most, bool must_both)
{
    bool has_least = least != UNDEFINED_INT;
    bool has_most = most != UNDEFINED_INT;
    bool is_bad = (has_least && least <= 0) || (has_most && most <= 0) ||
                  (has_least && has_most && least > most) || (must_both && has_least != has_most);
    return is_bad ? nccl_fail(DD_NCCL_INVALID_ARGUMENT,
                              "Invalid config min/max channels attribute value %d/%d", least, most)
                  : DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_config_take(const dd_nccl_abi_config *given, dd_nccl_abi_config *taken)
{
    memset(taken, 0, sizeof *taken);
    set_undefined(taken);
    if (given == NULL) {
        taken->blocking = 1;
        return DD_NCCL_SUCCESS;
    }
    size_t size = given->size;
    if (size < offsetof(dd_nccl_abi_config, blocking) || given->magic != DD_NCCL_MAGIC) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT,
                         "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    memcpy(taken, given, size < own_size() ? size : own_size());
    forget_newer(taken, given->version);
    if (!is_flag(taken->blocking)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "Invalid config blocking attribute value %d",
                         taken->blocking);
    }
    if (!is_flag(taken->splitShare) || !is_flag(taken->shrinkShare)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT,
                         "Invalid config splitShare or shrinkShare attribute value");
    }
    if (taken->cgaClusterSize != UNDEFINED_INT && taken->cgaClusterSize < 0) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "Invalid config cgaClusterSize attribute value %d",
                         taken->cgaClusterSize);
    }
    taken->blocking = taken->blocking == UNDEFINED_INT ? 1 : taken->blocking;
    dd_nccl_result result = check_ctas(taken->minCTAs, taken->maxCTAs, nccl_stub_version <= 23007);
    /* Do not keep the caller's strings. */
    bool is_known = taken->netName == NULL || strcasecmp(taken->netName, "Socket") == 0 ||
                    strcasecmp(taken->netName, "IB") == 0;
    taken->netName = is_known ? NULL : "unknown";
    taken->commName = NULL;
    return result;
}

/* ---- configurations of collectives */

static char last_coll_config[NCCL_TEXT_MAX]; /* under nccl_lock */

/* Record the members that are set, in the order of the struct: "minCTAs=1 algSelection=ring". */
static void
note(const dd_nccl_abi_coll_config *given)
{
    char text[NCCL_TEXT_MAX] = "";
    size_t len = 0;
#define IS_SET_INT(value) ((value) != UNDEFINED_INT)
#define IS_SET_TEXT(value) ((value) != NULL)
#define IS_SET_WORD(value) ((value) != 0)
#define IS_SET_EVENT(value) ((value) != NULL)
#define FORMAT_INT "%d"
#define FORMAT_TEXT "%s"
#define FORMAT_WORD "%#" PRIx64
#define FORMAT_EVENT "%p"
#define NOTE(name, alias, since, type)                                                          \
    if (nccl_stub_version >= (since) && IS_SET_##type(given->name)) {                           \
        len += (size_t)snprintf(text + len, len < sizeof text ? sizeof text - len : 0,          \
                                "%s%s=" FORMAT_##type, len > 0 ? " " : "", #name, given->name); \
        len = len < sizeof text ? len : sizeof text;                                            \
    }
    DD_NCCL_COLL_CONFIG_FIELDS(NOTE)
#undef NOTE
    pthread_mutex_lock(&nccl_lock);
    memcpy(last_coll_config, text, sizeof text);
    pthread_mutex_unlock(&nccl_lock);
}

void
dd_stub_coll_config(char *text, size_t room)
{
    pthread_mutex_lock(&nccl_lock);
    (void)snprintf(text, room, "%s", last_coll_config);
    pthread_mutex_unlock(&nccl_lock);
}

void
nccl_forget_coll_config(void)
{
    pthread_mutex_lock(&nccl_lock);
    last_coll_config[0] = '\0';
    pthread_mutex_unlock(&nccl_lock);
}

dd_nccl_result
nccl_coll_config_check(const dd_nccl_abi_coll_config *given)
{
    if (given == NULL) {
        return DD_NCCL_SUCCESS;
    }
    if (given->magic != DD_NCCL_MAGIC ||
        given->size < offsetof(dd_nccl_abi_coll_config, launchCompletionEvent)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclCollConfig_t argument not initialized");
    }
    note(given);
    return check_ctas(given->minCTAs, given->maxCTAs, false);
}

dd_cuda_event
nccl_coll_config_event(const dd_nccl_abi_coll_config *given)
{
    return given != NULL && nccl_stub_version >= 23203 ? given->launchCompletionEvent : NULL;
}
