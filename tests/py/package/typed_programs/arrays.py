"""NumPy arrays of every type and shape are tensors. Only read by checkers, never run."""

from typing import Any, assert_type

import dldist as dist
import dldist.functional as F
import numpy as np
import numpy.typing as npt


def reduce(x: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_], anything: npt.NDArray[Any]) -> None:
    dist.all_reduce(x)
    dist.broadcast(mask, 0)
    dist.all_gather([anything, anything], anything)
    dist.all_gather([np.ones(3), bytearray(24)], np.ones(3))
    assert_type(F.all_reduce(x), npt.NDArray[np.float32])


def either(x: dist.Tensor) -> None:
    dist.all_reduce(x)


either(np.ones(3))
either(np.zeros((2, 2), "int8"))
