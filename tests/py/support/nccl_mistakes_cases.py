"""Errors of NcclGroup for unusable calls, tensors and streams, over the stubs of tests/stubs.

test_nccl_case_files.py runs this file with pytest, in processes that know where the stubs are.
"""

import ctypes
import gc
import threading
import warnings
import weakref

import dldist
import dlpack_producer
import nccl_stubs
import numpy
import pytest
from dldist import _core, nccl
from nccl_group_cases import LIMIT_S, array, on_ranks
from nccl_group_cases import no_faults as no_faults
from nccl_group_cases import stubs as stubs

# ---- calls


def refuses(kind, text, call, *args, **kwargs):
    with pytest.raises(kind, match=text or None):
        call(*args, **kwargs)


def test_error_of_the_nccl_group_constructor_names_the_wrong_argument(stubs):
    make = _core.NcclGroup
    refuses(TypeError, r"NcclGroup\(\): argument 'device'", make, None, 0, 1, device="first")
    refuses((ValueError, dldist.DistError), "99", make, None, 0, 1, device=99)
    refuses(TypeError, r"NcclGroup\(\): argument 'config' must be a dict, not int", make, None, 0, 1, config=3)
    refuses(TypeError, r"NcclGroup\(\): argument 'config' must be a dict of str, not int", make, None, 0, 1, config={1: 2})
    refuses(UnicodeEncodeError, "surrogates", make, None, 0, 1, config={"\ud800": 2})
    refuses(TypeError, r"NcclGroup\(\): argument 'store'", make, 3, 0, 1)
    refuses(TypeError, r"NcclGroup\(\) missing required argument 'size'", make, None, 0)
    refuses(ValueError, "rank 1", make, None, 1, 1)
    group = make(None, 0, 1, device=0)
    refuses(RuntimeError, "__init__|already", group.__init__, None, 0, 1)
    assert group.device == 0
    group.close()
    group = make.__new__(make)
    for call in (
        group.start_coalescing, group.drop_coalesced, group._host_view, group.grow_id, group.abort, group._wait_for_works,
        lambda: group.empty(1), lambda: group.set_timing(True), lambda: group.set_nan_check(True), lambda: group.device,
        lambda: group.add_ephemeral_timeout(1), lambda: group.split([0]), lambda: group.shrink([]),
    ):  # fmt: skip
        refuses(RuntimeError, "__init__", call)


