/* Two ranks of an arena whose shared words an attacker changes: marks, headers, tables, positions,
 * and boards. The input is a sequence of steps (enum step). Also opens descriptors that may or may
 * not be an arena.
 *
 * The arrays and the regions of the ranks are blocks of exactly their size, so that the sanitizer
 * detects accesses beyond them. */
#include "collective/arena/board.h"
#include "collective/arena/state.h"
#include "core/fork.h"
#include "core/shared_memory.h"
#include "fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_INPUT_BYTES 1024u
#define NRANKS 2
#define REGION_NBYTES ((size_t)65536)

/* The low bits of a step's first byte; the next bit is the rank. */
enum step {
    STEP_START,    /* start an operation, if none is running */
    STEP_PROGRESS, /* run the operation */
    STEP_WRITE,    /* the attacker writes into this rank's part */
    STEP_SHARED,   /* the attacker writes into the part shared by all ranks */
    STEP_REGION,   /* add or remove a region */
    STEP_POST,     /* post on the board */
    STEP_LOOK,     /* read the other rank's board */
    STEP_END,      /* end the operation with a failure */
    STEP_COUNT,
    RANK_BIT = 0x10,
};

typedef struct rank {
    dd_arena *arena;
    dd_coll_args args;
    dd_block inputs[NRANKS];
    dd_block outputs[NRANKS];
    bool is_busy;
    bool is_over; /* no operation is started any longer */
    uint32_t wanted_id;
    uint8_t *region;
} rank;

static struct {
    int fd;
    rank ranks[NRANKS];
} team;

/* ---- operations */

static void
wake(void *ctx, int woken)
{
    (void)ctx;
    require(woken >= 0 && woken < NRANKS);
}

static void
want_region(void *ctx, int owner, uint32_t id)
{
    rank *self = ctx;
    require(owner >= 0 && owner < NRANKS && id != 0);
    self->wanted_id = id;
}

static void
drop_blocks(rank *self)
{
    for (int k = 0; k < NRANKS; k++) {
        dd_block *blocks[] = {&self->inputs[k], &self->outputs[k]};
        for (int i = 0; i < 2; i++) {
            uint8_t *data = blocks[i]->data;
            bool is_in_region = data >= self->region && data < self->region + REGION_NBYTES;
            if (!is_in_region) {
                free(data);
            }
            *blocks[i] = (dd_block){.data = NULL};
        }
    }
    self->is_busy = false;
}

/* Fill byte by byte, because the size may be no multiple of the element size. */
static dd_block
make_block(rank *self, size_t nbytes, size_t place)
{
    bool is_in_region = place > 0 && place + nbytes <= REGION_NBYTES;
    dd_block block = {.data = is_in_region ? self->region + place : malloc(nbytes), .nbytes = nbytes};
    if (nbytes > 0) {
        memset(block.data, 1, nbytes);
    }
    return block;
}

static size_t
take_size(dd_bytes *input)
{
    static const size_t sizes[] = {0, 8, 64, 80, 88, 4096, 8192, 16384, 65528, 300000, 600000};
    unsigned choice = take_byte(input);
    return choice < 0x80 ? sizes[choice % 11] : (choice & 0x7f) * 8;
}

static void
start(rank *self, int own, dd_bytes *input)
{
    unsigned kind = take_byte(input);
    unsigned how = take_byte(input);
    size_t nbytes = take_size(input);
    size_t other_nbytes = (how & 1) != 0 ? take_size(input) : nbytes;
    size_t place = (how & 2) != 0 ? 64 + (size_t)take_byte(input) * 8 : 0;
    if (self->is_busy || self->is_over) {
        return;
    }
    dd_coll coll = (dd_coll)(kind % (unsigned)DD_COLL_COUNT);
    int root = (int)(kind >> 4 & 1);
    self->args = (dd_coll_args){
        .coll = coll,
        .root = root,
        .reduction = {.dtype = (how & 4) != 0 ? DD_DTYPE_FLOAT32 : DD_DTYPE_INT64,
                      .op = (dd_redop)(how >> 3 & 3),
                      .divisor = 1},
        .inputs = self->inputs,
        .outputs = self->outputs,
    };
    bool is_uneven = dd_coll_traits_of[coll].has_uneven;
    for (int k = 0; k < dd_coll_ninputs(coll, own == root, NRANKS); k++) {
        self->inputs[k] = make_block(self, is_uneven && k != 0 ? other_nbytes : nbytes, place);
    }
    for (int k = 0; k < dd_coll_noutputs(coll, own == root, NRANKS); k++) {
        size_t output_place = place > 0 ? place + nbytes + 4096 : 0;
        self->outputs[k] = make_block(self, is_uneven && k != own ? other_nbytes : nbytes, output_place);
    }
    const dd_arena_op_options options = {
        .signature = {.coll = (uint8_t)coll,
                      .root = (uint32_t)root,
                      .dtype = (uint8_t)self->args.reduction.dtype,
                      .redop = (uint8_t)self->args.reduction.op,
                      .count = is_uneven ? 0 : nbytes},
        .sequence = kind,
        .wake = wake,
        .want_region = want_region,
        .ctx = self,
    };
    self->is_busy = true;
    dd_arena_start(self->arena, &self->args, &options);
}

