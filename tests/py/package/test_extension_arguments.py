"""The extension's functions must report wrong arguments, and then have no effect."""

import array
import subprocess
import sys
import textwrap

import dldist
import pytest
from dldist import _core

NO_TEXT = "\ud800"  # has no UTF-8 encoding
MISTAKES = [
    ("_set_log_level", (3,), TypeError, r"set_log_level\(\): argument 'level' must be str, not int"),
    ("_set_log_level", (NO_TEXT,), UnicodeEncodeError, "surrogates not allowed"),
    ("_take_log_record", ("soon",), TypeError, r"_take_log_record\(\): argument 'timeout' must be"),
    ("_monitor_open", (1,), TypeError, r"_monitor_open\(\) missing required argument 'dump_ms'"),
    ("_monitor_stop", ("soon",), TypeError, r"_monitor_stop\(\): argument 'grace' must be"),
    ("_monitor_add_group", (3,), TypeError, r"_monitor_add_group\(\): argument 'group' must be a Group, not int"),
    ("_monitor_remove_group", (-1,), OverflowError, "negative"),
    ("_monitor_on_signal", (12,), TypeError, r"_monitor_on_signal\(\) missing required argument 'has_to_be_unused'"),
    ("_dump_recorder", (), TypeError, r"_dump_recorder\(\) missing required argument 'is_json'"),
    ("_dump_recorder", (True, True, True, True, 1.5), TypeError, "expected str, bytes or os.PathLike object, not float"),
    ("_carrier_open", ("mpi",), TypeError, r"_carrier_open\(\) missing required argument 'candidates'"),
    ("_carrier_open", ("pigeon", []), ValueError, "unknown carrier: got pigeon, expected mpi, ucc or xccl"),
    ("_carrier_open", ("mpi", [3]), TypeError, "bad argument type"),
    ("_carrier_info", (3,), ValueError, "invalid PyCapsule"),
    ("_carrier_begin_mpi", (3,), ValueError, "invalid PyCapsule"),
    ("_carrier_share_mpi", (3, ""), TypeError, r"_carrier_share_mpi\(\) missing required argument 'timeout'"),
    ("_carrier_share_mpi", (3, "", 1), ValueError, "invalid PyCapsule"),
    ("_carrier_end_mpi", (3,), TypeError, r"_carrier_end_mpi\(\) missing required argument 'is_well'"),
    ("_carrier_end_mpi", (3, True), ValueError, "invalid PyCapsule"),
    ("_find_nccl_obstacle", (), TypeError, r"_find_nccl_obstacle\(\) missing required argument 'candidates'"),
    ("_find_nccl_obstacle", ([3],), TypeError, "bad argument type"),
    ("_load_nccl", (), TypeError, r"_load_nccl\(\) missing required argument 'candidates'"),
    ("_load_nccl", ([3],), TypeError, "bad argument type"),
    ("_swap_stream", ("fast",), TypeError, "stream"),
    ("_mpi_calls", (0, 1), TypeError, r"_mpi_calls\(\) missing required argument 'make'"),
    ("_ffi_program", (1, None, [], [], 0), TypeError, r"_ffi_program\(\) missing required argument 'calls'"),
    ("_ffi_program", (1, None, [], [], 0, ()), TypeError, "'sources', 'results' and 'calls' are lists"),
    ("_ffi_program", (1, None, [], [], 0, []), TypeError, r"_ffi_program\(\): argument 'group' must be a Group, not NoneType"),
    ("_ffi_set_group", (3,), TypeError, r"_ffi_set_group\(\) missing required argument 'group'"),
    ("_ffi_set_group", (3, None), TypeError, r"_ffi_set_group\(\): argument 'group' must be a Group, not NoneType"),
]


@pytest.mark.parametrize(("name", "args", "kind", "text"), MISTAKES)
def test_errors_of_extension_functions_name_the_wrong_argument(name, args, kind, text):
    with pytest.raises(kind, match=text):
        getattr(_core, name)(*args)


