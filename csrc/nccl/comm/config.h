/* Configurations of communicators and of single collectives: values by name, packed for the NCCL that is there.
 *
 * A field that nobody has set is "undefined", which lets NCCL choose. Plain values: copy them as you like. */
#ifndef DD_NCCL_COMM_CONFIG_H
#define DD_NCCL_COMM_CONFIG_H

#include "core/status.h"
#include "nccl/driver/lib.h"
#include "nccl/driver/lib_api.h"

#include <stdbool.h>

#define DD_NCCL_CONFIG_TEXT_MAX 256

typedef enum dd_nccl_field_type {
    DD_NCCL_FIELD_INT,
    DD_NCCL_FIELD_TEXT,
    DD_NCCL_FIELD_WORD, /* 64 bits; as a value, the bits of a long long */
} dd_nccl_field_type;

/* What there is to set. */
typedef struct dd_nccl_config_field {
    const char *name;  /* NCCL's: "minCTAs" */
    const char *alias; /* Python's: "min_ctas"; both are taken */
    int since;         /* the version that brought it: 21701 */
    dd_nccl_field_type type;
    size_t offset; /* in the packed struct */
} dd_nccl_config_field;

/* One value as a caller gives or gets it. */
typedef struct dd_nccl_config_value {
    bool is_set;
    bool is_text;
    long long number;
    const char *text; /* of the configuration, or borrowed from the caller */
} dd_nccl_config_value;

/* A configuration of a communicator (ncclConfig_t) or of a collective (ncclCollConfig_t, 2.31.2). */
typedef struct dd_nccl_config {
    const dd_nccl_config_field *fields; /* of its kind */
    size_t nfields;
    union { /* except the head and the texts, which pack writes */
        dd_nccl_abi_config values;
        dd_nccl_abi_coll_config coll_values;
    };
    char texts[2][DD_NCCL_CONFIG_TEXT_MAX]; /* of the fields that are text, in their order; "": not set */
} dd_nccl_config;

void dd_nccl_config_init(dd_nccl_config *config);
/* launchCompletionEvent is the number of a CUDA event. */
void dd_nccl_coll_config_init(dd_nccl_config *config);
/* DD_INVALID_ARGUMENT: no such field (names all), text for a number or the other way round, out of range, too long. is_set false makes
 * it undefined again. */
dd_status dd_nccl_config_set(dd_nccl_config *config, const char *name, const dd_nccl_config_value *value,
                             dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_config_get(const dd_nccl_config *config, const char *name, dd_nccl_config_value *value,
                             dd_error *err) DD_MUST_CHECK;
bool dd_nccl_config_is_blocking(const dd_nccl_config *config); /* true if unset */
/* For NCCL's calls, which copy; `packed` points into config. DD_NOT_SUPPORTED names a field that is set and that this NCCL does not have, and the
 * version that has. */
dd_status dd_nccl_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib,
                              dd_nccl_abi_config *packed, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_coll_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib,
                                   dd_nccl_abi_coll_config *packed, dd_error *err) DD_MUST_CHECK;

#endif
