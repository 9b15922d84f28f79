"""tests/torch_suite: replacements in PyTorch's tests, outcomes of dead or hung tests, tables."""

import ast
import io
import json
import subprocess
import sys
import unittest

import pytest
from paths import TESTS

SUITE = TESTS / "torch_suite"
sys.path.insert(0, str(SUITE))

import aim  # noqa: E402
import substitution  # noqa: E402
import table  # noqa: E402


def replaced(transformer, source):
    return ast.unparse(ast.fix_missing_locations(transformer.visit(ast.parse(source))))


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("init('gloo')", "init('dldist')"),
        ("init('cpu:gloo,cuda:nccl')", "init('cpu:dldist,cuda:nccl')"),
        ("fail('gloo is not there')", "fail('gloo is not there')"),
        ("x == dist.Backend.GLOO", "x == 'dldist'"),
        ("list(dist.Backend.backend_list)", "list([name for name in dist.Backend.backend_list if name != 'gloo'])"),
        ("c10d.ProcessGroupGloo(store, 0, 2)", "made(store, 0, 2)"),
        ("c10d.ProcessGroupGloo.create_device()", "c10d.ProcessGroupGloo.create_device()"),
        ("CPU_PROFILING_SUPPORTED = ['gloo']", "CPU_PROFILING_SUPPORTED = ['gloo']"),
    ],
)
def test_backend_name_is_substituted_in_torchs_test_sources(source, wanted):
    assert replaced(substitution.Backend("dldist", "made"), source) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("import torch.distributed as dist", "import front as dist"),
        ("import torch.distributed.distributed_c10d as c10d", "import dldist.distributed_c10d as c10d"),
        ("from torch import distributed as dist", "import front as dist"),
        ("from torch.distributed import all_reduce, rpc", "from dldist import all_reduce\nfrom torch.distributed import rpc"),
        ("import torch.distributed", "import torch.distributed"),
        ("torch.distributed.all_reduce(x)", "dldist.all_reduce(x)"),
        ("torch.distributed.distributed_c10d._get_default_group()", "dldist.distributed_c10d._get_default_group()"),
        ("torch.distributed.fsdp.fully_shard(x)", "torch.distributed.fsdp.fully_shard(x)"),
        ("torch.tensor(1)", "torch.tensor(1)"),
        ("torch.futures.wait_all(futures)", "dldist.wait_for_futures(futures)"),
        ("agent = TensorPipeAgent(store, name)", "agent = dldist.agent_of_rpc(store, name)"),
    ],
)
def test_torch_distributed_is_replaced_by_dldist_in_torchs_test_sources(source, wanted):
    assert replaced(substitution.Front("dldist"), source) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("init('nccl')", "init('gloo')"),
        ("init('cpu:gloo,cuda:nccl')", "init('gloo')"),
        ("x.to('cuda')", "x.to('cpu')"),
        ("x.to(f'cuda:{rank}')", "x.to('cpu')"),
        ("x.to(self.rank)", "x.to('cpu')"),
        ("x.to(rank_to_GPU[rank][0])", "x.to('cpu')"),
        ("x.to(torch.float16)", "x.to(torch.float16)"),
        ("x.cuda(rank)", "x.cpu()"),
        ("ones(2, device=rank)", "ones(2, device='cpu')"),
        ("torch.device('cuda', rank)", "torch.device('cpu')"),
        ("torch.device(self.rank)", "torch.device('cpu')"),
        ("torch.cuda.device_count()", "stand.cuda.device_count()"),
        ("DDP(model, device_ids=[rank], output_device=rank)", "DDP(model, device_ids=None, output_device=None)"),
        ("TEST_CUDA and dist.is_nccl_available()", "True and dist.is_gloo_available()"),
        ("dist.Backend.NCCL", "dist.Backend.GLOO"),
    ],
)
def test_gpu_devices_are_replaced_by_the_cpu_in_torchs_test_sources(source, wanted):
    assert replaced(substitution.OntoCpu("stand"), source) == wanted


ENDINGS = """
import os, time, unittest

class Endings(unittest.TestCase):
    def test_a_passes(self): pass
    def test_b_dies(self): os._exit(7)
    def test_c_fails(self): self.fail("as it should")
    def test_d_hangs(self): time.sleep(600)
    def test_e_is_skipped(self): self.skipTest("not today")
    def test_f_passes(self): pass

class Unprepared(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise OSError("nothing there")
    def test_never(self): pass
"""


def run_file(folder, aim, text):
    """Run a file of tests; return {test: outcome}."""
    pytest.importorskip("expecttest", reason="PyTorch's own tests need expecttest")
    (folder / "test_these.py").write_text(text)
    results = folder / "results.json"
    command = [sys.executable, SUITE / "run.py", f"--aims={aim}", "--once", "--limit=30", "--json", results]
    ran = subprocess.run([*command, "--tests", folder, "test_these.py"], capture_output=True, text=True, timeout=160, check=False)
    assert results.exists(), ran.stderr
    return json.loads(results.read_text())["files"]["test_these.py"][aim]


