"""Valid and wrong arguments for every public call: the tables of test_argument_errors.py."""

import array
import ctypes
import fnmatch
import importlib
import inspect
from datetime import timedelta
from typing import NamedTuple

import dldist
import dldist.algorithms.join
import dldist.reshard
import dldist.trace
from communicator_workers import StoreComm

MODULES = """
    dldist dldist.algorithms.join dldist.carriers dldist.comm_hooks dldist.control dldist.device_mesh dldist.flight_recorder dldist.functional
    dldist.jax dldist.reducer dldist.rendezvous dldist.reshard dldist.run dldist.symmetric_memory dldist.testing dldist.trace
""".split()
NAN = float("nan")


class Nothing:
    """A value that no argument accepts."""

    def __repr__(self):
        return "<nothing>"


NOTHING = Nothing()


def f(*values):
    return array.array("f", values)


def readonly():
    return memoryview(bytes(4)).cast("f")


def foreign():
    return (ctypes.c_float.__ctype_be__ * 1)()


# The kinds of parameters: a valid value, and wrong values by their names.
TYPE = {"object": NOTHING}
KINDS = {
    "any": (1, {}),
    "flag": (True, {}),
    "int": (1, {**TYPE, "str": "1", "float": 0.5}),
    "positive": (1, {**TYPE, "str": "1", "float": 0.5, "-1": -1}),
    "number": (1.0, {**TYPE, "str": "1"}),
    "text": ("x", {**TYPE, "int": 3}),
    "key": ("x", {**TYPE, "int": 3}),
    "keys": (["x"], {**TYPE, "int": 3, "list of int": [3]}),
    "tensor": (lambda: f(1), {**TYPE, "str": "x", "None": None, "list": [f(1)], "foreign dtype": foreign}),
    "tensor?": (lambda: f(1), {**TYPE, "str": "x", "list": [f(1)], "foreign dtype": foreign}),
    "tensors": (lambda: [f(1)], {**TYPE, "str": "x", "None": None, "list of object": [NOTHING]}),
    "arrays": (lambda: {"x": f(1)}, {**TYPE, "int": 3}),
    "rank": (0, {**TYPE, "str": "0", "float": 0.5, "-1": -1, "1": 1, "2**40": 2**40}),
    "size": (1, {**TYPE, "str": "1", "float": 0.5, "0": 0, "2**40": 2**40}),
    "tag": (0, {**TYPE, "str": "0", "float": 0.5, "-2": -2}),
    "ranks": ([0], {**TYPE, "str": "x", "list of str": ["0"], "repeated": [0, 0], "range": [7], "-1": [-1]}),
    "lists of ranks": ([[0]], {**TYPE, "str": "x", "int": 3, "list of str": [["0"]], "repeated": [[0, 0]], "range": [[7]], "-1": [[-1]]}),
    "op": ("sum", {**TYPE, "unknown": "nonsense", "int": 3}),
    "dtype": ("float32", {**TYPE, "unknown": "float31"}),
    "shape": ((1,), {**TYPE, "str": "x", "-1": (-1,), "float": (0.5,)}),
    "splits": ([1], {**TYPE, "str": "x", "float": [0.5], "-1": [-1], "length": [1, 0], "sum": [5]}),
    "timeout": (5.0, {**TYPE, "str": "1", "negative": -1, "NaN": NAN}),
    "timedelta": (timedelta(seconds=5), {**TYPE, "str": "1", "negative": timedelta(seconds=-1)}),
    "group": (None, {**TYPE, "str": "no such group", "int": 3}),
    "store": (lambda: dldist.HashStore(), {**TYPE, "str": "x"}),
    "callable": (lambda: print, {**TYPE, "str": "x"}),
    "device": (None, {**TYPE, "unknown": "nonsense"}),
    "list": (lambda: [1], {**TYPE, "int": 3}),
    "works": (lambda: [], {**TYPE, "int": 3, "list of object": [NOTHING]}),
}

