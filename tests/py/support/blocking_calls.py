"""Every public call that can block, and how to make it block. Used by test_blocking_calls.py,
without pytest.

A call is an expression that rank 0 evaluates while rank 1 does not take part. The objects that it
needs besides the world are made on both ranks anew for each call, because an interrupt aborts a
group.
"""

import array
import itertools
import os
import re
import signal
import sys
import threading
import time
import types

import dldist
import procs
from dldist import _core, functional
from ports import reserve_port

LOOPBACK = "127.0.0.1"
TYPES = [_core.Store, _core.TCPStore, _core.FileStore, _core.HashStore, _core.PrefixStore, _core.Group, _core.Work, _core.Plan, _core.Plans,
         _core.Window, _core.SharedArray, _core.ReduceOp, _core.Member, dldist.World, dldist.Window, dldist.Future]

# Objects that both ranks make before the call. Rank 1 makes nothing else. `x` and `y` are small
# tensors; `xs` has one tensor per rank.
NEEDS = {
    "g": "world.split([0, 1], timeout=60)",
    "pg": "dldist.new_group([0, 1], timeout=60)",
    "core_window": "_core.Window(g, bytearray(64), pad_size=64)",
    "window": "dldist.Window(g, array.array('f', [1.0] * 16))",
    "core_wide": "_core.Window(g, bytearray(64 << 20))",
    "wide": "dldist.Window(g, bytearray(64 << 20))",
    "tagged": "g.irecv(array.array('f', [0.0]), 1, 7) if world.rank == 0 else None",  # never sent
}

