/* The structs of XLA's foreign function interface that a handler on the CPU reads. Each struct
 * begins with its size, and newer versions add fields only at its end. A test compares these
 * declarations with jaxlib's header. */
#ifndef DD_XLA_FFI_API_H
#define DD_XLA_FFI_API_H

#include <stddef.h>
#include <stdint.h>

#define DD_FFI_MAJOR 0
#define DD_FFI_MINOR 1

typedef struct dd_ffi_extension {
    size_t struct_size;
    int type;
    struct dd_ffi_extension *next;
} dd_ffi_extension;

#define DD_FFI_EXTENSION_METADATA 1

typedef struct dd_ffi_version {
    size_t struct_size;
    dd_ffi_extension *extensions;
    int major;
    int minor;
} dd_ffi_version;

typedef struct dd_ffi_metadata {
    size_t struct_size;
    dd_ffi_version version;
    uint32_t traits;
} dd_ffi_metadata;

typedef struct dd_ffi_metadata_extension {
    dd_ffi_extension base;
    dd_ffi_metadata *metadata;
} dd_ffi_metadata_extension;

typedef struct dd_ffi_error dd_ffi_error; /* defined by XLA, never dereferenced here */

typedef struct dd_ffi_error_args {
    size_t struct_size;
    dd_ffi_extension *extensions;
    const char *message;
    int code; /* absl's status code */
} dd_ffi_error_args;

typedef struct dd_ffi_api {
    size_t struct_size;
    dd_ffi_extension *extensions;
    dd_ffi_version version;
    const void *internal;
    dd_ffi_error *(*create_error)(dd_ffi_error_args *args);
} dd_ffi_api;

typedef struct dd_ffi_buffer {
    size_t struct_size;
    dd_ffi_extension *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} dd_ffi_buffer;

typedef struct dd_ffi_buffers {
    size_t struct_size;
    dd_ffi_extension *extensions;
    int64_t size;
    int *types;
    void **values; /* array of dd_ffi_buffer pointers; tokens are buffers too */
} dd_ffi_buffers;

typedef struct dd_ffi_scalar {
    int dtype;
    void *value;
} dd_ffi_scalar;

typedef struct dd_ffi_attributes {
    size_t struct_size;
    dd_ffi_extension *extensions;
    int64_t size;
    int *types;
    void **names;
    void **values;
} dd_ffi_attributes;

#define DD_FFI_ATTRIBUTE_SCALAR 3

typedef struct dd_ffi_frame {
    size_t struct_size;
    dd_ffi_extension *extensions;
    const dd_ffi_api *api;
    void *context;
    int stage;
    dd_ffi_buffers args;
    dd_ffi_buffers results;
    dd_ffi_attributes attributes;
} dd_ffi_frame;

#define DD_FFI_STAGE_EXECUTE 3

#endif
