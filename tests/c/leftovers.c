#include "leftovers.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int
count_entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

int
count_fds(void)
{
    return count_entries("/proc/self/fd");
}

int
count_threads_now(void)
{
    return count_entries("/proc/self/task");
}

/* Return the lowest of several counts. */
int
count_threads(void)
{
    int least = count_threads_now();
    for (int look = 0; look < 10; look++) {
        usleep(5000);
        int count = count_threads_now();
        least = count < least ? count : least;
    }
    return least;
}

int
count_shared_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        count += strstr(line, "memfd:") != NULL ? 1 : 0;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return count;
}
