"""Replacements in PyTorch's tests, so that they test another implementation.

Backend replaces "gloo" by another backend: in every string that names a backend ("gloo",
"cpu:gloo"), in Backend.GLOO and in calls of ProcessGroupGloo; the list of all backends is without
Gloo. The lists of backends whose calls torch's profiler shows are unchanged.

Front replaces torch.distributed by dldist, the package, wherever the module or one of its names is
imported or written out. Features that dldist lacks remain torch's (its parallelism: DDP, FSDP,
DTensor; its algorithms; RPC); front.py forwards to them.

OntoCpu turns tests for GPUs into tests for the CPU: "cuda" becomes "cpu", "nccl" becomes "gloo",
torch.cuda and torch.accelerator become the stubs of on_cpu.py, with the number of devices of a test
host, and DDP receives no devices.
"""

import ast
import importlib
import re

NAMES_OF_BACKENDS = re.compile(r"(\w+:)?\w+(,\w+:\w+)*")
NAMES_OF_DEVICES = re.compile(r"cuda(:\d*)?")
GLOO = re.compile(r"\bgloo\b")


def written(node):
    """Return the dotted name that the node is, or "" if it is something else."""
    return ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""


def put(node, text):
    """Replace the node by an expression."""
    return ast.copy_location(ast.parse(text, mode="eval").body, node)


class Backend(ast.NodeTransformer):
    """make_group: the name, in the module, of the function that replaces ProcessGroupGloo."""

    def __init__(self, backend, make_group):
        self.backend = backend
        self.make_group = make_group

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "ProcessGroupGloo":
            node.func = put(node.func, self.make_group)
        return node

    def visit_Constant(self, node):
        if isinstance(node.value, str) and NAMES_OF_BACKENDS.fullmatch(node.value):
            return ast.copy_location(ast.Constant(GLOO.sub(self.backend, node.value)), node)
        return node

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if node.attr == "GLOO" and written(node.value).split(".")[-1] == "Backend":
            return ast.copy_location(ast.Constant(self.backend), node)
        if node.attr == "backend_list":
            return put(node, f"[name for name in {ast.unparse(node)} if name != 'gloo']")
        return node

    def visit_Assign(self, node):
        return node if "PROFILING_SUPPORTED" in ast.unparse(node.targets[0]) else self.generic_visit(node)


class Front(ast.NodeTransformer):
    """front: the name, in the module, of front.py."""

    WHOLE = "front"
    MODULES = {
        "torch.distributed": "dldist",
        "torch.distributed.distributed_c10d": "dldist.distributed_c10d",
        "torch.distributed.rendezvous": "dldist.rendezvous",
        "torch._C._distributed_c10d": "dldist.distributed_c10d",
    }

    # Names that accept only torch's objects, or use their internals.
    STAND_INS = {
        "TensorPipeAgent": "agent_of_rpc",
        "ThreadLocalWorld": "ThreadLocalWorld",
        "torch.futures.wait_all": "wait_for_futures",
    }

    def __init__(self, front):
        self.front = front

    def visit_Import(self, node):
        """A module imported without another name is torch's whole tree, and is not replaced."""
        for alias in node.names:
            if alias.asname:
                alias.name = self.WHOLE if alias.name == "torch.distributed" else self.MODULES.get(alias.name, alias.name)
        return node

    def visit_ImportFrom(self, node):
        if node.module == "torch" and any(alias.name == "distributed" for alias in node.names):
            return self.import_distributed(node)
        module = self.MODULES.get(node.module)
        if module is None:
            return node
        here = importlib.import_module(module)
        ours = [alias for alias in node.names if hasattr(here, alias.name)]
        theirs = [alias for alias in node.names if alias not in ours]
        parts = [(module, ours), (node.module, theirs)]
        return [ast.copy_location(ast.ImportFrom(name, names, 0), node) for name, names in parts if names]

    def import_distributed(self, node):
        (distributed,) = [alias for alias in node.names if alias.name == "distributed"]
        ours = ast.copy_location(ast.Import([ast.alias(self.WHOLE, distributed.asname or "distributed")]), node)
        node.names.remove(distributed)
        return [ours, node] if node.names else ours

    def visit_Attribute(self, node):
        name = written(node)
        if name in self.STAND_INS:
            return put(node, f"{self.front}.{self.STAND_INS[name]}")
        for module, ours in self.MODULES.items():
            if name.startswith(module + "."):
                rest = name[len(module) + 1 :]
                if hasattr(importlib.import_module(ours), rest.split(".")[0]):
                    return put(node, f"{ours}.{rest}".replace("dldist", self.front, 1))
        return self.generic_visit(node)

    def visit_Name(self, node):
        if node.id in self.STAND_INS and isinstance(node.ctx, ast.Load):
            return put(node, f"{self.front}.{self.STAND_INS[node.id]}")
        return node


class OntoCpu(ast.NodeTransformer):
    """stand_ins: the name, in the module, of on_cpu."""

    WHAT_IS_THERE = {"TEST_CUDA", "TEST_MULTIGPU", "TEST_GPU", "HAS_GPU", "HAS_CUDA", "TEST_NCCL"}
    INDICES = {"rank", "rank_id", "local_rank", "device_id", "device_ids", "gpus", "rank_to_GPU"}

    def __init__(self, stand_ins):
        self.stand_ins = stand_ins

    def visit_Constant(self, node):
        text = node.value
        if not isinstance(text, str):
            return node
        if NAMES_OF_DEVICES.fullmatch(text):
            text = text.replace("cuda", "cpu")
        elif NAMES_OF_BACKENDS.fullmatch(text):
            text = re.sub(r"\bcuda\b", "cpu", re.sub(r"\bnccl\b", "gloo", text))
            if text == "cpu:gloo,cpu:gloo":
                text = "gloo"
        return ast.copy_location(ast.Constant(text), node)

    def visit_Attribute(self, node):
        if written(node) in ("torch.cuda", "torch.accelerator"):
            return put(node, f"{self.stand_ins}.{node.attr}")
        self.generic_visit(node)
        if node.attr == "is_nccl_available":
            node.attr = "is_gloo_available"
        elif node.attr == "is_cuda":
            node.attr = "is_cpu"
        elif node.attr == "NCCL" and written(node.value).split(".")[-1] == "Backend":
            node.attr = "GLOO"
        return node

    def visit_Name(self, node):
        if node.id in self.WHAT_IS_THERE and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Constant(True), node)
        return node

    def is_index(self, node):
        """Return True if the node is the number of a GPU."""
        if isinstance(node, ast.Subscript):
            return self.is_index(node.value)
        return written(node).split(".")[-1] in self.INDICES

    def visit_JoinedStr(self, node):
        """f"cuda:{rank}" becomes "cpu": there is one CPU."""
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value.startswith("cuda:"):
            return ast.copy_location(ast.Constant("cpu"), node)
        return self.generic_visit(node)

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            node.func.attr, node.args, node.keywords = "cpu", [], []
        elif written(node.func) == "torch.device":
            node.args = node.args[:1]  # without the index
            if node.args and self.is_index(node.args[0]):
                node.args[0] = ast.copy_location(ast.Constant("cpu"), node)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "to" and node.args and self.is_index(node.args[0]):
            node.args[0] = ast.copy_location(ast.Constant("cpu"), node)
        for keyword in node.keywords:
            if keyword.arg in ("device_ids", "output_device"):
                keyword.value = ast.copy_location(ast.Constant(None), keyword.value)
            elif keyword.arg == "device" and self.is_index(keyword.value):
                keyword.value = ast.copy_location(ast.Constant("cpu"), keyword.value)
        return node
