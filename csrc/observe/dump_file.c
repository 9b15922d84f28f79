/* Writing of dumps to files. */
#include "observe/recorder.h"

#include "core/system.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Create the missing directories of `path`. */
static dd_status
make_folders(const char *path, dd_error *err)
{
    char folder[PATH_MAX];
    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        if (dd_sys_mkdir(folder, 0700) != 0 && errno != EEXIST) {
            return dd_error_set_errno(err, DD_SYSTEM, errno, "writing a dump: mkdir %s", folder);
        }
    }
    return DD_OK;
}

/* Write the bytes to a new file, and rename it to `path`. Only its user can read the file, because
 * a dump describes the program. An existing file is never opened, because other users may be able
 * to write to the directory. */
static dd_status
write_file(const char *path, char *temporary, dd_bytes bytes, dd_error *err)
{
    int fd = dd_sys_mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "writing a dump: open %s", temporary);
    }
    int code = 0;
    for (size_t done = 0; code == 0 && done < bytes.len;) {
        ssize_t n = dd_sys_write(fd, bytes.data + done, bytes.len - done);
        done += n > 0 ? (size_t)n : 0;
        code = n < 0 && errno != EINTR ? errno : 0;
    }
    if (dd_sys_close(fd) != 0 && code == 0) {
        code = errno;
    }
    if (code == 0 && dd_sys_rename(temporary, path) != 0) {
        code = errno;
    }
    if (code != 0) {
        (void)dd_sys_unlink(temporary);
        return dd_error_set_errno(err, DD_SYSTEM, code, "writing a dump of %zu bytes to %s", bytes.len, path);
    }
    return DD_OK;
}

/* Build the template for mkostemp. Its name begins with ".", so that readers do not take an
 * incomplete file for a dump. */
static dd_status
name_temporary(const char *path, char temporary[PATH_MAX], dd_error *err)
{
    if (path[0] == '\0') {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "writing a dump: empty path");
    }
    const char *slash = strrchr(path, '/');
    int folder_len = slash != NULL ? (int)(slash + 1 - path) : 0;
    int len = snprintf(temporary, PATH_MAX, "%.*s.%s.XXXXXX", folder_len, path, path + folder_len);
    if (len < 0 || len >= PATH_MAX) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "writing a dump: path too long: got %zu bytes, expected less than %d",
                            strlen(path), PATH_MAX);
    }
    return DD_OK;
}

dd_status
dd_recorder_dump_to_file(dd_recorder *recorder, const dd_dump_options *options, const char *path,
                         dd_error *err)
{
    char temporary[PATH_MAX];
    dd_status status = name_temporary(path, temporary, err);
    if (status == DD_OK) {
        status = make_folders(path, err);
    }
    dd_blob dump = {0};
    if (status == DD_OK) {
        status = dd_recorder_dump(recorder, options, &dump, err);
    }
    if (status == DD_OK) {
        status = write_file(path, temporary, dd_blob_view(&dump), err);
    }
    dd_blob_fini(&dump);
    return status;
}
