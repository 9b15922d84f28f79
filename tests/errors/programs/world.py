"""Use a World: collectives, messages and a subgroup."""

from array import array

import dldist

with dldist.World(timeout=60) as world:
    x = array("d", [world.rank + 1.0] * 4)
    world.all_reduce(x)
    assert x[3] == 3.0, x
    large = array("f", [1.0]) * 300_000
    world.all_reduce(large)
    assert large[-1] == 2.0, large[-1]
    other = 1 - world.rank
    sent = world.isend(bytes([world.rank]) * 200_000, other)
    taken = bytearray(200_000)
    world.recv(taken, other)
    sent.wait()
    assert taken[-1] == other
    with world.split([0, 1]) as part:
        part.all_reduce(x)
    assert x[0] == 6.0, x
    world.barrier()