KINDS["inout"] = (KINDS["tensor"][0], {**KINDS["tensor"][1], "read-only": readonly})
KINDS["output"] = (KINDS["tensor"][0], {**KINDS["inout"][1], "dtype": lambda: array.array("d", [1]), "shape": lambda: f(1, 2, 3)})
KINDS["outputs"] = (
    lambda: [f(1)],
    {**KINDS["tensors"][1], "length": lambda: [f(1)] * 2, "read-only": lambda: [readonly()], "shape": lambda: [f(1, 2, 3)]},
)
KINDS["lists"] = (lambda: [[f(1)]], {**KINDS["tensors"][1], "length": lambda: [[f(1)]] * 2, "lists of object": [[NOTHING]]})


def public_calls():
    """Return {name: function} of all public functions, classes and methods. The names omit "dldist."."""
    calls = {}
    seen = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        prefix = module_name.removeprefix("dldist").removeprefix(".")
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            if name[0] == "_" or not getattr(value, "__module__", "").startswith("dldist") or id(value) in seen:
                continue
            seen.add(id(value))
            path = f"{prefix}.{name}" if prefix else name
            if callable(value):
                calls[path] = value
            if inspect.isclass(value):
                for key, member in vars(value).items():
                    function = getattr(member, "__func__", member)
                    if key[0] != "_" and callable(function) and not inspect.isclass(function) and not isinstance(function, value):
                        if id(function) not in seen:
                            calls[f"{path}.{key}"] = getattr(value, key)
                        seen.add(id(function))
    return calls


def sharding():
    return dldist.reshard.Sharding(1, [dldist.reshard.Replicate()])


def bucket():
    buckets = []
    reducer = dldist.Reducer([f(1)])
    reducer.register_comm_hook(None, lambda state, bucket: buckets.append(bucket) or bucket.buffer())
    reducer.reduce([f(1)])
    return buckets[0]


def _names(text, kind):
    return dict.fromkeys(text.split(), kind)


