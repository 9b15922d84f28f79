"""Heat in a plate, with dldist; heat_mpi4py.py is the same program with mpi4py.

    dlrun --nproc-per-node 4 examples/heat.py      # or torchrun, mpirun, srun

The processes form a mesh, and each has a block of the plate. The upper edge of the plate joins the
lower edge, as on a pipe. The program uses a plan for a collective that it repeats, user-defined and
"maxloc" reductions, scans, and tasks for which the workers' answers have unknown lengths.
"""

import math

import dldist
import dldist.functional as F
import numpy as np

HEIGHT, WIDTH = 60, 90
MAX_STEPS, CHECK_EVERY, TOLERANCE = 400, 20, 2e-3
WARM = 0.25
TASK, ANSWER, STOP = 1, 2, 3
NTASKS = 12


def balanced(size):
    """Return the shape of the mesh: two numbers as equal as possible."""
    smaller = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    return size // smaller, smaller


def share(extent, parts, index):
    """Return the first and the last + 1 of the cells that one of several processes has."""
    return extent * index // parts, extent * (index + 1) // parts


def initial(rows, columns):
    """Return the temperatures of a range of rows and of columns: two spots, and a warm edge."""
    y, x = np.mgrid[rows[0] : rows[1], columns[0] : columns[1]]
    heat = 4 * np.exp(-((y - 15) ** 2 + (x - 20) ** 2) / 30.0)
    heat += 3 * np.exp(-((y - 58) ** 2 + (x - 70) ** 2) / 60.0)
    heat[x == 0] = 1
    return heat


def moments(values):
    """Return the number of values, their mean, and the sum of squared distances from it."""
    return np.array([values.size, values.mean(), ((values - values.mean()) ** 2).sum()])


def joined(a, b):
    """Return the moments of two sets of values together."""
    total = a[0] + b[0]
    away = b[1] - a[1]
    return np.array([total, a[1] + away * b[0] / total, a[2] + b[2] + away**2 * a[0] * b[0] / total])


class Plate:
    """A process's block of the plate, with a border of one cell around it."""

    def __init__(self):
        shape = balanced(dldist.get_world_size())
        self.mesh = dldist.init_device_mesh("cpu", shape)
        row, column = self.mesh.get_coordinate()
        self.rows, self.columns = share(HEIGHT, shape[0], row), share(WIDTH, shape[1], column)
        self.padded = np.zeros((self.rows[1] - self.rows[0] + 2, self.columns[1] - self.columns[0] + 2))
        self.cells = self.padded[1:-1, 1:-1]
        self.cells[:] = initial(self.rows, self.columns)

    def exchange(self):
        """Send the edges of the cells to the neighbours, and receive the borders from them."""
        padded, cells = self.padded, self.cells
        padded[0, 1:-1], padded[-1, 1:-1] = self.mesh.exchange(cells[0], cells[-1], 0)
        left, right = self.mesh.exchange(cells[:, 0], cells[:, -1], 1, wrap=False)
        if left is not None:
            padded[1:-1, 0] = left
        if right is not None:
            padded[1:-1, -1] = right

    def step(self):
        """Let each cell approach its neighbours; return the largest change in this block."""
        self.exchange()
        padded = self.padded
        around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        change = 0.2 * (around - 4 * self.cells)
        self.cells += change
        return np.abs(change).max()


def cool(plate):
    """Run steps until the plate hardly changes; return their number and the last largest change."""
    largest = np.empty(1)
    find_largest = dldist.default_world().plan.all_reduce(largest, "max")
    for nsteps in range(1, MAX_STEPS + 1):
        largest[0] = plate.step()
        if nsteps % CHECK_EVERY == 0:
            find_largest()
            if largest[0] < TOLERANCE:
                break
    return nsteps, largest[0]


def hottest(plate):
    """Return the highest temperature, and its row and column."""
    own = int(plate.cells.argmax())
    row, column = divmod(own, plate.cells.shape[1])
    index = (plate.rows[0] + row) * WIDTH + plate.columns[0] + column
    value, index = F.all_reduce((float(plate.cells.flat[own]), index), "maxloc")
    return value, divmod(int(index), WIDTH)


def statistics(plate):
    """Return the mean and the standard deviation of all temperatures."""
    count, mean, squares = F.all_reduce(moments(plate.cells), joined)
    return mean, np.sqrt(squares / count)


def numbers(plate):
    """Number the warm cells of all processes; return a process's first number and its last + 1."""
    nwarm = int((plate.cells > WARM).sum())
    return int(F.exscan(nwarm)), int(F.scan(nwarm))


def warm_columns(row):
    """Find the columns in which a row was warm at first: the answer to a task."""
    return np.flatnonzero(initial((row, row + 1), (0, WIDTH))[0] > WARM)


def hand_out(world):
    """Give each task to the next worker that is idle; return the answers by task."""
    answers = {}
    tasks = list(range(0, HEIGHT, HEIGHT // NTASKS))
    idle, busy = list(range(1, world.size)), {}
    while tasks or busy:
        while tasks and idle:
            worker = idle.pop()
            busy[worker] = tasks.pop()
            world.send_object(busy[worker], worker, TASK)
        if not busy:  # there are no workers
            answers.update((row, warm_columns(row)) for row in tasks)
            break
        found = world.probe(tag=ANSWER)
        answer = np.empty(found.nbytes // 8, np.int64)
        world.recv(answer, found.source, ANSWER)
        answers[busy.pop(found.source)] = answer
        idle.append(found.source)
    for worker in range(1, world.size):
        world.send_object(None, worker, STOP)
    return answers


def work(world):
    """Answer tasks until rank 0 sends STOP."""
    while True:
        tag = world.probe(0).tag
        row = world.recv_object(0, tag)
        if tag == STOP:
            return
        world.send(warm_columns(row).astype(np.int64), 0, ANSWER)


def main():
    dldist.init_process_group()
    world = dldist.default_world()
    plate = Plate()
    nsteps, change = cool(plate)
    value, place = hottest(plate)
    mean, deviation = statistics(plate)
    ranges = world.gather_object(numbers(plate), 0)
    if world.rank > 0:
        work(world)
    else:
        answers = hand_out(world)
        print(f"{nsteps} steps, the last change at most {change:.6f}")
        print(f"hottest: {value:.6f} in row {place[0]}, column {place[1]}")
        print(f"mean {mean:.6f}, standard deviation {deviation:.6f}")
        print("numbers of warm cells:", *[f"{first}-{end}" for first, end in ranges])
        print("warm at first:", *[f"{len(answers[row])} of row {row}" for row in sorted(answers)])
    dldist.destroy_process_group()


if __name__ == "__main__":
    main()
