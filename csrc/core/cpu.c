#include "core/cpu.h"

#include "core/mem.h"
#include "core/system.h"

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>

/* Masks for the register XCR0, whose bits show which registers the operating system saves. */
#define XCR0_AVX 0x06U    /* xmm and ymm registers */
#define XCR0_AVX512 0xe6U /* xmm and ymm registers, mask registers, zmm registers */

static unsigned
read_xcr0(void)
{
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Use cpuid directly, because compilers disagree on the names for __builtin_cpu_supports. */
static unsigned
detect_features(void)
{
    const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const unsigned fast_short_rep_movsb = 1U << 4; /* FSRM, a bit of edx */
    const unsigned fast_rep_movsb = 1U << 9;       /* ERMS, a bit of ebx */
    unsigned eax, ebx, ecx, edx, ebx7, ecx7, edx7;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !__get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx7)) {
        return 0;
    }
    unsigned features = 0;
    unsigned xcr0 = (ecx & bit_OSXSAVE) != 0 ? read_xcr0() : 0;
    if ((xcr0 & XCR0_AVX) == XCR0_AVX && (ecx & bit_F16C) != 0 && (ebx7 & bit_AVX2) != 0) {
        features |= DD_CPU_AVX2;
        if ((xcr0 & XCR0_AVX512) == XCR0_AVX512 && (ebx7 & avx512) == avx512) {
            features |= DD_CPU_AVX512;
        }
    }
    if ((ecx & bit_AES) != 0 && (ecx & bit_PCLMUL) != 0) {
        features |= DD_CPU_AES;
    }
    if ((ebx7 & fast_rep_movsb) != 0 || (edx7 & fast_short_rep_movsb) != 0) {
        features |= DD_CPU_STRING_COPY;
    }
    return features;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

static unsigned
detect_features(void)
{
    const unsigned long aes = 1UL << 3; /* HWCAP_AES; the next constant is HWCAP_PMULL */
    const unsigned long pmull = 1UL << 4;
    unsigned long has = getauxval(AT_HWCAP);
    return DD_CPU_NEON | ((has & aes) != 0 && (has & pmull) != 0 ? (unsigned)DD_CPU_AES : 0);
}

#else

static unsigned
detect_features(void)
{
    return 0;
}

#endif

unsigned
dd_cpu_features(void)
{
    /* The features are cached, since a query takes microseconds on a virtual machine. All threads
     * store the same value, and no other data depends on it, so relaxed order is enough. */
    static _Atomic unsigned known;
    const unsigned is_known = 1U << 31;
    unsigned features = atomic_load_explicit(&known, memory_order_relaxed);
    if (features == 0) {
        features = detect_features() | is_known;
        atomic_store_explicit(&known, features, memory_order_relaxed);
    }
    return features & ~is_known;
}

/* Get the thread's affinity, or NULL on failure. The kernel rejects a set that is smaller than its
 * own, and does not report the required size, so try increasing sizes. */
static cpu_set_t *
get_affinity(size_t *nbytes)
{
    for (size_t capacity = DD_CPU_SET_MAX; capacity <= 1 << 20; capacity *= 4) {
        *nbytes = CPU_ALLOC_SIZE(capacity);
        cpu_set_t *set = dd_mem_zalloc(*nbytes);
        if (set == NULL || sched_getaffinity(0, *nbytes, set) == 0) {
            return set;
        }
        dd_mem_free(set);
    }
    return NULL;
}

static int
affinity_count(void)
{
    size_t nbytes;
    cpu_set_t *set = get_affinity(&nbytes);
    int count = set != NULL ? CPU_COUNT_S(nbytes, set) : 0;
    dd_mem_free(set);
    return count;
}

dd_cpu_set
dd_cpu_own_set(void)
{
    dd_cpu_set own_cpus = {{0}};
    size_t nbytes;
    cpu_set_t *set = get_affinity(&nbytes);
    for (size_t cpu = 0; set != NULL && cpu < DD_CPU_SET_MAX; cpu++) {
        own_cpus.words[cpu / 64] |= (uint64_t)(CPU_ISSET_S(cpu, nbytes, set) != 0) << cpu % 64;
    }
    dd_mem_free(set);
    return own_cpus;
}

/* Read the start of a small file as text. Return false if the file is missing or empty. */
static bool
read_text(const char *path, char *text, size_t size)
{
    int fd = dd_sys_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    ssize_t got = dd_sys_read(fd, text, size - 1);
    dd_sys_close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

int
dd_cpu_parse_quota(const char *cpu_max)
{
    char *end;
    long long quota = strtoll(cpu_max, &end, 10);
    if (end == cpu_max || quota <= 0) {
        return 0; /* no limit, as in "max 100000" */
    }
    const char *period_text = end;
    long long period = strtoll(period_text, &end, 10);
    if (end == period_text || period <= 0) {
        return 0;
    }
    long long count = (quota - 1) / period + 1;
    return count > INT_MAX ? 0 : (int)count;
}

/* Get the path of the process's cgroup below the mount point; "" for the root. Return false if the
 * process is in no cgroup of version 2. */
static bool
find_cgroup(char *path, size_t size)
{
    char text[4096];
    if (!read_text("/proc/self/cgroup", text, sizeof text)) {
        return false;
    }
    const char *line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    if (line == NULL) {
        return false;
    }
    const char *start = strchr(line, '/');
    size_t len = strcspn(start, "\n");
    if (len >= size) {
        return false;
    }
    memcpy(path, start, len);
    path[len == 1 ? 0 : len] = '\0';
    return true;
}

/* Use the lowest quota between the process's cgroup and the root. */
int
dd_cpu_quota(void)
{
    char group[2048];
    if (!find_cgroup(group, sizeof group)) {
        return 0;
    }
    int tightest = 0;
    for (;;) {
        char path[sizeof group + 64], text[128];
        (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        int count = read_text(path, text, sizeof text) ? dd_cpu_parse_quota(text) : 0;
        if (count > 0 && (tightest == 0 || count < tightest)) {
            tightest = count;
        }
        char *parent_end = strrchr(group, '/');
        if (parent_end == NULL) {
            return tightest;
        }
        *parent_end = '\0';
    }
}

int
dd_cpu_usable_count(void)
{
    int count = affinity_count();
    if (count == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        count = online > 0 && online < INT_MAX ? (int)online : 1;
    }
    int quota = dd_cpu_quota();
    return quota > 0 && quota < count ? quota : count;
}
