"""Use a window and arrays in shared memory."""

from array import array

import dldist

with dldist.World(timeout=60) as world:
    other = 1 - world.rank
    memory = array("d", bytes(8 * 1000))
    window = dldist._core.Window(world, memory)
    window.put(array("d", [world.rank + 1.0] * 10), other)
    window.barrier()
    assert memory[9] == other + 1.0, memory[9]
    window.barrier()
    window.close()
    shared = memoryview(world.empty(10_000, "float64"))
    shared[9_999] = 1.0
    world.all_reduce(shared)
    assert shared[9_999] == 2.0
    world.barrier()
