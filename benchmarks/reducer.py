"""Compare a Reducer with an all_reduce per gradient, and with one after the backward pass.

    python benchmarks/reducer.py                          # 2 ranks, 100 MB in 100 parameters
    python benchmarks/reducer.py --ranks 4 --megabytes 25 --compute-ms 50 --json out.json

The backward pass is simulated: --compute-ms, divided among the parameters by size, in which the
thread sleeps, as if a device computed (or computes, with --busy). The variants alternate in every
round; times are medians on the slowest rank, and ratios are medians of paired rounds to the Reducer
with views.

    views            the Reducer; gradients are written into its buckets (gradient_as_bucket_view)
    copied           the Reducer; gradients are copied into buckets and back
    each             an asynchronous all_reduce of each gradient as soon as it is ready
    each, in turn    the same, waiting for each before the next
    flat             all gradients in one array, after the last one is ready, and back
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time

HOST = "127.0.0.1"
MARKS = 1000


def shapes_of(megabytes, parameters):
    """Return the shapes of weights and biases: three quarters of the parameters are small."""
    large = max(parameters // 4, 1)
    elements = megabytes * 1_000_000 // 4 // large
    return [(elements,) if index % 4 == 0 else (1024,) for index in range(parameters)]


class Compute:
    """Takes as long as the backward pass of a parameter."""

    def __init__(self, shapes, milliseconds, is_busy):
        total = sum(shape[0] for shape in shapes)
        self._seconds = [milliseconds / 1e3 * shape[0] / total for shape in shapes]
        self._is_busy = is_busy

    def __call__(self, index):
        seconds = self._seconds[index]
        if not self._is_busy:
            time.sleep(seconds)
            return
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass


# -- variants: each has a pass(), in which compute(index) runs before that gradient is ready -------


def reducer_with_views(dldist, group, gradients, compute):
    reducer = dldist.Reducer(gradients, process_group=group, gradient_as_bucket_view=True)

    def run():
        reducer.gradients()
        reducer.prepare_for_backward()
        for index in reversed(range(len(gradients))):
            compute(index)
            reducer.mark_ready(index)
        reducer.finish()

    return run


def reducer_with_copies(dldist, group, gradients, compute):
    reducer = dldist.Reducer(gradients, process_group=group)

    def run():
        reducer.prepare_for_backward()
        for index in reversed(range(len(gradients))):
            compute(index)
            reducer.mark_ready(index, gradients[index])
        reducer.finish()

    return run


def each(dldist, group, gradients, compute):
    def run():
        works = []
        for index in reversed(range(len(gradients))):
            compute(index)
            works.append(group.all_reduce(gradients[index], "avg", async_op=True))
        for work in works:
            work.wait()

    return run


def each_in_turn(dldist, group, gradients, compute):
    def run():
        for index in reversed(range(len(gradients))):
            compute(index)
            group.all_reduce(gradients[index], "avg")

    return run


def flat(dldist, group, gradients, compute):
    import numpy

    whole = numpy.empty(sum(gradient.size for gradient in gradients), gradients[0].dtype)
    stops = numpy.cumsum([gradient.size for gradient in gradients])
    parts = [whole[stop - gradient.size : stop] for gradient, stop in zip(gradients, stops)]

    def run():
        for index in reversed(range(len(gradients))):
            compute(index)
        for part, gradient in zip(parts, gradients):
            part[...] = gradient
        group.all_reduce(whole, "avg")
        for part, gradient in zip(parts, gradients):
            gradient[...] = part

    return run


WAYS = {"views": reducer_with_views, "copied": reducer_with_copies, "each": each, "each, in turn": each_in_turn, "flat": flat}


# -- one rank --------------------------------------------------------------------------------------


def nanoseconds_of_a_mark(dldist, gradient):
    """Return the time of mark_ready() with views and with copies, in a world of one."""
    with dldist.Group(None, 0, 1) as group:
        costs = {}
        for is_view in (True, False):
            reducer = dldist.Reducer([gradient] * MARKS, process_group=group, gradient_as_bucket_view=is_view)
            times = []
            for _ in range(20):
                reducer.gradients()
                reducer.prepare_for_backward()
                start = time.perf_counter_ns()
                for index in range(MARKS):
                    reducer.mark_ready(index, None if is_view else gradient)
                times.append((time.perf_counter_ns() - start) / MARKS)
                reducer.finish()
            costs["views" if is_view else "copied"] = min(times)
    return costs


def run_rank(rank, port, args, results):
    import dldist
    import numpy

    shapes = shapes_of(args.megabytes, args.parameters)
    compute = Compute(shapes, args.compute_ms, args.busy)
    times = {name: [] for name in WAYS}
    with dldist.Group(dldist.TCPStore(HOST, port), rank, args.ranks) as group:
        gradients = [numpy.ones(shape, "float32") for shape in shapes]
        ways = {name: make(dldist, group, gradients, compute) for name, make in WAYS.items()}
        for number in range(args.rounds + 2):
            for name, run in ways.items():
                group.barrier()
                start = time.perf_counter()
                run()
                took = numpy.array([time.perf_counter() - start])
                group.all_reduce(took, "max")
                if number >= 2:  # the first passes precede the rebuilt buckets
                    times[name].append(float(took[0]))
    mark = nanoseconds_of_a_mark(dldist, numpy.ones(16, "float32")) if rank == 0 else None
    results.put((rank, times, mark))


def measure(args):
    import dldist

    store = dldist.TCPStore(HOST, 0, is_master=True)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=run_rank, args=(rank, store.port, args, results)) for rank in range(args.ranks)]
    for child in children:
        child.start()
    answers = [results.get(timeout=args.limit) for _ in children]
    for child in children:
        child.join(10)
    return next((times, mark) for rank, times, mark in answers if rank == 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=100)
    parser.add_argument("--compute-ms", type=float, default=100)
    parser.add_argument("--busy", action="store_true", help="compute instead of sleeping")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=600, help="seconds")
    parser.add_argument("--json", help="where to write the numbers")
    args = parser.parse_args()
    times, mark = measure(args)
    summary = {
        name: {
            "ms": statistics.median(values) * 1e3,
            "ratio": statistics.median(value / view for value, view in zip(values, times["views"])),
        }
        for name, values in times.items()
    }
    print(f"{args.ranks} ranks, {args.megabytes} MB in {args.parameters} parameters, {args.compute_ms} ms of computing")
    for name, numbers in summary.items():
        print(f"{name:15} {numbers['ms']:8.1f} ms   {numbers['ratio']:.2f}")
    print(f"mark_ready: {mark['views']:.0f} ns written into views, {mark['copied']:.0f} ns with a copy of 64 bytes")
    if args.json:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        with open(args.json, "w", encoding="utf-8") as file:
            numbers = {"args": vars(args), "machine": machine, "summary": summary, "times": times, "mark_ns": mark}
            json.dump(numbers, file, indent=1)


if __name__ == "__main__":
    main()
