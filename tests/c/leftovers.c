#include "leftovers.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

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
count_threads(void)
{
    return count_entries("/proc/self/task");
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
