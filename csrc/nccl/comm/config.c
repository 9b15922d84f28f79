#include "nccl/comm/config.h"

#include "core/bytes.h"

#include <stdio.h>
#include <string.h>

/* NCCL's own bounds of minCTAs and maxCTAs. If only one of the two is set, the other is set to its
 * bound, because NCCL up to 2.30.7 refuses a configuration with only one. */
#define MIN_CTAS 1
#define MAX_CTAS 64

#define TYPE_INT DD_NCCL_FIELD_INT
#define TYPE_TEXT DD_NCCL_FIELD_TEXT
#define TYPE_WORD DD_NCCL_FIELD_WORD
#define TYPE_EVENT DD_NCCL_FIELD_WORD

#define FIELD(name, alias, since, type) \
    {#name, alias, since, TYPE_##type, offsetof(dd_nccl_abi_config, name)},
#define COLL_FIELD(name, alias, since, type) \
    {#name, alias, since, TYPE_##type, offsetof(dd_nccl_abi_coll_config, name)},

static const dd_nccl_config_field FIELDS[] = {DD_NCCL_CONFIG_FIELDS(FIELD)};
static const dd_nccl_config_field COLL_FIELDS[] = {DD_NCCL_COLL_CONFIG_FIELDS(COLL_FIELD)};

/* Return the address of the configuration's values, of either kind, as bytes. */
static char *
bytes_of(const dd_nccl_config *config)
{
    return (char *)(uintptr_t)&config->values;
}

static char *
config_text(const dd_nccl_config *config, const dd_nccl_config_field *field)
{
    size_t ntexts = 0;
    for (const dd_nccl_config_field *f = config->fields; f < field; f++) {
        ntexts += f->type == DD_NCCL_FIELD_TEXT;
    }
    return (char *)(uintptr_t)config->texts[ntexts];
}

static void
write_int(dd_nccl_config *config, const dd_nccl_config_field *field, int number)
{
    memcpy(bytes_of(config) + field->offset, &number, sizeof number);
}

static void
config_read(const dd_nccl_config *config, const dd_nccl_config_field *field, dd_nccl_config_value *value)
{
    *value = (dd_nccl_config_value){.is_text = field->type == DD_NCCL_FIELD_TEXT};
    if (value->is_text) {
        value->text = config_text(config, field);
        value->is_set = value->text[0] != '\0';
    } else if (field->type == DD_NCCL_FIELD_INT) {
        int number;
        memcpy(&number, bytes_of(config) + field->offset, sizeof number);
        value->number = number;
        value->is_set = value->number != DD_NCCL_UNDEFINED_INT;
    } else {
        memcpy(&value->number, bytes_of(config) + field->offset, sizeof value->number);
        value->is_set = value->number != 0;
    }
}

static void
clear(dd_nccl_config *config, const dd_nccl_config_field *field)
{
    if (field->type == DD_NCCL_FIELD_TEXT) {
        memset(config_text(config, field), 0, DD_NCCL_CONFIG_TEXT_MAX);
    } else if (field->type == DD_NCCL_FIELD_INT) {
        write_int(config, field, DD_NCCL_UNDEFINED_INT);
    } else {
        memset(bytes_of(config) + field->offset, 0, sizeof(uint64_t));
    }
}

static dd_status
config_find(const dd_nccl_config *config, const char *name, const dd_nccl_config_field **found, dd_error *err)
{
    char known[DD_NCCL_CONFIG_TEXT_MAX * 3] = "";
    size_t len = 0;
    for (size_t i = 0; i < config->nfields; i++) {
        const dd_nccl_config_field *field = &config->fields[i];
        if (strcmp(name, field->name) == 0 || strcmp(name, field->alias) == 0) {
            *found = field;
            return DD_OK;
        }
        int n = snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "", field->alias);
        len += n > 0 && (size_t)n < sizeof known - len ? (size_t)n : 0;
    }
    char shown[64];
    return dd_error_set(err, DD_INVALID_ARGUMENT,
                        "unknown field '%s' of NCCL's configuration: expected one of %s",
                        dd_bytes_print(dd_bytes_of_string(name), shown, sizeof shown), known);
}

static dd_status
set_text(dd_nccl_config *config, const dd_nccl_config_field *field, const char *text, dd_error *err)
{
    size_t len = strlen(text);
    if (len == 0 || len >= DD_NCCL_CONFIG_TEXT_MAX) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s has a wrong length: got %zu characters, expected 1 to %d", field->alias, len,
                            DD_NCCL_CONFIG_TEXT_MAX - 1);
    }
    clear(config, field);
    memcpy(config_text(config, field), text, len);
    return DD_OK;
}