BLOCKING = {
    # ---- groups
    "Group.all_reduce": "g.all_reduce(x)",
    "Group.all_reduce_coalesced": "g.all_reduce_coalesced([x, y])",
    "Group.broadcast": "g.broadcast(x, 1)",
    "Group.reduce": "g.reduce(x, 0)",
    "Group.all_gather": "g.all_gather(xs, x)",
    "Group.all_gather_single": "g.all_gather_single(both, x)",
    "Group.all_gather_coalesced": "g.all_gather_coalesced([[x], [y]], [copy_of(x)])",
    "Group.all_gather_single_coalesced": "g.all_gather_single_coalesced([both], [x])",
    "Group.gather": "g.gather(x, xs, 0)",
    "Group.gather_single": "g.gather_single(x, both, 0)",
    "Group.scan": "g.scan(x)",
    "Group.exscan": "g.exscan(x)",
    "Group.scatter": "g.scatter(x, None, 1)",
    "Group.scatter_single": "g.scatter_single(x, None, 1)",
    "Group.reduce_scatter": "g.reduce_scatter(x, xs)",
    "Group.reduce_scatter_single": "g.reduce_scatter_single(x, both)",
    "Group.reduce_scatter_coalesced": "g.reduce_scatter_coalesced([x], [both])",
    "Group.all_to_all": "g.all_to_all(xs, [x, y])",
    "Group.all_to_all_single": "g.all_to_all_single(both, copy_of(both))",
    "Group.barrier": "g.barrier()",
    "Group.send": "g.send(large, 1)",
    "Group.recv": "g.recv(x, 1)",
    "Group.monitored_barrier": "g.monitored_barrier()",
    "Group.split": "g.split([0, 1])",
    "Group.suspend": "g.suspend()",
    "Group.close": "tagged and g.close(60)",
    "Group.__init__": "_core.Group(_core.HashStore(), 0, 2, connect_timeout=60)",
    # ---- works, futures, plans
    "Work.wait": "g.all_reduce(x, async_op=True).wait()",
    "Work.synchronize": "g.irecv(x, 1).synchronize()",
    "Future.wait": "g.all_reduce(x, async_op=True).get_future().wait()",
    "Plan.__call__": "g.plan.all_reduce(x)()",
    "Plan.wait": "started(g.plan.all_reduce(x)).wait()",
    "wait_all": "dldist.wait_all([started(g.plan.all_reduce(x))])",
    "wait_any": "dldist.wait_any([g.irecv(x, 1)])",
    "wait_some": "dldist.wait_some([g.irecv(x, 1)])",
    # ---- worlds
    "World.__init__": "dldist.World(free_place(), rank=0, world_size=2, timeout=60)",
    "World.__init__ without rank 0": "dldist.World(free_place(), rank=1, world_size=2, timeout=60)",
    "World.split": "g.split([0, 1])",
    "World.new_group": "g.new_group([0, 1])",
    "World.split_by": "g.split_by(0)",
    "World.close": "tagged and g.close(60)",
    "World.rendezvous": "g.rendezvous(g.empty(4))",
    "World.new_window": "g.new_window(x)",
    "World.all_gather_object": "g.all_gather_object('a')",
    "World.gather_object": "g.gather_object('a')",
    "World.broadcast_object": "g.broadcast_object(root=1)",
    "World.scatter_objects": "g.scatter_objects(root=1)",
    "World.all_to_all_objects": "g.all_to_all_objects(['a', 'b'])",
    "World.send_object": "g.send_object(bytes(large), 1)",
    "World.recv_object": "g.recv_object(1)",
    "World.probe": "g.probe(1)",
    "World.recv_object_with_source": "g.recv_object_with_source(1)",
    # ---- one-sided calls; without shared memory, put, get and flush wait for a rank that does not
    # answer
    "Window.__init__": "_core.Window(g, bytearray(64))",
    "Window.put": "core_wide.put(large, 1)",
    "Window.get": "core_window.get(far_block, 1)",
    "Window.flush": "core_window.put(far_block, 1, async_op=True) and core_window.flush()",
    "Window.wait_signal": "core_window.wait_signal(1, 0, 60000)",
    "Window.put_signal": "[core_window.put_signal(1, 0, 60000) for _ in range(2)]",
    "Window.barrier": "core_window.barrier(0, 60000)",
    "c10d Window.tensor_register": "dldist.Window(g).tensor_register(x)",
    "c10d Window.tensor_deregister": "window.tensor_deregister()",
    "c10d Window.put": "wide.put(large, 1)",
    "c10d Window.wait_signal": "window.wait_signal(1)",
    # ---- stores
    "Store.get": "store.get('absent', 60)",
    "Store.wait": "store.wait(['absent'], 60)",
    "Store.multi_get": "store.multi_get(['absent'])",
    "Store.queue_pop": "store.queue_pop('absent', True, 60)",
    "Store.barrier": "store.barrier(new_key(), 2, 60)",  # a barrier also counts interrupted callers
    "Store.get of a HashStore": "_core.HashStore().get('absent', 60)",
    "Store.get of a FileStore": "_core.FileStore(file_place(), timeout=60).get('absent', 60)",
    "Store.get of a PrefixStore": "_core.PrefixStore('p', store).get('absent', 60)",
    "TCPStore.__init__": "_core.TCPStore('127.0.0.1', reserve_port(), timeout=60)",
    "TCPStore.__init__ with workers": "_core.TCPStore('127.0.0.1', 0, 2, True, timeout=60)",
    # ---- the module's calls
    "all_reduce": "dldist.all_reduce(x, group=pg)",
    "all_reduce_coalesced": "dldist.all_reduce_coalesced([x, y], group=pg)",
    "probe": "dldist.probe(1, pg)",
    "broadcast": "dldist.broadcast(x, 1, pg)",
    "reduce": "dldist.reduce(x, 0, group=pg)",
    "all_gather": "dldist.all_gather(xs, x, pg)",
    "all_gather_single": "dldist.all_gather_single(both, x, pg)",
    "all_gather_into_tensor": "dldist.all_gather_into_tensor(both, x, pg)",
    "all_gather_coalesced": "dldist.all_gather_coalesced([[x], [y]], [copy_of(x)], pg)",
    "gather": "dldist.gather(x, xs, 0, pg)",
    "gather_single": "dldist.gather_single(x, both, 0, pg)",
    "gather_into_tensor": "dldist.gather_into_tensor(x, both, 0, pg)",
    "scan": "dldist.scan(x, group=pg)",
    "exscan": "dldist.exscan(x, group=pg)",
    "scatter": "dldist.scatter(x, None, 1, pg)",
    "reduce_scatter": "dldist.reduce_scatter(x, xs, group=pg)",
    "reduce_scatter_single": "dldist.reduce_scatter_single(x, both, group=pg)",
    "reduce_scatter_tensor": "dldist.reduce_scatter_tensor(x, both, group=pg)",
    "all_to_all": "dldist.all_to_all(xs, [x, y], pg)",
    "all_to_all_single": "dldist.all_to_all_single(both, copy_of(both), group=pg)",
    "barrier": "dldist.barrier(pg)",
    "monitored_barrier": "dldist.monitored_barrier(pg)",
    "send": "dldist.send(large, 1, pg)",
    "recv": "dldist.recv(x, 1, pg)",
    "all_gather_object": "dldist.all_gather_object([None, None], 'a', pg)",
    "gather_object": "dldist.gather_object('a', [None, None], 0, pg)",
    "broadcast_object_list": "dldist.broadcast_object_list([None], 1, pg)",
    "scatter_object_list": "dldist.scatter_object_list([None], None, 1, pg)",
    "send_object_list": "dldist.send_object_list([bytes(large)], 1, pg)",
    "recv_object_list": "dldist.recv_object_list([None], 1, pg)",
    "new_group": "dldist.new_group([0, 1])",
    "new_subgroups": "dldist.new_subgroups(2)",
    "new_subgroups_by_enumeration": "dldist.new_subgroups_by_enumeration([[0, 1]])",
    "split_group": "dldist.split_group(pg, [[0, 1]])",
    # ---- functional
    "functional.all_gather": "functional.all_gather(x, group=pg)",
    "functional.all_gather_any": "functional.all_gather_any(x, group=pg)",
    "functional.gather_any": "functional.gather_any(x, group=pg)",
    "functional.scatter_any": "functional.scatter_any([x] * pg.size(), group=pg)",
    "functional.all_to_all_any": "functional.all_to_all_any([x] * pg.size(), group=pg)",
    "functional.all_reduce": "functional.all_reduce(x, group=pg)",
    "functional.all_reduce_tree": "functional.all_reduce_tree([x, y], group=pg)",
    "functional.all_to_all": "functional.all_to_all(both, group=pg)",
    "functional.barrier": "functional.barrier(group=pg)",
    "functional.broadcast": "functional.broadcast(x, 1, group=pg)",
    "functional.gather": "functional.gather(x, 0, group=pg)",
    "functional.permute": "functional.permute(x, [(0, 1), (1, 0)], group=pg)",
    "functional.recv": "functional.recv(x, 1, group=pg)",
    "functional.reduce": "functional.reduce(x, 0, group=pg)",
    "functional.scan": "functional.scan(x, group=pg)",
    "functional.exscan": "functional.exscan(x, group=pg)",
    "functional.reduce_scatter": "functional.reduce_scatter(both, group=pg)",
    "functional.scatter": "functional.scatter(x, 1, group=pg)",
    "functional.send": "functional.send(large, 1, group=pg)",
}