static void
progress(rank *self, unsigned ncalls)
{
    for (unsigned i = 0; i <= ncalls && self->is_busy; i++) {
        dd_arena_state state = dd_arena_progress(self->arena);
        if (state == DD_ARENA_BLOCKED) {
            return;
        }
        if (state == DD_ARENA_MISMATCH) {
            dd_arena_mismatch mismatch = dd_arena_get_mismatch(self->arena);
            require(mismatch.rank >= 0 && mismatch.rank < NRANKS && mismatch.other >= 0 &&
                    mismatch.other < NRANKS);
        }
        if (state != DD_ARENA_MOVED) {
            self->is_over = state != DD_ARENA_DONE;
            drop_blocks(self);
        }
    }
}

/* ---- writes of the attacker */

/* Take a number that may be close to the present value or to the operation's marks. */
static uint64_t
take_value(const rank *self, uint64_t there, dd_bytes *input)
{
    unsigned how = take_byte(input);
    int64_t small = (int8_t)take_byte(input);
    switch (how % 6) {
    case 0:
        return there + (uint64_t)small;
    case 1:
        return (uint64_t)small;
    case 2:
        return dd_arena_mark_of(self->arena, (uint32_t)small);
    case 3:
        return dd_arena_mark_of(self->arena, (uint32_t)ARENA_STEP_FOLDED + (how >> 7));
    case 4:
        return (uint64_t)small << (how >> 2 & 0x3f);
    default:
        return take_number(input, 8);
    }
}

static void
write_value(const rank *self, _Atomic uint64_t *word, dd_bytes *input)
{
    atomic_store(word, take_value(self, atomic_load(word), input));
}

static void
write_slot(const rank *self, int owner, dd_bytes *input)
{
    const arena_slot *slot = &self->arena->slots[owner];
    unsigned where = take_byte(input);
    arena_record *record = &slot->control->records[(self->arena->number + (where >> 7)) % ARENA_NRECORDS];
    unsigned ntables = ARENA_NRECORDS * ARENA_NTABLES * NRANKS;
    switch (where % 8) {
    case 0:
        write_value(self, &record->mark, input);
        break;
    case 1:
        write_value(self, &slot->tables[take_byte(input) % ntables], input);
        break;
    case 2:
        write_value(self, &slot->offsets[take_byte(input) % NRANKS], input);
        break;
    case 3:
        write_value(self, &slot->control->claim, input);
        break;
    case 4:
        atomic_store(&slot->control->awaited, (uint32_t)take_number(input, 4));
        atomic_store(&slot->control->cpu, (uint32_t)take_number(input, 4));
        break;
    case 5:
        atomic_store(&slot->control->poisoned_from, self->arena->number + (uint32_t)take_byte(input) - 2);
        break;
    default:
        write_value(self, &record->words[(where >> 3 & 15) % ARENA_NWORDS], input);
    }
}

static void
write_shared(const rank *self, dd_bytes *input)
{
    arena_shared *shared = self->arena->shared;
    unsigned where = take_byte(input);
    if (where % 4 == 3) {
        uint8_t *boards = (uint8_t *)self->arena->boards;
        uint64_t value = take_number(input, 8);
        memcpy(boards + take_number(input, 2) % (dd_arena_boards_nbytes(NRANKS) - sizeof value), &value,
               sizeof value);
        return;
    }
    if (where % 4 == 2) {
        atomic_store(&shared->streaming, (uint32_t)take_number(input, 4));
    } else {
        write_value(self, where % 4 == 0 ? &shared->asleep[where >> 5] : &shared->poisoned[where >> 5],
                    input);
    }
}

/* ---- other calls */

static void
change_region(rank *self, dd_bytes *input)
{
    unsigned kind = take_byte(input);
    int owner = (int)(kind & 1);
    uint32_t id = (kind & 2) != 0 ? self->wanted_id : kind >> 4;
    size_t nbytes = REGION_NBYTES - (kind >> 3 & 1) * 4096;
    if ((kind & 4) != 0) {
        dd_arena_remove_region(self->arena, owner, id);
    } else {
        dd_error err;
        (void)!dd_arena_add_region(self->arena, owner, id, team.ranks[owner].region, nbytes, &err);
    }
}

static void
say(const rank *self, dd_bytes *input)
{
    const dd_arena_position place = {
        .sequence = take_byte(input), .signature = {.coll = 2}, .is_inside = true};
    unsigned kind = take_byte(input);
    if (kind % 4 == 0) {
        dd_arena_post_cause(self->arena, take_bytes(input, kind));
    } else if (kind % 4 == 1) {
        dd_arena_post_leaving(self->arena);
    } else {
        dd_arena_post_position(self->arena, &place);
        dd_arena_fence_position();
    }
}