dd_status
dd_nccl_config_set(dd_nccl_config *config, const char *name, const dd_nccl_config_value *value, dd_error *err)
{
    const dd_nccl_config_field *field;
    dd_status status = config_find(config, name, &field, err);
    if (status != DD_OK) {
        return status;
    }
    if (!value->is_set) {
        clear(config, field);
        return DD_OK;
    }
    if (value->is_text != (field->type == DD_NCCL_FIELD_TEXT)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: got %s, expected %s", field->alias,
                            value->is_text ? "text" : "a number", value->is_text ? "a number" : "text");
    }
    if (value->is_text) {
        return set_text(config, field, value->text, err);
    }
    if (field->type == DD_NCCL_FIELD_WORD) {
        memcpy(bytes_of(config) + field->offset, &value->number, sizeof value->number);
        return DD_OK;
    }
    if (value->number <= INT_MIN || value->number > INT_MAX) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s out of range: got %lld, expected %d to %d",
                            field->alias, value->number, INT_MIN + 1, INT_MAX);
    }
    write_int(config, field, (int)value->number);
    return DD_OK;
}

dd_status
dd_nccl_config_get(const dd_nccl_config *config, const char *name, dd_nccl_config_value *value, dd_error *err)
{
    const dd_nccl_config_field *field;
    dd_status status = config_find(config, name, &field, err);
    if (status == DD_OK) {
        config_read(config, field, value);
    }
    return status;
}

/* Check that this NCCL knows all fields that are set, because it would ignore an unknown field. */
static dd_status
check_fields(const dd_nccl_config *config, const dd_nccl_lib *lib, dd_error *err)
{
    for (size_t i = 0; i < config->nfields; i++) {
        dd_nccl_config_value value;
        config_read(config, &config->fields[i], &value);
        if (value.is_set && config->fields[i].since > lib->version) {
            char label[64];
            (void)snprintf(label, sizeof label, "the configuration field %s", config->fields[i].alias);
            return dd_nccl_need_version(lib, label, config->fields[i].since, err);
        }
    }
    return DD_OK;
}

/* Return the struct version to pass: NCCL reads the fields of that version, and resets the rest.
 * Always pass the newest struct's size with it: NCCL would read past a shorter struct. */
static unsigned
version_for(const dd_nccl_lib *lib)
{
    return (unsigned)(lib->version < DD_NCCL_VERSION_KNOWN ? lib->version : DD_NCCL_VERSION_KNOWN);
}

static const char *
packed_text(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static void
complete_ctas(int *min_ctas, int *max_ctas)
{
    if (*min_ctas != DD_NCCL_UNDEFINED_INT && *max_ctas == DD_NCCL_UNDEFINED_INT) {
        *max_ctas = *min_ctas > MAX_CTAS ? *min_ctas : MAX_CTAS;
    }
    if (*max_ctas != DD_NCCL_UNDEFINED_INT && *min_ctas == DD_NCCL_UNDEFINED_INT) {
        *min_ctas = MIN_CTAS;
    }
}

static void
config_init(dd_nccl_config *config, const dd_nccl_config_field *fields, size_t nfields)
{
    *config = (dd_nccl_config){.fields = fields, .nfields = nfields};
    for (size_t i = 0; i < nfields; i++) {
        clear(config, &fields[i]);
    }
}

void
dd_nccl_config_init(dd_nccl_config *config)
{
    config_init(config, FIELDS, sizeof FIELDS / sizeof FIELDS[0]);
}

void
dd_nccl_coll_config_init(dd_nccl_config *config)
{
    config_init(config, COLL_FIELDS, sizeof COLL_FIELDS / sizeof COLL_FIELDS[0]);
}

bool
dd_nccl_config_is_blocking(const dd_nccl_config *config)
{
    return config->values.blocking != 0;
}

dd_status
dd_nccl_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib, dd_nccl_abi_config *packed,
                    dd_error *err)
{
    dd_status status = check_fields(config, lib, err);
    if (status != DD_OK) {
        return status;
    }
    *packed = config->values;
    packed->size = sizeof *packed;
    packed->magic = DD_NCCL_MAGIC;
    packed->version = version_for(lib);
    packed->netName = packed_text(config->texts[0]);
    packed->commName = packed_text(config->texts[1]);
    complete_ctas(&packed->minCTAs, &packed->maxCTAs);
    return DD_OK;
}

dd_status
dd_nccl_coll_config_pack(const dd_nccl_config *config, const dd_nccl_lib *lib,
                         dd_nccl_abi_coll_config *packed, dd_error *err)
{
    dd_status status = check_fields(config, lib, err);
    if (status != DD_OK) {
        return status;
    }
    *packed = config->coll_values;
    packed->size = sizeof *packed;
    packed->magic = DD_NCCL_MAGIC;
    packed->version = version_for(lib);
    packed->algSelection = packed_text(config->texts[0]);
    if (packed->forceAlgSelection == DD_NCCL_UNDEFINED_INT) {
        packed->forceAlgSelection = 1; /* default of NCCL's initialiser */
    }
    complete_ctas(&packed->minCTAs, &packed->maxCTAs);
    return DD_OK;
}