def test_nccl_group_without_a_device_is_an_error(stubs):
    group = _core.NcclGroup(None, 0, 1)
    assert group.device is None
    for call in (group._host_view, group.barrier, group.connect, lambda: group.split([0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refuses(UserWarning, "does not know its device, and takes cuda:0", call)
        assert group.device is None
    with pytest.warns(UserWarning, match="takes cuda:0"):
        group.connect()
    assert group.device == 0
    group.close()


def test_nccl_group_interrupted_in_its_creation_is_released(stubs):
    """The interrupt comes while the group registers with the watchdog, which queries its store."""

    class Interrupting(dldist.Store):
        def add(self, key, amount):
            raise KeyboardInterrupt

    for _ in range(2):
        refuses(KeyboardInterrupt, "", _core.NcclGroup, Interrupting(), 0, 2, device=0)
    on_ranks(2, lambda group, rank: group.barrier())


def test_errors_of_nccl_group_calls_name_the_wrong_argument(stubs):
    class Doubtful:
        def __bool__(self):
            raise ArithmeticError("who knows")

    group = _core.NcclGroup(None, 0, 1, device=0)
    refuses(TypeError, r"abort\(\) got an unexpected keyword argument 'loudly'", group.abort, loudly=True)
    refuses(TypeError, r"_wait_for_works\(\): argument 'timeout'", group._wait_for_works, "long")
    refuses(TypeError, r"add_ephemeral_timeout\(\): argument 'timeout'", group.add_ephemeral_timeout, "long")
    refuses(ArithmeticError, "who knows", group.set_nan_check, Doubtful())
    refuses(ArithmeticError, "who knows", group.set_timing, Doubtful())
    refuses((ValueError, TypeError), r"empty\(\)", group.empty, -1)
    x, y = array(stubs, [1]), array(stubs, [2])
    work = group.all_reduce(x, async_op=True)
    refuses(TypeError, r"wait\(\): argument 'timeout'", work.wait, "long")
    assert work.wait() is True and work.block_current_stream() is None and work.synchronize() is None
    group.start_coalescing()
    refuses(RuntimeError, r"start_coalescing\(\): this thread has already called it", group.start_coalescing)
    group.all_reduce(x)
    group.all_reduce(y)
    assert group.end_coalescing().wait() is True
    group.start_coalescing()
    group.all_reduce(y)
    dropped = weakref.ref(y)
    del y
    gc.collect()
    assert dropped() is not None, "the call is held back"
    assert group.drop_coalesced() is None
    gc.collect()
    assert dropped() is None
    group.close()


def test_nccl_group_may_be_freed_inside_a_coalescing_block(stubs):
    before = stubs.nccl.live("comm")
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.connect()
    group.start_coalescing()
    assert stubs.nccl.live("comm") == before + 1
    del group
    gc.collect()
    assert stubs.nccl.live("comm") == before


def test_coalescing_blocks_of_several_threads_end_separately(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    x, y = array(stubs, [1]), array(stubs, [2])
    begun, go_on, works = threading.Event(), threading.Event(), []

    def other():
        group.start_coalescing()
        group.all_reduce(y)
        begun.set()
        go_on.wait(LIMIT_S)
        works.append(group.end_coalescing())

    group.start_coalescing()
    group.all_reduce(x)
    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(LIMIT_S)
    assert group.end_coalescing().wait() is True  # this thread started coalescing first
    go_on.set()
    thread.join(LIMIT_S)
    assert works[0].wait() is True
    group.close()


def test_errors_of_nccl_group_split_name_the_wrong_argument(stubs):
    mistake = dldist.DistArgumentError
    group = _core.NcclGroup(dldist.HashStore(), 0, 2, device=0)
    refuses(mistake, r"split\(\): argument 'ranks' has an invalid rank: got 2, expected 0 to 1", group.split, [0, 2])
    refuses(mistake, r"split\(\): argument 'ranks' has an invalid rank: got -1, expected 0 to 1", group.split, [-1])
    refuses(mistake, r"split\(\): argument 'ranks' lacks this rank: got no 0, expected it; other ranks call skip_split", group.split, [1])
    refuses(TypeError, r"split\(\): argument 'config' must be a dict, not int", group.split, [0], config=3)
    refuses(TypeError, r"split\(\): argument 'color'", group.split, [0], color="red")
    refuses(TypeError, r"shrink\(\) missing required argument 'excluded'", group.shrink)
    refuses(mistake, r"shrink\(\): argument 'excluded' has an invalid rank: got 2, expected 0 to 1", group.shrink, [2])
    refuses(mistake, r"shrink\(\): argument 'excluded' has this rank: got 0", group.shrink, [0])
    refuses(_core.DistBackendError, r"shrink\(\): there is no communicator on cuda:0 to shrink", group.shrink, [1])
    refuses(TypeError, r"grow\(\): argument 'id' must be the bytes of grow_id\(\), not bytes", group.grow, None, 3, b"x")
    refuses(mistake, r"grow\(\): a rank that joins needs the 'id'", group.grow, None, 3, None, 2)
    refuses(mistake, r"grow\(\): argument 'rank' or 'size' is wrong: rank 0 of 2 got rank 0 of 2", group.grow, None, 2)
    stubs.nccl.fail("ncclCommInitRankConfig", result=2, text="no room")
    alone = _core.NcclGroup(None, 0, 1, device=0)
    for call in (lambda: alone.split([0]), alone.grow_id, lambda: alone.grow(None, 2)):
        refuses((_core.DistBackendError, NotImplementedError), "no room|needs NCCL", call)
    alone.abort()
    group.abort()


# ---- tensors and streams


def test_tensor_whose_library_reports_no_stream_is_an_error(stubs):
    is_known = True

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    def stream_of(_device_type, _device, out):
        out[0] = nccl_stubs.LEGACY_STREAM
        return 0 if is_known else -1

    kind, table = dlpack_producer.exchange_type(nccl_stubs.CudaArray)
    table.stream = ctypes.cast(stream_of, ctypes.c_void_p)
    kind._keep_type.append(stream_of)
    x = kind(stubs, numpy.asarray([1.0], "float32"))
    group = _core.NcclGroup(None, 0, 1, device=0)
    works = [group.all_reduce(x, async_op=True) for _ in range(2)]
    is_known = False
    for call in (lambda: group.all_reduce(x), works[0].wait, works[1].synchronize):
        with pytest.raises(RuntimeError, match="the library of a tensor reports no stream on cuda:0"):
            call()
    is_known = True
    assert works[0].wait() is True and works[1].synchronize() is None
    group.close()


def test_one_call_accepts_tensors_of_seven_libraries(stubs):
    streams = [stubs.cuda.make_stream(0) for _ in range(7)]
    tensors = []
    for stream in streams:
        kind = nccl_stubs.exchange_type(lambda device, stream=stream: stream)
        tensors.append(kind(stubs, numpy.asarray([1.0], "float32"), stream=stream))
    group = _core.NcclGroup(None, 0, 1, device=0)
    group.all_reduce_coalesced(tensors[:6])
    with pytest.raises(ValueError, match="is on a stream of its own, and so are 6 others: pass tensors of fewer libraries"):
        group.all_reduce_coalesced(tensors)
    group.close()


class Number:
    """A number like a Python enum member that is not an int."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


def of_device(answer):
    """Return a class whose instances report `answer` as their device, or raise it."""

    class Array(nccl_stubs.CudaArray):
        def __dlpack_device__(self):
            if isinstance(answer, Exception):
                raise answer
            return answer

    return Array


def test_cuda_devices_are_accepted_in_every_form(stubs):
    group = _core.NcclGroup(None, 0, 1, device=1)
    for answer in ((2, 1), (Number(2), Number(1)), [2, 1]):
        group.all_reduce(of_device(answer)(stubs, numpy.asarray([1.0], "float32"), device=1))
    for answer in (ArithmeticError("who knows"), (None, 1), (2, "one")):
        with pytest.raises(ValueError, match=r"all_reduce\(\): argument 'tensor' .*does not say its device"):
            group.all_reduce(of_device(answer)(stubs, numpy.asarray([1.0], "float32"), device=1))
    group.close()


def test_tensors_on_a_device_of_another_group_are_rejected(stubs):
    class Other(nccl_stubs.CudaArray):
        def __dlpack_device__(self):
            return (dlpack_producer.ROCM, 0)

    x = Other(stubs, numpy.asarray([1.0], "float32"))
    x._tensor["device_type"] = dlpack_producer.ROCM
    group = _core.NcclGroup(None, 0, 1, device=0)
    with pytest.raises(ValueError, match="is on a device without a backend: got rocm:0, expected cuda"):
        group.all_reduce(x)
    group.close()


def test_error_while_asking_a_library_for_its_stream_is_raised(stubs):
    class Broken:
        def __cuda_stream__(self):
            raise ArithmeticError("no stream today")

        @property
        def cuda_stream(self):
            raise AssertionError("queried")

    with pytest.raises(ArithmeticError, match="no stream today"), nccl.stream(Broken()):
        pass
