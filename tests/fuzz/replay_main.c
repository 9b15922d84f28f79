/* Run a fuzz target on the files of a corpus, for compilers without a fuzzing engine.
 *
 * Arguments are files or directories. The empty input always comes first, as with an engine. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
die(const char *label, const char *path)
{
    fprintf(stderr, "replay: cannot %s %s: %s\n", label, path, strerror(errno));
    exit(1);
}

/* Copy the input into a block of exactly its size, so that the sanitizer detects a read beyond
 * it. */
static void
replay_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        die("open", path);
    }
    uint8_t *data = malloc(size);
    if (data == NULL && size > 0) {
        die("hold", path);
    }
    if (size > 0 && fread(data, 1, size, file) != size) {
        die("read", path);
    }
    fclose(file);
    (void)LLVMFuzzerTestOneInput(data, size);
    free(data);
}

static unsigned
replay_path(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        die("find", path);
    }
    if (!S_ISDIR(info.st_mode)) {
        replay_file(path, (size_t)info.st_size);
        return 1;
    }
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) {
        die("list", path);
    }
    unsigned replayed = 0;
    for (int i = 0; i < count; i++) {
        char child[4096];
        int len = snprintf(child, sizeof child, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && len > 0 && (size_t)len < sizeof child) {
            replayed += replay_path(child);
        }
        free(entries[i]);
    }
    free(entries);
    return replayed;
}

int
main(int argc, char **argv)
{
    const uint8_t nothing[1] = {0};
    (void)LLVMFuzzerTestOneInput(nothing, 0);
    unsigned replayed = 0;
    for (int i = 1; i < argc; i++) {
        replayed += replay_path(argv[i]);
    }
    printf("%s: %u inputs\n", argv[0], replayed);
    return replayed > 0 || argc == 1 ? 0 : 1;
}