@pytest.mark.torch
@pytest.mark.deadline(170)
def test_crash_or_hang_in_torchs_tests_fails_only_one_test(tmp_path):
    outcomes = run_file(tmp_path, "gloo", ENDINGS)
    summary = {table.short(test): (outcome["status"], table.last_line(outcome["reason"])) for test, outcome in outcomes.items()}
    assert summary == {
        "setUpClass (test_these.Unprepared)": ("failed", "OSError: nothing there"),
        "Endings.test_a_passes": ("passed", ""),
        "Endings.test_b_dies": ("failed", "died with 7"),
        "Endings.test_c_fails": ("failed", "AssertionError: as it should"),
        "Endings.test_d_hangs": ("failed", "did not end in 30 s"),
        "Endings.test_e_is_skipped": ("skipped", "not today"),
        "Endings.test_f_passes": ("passed", ""),
    }


IN_THE_PLACE = """
import front
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import MultiThreadedTestCase
from torch.testing._internal.common_utils import TestCase

ranks = []

class Threads(MultiThreadedTestCase):
    world_size = 2
    def setUp(self):
        super().setUp()
        self._spawn_threads()
    def test_threads(self):
        ranks.append(dist.get_rank())
    def tearDown(self):
        super().tearDown()
        assert sorted(ranks) == [0, 1], ranks

class Place(TestCase):
    def test_ddp(self):
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(2)).sum().backward()
        assert type(model.reducer).__module__.startswith("dldist."), type(model.reducer)
        dist.destroy_process_group()
    def test_rpc(self):
        options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://localhost:0")
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
        assert rpc.rpc_sync("alone", max, args=(1, 2)) == 2
        rpc.shutdown()
        assert len(front.stores_given) == 1
    def test_what_dldist_does_not_have(self):
        assert dist._functional_collectives is torch.distributed._functional_collectives
"""


@pytest.mark.torch
@pytest.mark.deadline(170)
def test_torchs_ddp_rpc_and_threaded_tests_use_dldist(tmp_path):
    outcomes = run_file(tmp_path, "front", IN_THE_PLACE)
    assert {table.short(test): outcome for test, outcome in outcomes.items() if outcome["status"] != "passed"} == {}
    assert len(outcomes) == 4


def results_of(**by_test):
    """Return {test: (gloo, dldist)} as run.py stores it."""
    both = {
        aim: {f"m.C.{test}": {"status": pair[place], "reason": "ValueError: why"} for test, pair in by_test.items()}
        for place, aim in enumerate(("gloo", "dldist"))
    }
    return {"versions": {"torch": "9.9", "tests": "9.8"}, "files": {"test_x.py": both}}


class NoReasons:
    def why(self, *_names):
        return None


def test_tables_of_torchs_tests_count_results_and_list_differences():
    found = results_of(
        a=("passed", "passed"),
        b=("passed", "failed"),
        c=("passed", "skipped"),
        d=("failed", "failed"),
        e=("skipped", "skipped"),
        f=("failed", "passed"),
    )
    (compared,) = table.compare(found, "dldist")
    assert compared.row() == ("test_x.py", 3, 2, 1, 1, 2)
    assert [test for test, _ in compared.alone()] == ["C.b", "C.c"]
    text = table.tables(found, NoReasons())
    assert "| `test_x.py` | 3 | 2 | 1 | 1 | 2 |" in text
    assert f"| `test_x.py`: `b`, `c` | {table.NO_REASON} |" in text


def test_table_omits_files_without_passing_tests():
    assert table.compare(results_of(a=("failed", "failed"), b=("skipped", "skipped")), "dldist") == []


def test_page_of_results_is_rewritten_only_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write_between_markers(page, "new")
    assert page.read_text() == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="does not have the lines"):
        table.write_between_markers(page, "new")


def test_last_line_of_a_failed_test_is_the_error_of_the_first_failed_rank():
    summary = (
        "RuntimeError: Process 0 exited with error code 10 and exception:\nTraceback\ndldist.DistPeerLostError: rank 1 has left the group\n"
        "\nProcess 1 exited with error code 10 and exception:\nTraceback\nValueError: the reason\n\nmore\n"
    )
    assert table.last_line(summary) == "ValueError: the reason"


def test_every_listed_reason_for_a_failing_torch_test_is_complete():
    for entry in table.Reasons().kept:
        assert set(entry) == {"aims", "file", "tests", "why"}
        assert entry["tests"] and entry["why"] and set(entry["aims"]) <= {"gloo", *table.TITLES}


def test_reporter_accepts_a_skipped_test_that_never_began():
    """Python 3.12.1 does not call startTest for skipped tests."""
    stream = io.StringIO()
    reporter = aim.Reporter(stream)
    test = unittest.FunctionTestCase(print)
    reporter.addSkip(test, "no GPU")
    reporter.stopTest(test)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["status"], line["reason"]) == ("skipped", "no GPU")


def test_torchs_tests_can_be_chosen_by_name_and_part():
    tests = [unittest.FunctionTestCase(print, description=name) for name in ("send", "recv_a", "recv_b", "recv_c", "recv_d")]
    for test in tests:
        test.id = test.shortDescription
    assert aim.chosen(tests) == tests
    assert aim.chosen(tests, names=["recv"], part=[2, 2]) == [tests[2], tests[4]]
    assert aim.chosen(tests, part=[1, 1], ids=["send", "recv_a"], without=["send"]) == [tests[1]]