# The kind of a parameter by its name.
BY_NAME = {
    **_names("_init_backend anyone as_gloo async_op async_ops batched_grad_copy block broadcast_buffers daemon delta", "flag"),
    **_names("divide_by_initial_world_size enable_reconfigure entries extended_api find_unused_parameters flip", "flag"),
    **_names("gradient_as_bucket_view has_sync_bn in_place init is_last is_master is_partial is_whole join json", "flag"),
    **_names("lazy_bucket_allocation lazy_init match_dtype multi_tenant only_active owning skip_all_reduce_unused_params", "flag"),
    **_names("sort_ranks stacks static_graph tiled use_batch use_error_feedback use_libuv use_local_synchronization", "flag"),
    **_names("use_python_reducer wait_all_ranks wait_for_workers warm_start weights_only throw_on_early_termination enable wrap", "flag"),
    **_names("obj color data state _backend_type pg_options opts_override uuid device_id id value", "any"),
    **_names("tensor input x input_tensor like", "tensor"),
    **_names("output output_tensor", "output"),
    **_names("gather_tensor gradient array memory", "tensor?"),
    **_names("tensors inputs input_list input_tensor_list scatter_list gradients params", "tensors"),
    **_names("outputs tensor_list output_list output_tensor_list gather_list", "outputs"),
    **_names("output_lists output_tensor_lists", "lists"),
    **_names("root src dst group_src group_dst rank peer dst_rank peer_rank src_rank global_rank group_rank group_peer", "rank"),
    **_names("size world_size group_size", "size"),
    **_names("nprocs nranks", (1, {**TYPE, "str": "1", "float": 0.5, "0": 0})),
    **_names("tag", "tag"),
    **_names("ranks ranks_to_exclude source_ranks destination_ranks unused", "ranks"),
    **_names("ranks_per_subgroup_list split_ranks bucket_indices", "lists of ranks"),
    **_names("op reduceOp", "op"),
    **_names("dtype", "dtype"),
    **_names("shape mesh_shape", "shape"),
    **_names("output_split_sizes input_split_sizes split_sizes", "splits"),
    **_names("timeout connect_timeout", "timeout"),
    **_names("group process_group parent_pg", "group"),
    **_names("store", "store"),
    **_names("hook fn func callback handler finish writer", "callable"),
    **_names("device", "device"),
    **_names("name desc group_name group_desc reason backend init_method hostname interface carrier serializer prefix", "text"),
    **_names("module_name error content_type scheme url path host secret file_name host_name device_type level", "text"),
    **_names("key expected_value desired_value", "key"),
    **_names("keys values", "keys"),
    **_names("amount offset val count start index hook_id signum buffer_size axis split_axis concat_axis dim port", "int"),
    **_names("fallback_rank flags shrink_flags steps target_offset_nelems pad_size split_factor last output_device", "int"),
    **_names("bucket_bytes_cap first_bucket_bytes_cap matrix_approximation_rank start_powerSGD_iter random_seed version", "int"),
    **_names("status max_key_bytes max_value_bytes master_listen_fd generation", "int"),
    **_names("min_compression_rate slow_s factor", "number"),
    **_names("arrays", "arrays"),
    **_names("works calls", "works"),
    **_names("tree args state_dict", "any"),
    **_names("lost culprits others waiting", "list"),
    **_names("source destination sharding", (sharding, {**TYPE, "int": 3})),
    **_names("bucket", (bucket, TYPE)),
    **_names("bucket_bytes_cap_list per_bucket_size_limits", ([1], {**TYPE, "int": 3, "list of str": ["x"]})),
    **_names("buffer", "tensor"),
    **_names("content", "text"),
    **_names("device_ids", "any"),
    **_names("device_types devices", (["cpu"], {**TYPE, "int": 3, "list of int": [3]})),
    **_names("env hints", (lambda: {"x": "y"}, {**TYPE, "int": 3, "items": {1: 2}})),
    **_names("expect_sparse_gradients", ([False], {**TYPE, "length": [False, True]})),
    **_names("handles", (lambda: ["x"], {**TYPE, "list of object": [NOTHING]})),
    **_names("hdl", (lambda: dldist.symmetric_memory.rendezvous(dldist.empty(1), None), TYPE)),
    **_names("hosts param_to_name_mapping", (lambda: {0: "x"}, {**TYPE, "int": 3})),
    **_names("joinable", (lambda: dldist.Reducer([f(1)]), TYPE)),
    **_names("joinables", (lambda: [], {**TYPE, "list of object": [NOTHING]})),
    **_names("mesh", (1, {**TYPE, "str": "x", "-1": -1, "float": 0.5})),
    **_names("mesh_dim", (0, {**TYPE, "float": 0.5, "range": 7})),
    **_names("mesh_dim_names", (("x",), {**TYPE, "int": 3, "length": ("x", "y"), "list of int": (3,)})),
    **_names("backend_override options opts", (None, {**TYPE, "int": 3})),
    **_names("p2p_op_list", (lambda: [dldist.P2POp("irecv", f(1), 0)], {**TYPE, "str": "x", "list of object": [NOTHING]})),
    **_names(
        "pairs", (lambda: [(0, 0)], {**TYPE, "int": 3, "range": [(0, 7)], "repeated": [(0, 0), (0, 0)], "triples": [(0, 0, 0)], "list of int": [3]})
    ),
    **_names("placements", (lambda: [dldist.reshard.Replicate()], {**TYPE, "length": [], "list of int": [3]})),
    **_names("plans", (lambda: [], {**TYPE, "list of object": [NOTHING]})),
    **_names("reducer", (lambda: dldist.Reducer([f(1)]), TYPE)),
    **_names("dumps", (lambda: {0: dldist.flight_recorder.dump_json()}, {**TYPE, "str": "/no/such/folder", "items": {0: NOTHING}})),
    **_names("world", (None, {**TYPE, "int": 3})),
    **_names("_rank _ranks", "any"),
    **_names("is_last_joiner", "flag"),
    **_names("boxed access_type", (None, TYPE)),
    **_names("object_list object_gather_list scatter_object_input_list scatter_object_output_list objs argv", "list"),
}

