/* Memory orders as written and weaker ones: each place in the code can be weakened, and the
 * scenarios show if the order is needed. */
#include "models/weaken.h"

#include "models/checker_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SITES 1024
#define LOCATION_NBYTES 256
#define MAX_SCENARIOS 256

typedef struct site {
    const void *address;
    site_kind kind;
    memory_order_ order;                     /* as written */
    uint64_t reached_by[MAX_SCENARIOS / 64]; /* a bit for each scenario */
    char location[LOCATION_NBYTES];
} site;

static site sites[MAX_SITES];
static int nsites;
static int weakened = -1;
static memory_order_ weaker;
static int current;

static int
find_site(const void *address, site_kind kind, memory_order_ order)
{
    static int by_address[4 * MAX_SITES];
    size_t at = (size_t)(((uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15)) >> 40) & (4 * MAX_SITES - 1);
    while (by_address[at] != 0 && sites[by_address[at] - 1].address != address) {
        at = (at + 1) & (4 * MAX_SITES - 1);
    }
    if (by_address[at] == 0) {
        if (nsites == MAX_SITES) {
            abort();
        }
        sites[nsites++] = (site){.address = address, .kind = kind, .order = order};
        by_address[at] = nsites;
    }
    return by_address[at] - 1;
}

memory_order_
weaken_order(const void *address, site_kind kind, memory_order_ order)
{
    int found = find_site(address, kind, order);
    if (checker_self() >= 0) {
        sites[found].reached_by[current / 64] |= UINT64_C(1) << current % 64;
    }
    return found == weakened ? weaker : order;
}

int
weaken_count(void)
{
    return nsites;
}

void
weaken_begin(int number)
{
    current = number;
}

bool
weaken_is_reached_by(int at, int number)
{
    return (sites[at].reached_by[number / 64] >> number % 64 & 1) != 0;
}

bool
weaken_is_of_library(int at)
{
    const char *words = weaken_location(at);
    return strstr(words, " scenario_") == NULL && strstr(words, " litmus") == NULL;
}

/* The strongest comes first. An acq_rel change can be weakened to acquire or to release. */
int
weaken_options(int at, memory_order_ options[WEAKEN_MAX_OPTIONS])
{
    static const memory_order_ of_loads[] = {ORDER_SEQ_CST, ORDER_ACQUIRE, ORDER_RELAXED};
    static const memory_order_ of_stores[] = {ORDER_SEQ_CST, ORDER_RELEASE, ORDER_RELAXED};
    static const memory_order_ of_changes[] = {ORDER_SEQ_CST, ORDER_ACQ_REL, ORDER_ACQUIRE, ORDER_RELEASE,
                                               ORDER_RELAXED};
    static const memory_order_ of_fences[] = {ORDER_SEQ_CST, ORDER_ACQ_REL, ORDER_NONE};
    static const struct {
        const memory_order_ *orders;
        int count;
    } of[SITE_KINDS] = {[SITE_LOAD] = {of_loads, 3},
                        [SITE_STORE] = {of_stores, 3},
                        [SITE_RMW] = {of_changes, 5},
                        [SITE_FENCE] = {of_fences, 3}};
    int noptions = 0;
    bool is_weaker = false;
    memory_order_ written = sites[at].order;
    for (int i = 0; i < of[sites[at].kind].count; i++) {
        memory_order_ each = of[sites[at].kind].orders[i];
        bool is_other_half = written == ORDER_ACQUIRE && each == ORDER_RELEASE;
        if (is_weaker && !is_other_half) {
            options[noptions++] = each;
        }
        is_weaker = is_weaker || each == written;
    }
    if (sites[at].kind == SITE_FENCE && noptions == 0 && written != ORDER_NONE) {
        options[noptions++] = ORDER_NONE;
    }
    return noptions;
}

void
weaken_set(int at, memory_order_ order)
{
    weakened = at;
    weaker = order;
}

const char *
weaken_name(memory_order_ order)
{
    static const char *const names[] = {"relaxed", "consume", "acquire", "release",
                                        "acq_rel", "seq_cst", "none"};
    return names[order];
}

const char *
weaken_kind(int at)
{
    static const char *const names[] = {"load", "store", "change", "fence"};
    return names[sites[at].kind];
}

memory_order_
weaken_written(int at)
{
    return sites[at].order;
}

/* Set the description of a place: "function file:line". */
static void
find_location(site *of)
{
    char command[256];
    char function[100] = "?";
    char line[200] = "?";
    /* The call is right before the return address. */
    (void)snprintf(command, sizeof command, "addr2line -f -s -e /proc/%d/exe 0x%lx", (int)getpid(),
                   (unsigned long)(uintptr_t)of->address - 1);
    FILE *answer = popen(command, "r");
    if (answer != NULL) {
        (void)!fscanf(answer, "%99s %199s", function, line);
        (void)pclose(answer);
    }
    (void)snprintf(of->location, sizeof of->location, "%s %s", function, line);
}

const char *
weaken_location(int at)
{
    if (sites[at].location[0] == 0) {
        find_location(&sites[at]);
    }
    return sites[at].location;
}

const char *
weaken_describe(const void *address)
{
    return weaken_location(find_site(address, SITE_LOAD, ORDER_RELAXED));
}
