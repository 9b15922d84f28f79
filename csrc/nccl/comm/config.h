/* Configurations of communicators and collectives: values by name, packed for the loaded NCCL.
 *
 * A field that is not set is "undefined": NCCL chooses. Plain values, which may be copied. */
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

/* A field that can be set. */
typedef struct dd_nccl_config_field {
    const char *name;  /* NCCL's: "minCTAs" */
    const char *alias; /* Python's: "min_ctas"; both are accepted */
    int since;         /* NCCL version that introduced it: 21701 */
    dd_nccl_field_type type;
    size_t offset; /* in the packed struct */
} dd_nccl_config_field;

/* A value to set, or the result of get. */
typedef struct dd_nccl_config_value {
    bool is_set;
    bool is_text;
    long long number;
    const char *text; /* borrowed from the caller by set, from the configuration by get */
} dd_nccl_config_value;

/* A configuration: ncclConfig_t (communicator) or ncclCollConfig_t (collective, 2.31.2). */
typedef struct dd_nccl_config {
    const dd_nccl_config_field *fields; /* all fields of this kind */
    size_t nfields;
    union { /* without the head and the texts, which pack writes */
        dd_nccl_abi_config values;
        dd_nccl_abi_coll_config coll_values;
    };
    char texts[2][DD_NCCL_CONFIG_TEXT_MAX]; /* values of the text fields, in order; "" if not set */
} dd_nccl_config;

void dd_nccl_config_init(dd_nccl_config *config);
/* The value of launchCompletionEvent is the handle of a CUDA event. */
void dd_nccl_coll_config_init(dd_nccl_config *config);
/* Set a field, or make it undefined if is_set is false. DD_INVALID_ARGUMENT if there is no such
 * field (the message names all), the type is wrong, or the value is out of range or too long. */
dd_status dd_nccl_config_set(dd_nccl_config *config, const char *name, const dd_nccl_config_value *value,
                             dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_config_get(const dd_nccl_config *config, const char *name, dd_nccl_config_value *value,
                             dd_error *err) DD_MUST_CHECK;
bool dd_nccl_config_is_blocking(const dd_nccl_config *config); /* true if unset */
/* Pack the configuration for NCCL, which copies it; `packed` points into config. DD_NOT_SUPPORTED
 * names a field that is set but unknown to this NCCL, and the version that has it. */
dd_status dd_nccl_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib,
                              dd_nccl_abi_config *packed, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_coll_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib,
                                   dd_nccl_abi_coll_config *packed, dd_error *err) DD_MUST_CHECK;

#endif