@pytest.fixture
def group():
    with dldist.Group(None, 0, 1, timeout=10.0) as group:
        yield group


OF_GROUPS = [
    (lambda group: group._describe("name", "what for"), TypeError, r"_describe\(\) missing required argument 'global_ranks'"),
    (lambda group: group._describe("name", "what for", 3), TypeError, "not iterable"),
    (lambda group: group._describe("name", "what for", [0, 1]), ValueError, r"_describe\(\): 2 global ranks for a group of 1"),
    (lambda group: group._carry(), TypeError, r"_carry\(\) missing required argument 'carrier'"),
    (lambda group: group._carry(3), ValueError, "invalid PyCapsule"),
    (lambda group: _core._ffi_set_group(3, group), ValueError, "invalid PyCapsule"),
    (lambda group: _core._ffi_program(1, group, [3], [], 0, []), TypeError, "argument 'memory' must be a tuple, not int"),
    (lambda group: _core._ffi_program(1, group, [], [(1,)], 0, []), TypeError, r"memory\(\) missing required argument 'nbytes'"),
    (lambda group: _core._ffi_program(1, group, [], [], 0, [3]), TypeError, "must be a Plan, not int"),
    (lambda group: _core._ffi_program(1, group, [], [], 0, [(True,)]), TypeError, r"message\(\) missing required argument 'memory'"),
    (lambda group: _core._ffi_program(1, group, [], [], 0, [(True, 3, 0, 1)]), TypeError, "argument 'memory' must be a tuple, not int"),
]


@pytest.mark.parametrize(("call", "kind", "text"), OF_GROUPS)
def test_errors_of_extension_functions_of_groups_name_the_wrong_argument(group, call, kind, text):
    with pytest.raises(kind, match=text):
        call(group)
    group.all_reduce(array.array("d", [1]))  # still usable


def test_group_that_was_never_initialised_is_rejected():
    for call in (lambda group: group._carry(3), _core._monitor_add_group, lambda group: _core._ffi_set_group(3, group)):
        with pytest.raises(RuntimeError, match=r"Group.__init__\(\) has not been called"):
            call(dldist.Group.__new__(dldist.Group))


def run(program):
    """Run a program in a separate process, because its settings cannot be undone."""
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_signal_for_dumps_needs_a_monitor_and_a_valid_number():
    assert run(
        """
        from dldist import _core
        from dldist._base import monitor_thread
        for number in (12, 12, 0, 999):
            try:
                print(_core._monitor_on_signal(number, True))
            except (RuntimeError, ValueError) as error:
                print(type(error).__name__, error)
                monitor_thread.start(0)
        """
    ) == [
        "RuntimeError nothing is monitored: create a group of several ranks first",
        "False",
        "ValueError dump_on_signal(): argument 'signum': got 0, expected a signal that can be handled",
        "ValueError dump_on_signal(): argument 'signum': got 999, expected a signal that can be handled",
    ]