static void
look(const rank *self)
{
    uint8_t cause[DD_ARENA_CAUSE_MAX];
    for (int k = 0; k < NRANKS; k++) {
        require(dd_arena_read_cause(self->arena, k, cause) <= sizeof cause);
        (void)dd_arena_read_position(self->arena, k);
        (void)dd_arena_has_posted_cause(self->arena, k);
        (void)dd_arena_has_left(self->arena, k);
        (void)dd_arena_is_position_awaited(self->arena, k);
        (void)dd_arena_is_bell_due(self->arena, k);
        (void)dd_arena_has_taken_posts(self->arena, k);
        (void)dd_arena_read_loss(self->arena, k);
    }
    if (dd_arena_is_rung(self->arena)) {
        dd_arena_note_loss(self->arena, (dd_arena_loss){.to = 1, .nbytes = 1});
    }
    (void)dd_arena_take_posts(self->arena);
    (void)dd_arena_is_crowded(self->arena);
    dd_arena_ranks missing = dd_arena_missing(self->arena);
    int k = dd_arena_ranks_pop(&missing);
    require(k >= -1 && k < NRANKS);
    (void)dd_arena_fall_asleep(self->arena);
}

static void
abort_op(const rank *self)
{
    dd_block written;
    dd_arena_poison(self->arena);
    if (self->is_busy && dd_arena_find_written(self->arena, &written)) {
        const dd_block *output = &self->outputs[0];
        uintptr_t begin = (uintptr_t)written.data;
        require(begin >= (uintptr_t)output->data && written.nbytes <= output->nbytes &&
                begin + written.nbytes <= (uintptr_t)output->data + output->nbytes);
    }
}

static void
take_step(unsigned step, dd_bytes *input)
{
    int own = (step & RANK_BIT) != 0;
    rank *self = &team.ranks[own];
    switch ((enum step)(step % STEP_COUNT)) {
    case STEP_START:
        start(self, own, input);
        break;
    case STEP_PROGRESS:
        progress(self, step >> 5);
        break;
    case STEP_WRITE:
        write_slot(self, (int)(step >> 5 & 1), input);
        break;
    case STEP_SHARED:
        write_shared(self, input);
        break;
    case STEP_REGION:
        change_region(self, input);
        break;
    case STEP_POST:
        say(self, input);
        break;
    case STEP_LOOK:
        look(self);
        break;
    case STEP_END:
    case STEP_COUNT:
    case RANK_BIT:
        abort_op(self);
    }
}

/* ---- descriptors */

static void
attach(dd_bytes input)
{
    unsigned how = take_byte(&input);
    size_t nbytes = (how & 1) != 0 ? dd_arena_nbytes(NRANKS) : (size_t)take_number(&input, 3);
    int fd = -1;
    dd_arena *arena = NULL;
    dd_error err;
    if ((how & 2) != 0) {
        require(dd_arena_create(NRANKS, false, &fd, NULL) == DD_OK);
        uint64_t word = take_number(&input, 8);
        size_t where = (size_t)take_byte(&input) * 8;
        require(pwrite(fd, &word, sizeof word, (off_t)where) == sizeof word);
    } else if ((how & 4) != 0) {
        require(dd_shared_memory_create("fuzz_arena", nbytes + 1, &fd, NULL) == DD_OK);
        (void)!pwrite(fd, input.data, input.len, 0); /* may exceed the size */
    } else {
        fd = dd_fork_register(open("/dev/null", O_RDWR | O_CLOEXEC));
    }
    int nranks = 1 + (int)(how >> 4);
    if (dd_arena_attach(fd, nranks, 0, &arena, &err) == DD_OK) {
        require(nranks == NRANKS);
        dd_arena_close(arena);
    } else {
        require(err.message[0] != '\0');
    }
    dd_fork_close(fd);
}

static void
run_team(unsigned first, dd_bytes input)
{
    memset(&team, 0, sizeof team);
    require(dd_arena_create(NRANKS, (first & 2) != 0, &team.fd, NULL) == DD_OK);
    for (int k = 0; k < NRANKS; k++) {
        require(dd_arena_attach(team.fd, NRANKS, k, &team.ranks[k].arena, NULL) == DD_OK);
        team.ranks[k].region = malloc(REGION_NBYTES);
        memset(team.ranks[k].region, 0, REGION_NBYTES);
    }
    for (int k = 0; (first & 4) != 0 && k < NRANKS * NRANKS; k++) {
        require(dd_arena_add_region(team.ranks[k % 2].arena, k / 2, 1, team.ranks[k / 2].region,
                                    REGION_NBYTES, NULL) == DD_OK);
    }
    while (input.len > 0) {
        take_step(take_byte(&input), &input);
    }
    for (int k = 0; k < NRANKS; k++) {
        drop_blocks(&team.ranks[k]);
        dd_arena_close(team.ranks[k].arena);
    }
    for (int k = 0; k < NRANKS; k++) {
        free(team.ranks[k].region);
    }
    dd_fork_close(team.fd);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT_BYTES || size == 0) {
        return -1;
    }
    dd_bytes input = dd_bytes_of(data, size);
    int before = next_descriptor();
    unsigned first = take_byte(&input);
    if ((first & 0x38) == 0) {
        attach(input);
    } else {
        run_team(first, input);
    }
    require(next_descriptor() == before);
    return 0;
}
