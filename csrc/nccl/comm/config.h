/* Configurations of communicators and collectives: fields by name, packed for the loaded NCCL.
 *
 * A field that is not set is "undefined": NCCL chooses. A dd_nccl_config may be copied. */
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
    DD_NCCL_FIELD_WORD, /* 64 bits, stored as dd_nccl_config_value.number */
} dd_nccl_field_type;

typedef struct dd_nccl_config_field {
    const char *name;  /* NCCL's name, such as "minCTAs" */
    const char *alias; /* Python's name, such as "min_ctas"; set and get accept both names */
    int since;         /* first NCCL version with the field, such as 21701 */
    dd_nccl_field_type type;
    size_t offset; /* offset in bytes in the packed struct */
} dd_nccl_config_field;

/* A field's value: the argument of set, or the result of get. */
typedef struct dd_nccl_config_value {
    bool is_set;
    bool is_text;
    long long number;
    const char *text; /* borrowed from the caller (set), or from the configuration (get) */
} dd_nccl_config_value;

/* A configuration: ncclConfig_t (communicators) or ncclCollConfig_t (collectives, NCCL 2.31.2). */
typedef struct dd_nccl_config {
    const dd_nccl_config_field *fields; /* table of the fields of this kind of configuration */
    size_t nfields;
    union { /* incomplete: pack adds the struct's head and the texts */
        dd_nccl_abi_config values;
        dd_nccl_abi_coll_config coll_values;
    };
    char texts[2][DD_NCCL_CONFIG_TEXT_MAX]; /* values of the text fields, in order; "" if not set */
} dd_nccl_config;

void dd_nccl_config_init(dd_nccl_config *config);
/* Initialise a collective's configuration. Its launchCompletionEvent takes a CUDA event handle. */
void dd_nccl_coll_config_init(dd_nccl_config *config);
/* Set a field; if is_set is false, make it undefined. DD_INVALID_ARGUMENT if no such field exists
 * (the message lists all), the type is wrong, or the value is out of range or too long. */
dd_status dd_nccl_config_set(dd_nccl_config *config, const char *name, const dd_nccl_config_value *value,
                             dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_config_get(const dd_nccl_config *config, const char *name, dd_nccl_config_value *value,
                             dd_error *err) DD_MUST_CHECK;
bool dd_nccl_config_is_blocking(const dd_nccl_config *config); /* true by default */
/* Pack the configuration for NCCL, which copies it; `packed` points into `config`. DD_NOT_SUPPORTED
 * if this NCCL lacks a field that is set; the message names the field and the version needed. */
dd_status dd_nccl_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib,
                              dd_nccl_abi_config *packed, dd_error *err) DD_MUST_CHECK;
dd_status dd_nccl_coll_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib,
                                   dd_nccl_abi_coll_config *packed, dd_error *err) DD_MUST_CHECK;

#endif
