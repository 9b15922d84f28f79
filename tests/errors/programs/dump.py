"""Dump the flight recorder after a call."""

import os
from array import array

import dldist
from dldist import flight_recorder

with dldist.World(timeout=60) as world:
    world.all_reduce(array("d", [1.0]))
    flight_recorder.dump(os.path.join(os.environ["ERRORS_FOLDER"], f"dump_{world.rank}"))
    world.barrier()