# Calls that wait for a response of a store's server. The server is stopped.
ASKING = {
    "Store.try_get": "frozen.try_get('k')",
    "Store.add": "frozen.add('k', 1)",
    "Store.compare_set": "frozen.compare_set('k', '', 'v')",
    "Store.check": "frozen.check(['k'])",
    "Store.delete_key": "frozen.delete_key('k')",
    "Store.num_keys": "frozen.num_keys()",
    "Store.queue_len": "frozen.queue_len('q')",
    "Store.list_keys": "frozen.list_keys()",
    "Store.set": "[frozen.set('k', bytes(1 << 20)) for _ in range(64)]",
    "Store.append": "[frozen.append('k', bytes(1 << 20)) for _ in range(64)]",
    "Store.multi_set": "[frozen.multi_set(['k'], [bytes(1 << 20)]) for _ in range(64)]",
    "Store.queue_push": "[frozen.queue_push('k', bytes(1 << 20)) for _ in range(64)]",
}
BLOCKING.update(ASKING)
# Calls that wait only for another process. That process is stopped, and the two share no memory.
WITHOUT_SHARED_MEMORY = {"Window.put", "Window.get", "Window.flush", "c10d Window.put"}

# The seconds within which a call must end after a signal. An interrupted put first copies its 64
# MiB, because the caller owns its memory again.
LIMITS_S = dict.fromkeys(BLOCKING, 0.1) | {"Window.put": 0.5, "c10d Window.put": 0.5}

# Rank 1 also makes these calls after rank 0 was interrupted in them, and receives the error: they
# count in the order of the default world.
NOTIFIED_LATER = {"new_group", "new_subgroups", "new_subgroups_by_enumeration"}