RECORD = "a dataclass of results does not check its fields"
# Calls that take no arguments to check.
NOT_WALKED = {
    **_names("DebugLevel BuiltinCommHookType WindowAccessType", "an enum: the texts are Python's"),
    **_names("trace.Verdict trace.Dump trace.Analysis reshard.Pushed reshard.Piece reshard.ReshardPlan WindowAttr Member MessageInfo", RECORD),
    **_names("DistAbortedError DistArgumentError DistAuthError DistBackendError DistError DistMismatchError", "an exception"),
    **_names("DistNetworkError DistNetworkTimeoutError DistPeerLostError DistQueueEmptyError DistStoreError", "an exception"),
    **_names("ProcessException ProcessExitedException ProcessRaisedException", "an exception"),
    **_names("run.main trace.main", "a program, whose arguments are texts"),
    "spawn": "tests/py/launch/test_spawn.py: it starts processes",
    "World.from_torch": "tests/py/launch/test_communicators.py: it needs a group of torch",
    "symmetric_memory.wait_signal": "tests/py/support/window_workers.py: it waits for another rank",
    "algorithms.join.Join.notify_join_context": "a call of the library, not of users",
    **_names("DistStoreTimeoutError DistTimeoutError DistTypeError testing.RanksFailed trace.DumpError", "an exception"),
}


def world():
    return dldist.default_world()


def parts():
    return [f(0)]


def specs():
    return {"x": ((1,), "float32", [dldist.reshard.Replicate()])}


def layout():
    return dldist.reshard.Layout(specs(), 1)


HANDLES = []


def shared_tensor():
    tensor = dldist.empty(1)
    HANDLES.append(dldist.symmetric_memory.rendezvous(tensor))
    return tensor


