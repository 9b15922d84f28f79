/* What this process may use of the machine's processors. */
#ifndef DD_CORE_CPU_H
#define DD_CORE_CPU_H

#include <stdbool.h>
#include <stdint.h>

typedef enum dd_cpu_feature {
    DD_CPU_AVX2 = 1 << 0,        /* AVX2 and F16C */
    DD_CPU_AVX512 = 1 << 1,      /* AVX-512 F, BW, DQ and VL; never without DD_CPU_AVX2 */
    DD_CPU_NEON = 1 << 2,        /* as of ARMv8-A */
    DD_CPU_STRING_COPY = 1 << 3, /* `rep movsb` is fast (ERMS or FSRM) */
    DD_CPU_AES = 1 << 4,         /* AES, and the multiplication that GCM needs */
} dd_cpu_feature;

/* The features that both the processor and the operating system support, or'ed. Cheap after the first. */
unsigned dd_cpu_features(void);

/* How many CPUs' worth of time the process can get: its affinity, cut by its quota. At least 1. Reads files; not for
 * hot paths. */
int dd_cpu_usable_count(void);

/* The CPUs that this thread may run on, by their numbers; those from DD_CPU_SET_MAX on are left out. */
#define DD_CPU_SET_MAX 1024
typedef struct dd_cpu_set {
    uint64_t words[DD_CPU_SET_MAX / 64];
} dd_cpu_set;

dd_cpu_set dd_cpu_own_set(void); /* empty when the system does not tell */

/* The tightest CPU quota of the cgroups (version 2) that the process is in, rounded up; 0 for none. Reads files. */
int dd_cpu_quota(void);

/* CPUs that the text of a cpu.max file allows, rounded up; 0 for no limit, or a text that says nothing. */
int dd_cpu_parse_quota(const char *cpu_max);

#endif