# Public calls that never wait: they query, create local objects, start an operation, or end it
# without waiting.
NOT_BLOCKING = {
    *(f"Plans.{name}" for name in dir(_core.Plans) if not name.startswith("_")),
    *("Group." + name for name in "isend irecv batch_isend_irecv coalesce empty abort revoke memory_stats resume".split()),
    *("Work." + name for name in "is_completed is_success exception result source_rank get_future get_future_result".split()),
    *("Work." + name for name in "block_current_stream boxed cancel received_nbytes received_tag unbox".split()),
    *("Plan." + name for name in "start is_completed close".split()),
    *("Window." + name for name in "signal take_signal get_buffer get_remote_tensor get_signal_pad close".split()),
    *("c10d Window." + name for name in "map_remote_tensor signal get_attr".split()),
    *("Store." + name for name in "clone set_timeout has_extended_api".split()),
    *("TCPStore.clone PrefixStore.clone PrefixStore.set_timeout".split()),
    "PrefixStore.has_extended_api",
    "SharedArray.part",
    "SharedArray.tolist",
    *("Future." + name for name in "done value exception set_result set_exception add_done_callback then".split()),
    "World.abort",
    "World.iprobe",
    "World.isend_object",
    "World.irecv_object",
    *"""abort allow_classes batch_isend_irecv default_world empty get_backend get_backend_config get_backend_impl get_debug_level
    get_default_backend_for_device get_global_rank get_group_rank get_node_local_rank get_pg_count get_process_group_ranks get_rank
    get_world_size iprobe irecv irecv_object is_available is_backend_available is_gloo_available is_initialized is_launched is_mpi_available
    is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available isend isend_object register_rendezvous_handler set_debug_level
    set_debug_level_from_env set_log_level set_timeout supports_complex test_any""".split(),
}

# Blocking calls that are tested elsewhere or through the named calls; with the reason.
TESTED_ELSEWHERE = {
    "Group.__exit__": "close() or abort()",
    "World.__exit__": "close() or abort()",
    "World.from_mpi": "meets as World() does, after calls of MPI, which have no timeout",
    "World.from_torch": "meets as World() does, after calls of torch, which have a timeout of their own",
    "coalescing": "at the end of its block, as the coalesced call",
    "start_all": "start() of each",
    "init_process_group": "meets as World() does: below, in a process without a default world",
    "destroy_process_group": "close() with a separate timeout",
    "shrink_group": "new_group() of those that stay",
    "revoke_process_group": "revoke() of its World",
    "init_device_mesh": "new_group() for each dimension",
    "functional.wait_tensor": "wait() of the works that are registered for the tensor",
    "spawn": "waits for processes: test_spawn.py",
}


def public_calls():
    """Return the names of all public callables."""
    names = set()
    for kind in TYPES:
        module = "c10d " if kind is dldist.Window else ""
        for name, member in vars(kind).items():
            is_call = callable(member) or isinstance(member, (classmethod, staticmethod))
            is_operator = name.startswith("__") and name not in ("__call__", "__exit__")
            if is_call and not is_operator and (name[0] != "_" or name in ("__call__", "__exit__")) and not isinstance(member, type):
                names.add(f"{module}{kind.__name__}.{name}")
    for name in [*_public_functions(_core), *(name for name in dldist.__all__ if _is_function(getattr(dldist, name)))]:
        names.add(name)
    names.update(f"functional.{name}" for name in functional.__all__ if _is_function(getattr(functional, name)))
    return {name for name in names if not name.startswith(("ReduceOp.", "Member."))}


def _is_function(thing):
    return isinstance(thing, (types.FunctionType, types.BuiltinFunctionType))


def _public_functions(module):
    return [name for name in dir(module) if name[0] != "_" and _is_function(getattr(module, name))]


# ---- running them


def _names(world, frozen, store):
    def small(*values):
        return array.array("f", values)

    return {
        "dldist": dldist,
        "_core": _core,
        "functional": functional,
        "array": array,
        "world": world,
        "store": store,
        "frozen": frozen,
        "x": small(1.0, 2.0),
        "y": small(3.0, 4.0),
        "xs": [small(0.0, 0.0), small(0.0, 0.0)],
        "both": small(0.0, 0.0, 0.0, 0.0),
        "large": bytearray(64 << 20),
        "far_block": bytearray(64),
        "copy_of": lambda tensor: tensor[:],
        "started": lambda plan: (plan.start(), plan)[1],
        "reserve_port": reserve_port,
        "free_place": lambda: f"tcp://{LOOPBACK}:{reserve_port()}",
        "file_place": _file_path,
        "new_key": lambda: f"key {next(_numbers)}",
    }


_numbers = itertools.count()


def _file_path():
    import tempfile

    return os.path.join(tempfile.mkdtemp(), "store")


def _prepare(code, names):
    """Make the objects of NEEDS that the expression uses, in the order of NEEDS, on both ranks."""
    own = dict(names)
    words = set(re.findall(r"\w+", code))
    for name, how in NEEDS.items():
        if name in words or (name == "g" and words & {"core_window", "window", "core_wide", "wide", "tagged"}):
            own[name] = eval(how, own)
    return own