GROUP = (world, {**TYPE, "str": "no such group", "int": 3, "None": None})
WORLD = (world, {**TYPE, "int": 3})
ONLY_CPU = (None, {**TYPE, "unknown": "nonsense"})
INOUT = "all_reduce broadcast scan exscan recv irecv".split()
WAITS = "wait_any wait_some test_any wait_all".split()
# The kind of a parameter of one call, if it differs from BY_NAME.
SPECIAL = {
    **{(call, "tensor"): "inout" for call in [*INOUT, *(f"Group.{name}" for name in INOUT)]},
    ("scatter", "tensor"): "output",
    ("get_global_rank", "group"): (lambda: dldist.new_group([0]), GROUP[1]),
    ("get_group_rank", "group"): (lambda: dldist.new_group([0]), GROUP[1]),
    ("symmetric_memory.SymmetricMemory", "group"): GROUP,
    ("Window", "group"): GROUP,
    ("carriers.carry", "group"): GROUP,
    ("carriers.carry", "name"): ("mpi", {**TYPE, "int": 3}),
    ("reshard.Link", "world"): WORLD,
    ("reshard.Link", "source"): (layout, {**TYPE, "int": 3}),
    ("reshard.Link", "destination"): (layout, {**TYPE, "int": 3}),
    ("reshard.redistribute", "world"): WORLD,
    ("symmetric_memory.get", "dst"): "output",
    ("symmetric_memory.get", "src"): (shared_tensor, KINDS["tensor"][1]),
    ("symmetric_memory.put_signal", "src"): "tensor",
    ("symmetric_memory.SymmetricMemory.memset32", "input"): "tensor",
    ("symmetric_memory.set_backend", "name"): ("CPU", {**TYPE, "int": 3}),
    ("P2POp", "op"): ("irecv", {**TYPE, "unknown": "nonsense", "int": 3}),
    ("ReduceOp", "name"): ("PREMUL_SUM", {**TYPE, "unknown": "nonsense", "int": 3}),
    ("ReduceOp", "factor"): (2.0, {**TYPE, "str": "x"}),
    ("ProcessGroup.set_timeout", "timeout"): "timedelta",
    ("ProcessGroup.reconfigure", "uuid"): (1, TYPE),
    ("ProcessGroup.allocate_tensor", "device"): ("cpu", {**TYPE, "unknown": "nonsense"}),
    ("functional.all_reduce_tree", "tree"): (lambda: f(1), {**TYPE, "str": "x", "foreign dtype": foreign}),
    ("reshard.Layout", "arrays"): (specs, {**TYPE, "int": 3, "array": lambda: {"x": f(1)}, "shape": lambda: {"x": ("x", "float32", [])}}),
    ("ProcessGroup.unbox", "boxed"): (lambda: dldist.group.WORLD, TYPE),
    ("new_subgroups", "group_size"): (1, {**TYPE, "str": "1", "float": 0.5, "0": 0, "2": 2}),
    ("DeviceMesh", "mesh"): ([0], {**TYPE, "str": "x", "-1": [-1], "float": 0.5, "range": [7]}),
    ("DeviceMesh", "device_type"): ("cpu", {**TYPE, "int": 3}),
    ("DeviceMesh.from_group", "device_type"): ("cpu", {**TYPE, "int": 3}),
    ("DeviceMesh.from_group", "group"): WORLD,
    ("DeviceMesh.exchange", "low"): "tensor",
    ("DeviceMesh.exchange", "high"): "tensor",
    ("World.split_by", "key"): "any",
    **{(f"functional.{name}_any", "x"): "tensors" for name in ("scatter", "all_to_all")},
    ("World.from_mpi", "comm"): (lambda: StoreComm(None, 0, 1), {**TYPE, "int": 3}),
    ("init_device_mesh", "device_type"): ("cpu", {**TYPE, "int": 3}),
    ("GradBucket", "bucket"): "any",
    ("Reducer", "op"): ("sum", {**TYPE, "unknown": "nonsense", "int": 3}),
    ("Reducer.reduce", "gradients"): ("tensors"),
    ("Reducer.mark_ready", "index"): (0, {**TYPE, "str": "0", "range": 7}),
    ("Reducer.mark_unused", "index"): (0, {**TYPE, "str": "0", "range": 7}),
    ("Reducer.gradient", "index"): (0, {**TYPE, "str": "0", "range": 7}),
    ("symmetric_memory.set_signal_pad_size", "size"): (4096, {**TYPE, "str": "1", "float": 0.5, "0": 0}),
    ("set_debug_level", "level"): ((lambda: dldist.DebugLevel.OFF), {**TYPE, "str": "x", "int": 7}),
    ("set_log_level", "level"): ("off", {**TYPE, "int": 3, "unknown": "nonsense"}),
    ("algorithms.join.Join", "joinables"): (lambda: [dldist.Reducer([f(1)])], {**TYPE, "empty": [], "list of object": [NOTHING]}),
    ("control.get_handler", "name"): ("ping", {**TYPE, "int": 3, "unknown": "nonsense"}),
    ("flight_recorder.dump_on_signal", "signum"): (12, {**TYPE, "str": "x", "range": 999}),
    ("rendezvous.rendezvous", "url"): ("tcp://127.0.0.1:0", {**TYPE, "int": 3, "unknown": "nonsense://"}),
    ("register_rendezvous_handler", "scheme"): ("x", {**TYPE, "int": 3}),
    ("Backend", "name"): ("gloo", {**TYPE, "int": 3}),
    ("BackendConfig", "backend"): ("gloo", {**TYPE, "int": 3}),
    ("testing.run_ranks", "fn"): (lambda: print, {**TYPE, "str": "x"}),
    ("Store.queue_pop", "block"): "flag",
    **{(call, "works"): (lambda: [dldist.barrier(async_op=True)], {**TYPE, "int": 3, "list of object": [NOTHING]}) for call in WAITS},
}
LIST = {"gather_list": parts}
# Optional arguments that a call needs to be valid.
ALSO = {
    **dict.fromkeys("broadcast isend send irecv recv irecv_object recv_object_list broadcast_object_list".split(), {"src": 0}),
    **dict.fromkeys("isend send isend_object send_object_list reduce".split(), {"dst": 0}),
    "gather": {"gather_list": parts},
    "gather_single": {"gather_tensor": lambda: f(0)},
    "gather_into_tensor": {"gather_tensor": lambda: f(0)},
    "scatter": {"scatter_list": parts},
    "gather_object": {"object_gather_list": lambda: [None]},
    "scatter_object_list": {"scatter_object_input_list": lambda: [1]},
    "P2POp": {"peer": 0},
    "new_subgroups": {"group_size": 1},
    "split_group": {"split_ranks": [[0]]},
    "DeviceMesh": {"mesh": [0]},
    "World": {"store": lambda: dldist.HashStore(), "rank": 0, "world_size": 1},
    "World.scatter_objects": {"objs": lambda: [1]},
    "init_process_group": {"store": lambda: dldist.HashStore(), "rank": 0, "world_size": 1},
    "rendezvous.rendezvous": {"rank": 0, "world_size": 1},
    "ProcessGroup.reconfigure": {"uuid": 1},
    "reshard.Link": {"source": layout},
    "reshard.Link.exchange": {"arrays": lambda: {"x": f(1)}},
    **dict.fromkeys(("Group.gather", "Plans.gather"), {"output_list": parts}),
    **dict.fromkeys(("Group.gather_single", "Plans.gather_single"), {"output": lambda: f(0)}),
    **dict.fromkeys(("Group.scatter", "Plans.scatter"), {"input_list": parts}),
    **dict.fromkeys(("Group.scatter_single", "Plans.scatter_single"), {"input": lambda: f(0)}),
}
INSTEAD = {"group_src": "src", "group_dst": "dst", "group_peer": "peer"}
# Calls that make the default world.
WITHOUT_WORLD = {"init_process_group"}


