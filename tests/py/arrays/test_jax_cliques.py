"""The groups of devices that work together, read from XLA's programs (dldist.jax._cliques)."""

import os
import subprocess
import sys

import pytest
from dldist.jax import _cliques

IDS = [100, 101, 102, 103, 104, 105, 106, 107]


def groups(text, ids=IDS):
    return [tuple(ids.index(device) for device in clique) for clique, _ in _cliques.needs_of(text, ids)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%a = f32[2]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%sum", [(0, 1), (2, 3)]),
        ("%a = f32[2]{0} all-reduce(%p), replica_groups={}, to_apply=%sum", [tuple(range(8))]),
        ("%a = f32[2]{0} all-gather-start(%p), replica_groups=[2,4]<=[8], dimensions={0}", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("ROOT %a = f32[2]{0} reduce-scatter(%p), replica_groups=[4,2]<=[2,4]T(1,0), x=1", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("%a = (f32[1], f32[1]) all-to-all(%p, %q), replica_groups={{3,1},{2,0}}", [(3, 1), (2, 0)]),
        ("%a = f32[2]{0} collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,2}}", [tuple(range(8))]),
        ("%a = f32[8] all-reduce(%p), replica_groups=mesh['x'=2,'y'=4] {'y'}, use_global_device_ids=true", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("%a = f32[8] all-reduce(%p), replica_groups=mesh['x'=2,'y'=4] {'x'}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("%a = f32[8] all-reduce(%p), replica_groups=mesh['x'=2,'y'=4] {'x','y'}", [tuple(range(8))]),
        ("%a = f32[8] all-reduce(%p), replica_groups=mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", [(0, 2, 4, 6), (1, 3, 5, 7)]),
        ("%a = f32[8] all-reduce(%p), replica_groups=mesh['x'=2,'y'=4] {'y':(1)2}", [(0, 2), (1, 3), (4, 6), (5, 7)]),
        ("%a = f32[8] all-reduce(%p), replica_groups=mesh['x'=2,'y'=4] {'y':(2)2}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("%all-reduce.1 = f32[8] add(%all-reduce, %p)\n%f = f32[] fusion(%all-gather), calls=%all-reduce", []),
    ],
)
def test_device_groups_are_read_from_the_text_of_an_xla_operation(text, expected):
    assert sorted(groups(text)) == sorted(expected)


def test_device_groups_of_an_unknown_form_are_rejected():
    with pytest.raises(ValueError, match="unknown form of device groups: all-reduce"):
        groups("%a = f32[8] all-reduce(%p), replica_groups=some(8)")


CALLS = """
%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}
%branch.1 (p: (f32[2])) -> (f32[2]) {
  %x = f32[2]{0} all-reduce(%p), replica_groups={{0,4},{1,5}}, to_apply=%sum
}
%loop (p: (f32[2])) -> (f32[2]) {
  %y = f32[2]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%sum
}
%again (p: (f32[2])) -> (f32[2]) {
  %z = f32[2]{0} all-reduce(%p), replica_groups={{0,1,2}}, to_apply=%sum
}
%started (p: f32[2]) -> f32[2] {
  ROOT %w = f32[2]{0} all-gather(%p), replica_groups={{6,7}}
}
ENTRY %main (p: f32[2]) -> f32[2] {
  %a = f32[2]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%sum
  %b = (f32[2]) while(%t), condition=%test, body=%loop, backend_config={"known_trip_count":{"n":"3"}}
  %c = (f32[2]) while(%t), condition=%test, body=%again
  %d = (f32[2]) conditional(%a, %t, %t), branch_computations={%branch.0, %branch.1}
  %e = ((f32[2]), f32[2]) async-start(%p), calls=%started
  ROOT %f = f32[2]{0} reduce-scatter(%p), replica_groups={{0,7}}, to_apply=%sum
}
"""


def test_xla_programs_are_read_in_execution_order():
    sure = [(0, 1, 2, 3), (0, 1), (2, 3), (6, 7), (0, 7)]
    found = list(_cliques.needs_of(CALLS, range(8)))
    assert [clique for clique, is_sure in found if is_sure] == sure
    assert [clique for clique, is_sure in found if not is_sure] == [(0, 1, 2), (0, 4), (1, 5)]
    assert [clique for clique, _ in found] == [(0, 1, 2, 3), (0, 1), (2, 3), (0, 1, 2), (0, 4), (1, 5), (6, 7), (0, 7)]


def sure(*cliques):
    return [(clique, True) for clique in cliques]


def test_first_xla_program_that_matches_a_call_is_used():
    programs = _cliques.Programs()
    programs.add(sure((0, 1, 2), (0, 1), (0, 1, 2), (3, 4)))
    assert programs.claim(0, 1, {1}) == (0, 1, 2)
    assert programs.claim(0, 1, {1}) == (0, 1)
    assert programs.claim(0, 2, {1, 2}) == (0, 1, 2)
    with pytest.raises(LookupError, match="that this process has not compiled"):
        programs.claim(0, 1, {1})
    with pytest.raises(LookupError, match="that this process has not compiled"):
        programs.claim(3, 1, {5})


def test_device_that_has_begun_a_later_program_does_not_use_an_earlier_one():
    """The rest of the earlier program is not needed: a branch was not taken."""
    programs = _cliques.Programs()
    programs.add([((0, 1), False), ((7, 1), True)])
    programs.add(sure((0, 1, 2), (5, 1)))
    assert programs.claim(5, 1, {1}) == (5, 1)
    assert programs.claim(0, 1, {1}) == (0, 1, 2)


def test_ambiguous_device_groups_are_an_error():
    programs = _cliques.Programs()
    programs.add([((0, 1), False), ((0, 1, 2), True)])
    with pytest.raises(LookupError, match=r"of the devices \(0, 1\) or \(0, 1, 2\)"):
        programs.claim(0, 1, {1})
    assert programs.claim(0, 2, {2}) == (0, 1, 2)  # only one candidate exists
    programs.add([((3, 4), False)])
    assert programs.claim(3, 0, {3}) == (3, 4)


# All kinds of mesh axes, by shard_map and the compiler's choice. The mesh gives the result.
PROGRAM = """
import itertools
import jax, numpy
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from dldist.jax import _cliques

devices = numpy.array(jax.devices())[[2, 0, 5, 3, 7, 1, 6, 4]].reshape(2, 2, 2)
names = ("a", "b", "c")
mesh = Mesh(devices, names)
ids = [device.id for device in devices.flat]

def found(compiled):
    texts = [module.to_string() for module in compiled._executable.unsafe_call.xla_executable.hlo_modules()]
    return {clique for text in texts for clique, _ in _cliques.needs_of(text, ids)}

def expected(axes):
    order = [names.index(axis) for axis in axes]
    rest = [i for i in range(3) if i not in order]
    moved = numpy.vectorize(lambda device: device.id)(devices).transpose(rest + order).reshape(-1, 2 ** len(axes))
    return {frozenset(row) for row in moved.tolist()}

x = numpy.ones((8, 8), "float32")
for count in (1, 2, 3):
    for axes in itertools.combinations(names, count):
        call = jax.shard_map(lambda x: jax.lax.psum(x, axes), mesh=mesh, in_specs=P(names), out_specs=P(tuple(n for n in names if n not in axes)))
        assert {frozenset(c) for c in found(jax.jit(call).lower(x).compile())} == expected(axes), axes
        product = jax.jit(lambda a, b: a @ b, in_shardings=(NamedSharding(mesh, P(None, axes)), NamedSharding(mesh, P(axes, None))),
                          out_shardings=NamedSharding(mesh, P()))
        assert {frozenset(c) for c in found(product.lower(x, x).compile())} == expected(axes), axes
print("right")
"""


def test_device_groups_of_compiled_programs_are_correct():
    pytest.importorskip("jax", reason="JAX is not installed")
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "right\n", done.stderr