def run_rank_1(channel, port):
    """Run rank 1: make each call's objects, then stay idle or stopped until rank 0 continues."""
    world, names = _open(port, 1)
    server = dldist.TCPStore(LOOPBACK, 0, is_master=True)
    number = array.array("q", [server.port])
    world.send(number, 0)
    channel.send("ready")
    kept = name = None
    while True:
        world.recv(number, 0)
        if name in NOTIFIED_LATER:
            _expect_abort(BLOCKING[name], names)
        if number[0] < 0:
            return None
        name = list(BLOCKING)[number[0]]
        kept = _prepare(BLOCKING[name], names)  # noqa: F841 until the next one
        world.barrier()
        if _wants_stop(name):
            os.kill(os.getpid(), signal.SIGSTOP)


def _expect_abort(code, names):
    try:
        eval(code, names)
    except dldist.DistAbortedError as error:
        assert error.rank == 0 and "aborted the group: interrupted" in str(error), error
    else:
        raise AssertionError(f"{code}: it was interrupted on rank 0")


def _wants_stop(name):
    return name in ASKING or name in WITHOUT_SHARED_MEMORY


def _open(port, rank):
    store = dldist.TCPStore(LOOPBACK, port, timeout=60)
    dldist.init_process_group(store=store, rank=rank, world_size=2, timeout=60)
    world = dldist.default_world()
    return world, _names(world, None, store)


class Interrupter(threading.Thread):
    """Send the main thread a signal whose handler returns and then one whose handler raises."""

    def __init__(self):
        super().__init__(daemon=True)
        self.main = threading.main_thread()
        self.signalled = threading.Event()
        self.sent = {}
        self.received = {}
        signal.signal(signal.SIGUSR1, self.on_signal)
        signal.signal(signal.SIGINT, self.interrupt)

    def on_signal(self, *_):
        self.received["note"] = time.monotonic()
        self.signalled.set()

    def interrupt(self, *_):
        self.received["interrupt"] = time.monotonic()
        raise KeyboardInterrupt

    def run(self):
        time.sleep(0.06)  # longer than a slice, so the call is waiting now
        self.sent["note"] = time.monotonic()
        signal.pthread_kill(self.main.ident, signal.SIGUSR1)
        self.signalled.wait(20)
        time.sleep(0.02)
        self.sent["interrupt"] = time.monotonic()
        signal.pthread_kill(self.main.ident, signal.SIGINT)


def _try(code, names):
    """Return the call's outcome and the time that it took to handle the two signals."""
    interrupter = Interrupter()
    # eval() of a text would also let the signal end the process
    call = compile(code, "<call>", "eval")
    outcome = None
    try:
        interrupter.start()
        try:
            eval(call, names)
            outcome = "it came back"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        interrupter.join()
    except KeyboardInterrupt:
        outcome = outcome or "interrupted"
    end = time.monotonic()
    interrupter.join(30)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if outcome != "interrupted":
        return outcome, None
    sent, received = interrupter.sent, interrupter.received
    return outcome, max(received.get("note", end + 60) - sent["note"], end - sent["interrupt"])


def interrupt_calls(channel, port, names_of_calls):
    """Run rank 0 and return {call: (outcome, seconds)}. The times are the best of several tries,
    because of other load on the machine."""
    world, names = _open(port, 0)
    number = array.array("q", [0])
    world.recv(number, 1)
    names["frozen"] = dldist.TCPStore(LOOPBACK, number[0], timeout=60)
    results = {}
    for name in names_of_calls:
        for _ in range(5):
            number[0] = list(BLOCKING).index(name)
            world.send(number, 1)
            own = _prepare(BLOCKING[name], names)
            world.barrier()
            peer = world.members[1].pid
            if _wants_stop(name):
                procs.poll_until(lambda: procs.thread_state(peer, peer) == "T", description=f"the stop of {peer}")
            result = _try(BLOCKING[name], own)
            if _wants_stop(name):
                os.kill(peer, signal.SIGCONT)
            del own
            if name in ASKING:
                names["frozen"] = dldist.TCPStore(LOOPBACK, names["frozen"].port, timeout=60)
            results[name] = min(results.get(name, result), result, key=lambda each: (each[0] != "interrupted", each[1] or 0))
            if result[0] != "interrupted" or result[1] < LIMITS_S[name]:
                break
        print(name, results[name], file=sys.stderr, flush=True)
    number[0] = -1
    world.send(number, 1)
    return results


def interrupt_initializing(channel, place, rank):
    code = f"dldist.init_process_group(init_method={place!r}, rank={rank}, world_size=2, timeout=60)"
    return min((_try(code, {"dldist": dldist}) for _ in range(3)), key=lambda each: (each[0] != "interrupted", each[1] or 0))
