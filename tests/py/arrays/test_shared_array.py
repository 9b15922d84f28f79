"""SharedArray as an array: its elements, and NumPy."""

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
def test_elements_of_a_shared_array_of_every_dtype_are_read_and_written(world, dtype):
    x = world.empty(3, dtype)
    assert x.tolist() == [0, 0, 0] and x.dtype == dtype
    x[0], x[-1] = 1, True
    assert x.tolist() == [1, 0, 1] and x[2] == 1 and len(x) == 3
    assert type(x[0]) is {"bool": bool, **dict.fromkeys(INTS, int), **dict.fromkeys(COMPLEX, complex)}.get(dtype, float)


@pytest.mark.parametrize("dtype", INTS)
def test_integers_beyond_the_limits_are_rejected(world, dtype):
    x = world.empty(2, dtype)
    nbits = 8 * x.nbytes // 2
    low, high = (0, 2**nbits - 1) if dtype[0] == "u" else (-(2 ** (nbits - 1)), 2 ** (nbits - 1) - 1)
    x[0], x[1] = low, high
    assert x.tolist() == [low, high]
    for beyond in (low - 1, high + 1):
        with pytest.raises(OverflowError, match=f"does not fit into {dtype}"):
            x[0] = beyond
    with pytest.raises(TypeError):
        x[0] = 1.5
    assert x.tolist() == [low, high]


def test_complex_numbers_are_read_and_written(world):
    x = world.empty(2, "complex64")
    x[0], x[1] = 1.5 - 2j, 3
    assert x.tolist() == [1.5 - 2j, 3]


def test_elements_of_a_shared_array_are_indexed_in_several_dimensions(world):
    x = world.empty((2, 3))
    x[1, 2], x[-2, -3] = 7, 5
    assert x[1, 2] == x[-1, -1] == 7 and x.tolist() == [[5, 0, 0], [0, 0, 7]] and len(x) == 2
    assert world.empty((0, 2)).tolist() == [] and world.empty((2, 0)).tolist() == [[], []]
    with pytest.raises(TypeError, match="cannot be deleted"):
        del x[0, 0]
    for value in ("no", [1]):
        with pytest.raises(TypeError):
            x[0, 0] = value


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        ((2, 0), IndexError, "index 2 is out of bounds for a length of 2"),
        ((-3, 0), IndexError, "index -3 is out of bounds"),
        ((0, 3), IndexError, "index 3 is out of bounds for a length of 3"),
        ((0, 0, 0), IndexError, "expected 2 integers"),
        (0, IndexError, r"expected 2 integers; numpy\.asarray\(array\) has slices"),
        (slice(None), IndexError, "expected 2 integers"),
        (..., IndexError, "expected 2 integers"),
        ((slice(None), 1), TypeError, "'slice' object cannot be interpreted as an integer"),
        (("x", 0), TypeError, "'str' object cannot be interpreted as an integer"),
        ((1.0, 0), TypeError, "'float' object cannot be interpreted as an integer"),
        ((2**80, 0), IndexError, "cannot fit"),
    ],
)
def test_invalid_index_of_a_shared_array_is_rejected(world, key, kind, text):
    x = world.empty((2, 3))
    with pytest.raises(kind, match=text):
        x[key]
    with pytest.raises(kind, match=text):
        x[key] = 1


def test_shared_array_without_dimensions_has_one_element(world):
    x = world.empty(())
    x[()] = 2.5
    assert x[()] == x.tolist() == 2.5 and x.shape == ()
    for call in (len, iter, lambda x: x[0]):
        with pytest.raises((TypeError, IndexError)):
            call(x)


@pytest.mark.parametrize("dtype", ("bool", "float32", "complex128"))
def test_numpy_shares_the_memory_of_a_shared_array(world, dtype):
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    x = world.empty((2, 3), dtype)
    seen = numpy.asarray(x)
    assert seen.shape == (2, 3) and str(seen.dtype) == dtype
    seen[1, 2] = 1
    assert x[1, 2] == 1


def test_numpy_reads_the_bytes_of_a_shared_array_of_any_dtype(world):
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    x = world.empty(2, "bfloat16")
    numpy.frombuffer(x, "uint16")[1] = 0x3F80
    assert x.tolist() == [0, 1]