def test_failed_creation_of_an_xla_communicator_reports_the_exception():
    """XLA calls C functions of a table: MPI's, in the order of csrc/xla/mpi.h."""
    assert run(
        """
        import ctypes
        from dldist import _core

        class Mute(Exception):
            def __str__(self):
                raise ValueError

        def make(first, place):
            raise Mute if first else KeyError("no such devices")

        capsule = _core._mpi_calls(0, 2, make)
        api = ctypes.pythonapi
        api.PyCapsule_GetName.argtypes, api.PyCapsule_GetName.restype = [ctypes.py_object], ctypes.c_char_p
        api.PyCapsule_GetPointer.argtypes, api.PyCapsule_GetPointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
        table = (ctypes.c_void_p * 12).from_address(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))
        handle, number, text = ctypes.c_ssize_t, ctypes.c_int, ctypes.create_string_buffer(1024)

        def call(index, *arguments):
            return ctypes.CFUNCTYPE(number, *map(type, arguments))(table[index])(*arguments)

        def look(comm):
            rank, size, length = number(), number(), number()
            call(0, comm, ctypes.pointer(rank))
            call(1, comm, ctypes.pointer(size))
            code = call(4, *map(ctypes.c_void_p, (None, None)), number(0), handle(0x100), handle(0x200), comm)
            call(11, number(code), text, ctypes.pointer(length))
            print(rank.value, size.value, code != 0, text.value.decode())

        look(handle(1))
        for first in (0, 1):
            part = handle()
            assert call(2, handle(1), number(first), number(3), ctypes.pointer(part)) == 0
            look(part)
            assert call(3, ctypes.pointer(part)) == 0 and part.value == 0
        """
    ) == [
        "0 2 True dldist carries out what XLA calls on its own communicators, not on MPI_COMM_WORLD",
        "3 4 True KeyError: 'no such devices'",
        "3 4 True an exception without a text",
    ]


def test_subinterpreters_are_rejected():
    """Subinterpreters must be refused: the core's threads could not enter theirs."""
    for text in run(
        """
        try:
            import _interpreters as interpreters  # since 3.13
        except ImportError:
            import _xxsubinterpreters as interpreters
        number = interpreters.create()
        try:
            result = interpreters.run_string(number, "import dldist._core")
        except Exception as error:
            result = error
        print(getattr(result, "formatted", result))
        """
    ):
        assert "ImportError" in text and "not support" in text and "subinterpreters" in text


@pytest.mark.skipif(not hasattr(_core, "_fail_system_call"), reason="the extension is built without DLDIST_FAULTS=1")
def test_build_for_tests_can_make_system_calls_fail(tmp_path):
    path = str(tmp_path / "store")
    assert run(
        f"""
        import errno, dldist
        from dldist import _core

        def attempt():
            try:
                dldist.FileStore({path!r}, 1).set("k", "v")
                print("well")
            except dldist.DistError as error:
                print("Permission denied" in str(error))

        _core._fail_system_call("open", 0, errno.EACCES, False)
        attempt()
        attempt()
        _core._fail_system_call("open", 0, errno.EACCES, True)
        attempt()
        attempt()
        _core._fail_system_call("open", -1, 0, False)
        attempt()
        for arguments in (("sing", 0, 1, False), ("open",)):
            try:
                _core._fail_system_call(*arguments)
            except (ValueError, TypeError) as error:
                print(error)
        before = _core._count_system_calls()
        attempt()
        after = _core._count_system_calls()
        print(after["open"] > before["open"], after["epoll_wait"] - before["epoll_wait"])
        """
    ) == [
        *("True", "well", "True", "True", "well"),
        '_fail_system_call(): no call "sing"',
        "_fail_system_call() takes exactly 4 arguments (1 given)",
        *("well", "True 0"),
    ]


def test_lazily_imported_module_may_call_the_function_that_imports_it():
    """An import may reenter the module that needs it; another thread may also finish it first."""
    assert run(
        """
        import sys
        import dldist
        from dldist import _core

        class Finder:
            wants = {"datetime": lambda: store.timeout, "dldist._base.settings": _core._recorder_capacity}

            def find_spec(self, name, path=None, target=None):
                if name in self.wants:
                    found.append((name, str(self.wants.pop(name)())))

        found, store = [], dldist.HashStore()
        sys.modules.pop("dldist._base.settings", None)
        sys.modules.pop("datetime", None)
        sys.meta_path.insert(0, Finder())
        found += [("timeout", str(store.timeout)), ("capacity", str(_core._recorder_capacity()))]
        print(*(" ".join(each) for each in found), sep="\\n")
        print(type(store.timeout) is sys.modules["datetime"].timedelta)
        """
    ) == ["datetime 0:05:00", "dldist._base.settings 2000", "timeout 0:05:00", "capacity 2000", "True"]
