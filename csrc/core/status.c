#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *text;
} status_table[] = {
#define DD_STATUS_ROW(name, text) {#name, text},
    DD_STATUS_LIST(DD_STATUS_ROW)
#undef DD_STATUS_ROW
};

const char *
dd_status_name(dd_status code)
{
    return (unsigned)code < DD_STATUS_COUNT ? status_table[code].name : "UNKNOWN";
}

const char *
dd_status_text(dd_status code)
{
    return (unsigned)code < DD_STATUS_COUNT ? status_table[code].text : "unknown status";
}

/* Let a truncated message end in "...", so that it is not taken for a complete message. */
static void
mark_if_cut(dd_error *err, size_t wanted)
{
    if (wanted >= sizeof err->message) {
        memcpy(err->message + sizeof err->message - 4, "...", 4);
    }
}

DD_PRINTF(3, 0)
static void
error_vset(dd_error *err, dd_status code, const char *format, va_list args)
{
    err->code = code;
    err->sys_errno = 0;
    err->blamed = (dd_blamed_rank){.rank = -1};
    err->call.op[0] = '\0';
    err->keeps_memory = false;
    int wanted = vsnprintf(err->message, sizeof err->message, format, args);
    mark_if_cut(err, wanted < 0 ? 0 : (size_t)wanted);
}

dd_status
dd_error_set(dd_error *err, dd_status code, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        error_vset(err, code, format, args);
        va_end(args);
    }
    return code;
}

dd_status
dd_error_set_errno(dd_error *err, dd_status code, int sys_errno, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        error_vset(err, code, format, args);
        va_end(args);
        char reason[128];
        /* GNU's strerror_r returns the text, which need not be in `reason`. */
        const char *text = strerror_r(sys_errno, reason, sizeof reason);
        size_t used = strlen(err->message);
        int wanted =
            snprintf(err->message + used, sizeof err->message - used, ": %s (errno %d)", text, sys_errno);
        mark_if_cut(err, used + (wanted < 0 ? 0 : (size_t)wanted));
        err->sys_errno = sys_errno;
    }
    return code;
}

void
dd_error_blame(dd_error *err, int rank, const char *host, long long pid)
{
    if (err != NULL) {
        err->blamed.rank = rank;
        err->blamed.pid = pid;
        snprintf(err->blamed.host, sizeof err->blamed.host, "%s", host != NULL ? host : "");
    }
}

void
dd_error_note_call(dd_error *err, const char *op, unsigned long long sequence, long long elapsed_ns,
                   const void *group, size_t group_len)
{
    if (err != NULL) {
        snprintf(err->call.op, sizeof err->call.op, "%s", op);
        snprintf(err->call.group, sizeof err->call.group, "%.*s", (int)group_len, (const char *)group);
        err->call.sequence = sequence;
        err->call.elapsed_ns = elapsed_ns;
    }
}

void
dd_error_prepend(dd_error *err, const char *format, ...)
{
    if (err == NULL) {
        return;
    }
    char context[sizeof err->message];
    va_list args;
    va_start(args, format);
    int context_len = vsnprintf(context, sizeof context, format, args);
    va_end(args);
    if (context_len < 0) {
        return;
    }
    char old[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    int wanted = snprintf(err->message, sizeof err->message, "%s: %s", context, old);
    mark_if_cut(err, wanted < 0 ? 0 : (size_t)wanted);
}

dd_status
dd_error_copy(dd_error *err, const dd_error *from)
{
    if (err != NULL && err != from) {
        *err = *from;
    }
    return from->code;
}

dd_status
dd_error_no_memory(dd_error *err, unsigned long long nbytes)
{
    return dd_error_set(err, DD_OUT_OF_MEMORY, "out of memory (%llu bytes)", nbytes);
}

/* Only errnos that neither the peer nor the network can cause are local. EADDRNOTAVAIL is not: a
 * peer may publish an address that this host cannot reach. */
bool
dd_error_is_local(const dd_error *err)
{
    switch (err->sys_errno) {
    case EMFILE: /* from here to ENOSPC: resources are exhausted */
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
    case EACCES: /* from here to EIO: forbidden, or unknown to the kernel (sandbox) */
    case EPERM:
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
    case EPROTONOSUPPORT:
    case EIO:
    case EINVAL: /* from here to EFAULT: a wrong call, or a descriptor closed elsewhere */
    case EBADF:
    case ENOTSOCK:
    case EFAULT:
        return true;
    default:
        return err->code == DD_OUT_OF_MEMORY || err->code == DD_SYSTEM;
    }
}
