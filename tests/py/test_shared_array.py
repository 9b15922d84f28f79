"""SharedArray as an array: elements, parts, values in words, NumPy."""

from array import array

import dldist
import pytest

INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64")
COMPLEX = ("complex64", "complex128")


@pytest.fixture(scope="module")
def world():
    with dldist.World() as world:
        yield world


@pytest.mark.parametrize("dtype", ("bool", *INTS, *FLOATS, *COMPLEX))
def test_elements_of_every_dtype(world, dtype):
    x = world.empty(3, dtype)
    assert x.tolist() == [0, 0, 0] and x.dtype == dtype
    x[0], x[-1] = 1, True
    assert list(x) == [1, 0, 1] and x[2] == 1
    assert type(x[0]) is {"bool": bool, **dict.fromkeys(INTS, int), **dict.fromkeys(COMPLEX, complex)}.get(dtype, float)


@pytest.mark.parametrize("dtype", INTS)
def test_the_ends_of_integers(world, dtype):
    x = world.empty(2, dtype)
    nbits = 8 * x.nbytes // 2
    low, high = (0, 2**nbits - 1) if dtype[0] == "u" else (-(2 ** (nbits - 1)), 2 ** (nbits - 1) - 1)
    x[:] = [low, high]
    assert x.tolist() == [low, high]
    for beyond in (low - 1, high + 1):
        with pytest.raises(OverflowError, match=f"does not fit into {dtype}"):
            x[0] = beyond
    with pytest.raises(TypeError):
        x[0] = 1.5
    assert x.tolist() == [low, high]


def test_complex_numbers(world):
    x = world.empty(2, "complex64")
    x[0], x[1] = 1.5 - 2j, 3
    assert x.tolist() == [1.5 - 2j, 3]


def test_parts_share_the_memory(world):
    x = world.empty((3, 2, 2))
    assert (len(x), x.ndim, x.size, x.shape) == (3, 3, 12, (3, 2, 2))
    assert len(x[1:]) == 2 and x[2, 0].shape == (2,) and x[0, 1:].shape == (1, 2) and x[5:].shape == (0, 2, 2)
    x[1][0][1] = 7
    assert x[1, 0, 1] == 7 and x[1:2].tolist() == [[[0, 7], [0, 0]]]
    assert x[...].tolist() == x.tolist() == [[[0, 0], [0, 0]], [[0, 7], [0, 0]], [[0, 0], [0, 0]]]
    part = x[1]
    del x
    assert part.tolist() == [[0, 7], [0, 0]]


def test_parts_are_filled(world):
    x = world.empty((2, 3))
    x[0] = [1, 2, 3]
    x[1] = array("f", [4, 5, 6])
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    x[:] = 9
    x[1, 1:] = x[0, :2]
    assert x.tolist() == [[9, 9, 9], [9, 9, 9]]
    x[...] = [[1, 2, 3], [4, 5, 6]]
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    for key, value, kind in (
        (0, [1, 2], ValueError),
        (0, array("d", [1, 2, 3]), ValueError),
        (0, array("f", [1, 2]), ValueError),
        (0, "no", TypeError),
        ((0, 0), [1], TypeError),
    ):
        with pytest.raises(kind):
            x[key] = value
    with pytest.raises(TypeError, match="cannot be deleted"):
        del x[0]


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        (2, IndexError, "index 2 is out of bounds for a length of 2"),
        (-3, IndexError, "index -3 is out of bounds"),
        ((0, 3), IndexError, "index 3 is out of bounds for a length of 3"),
        ((0, 0, 0), IndexError, "too many indices"),
        (slice(None, None, 2), IndexError, r"have step 1: for other steps use numpy\.asarray"),
        ((slice(None), 1), IndexError, "must be contiguous"),
        ("x", TypeError, "indexed by ints and slices"),
        (1.0, TypeError, "indexed by ints and slices"),
        (2**80, IndexError, "cannot fit"),
    ],
)
def test_what_is_not_there(world, key, kind, text):
    x = world.empty((2, 3))
    with pytest.raises(kind, match=text):
        x[key]
    with pytest.raises(kind, match=text):
        x[key] = 1


def test_an_array_without_dimensions(world):
    x = world.empty(())
    x[()] = 2.5
    assert x[()] == x.tolist() == 2.5 and x.ndim == 0 and x.size == 1
    assert repr(x) == "SharedArray(2.5, dtype='float32')"
    for call in (len, iter, lambda x: x[0]):
        with pytest.raises((TypeError, IndexError)):
            next(call(x))


def test_words(world):
    x = world.empty((2, 2), "int32")
    x[1, 0] = -4
    assert repr(x) == str(x) == "SharedArray([[0, 0], [-4, 0]], dtype='int32')"
    assert repr(world.empty((0, 2))) == "SharedArray([], shape=(0, 2), dtype='float32')"
    assert repr(world.empty(2000, "int8")) == "SharedArray([0, 0, 0, ..., 0, 0, 0], dtype='int8')"


@pytest.mark.parametrize("dtype", ("bool", "float32", "complex128", "bfloat16", "float8_e4m3fn"))
def test_numpy(world, dtype):
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    if dtype in ("bfloat16", "float8_e4m3fn"):
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = world.empty((2, 3), dtype)
    seen = numpy.asarray(x)
    assert seen.shape == (2, 3) and str(seen.dtype) == dtype
    seen[1, 2] = 1
    assert x[1, 2] == 1
    copied = numpy.array(x, dtype="float64" if dtype != "complex128" else dtype)
    x[1, 2] = 0
    assert copied[1, 2] == 1
    with pytest.raises(ValueError, match="without a copy"):
        x.__array__("int16", copy=False)
