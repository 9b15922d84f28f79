"""Processes of one JAX program over dldist's collectives, or with is_dldist=False over Gloo's."""

import os
import time
import traceback


def member(channel, address, rank, size, is_dldist=True):
    """Join the program, and run the cases that the parent sends."""
    if is_dldist:
        import dldist.jax

        dldist.jax.install()
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(address, size, rank)
    channel.send([device.process_index for device in jax.devices()])
    while (name := channel.recv()) is not None:
        try:
            channel.send(("result", globals()[name]()))
        except Exception:
            channel.send(("error", traceback.format_exc()))
    # Process 0, which has the coordinator, must exit last.
    os._exit(0)


def _distribute(rows, mesh, *names):
    """Make an array whose first dimensions lie along these mesh axes, from each device's rows."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(mesh, PartitionSpec(*names))
    whole = (*(mesh.shape[name] for name in names), *rows[0].shape)
    return jax.make_array_from_callback(whole, sharding, lambda index: rows[_position(index, mesh, names)].reshape((1,) * len(names) + rows[0].shape))


def _position(index, mesh, names):
    number = 0
    for name, part in zip(names, index):
        number = number * mesh.shape[name] + (part.start or 0)
    return number


def _local_part(array):
    import numpy

    return numpy.asarray(array.addressable_data(0))


def _line():
    import jax
    import numpy
    from jax.sharding import Mesh

    return Mesh(numpy.array(jax.devices()), ("x",))


def _compile(call, mesh, names=("x",)):
    """Compile a function of such arrays from a function of one device's part."""
    import jax
    from jax.sharding import PartitionSpec

    def run(x):
        return call(x.reshape(x.shape[len(names) :])).reshape((1,) * len(names) + (-1,))

    spec = PartitionSpec(*names)
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128".split()


def dtypes_and_reductions():
    """Return the cases that differ from NumPy or raise."""
    import jax
    import jax.numpy as jnp
    import numpy

    size, rank = jax.process_count(), jax.process_index()
    problems = {}
    for name in DTYPES:
        rows = [numpy.asarray(jnp.asarray([(place + 2) % 3, place + 1, 1, 0, 2, place % 2] * size, name)) for place in range(size)]
        for call, (function, expected) in {**_reductions(rows, rank), **_moves(rows, rank)}.items():
            try:
                found = _local_part(_compile(function, _line())(_distribute(rows, _line(), "x")))[0]
            except jax.errors.JaxRuntimeError as error:
                problems[call, name] = str(error)
                continue
            if found.dtype != expected.dtype or not (found == expected).all():
                problems[call, name] = f"{found} instead of {expected}"
    return problems


def _reductions(rows, rank):
    """Return (function, result) pairs for arrays whose length is a multiple of the rank count."""
    import jax
    import numpy

    dtype, n = rows[0].dtype, len(rows[0]) // len(rows)
    if dtype.kind == "b":
        return {}  # JAX adds booleans as integers
    total = numpy.add.reduce(rows, axis=0, dtype=dtype)
    found = {
        "psum": (lambda x: jax.lax.psum(x, "x"), total),
        "psum_scatter": (lambda x: jax.lax.psum_scatter(x, "x", tiled=True), total[rank * n :][:n]),
    }
    if dtype.kind != "c":
        found["pmax"] = (lambda x: jax.lax.pmax(x, "x"), numpy.maximum.reduce(rows, axis=0))
        found["pmin"] = (lambda x: jax.lax.pmin(x, "x"), numpy.minimum.reduce(rows, axis=0))
    return found


def _moves(rows, rank):
    import jax
    import numpy

    size, n = len(rows), len(rows[0]) // len(rows)
    ring = [(place, (place + 1) % size) for place in range(size)]
    return {
        "all_gather": (lambda x: jax.lax.all_gather(x, "x", tiled=True), numpy.concatenate(rows)),
        "ppermute": (lambda x: jax.lax.ppermute(x, "x", ring), rows[rank - 1]),
        "all_to_all": (
            lambda x: jax.lax.all_to_all(x.reshape(size, -1), "x", 0, 0),
            numpy.concatenate([row[rank * n :][:n] for row in rows]),
        ),
    }