def parameters_of(function):
    """Return the parameters that users may pass by name; private ones begin with an underscore."""
    return [
        p
        for p in inspect.signature(function).parameters.values()
        if p.name not in ("self", "cls", "type") and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name[0] != "_"
    ]


class OneRank:
    """A world of one rank, and an instance of each public class."""

    def __init__(self):
        dldist.init_process_group("gloo", store=dldist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=5))
        self.world = dldist.default_world()

    def instance(self, class_name, call):
        """Create an instance of a class for a call of one of its methods."""
        make = getattr(self, "make_" + call.replace(".", "_"), None)
        return (make or getattr(self, "make_" + class_name.replace(".", "_")))()

    def make_Group(self):
        return dldist.Group(None, 0, 1)

    def make_World(self):
        return self.world

    def make_Store(self):
        return dldist.HashStore()

    def make_HashStore(self):
        return dldist.HashStore()

    def make_PrefixStore(self):
        return dldist.PrefixStore("p", dldist.HashStore())

    def make_TCPStore(self):
        return dldist.TCPStore("127.0.0.1", 0, is_master=True)

    def make_Work(self):
        return self.world.isend(f(1), 0)

    def make_ProcessGroup(self):
        return dldist.group.WORLD

    def make_Backend(self):
        return dldist.Backend

    def make_BackendConfig(self):
        return dldist.BackendConfig("gloo")

    def make_ProcessGroupGloo(self):
        return dldist.ProcessGroupGloo(dldist.HashStore(), 0, 1)

    def make_Plans(self):
        return self.world.plan

    def make_Plan(self):
        return self.world.plan.all_reduce(f(1))

    def make_SharedArray(self):
        return self.world.empty(1)

    def make_Future(self):
        return dldist.Future()

    def make_DeviceMesh(self):
        return dldist.init_device_mesh("cpu", (1,), mesh_dim_names=("x",))

    def make_Reducer(self):
        return dldist.Reducer([f(1)])

    def make_GradBucket(self):
        return bucket()

    def make_Logger(self):
        return dldist.Logger(dldist.Reducer([f(1)]))

    def make_Window(self):
        window = self.world.new_window()
        window.tensor_register(self.world.empty(1))
        return window

    def make_symmetric_memory_SymmetricMemory(self):
        return dldist.symmetric_memory.rendezvous(self.world.empty(1), self.world)

    def make_comm_hooks_PowerSGDState(self):
        return dldist.comm_hooks.PowerSGDState()

    def make_functional_Pending(self):
        return dldist.functional.all_reduce(f(1), async_op=True)

    def make_reshard_Layout(self):
        return layout()

    def make_reshard_Link(self):
        layout = self.make_reshard_Layout()
        return dldist.reshard.Link(self.world, source=layout, destination=layout)

    def make_reshard_Link_push(self):
        return dldist.reshard.Link(self.world, source=self.make_reshard_Layout())

    def make_reshard_Link_receive(self):
        return dldist.reshard.Link(self.world, destination=self.make_reshard_Layout())

    def make_reshard_Sharding(self):
        return dldist.reshard.Sharding(1, [dldist.reshard.Replicate()])

    def make_reshard_ReshardPlan(self):
        sharding = self.make_reshard_Sharding()
        return dldist.reshard.plan((1,), sharding, sharding)

    def make_trace_Analysis(self):
        return dldist.trace.analyse({0: dldist.flight_recorder.dump_json()})

    def make_trace_Verdict(self):
        return dldist.trace.Verdict("kind", "text")

    def make_trace_Dump(self):
        return dldist.trace.Dump(0, "", "", {}, {}, [], False)

    def make_algorithms_join_Join(self):
        return dldist.algorithms.join.Join([self.make_Reducer()])

    def make_algorithms_join_JoinHook(self):
        return dldist.algorithms.join.JoinHook()

    def make_algorithms_join_Joinable(self):
        return self.make_Reducer()

    def make_control_Request(self):
        return dldist.control.Request()

    def make_control_Response(self):
        return dldist.control.Response()

    def make_control_Server(self):
        return dldist.control.serve(secret="x")


