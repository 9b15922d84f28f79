/* The machine's processors, and the CPUs that this process may use. */
#ifndef DD_CORE_CPU_H
#define DD_CORE_CPU_H

#include <stdbool.h>
#include <stdint.h>

typedef enum dd_cpu_feature {
    DD_CPU_AVX2 = 1 << 0,        /* AVX2 and F16C instructions */
    DD_CPU_AVX512 = 1 << 1,      /* AVX-512 F, BW, DQ and VL; never set without DD_CPU_AVX2 */
    DD_CPU_NEON = 1 << 2,        /* NEON instructions of ARMv8-A */
    DD_CPU_STRING_COPY = 1 << 3, /* the instruction `rep movsb` is fast (ERMS or FSRM) */
    DD_CPU_AES = 1 << 4,         /* AES instructions, and the carry-less multiplication of GCM */
} dd_cpu_feature;

/* Return the dd_cpu_feature bits that both the processor and the system support. Cached. */
unsigned dd_cpu_features(void);

/* Return the number of CPUs that this process can use, at least 1: the CPUs in its affinity, but at
 * most the cgroup's quota. Must not be called on a hot path, because it reads files. */
int dd_cpu_usable_count(void);

/* The CPUs on which this thread may run: one bit for each CPU number below DD_CPU_SET_MAX. */
#define DD_CPU_SET_MAX 1024
typedef struct dd_cpu_set {
    uint64_t words[DD_CPU_SET_MAX / 64];
} dd_cpu_set;

dd_cpu_set dd_cpu_own_set(void); /* empty if the system does not report the set */

/* Return the lowest CPU quota among the process's cgroups (version 2), in CPUs, rounded up; 0 if
 * there is no quota. Must not be called on a hot path, because it reads files. */
int dd_cpu_quota(void);

/* Return the number of CPUs that the text of a cpu.max file allows, rounded up; 0 if there is no
 * limit or the text is malformed. */
int dd_cpu_parse_quota(const char *cpu_max);

#endif
