#include "window/window_wire.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the numbers of window parts are little endian; this file copies them as they are"
#endif

/* The largest error number of Linux. */
#define SYS_ERRNO_MAX 4095

typedef struct part_bytes {
    uint32_t status, pad_region;
    uint64_t window, pad_nbytes, nbytes, offset;
    uint32_t region;
    uint16_t sys_errno, dtype;
} part_bytes;

_Static_assert(sizeof(part_bytes) == DD_WINDOW_PART_NBYTES, "no field is padded");

void
dd_window_part_encode(const dd_window_part *part, uint8_t out[DD_WINDOW_PART_NBYTES])
{
    part_bytes bytes = {
        .status = (uint32_t)part->status,
        .pad_region = part->pad_region,
        .window = part->window,
        .pad_nbytes = part->pad_nbytes,
        .nbytes = part->nbytes,
        .offset = part->data.offset,
        .region = part->data.region,
        .sys_errno = (uint16_t)part->sys_errno,
        .dtype = (uint16_t)part->dtype,
    };
    memcpy(out, &bytes, sizeof bytes);
}

dd_status
dd_window_part_decode(const uint8_t in[DD_WINDOW_PART_NBYTES], dd_window_part *part, dd_error *err)
{
    part_bytes bytes;
    memcpy(&bytes, in, sizeof bytes);
    if (bytes.status >= DD_STATUS_COUNT) {
        return dd_error_set(err, DD_PROTOCOL, "malformed window part: status: got %lu, expected less than %d",
                            (unsigned long)bytes.status, DD_STATUS_COUNT);
    }
    if (bytes.offset > UINT64_MAX - bytes.nbytes) {
        return dd_error_set(err, DD_PROTOCOL, "malformed window part: %llu bytes at %llu overflow",
                            (unsigned long long)bytes.nbytes, (unsigned long long)bytes.offset);
    }
    if (bytes.status == DD_OK && bytes.window == 0) {
        return dd_error_set(err, DD_PROTOCOL, "malformed window part: no window number");
    }
    if (bytes.sys_errno > SYS_ERRNO_MAX) {
        return dd_error_set(err, DD_PROTOCOL, "malformed window part: errno: got %lu, expected at most %d",
                            (unsigned long)bytes.sys_errno, SYS_ERRNO_MAX);
    }
    if (!dd_dtype_is_valid(bytes.dtype)) {
        return dd_error_set(err, DD_PROTOCOL, "malformed window part: dtype: got %lu, expected less than %d",
                            (unsigned long)bytes.dtype, DD_DTYPE_COUNT);
    }
    *part = (dd_window_part){
        .status = (dd_status)bytes.status,
        .sys_errno = (int)bytes.sys_errno,
        .pad_region = bytes.pad_region,
        .window = bytes.window,
        .pad_nbytes = bytes.pad_nbytes,
        .nbytes = bytes.nbytes,
        .data = {.region = bytes.region, .offset = bytes.offset},
        .dtype = (dd_dtype)bytes.dtype,
    };
    return DD_OK;
}

/* ---- commands */

/* Flags for the fields that a type of command uses. */
enum {
    HAS_CHANNEL = 1,
    HAS_OFFSET = 2,
    HAS_WISH = 4, /* a number of bytes that the other rank must send */
    HAS_DATA = 8,
    HAS_ID = 16,
};
static const uint8_t parts_of[] = {
    [DD_WINDOW_PUT] = HAS_CHANNEL | HAS_OFFSET | HAS_DATA,
    [DD_WINDOW_GET] = HAS_OFFSET | HAS_WISH | HAS_ID,
    [DD_WINDOW_SIGNAL_ALONE] = HAS_CHANNEL | HAS_ID,
    [DD_WINDOW_WITHDRAW] = HAS_ID,
    [DD_WINDOW_CLOSED] = 0,
};

dd_request
dd_window_command_encode(const dd_window_command *command)
{
    bool has_data = (parts_of[command->type] & HAS_DATA) != 0;
    return (dd_request){
        .tag = command->window,
        .channel = command->channel,
        .nbytes = has_data ? command->nbytes : 0,
        .signature = {.coll = (uint8_t)command->type,
                      .root = command->id,
                      .count = command->offset,
                      .extra_bits = has_data ? 0 : command->nbytes},
    };
}

/* Return a description of a command's first fault; NULL if it has none. */
static const char *
wire_find_fault(const dd_request *request)
{
    const dd_signature *numbers = &request->signature;
    if (numbers->coll < DD_WINDOW_PUT || numbers->coll > DD_WINDOW_CLOSED) {
        return "unknown type";
    }
    unsigned parts = parts_of[numbers->coll];
    if (numbers->dtype != 0 || numbers->redop != 0 || numbers->flags != 0) {
        return "reserved fields are not zero";
    }
    if (request->tag == 0) {
        return "no window number";
    }
    if (((parts & HAS_ID) != 0) != (numbers->root != 0)) {
        return "wrong id";
    }
    if (((parts & HAS_OFFSET) == 0 && numbers->count != 0) ||
        ((parts & HAS_WISH) == 0 && numbers->extra_bits != 0) ||
        numbers->count > UINT64_MAX - (request->nbytes | numbers->extra_bits)) {
        return "wrong offset or size";
    }
    if ((parts & HAS_DATA) == 0 && request->nbytes != 0) {
        return "unexpected data";
    }
    return (parts & HAS_CHANNEL) == 0 && request->channel != 0 ? "unexpected channel" : NULL;
}

dd_status
dd_window_command_decode(const dd_request *request, dd_window_command *command, dd_error *err)
{
    const dd_signature *numbers = &request->signature;
    const char *fault = wire_find_fault(request);
    if (fault != NULL) {
        return dd_error_set(err, DD_PROTOCOL, "malformed command about window %llu, type %d: %s",
                            (unsigned long long)request->tag, numbers->coll, fault);
    }
    *command = (dd_window_command){
        .type = (dd_window_command_type)numbers->coll,
        .channel = request->channel,
        .id = numbers->root,
        .window = request->tag,
        .offset = numbers->count,
        .nbytes = numbers->coll == DD_WINDOW_GET ? numbers->extra_bits : request->nbytes,
    };
    return DD_OK;
}