def sizes():
    """Arrays of distinct elements, from zero elements to some megabytes, must be right."""
    import jax
    import numpy

    mesh, size = _line(), jax.process_count()
    counts = {}
    for count in (0, 1, 7, 1000, 65_537, 1_000_003):
        rows = [numpy.arange(count, dtype="float32") % 97 + rank for rank in range(size)]
        found = _local_part(_compile(lambda x: jax.lax.psum(x, "x"), mesh)(_distribute(rows, mesh, "x")))[0]
        counts[count] = int((found != sum(rows)).sum())
    return counts


def axes_of_a_mesh():
    """Sums along each axis of 2 by 2 processes, and along both, must be right."""
    import jax
    import numpy
    from jax.sharding import Mesh

    mesh = Mesh(numpy.array(jax.devices()).reshape(2, 2), ("y", "x"))
    rows = [numpy.array([10.0**rank]) for rank in range(4)]
    x = _distribute(rows, mesh, "y", "x")

    def call(x):
        sums = [jax.lax.psum(x, axis) for axis in ("x", "y", ("y", "x"))]
        return jax.numpy.concatenate(sums)

    return _local_part(_compile(call, mesh, ("y", "x"))(x)).ravel().tolist()


def loops_and_branches():
    """A sum over all, sums along one axis in a loop, then the other in a branch, must be right."""
    import jax
    import numpy
    from jax.sharding import Mesh

    mesh = Mesh(numpy.array(jax.devices()).reshape(2, 2), ("y", "x"))
    rows = [numpy.array([10.0**place]) for place in range(4)]

    def call(x):
        total = jax.lax.psum(x, ("y", "x"))
        summed, _ = jax.lax.scan(lambda carry, _: (jax.lax.psum(carry, "x"), None), x + 0 * total, None, length=2)
        return jax.lax.cond(total[0] > 0, lambda x: jax.lax.psum(x, "y"), lambda x: x * 2, summed)

    return _local_part(_compile(call, mesh, ("y", "x"))(_distribute(rows, mesh, "y", "x"))).ravel().tolist()


def scatters():
    """Run chains of psum_scatters along two axes many times; return the number of wrong results."""
    import jax
    import numpy
    from jax.sharding import Mesh

    devices = numpy.array(jax.devices())
    mesh = Mesh(devices.reshape(2, -1), ("y", "x"))
    rows = [numpy.random.default_rng(rank).integers(0, 100, (64, 96)).astype("float64") for rank in range(len(devices))]
    x = _distribute(rows, mesh, "y", "x")

    def call(x):
        part = jax.lax.psum_scatter(x, "x", scatter_dimension=0, tiled=True)
        return jax.lax.psum_scatter(part, "y", scatter_dimension=1, tiled=True)

    run = _compile(call, mesh, ("y", "x"))
    total, place = sum(rows), divmod(jax.process_index(), mesh.shape["x"])
    height, width = 64 // mesh.shape["x"], 96 // 2
    expected = total[place[1] * height :][:height, place[0] * width :][:, :width]
    nwrong = 0
    for _ in range(150):
        nwrong += not (_local_part(run(x)).reshape(expected.shape) == expected).all()
    return nwrong


def recorded():
    """Return the recorder's names and shapes of a reduction, a gather, a scatter and messages."""
    import dldist.flight_recorder
    import jax
    import numpy

    mesh, size = _line(), jax.process_count()
    rows = [numpy.ones(4 * size, "float32")] * size
    ring = [(place, (place + 1) % size) for place in range(size)]
    dldist.flight_recorder.reset()
    for call in (
        lambda x: jax.lax.psum(x, "x"),
        lambda x: jax.lax.all_gather(x, "x", tiled=True),
        lambda x: jax.lax.psum_scatter(x, "x", tiled=True),
        lambda x: jax.lax.ppermute(x, "x", ring),
    ):
        _compile(call, mesh)(_distribute(rows, mesh, "x")).block_until_ready()
    found = []
    for entry in dldist.flight_recorder.entries():
        assert entry["state"] == "completed" and entry["process_group"][0].startswith("jax/"), entry
        found.append((entry["profiling_name"].rpartition(":")[2], entry["input_sizes"], entry["output_sizes"]))
    return found