class Allowed(NamedTuple):
    """An exception from the rule. `where` and `text` are patterns with wildcards."""

    where: str
    problem: str
    reason: str
    text: str = "*"

    def matches(self, where, text):
        return fnmatch.fnmatchcase(where, self.where.replace("[", "[[]")) and fnmatch.fnmatchcase(text, self.text)


def _allow(problem, reason, *rows):
    return [Allowed(f"{row}*", problem, reason) for row in rows]


def _texts(reason, *texts):
    return [Allowed("*", problem, reason, f"*{text}*") for text in texts for problem in ("call", "argument", "form")]


DUCK = "the call uses a method of the argument, and does not check its type first"
LATER = "the value is checked, or used, by a later call"
LABEL = "a label: any object has a text"
ONE_RANK = "a call of a single rank ends before it uses the value"
HASHABLE = "any hashable value is a key"
TORCH_CLASS = "torch raises this class for this mistake"
STATE = "the object has no pass, request or group, which is reported first"
LIMITED = "the backend of the CPU lacks this, which is reported first"
TORCH_TEXT = "torch's suite matches the beginning of the text"
BASE = "programs create it by rendezvous(); the extension's base class is called Window"
NO_CHECK = "the value is not checked"
ALLOWED = [
    *_allow("accepts", LABEL, "record_comm(name", "init_process_group(group_name", "ProcessGroup.set", "ProcessGroup.split_group(group_"),
    *_allow("accepts", LABEL, "ProcessGroup.merge_remote_group(group_", "Logger.set_error_and_log(error", "trace.analyse(prefix"),
    *_allow("accepts", LABEL, "DeviceMesh(device_type", "DeviceMesh.from_group(device_type"),
    *_allow("accepts", HASHABLE, "ProcessGroup.register_*hook(hook_id", "ProcessGroup.unregister_*hook(hook_id", "carriers.has_failed(name"),
    *_allow("accepts", HASHABLE, "register_rendezvous_handler(scheme", "symmetric_memory.is_symm_mem_enabled_for_group("),
    *_allow("accepts", HASHABLE, "*(mesh_dim_names)[list of int]"),
    *_allow("accepts", LATER, "Backend.register_backend(", "Future.then(callback", "Group.coalesce(timeout", "Logger(reducer", "P2POp("),
    *_allow("accepts", LATER, "register_rendezvous_handler(handler", "Window(group", "comm_hooks.", "functional.Pending(", "testing."),
    *_allow("accepts", LATER, "reshard.ArraySpec(", "reshard.Shard(", "reshard.StridedShard(", "GradBucket.set_buffer(", "DeviceMesh(mesh)[range]"),
    *_allow("accepts", ONE_RANK, "*object_list(device", "World.from_mpi(host"),
    *_allow("accepts", "only the root's input", "broadcast(tensor)[read-only]", "Group.broadcast(tensor)[read-only]"),
    *_allow("accepts", "None is a group member without memory", "*new_window(tensor)[None]", "symmetric_memory.rendezvous(tensor)[None]"),
    *_allow("accepts", "None is a group member without memory", "Window(tensor)[None]"),
    *_allow("accepts", "None is every parameter", "Reducer.broadcast_parameters(tensors)[None]"),
    *_allow("accepts", "the count is a hint", "FileStore(world_size"),
    *_allow("accepts", "int() or float() of the value is used", "get_node_local_rank(", "World.new_group(ranks)[list of str]"),
    *_allow("accepts", "not a member: returns None", "World.new_group(ranks)[*"),
    *_allow("accepts", "any other object is returned as it is", "functional.wait_tensor("),
    *_allow("accepts", "any device name has a backend, or None", "symmetric_memory.get_backend("),
    *_allow("accepts", "a port and ranks are chosen when the handler runs", "rendezvous.rendezvous("),
    *_allow("accepts", NO_CHECK, "GradBucket.view(", "Reducer(", "flight_recorder.default_path("),
    *_allow("accepts", NO_CHECK, "reshard.Layout.local_shapes(", "reshard.ReshardPlan.", "reshard.Sharding.", "reshard.plan("),
    *_allow("hangs", "the call waits for that many ranks", "Store.barrier(world_size", "TCPStore(world_size"),
    *_allow("class", TORCH_CLASS, "init_process_group(", "set_timeout(group", "DeviceMesh", "init_device_mesh(mesh_dim_names", "ProcessGroup.unbox("),
    *_allow("class", TORCH_CLASS, "ProcessGroup*.reconfigure(", "ProcessGroup.shrink(", "ProcessGroupGloo.create_device(interface"),
    *_allow("class", TORCH_CLASS, "*(device)[unknown]", "*(group)[str]", "rendezvous.rendezvous(", "register_rendezvous_handler("),
    *_allow("class", STATE, "Reducer.mark_", "Reducer.prepare_for_backward(", "control.Re", "Window.tensor_register("),
    *_allow("class", LIMITED, "symmetric_memory.get_mem", "ProcessGroup.allocate_tensor("),
    *_allow("argument", "with one rank, the peer is this rank, which is reported first", "send(", "send_object_list(", "recv_object_list("),
    *_allow("call", BASE, "symmetric_memory.SymmetricMemory("),
    *[Allowed("trace.analyse(dumps)[str]", problem, "a DumpError begins with the file") for problem in ("call", "argument", "form")],
    *_allow("class", "an index", "Reducer.gradient(index"),
    *_allow("class", "the system call's error", "control.serve(port"),
    *[Allowed("*", "class", DUCK, "AttributeError: *"), Allowed("reshard.redistribute(shape*", "class", DUCK, "KeyError: *")],
    *[Allowed(f"{where}*", "call", TORCH_TEXT) for where in ("P2POp(op", "batch_isend_irecv(p2p_op_list")],
    *_texts("torch's text, which has no value", "Invalid process group specified"),
    *_texts("Python's text about an operation on the value", "object is not iterable", "not supported between instances of", "has no len()"),
]  # fmt: skip
