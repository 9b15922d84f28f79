/* Run simulated worlds and check that each keeps the promises of the library
 * (docs/contributing/simulator.md). */
#include "shrink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "sim [--first N] [--seeds N] [--seconds S] [--faults BITS] [--replay] [--shrink N]\n"
    "    runs so many seeds (1000), for so long; with --replay each of them twice, and compares; shrinks the first N that\n"
    "    fail (3)\n"
    "sim --seed N [--trace] [--faults BITS] [--without-steps BITS] [--without-faults BITS] [--order N] [--plain]\n"
    "    runs one, or the rest of it\n"
    "--strict, for both: no error may blame a rank that left because of a failure\n"
    "sim --list\n"
    "    the kinds of faults, and their bits\n";

typedef struct arguments {
    run_batch batch;
    run_spec spec;
    bool is_single;
    uint64_t nshrunk;
} arguments;

static void
list_faults(void)
{
    for (int kind = 0; kind < (int)SIM_FAULT_KINDS; kind++) {
        printf("%#6x  %s\n", 1U << kind, sim_fault_name((sim_fault_kind)kind));
    }
}

static void
refuse(const char *argument)
{
    (void)fprintf(stderr, "sim: %s?\n%s", argument, usage);
    exit(2);
}

static bool
parse_flag(arguments *all, const char *name)
{
    if (strcmp(name, "--trace") == 0) {
        all->spec.is_traced = true;
    } else if (strcmp(name, "--strict") == 0) {
        all->spec.is_strict = all->batch.is_strict = true;
    } else if (strcmp(name, "--plain") == 0) {
        all->spec.edit.is_plain = true;
    } else if (strcmp(name, "--replay") == 0) {
        all->batch.is_replayed = true;
    } else if (strcmp(name, "--list") == 0) {
        list_faults();
        exit(0);
    } else {
        return false;
    }
    return true;
}

static void
parse_number(arguments *all, const char *name, const char *text)
{
    char *end;
    uint64_t number = strtoull(text, &end, 0);
    if (*text == '\0' || *end != '\0') {
        refuse(text);
    }
    if (strcmp(name, "--seed") == 0) {
        all->is_single = true;
        all->spec.seed = number;
    } else if (strcmp(name, "--first") == 0) {
        all->batch.first_seed = number;
    } else if (strcmp(name, "--seeds") == 0) {
        all->batch.nseeds = number;
    } else if (strcmp(name, "--seconds") == 0) {
        all->batch.seconds = (int)number;
    } else if (strcmp(name, "--faults") == 0) {
        all->spec.fault_kinds = all->batch.fault_kinds = (unsigned)number;
    } else if (strcmp(name, "--without-steps") == 0) {
        all->spec.edit.without_steps = (uint32_t)number;
    } else if (strcmp(name, "--without-faults") == 0) {
        all->spec.edit.without_faults = (uint32_t)number;
    } else if (strcmp(name, "--order") == 0) {
        all->spec.edit.order = number;
    } else if (strcmp(name, "--shrink") == 0) {
        all->nshrunk = number;
    } else {
        refuse(name);
    }
}

static bool
run_batch_of(const arguments *all)
{
    run_summary summary;
    run_many(&all->batch, &summary);
    for (uint64_t i = 0; i < summary.nfailed && i < all->nshrunk; i++) {
        run_spec spec = all->spec;
        spec.seed = summary.failed[i];
        shrink(&spec);
    }
    printf(
        "%llu seeds in %.1f s (%.0f a second), %llu failed; %.3g steps, %llu faults, %.0f s of simulated time\n",
        (unsigned long long)summary.nseeds, summary.seconds, (double)summary.nseeds / summary.seconds,
        (unsigned long long)summary.nfailed, (double)summary.nsteps, (unsigned long long)summary.nfaults,
        summary.simulated_s);
    return summary.nfailed == 0;
}

int
main(int argc, char **argv)
{
    arguments all = {.batch = {.first_seed = 1, .fault_kinds = ALL_FAULTS},
                     .spec = {.fault_kinds = ALL_FAULTS},
                     .nshrunk = 3};
    for (int i = 1; i < argc; i++) {
        if (!parse_flag(&all, argv[i])) {
            if (i + 1 == argc) {
                refuse(argv[i]);
            }
            parse_number(&all, argv[i], argv[i + 1]);
            i++;
        }
    }
    if (all.batch.nseeds == 0 && all.batch.seconds == 0) {
        all.batch.nseeds = 1000;
    }
    if (!all.is_single) {
        return run_batch_of(&all) ? 0 : 1;
    }
    run_result result;
    run_here(&all.spec, true, &result);
    return result.verdict[0] == '\0' ? 0 : 1;
}