def sum_once():
    import jax
    import numpy

    mesh = _line()
    rows = [numpy.ones(4)] * jax.device_count()
    return _local_part(_compile(lambda x: jax.lax.psum(x, "x"), mesh)(_distribute(rows, mesh, "x"))).ravel().tolist()


def sum_until_it_fails():
    """Return the error's text and time."""
    import jax

    try:
        while True:
            sum_once()
    except jax.errors.JaxRuntimeError as error:
        return str(error), time.monotonic()


def sum_without_rank_1(channel, address, rank, size):
    import dldist.jax

    dldist.jax.install(timeout=1.0)
    import jax

    jax.distributed.initialize(address, size, rank)
    sum_once()
    reply = sum_until_it_fails()[0] if rank != 1 else ""
    channel.send(reply)
    channel.recv()
    os._exit(0)


def sums_of_several_devices(channel, address, rank, size):
    """Sums along each axis of processes with two devices each, and along both, must be right."""
    import dldist.jax

    dldist.jax.install(timeout=20.0)
    import jax
    import numpy
    from jax.sharding import Mesh

    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(address, size, rank)
    mesh = Mesh(numpy.array(jax.devices()).reshape(size, 2), ("y", "x"))
    rows = [numpy.array([10.0**place], "float32") for place in range(2 * size)]
    x = _distribute(rows, mesh, "y", "x")
    run = _compile(lambda x: jax.numpy.concatenate([jax.lax.psum(x, axis) for axis in ("x", "y", ("y", "x"))]), mesh, ("y", "x"))
    channel.send([numpy.asarray(shard.data).ravel().tolist() for _ in range(20) for shard in run(x).addressable_shards])
    channel.recv()
    os._exit(0)


def sum_of_some_processes(channel, address, rank, size):
    """Sum over the first two processes, then over the last two and the first while the others are
    idle; then over all."""
    import dldist.jax

    dldist.jax.install(timeout=20.0)
    import jax
    import numpy
    from jax.sharding import Mesh

    jax.distributed.initialize(address, size, rank)
    reply = []
    for chosen in ([0, 1], [2, 3, 0], [0, 1, 2, 3]):
        if rank in chosen:
            mesh = Mesh(numpy.array(jax.devices())[chosen], ("x",))
            rows = [numpy.array([10.0**place], "float32") for place in chosen]
            reply += _local_part(_compile(lambda x: jax.lax.psum(x, "x"), mesh)(_distribute(rows, mesh, "x"))).ravel().tolist()
    channel.send(reply)
    channel.recv()
    os._exit(0)


def sum_after_others(channel, address, rank, size):
    """Sum over all processes, after a program that the first two compiled but never ran, and one
    that only this process ran."""
    import dldist.jax

    dldist.jax.install(timeout=20.0)
    import jax
    import numpy
    from jax.sharding import Mesh

    jax.distributed.initialize(address, size, rank)
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    some = Mesh(numpy.array(jax.devices())[:2], ("x",))
    if rank < 2:
        rows = [numpy.ones(1, "float32")] * 2
        _compile(lambda x: jax.lax.psum(x, "x"), some).lower(_distribute(rows, some, "x")).compile()
    channel.send(sum_once())
    channel.recv()
    os._exit(0)


def sum_without_a_store(channel, address, rank, size):
    """The world cannot be made, because the processes of dldist do not find each other."""
    import dldist
    import dldist.jax

    dldist.jax.install()

    def fail(*_, **options):
        raise dldist.DistStoreError("no port is free")

    dldist.jax._core.TCPStore = fail
    import jax

    jax.distributed.initialize(address, size, rank)
    channel.send(sum_until_it_fails()[0])
    channel.recv()
    os._exit(0)
