"""Heat in a plate, with mpi4py; heat.py is the same program with dldist.

    mpirun -n 4 python examples/heat_mpi4py.py

The processes form a grid, and each has a block of the plate. The upper edge of the plate joins the
lower edge, as on a pipe. The program uses persistent requests for the borders of blocks, user-defined
and MAXLOC reductions, scans, and tasks for which the workers' answers have unknown lengths.
"""

import numpy as np
from mpi4py import MPI

HEIGHT, WIDTH = 60, 90
MAX_STEPS, CHECK_EVERY, TOLERANCE = 400, 20, 2e-3
WARM = 0.25
TASK, ANSWER, STOP = 1, 2, 3
NTASKS = 12


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

    def __init__(self, comm):
        dims = MPI.Compute_dims(comm.size, 2)
        self.comm = comm.Create_cart(dims, periods=[True, False])
        row, column = self.comm.Get_coords(self.comm.rank)
        self.rows, self.columns = share(HEIGHT, dims[0], row), share(WIDTH, dims[1], column)
        self.up, self.down = self.comm.Shift(0, 1)
        self.left, self.right = self.comm.Shift(1, 1)
        self.padded = np.zeros((self.rows[1] - self.rows[0] + 2, self.columns[1] - self.columns[0] + 2))
        self.cells = self.padded[1:-1, 1:-1]
        self.cells[:] = initial(self.rows, self.columns)
        self.edges = [np.empty(self.cells.shape[axis]) for axis in (1, 1, 0, 0)]
        self.borders = [np.zeros(self.cells.shape[axis]) for axis in (1, 1, 0, 0)]
        self.requests = []
        for tag, (target, source) in enumerate([(self.up, self.down), (self.down, self.up), (self.left, self.right), (self.right, self.left)]):
            self.requests.append(self.comm.Send_init(self.edges[tag], target, tag))
            self.requests.append(self.comm.Recv_init(self.borders[tag], source, tag))

    def exchange(self):
        """Send the edges of the cells to the neighbours, and receive the borders from them."""
        for edge, cells in zip(self.edges, (self.cells[0], self.cells[-1], self.cells[:, 0], self.cells[:, -1]), strict=True):
            edge[:] = cells
        MPI.Prequest.Startall(self.requests)
        MPI.Request.Waitall(self.requests)
        padded = self.padded
        padded[-1, 1:-1], padded[0, 1:-1], padded[1:-1, -1], padded[1:-1, 0] = self.borders

    def step(self):
        """Let each cell approach its neighbours; return the largest change in this block."""
        self.exchange()
        padded = self.padded
        around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        change = 0.2 * (around - 4 * self.cells)
        self.cells += change
        return np.abs(change).max()

    def close(self):
        for request in self.requests:
            request.Free()
        self.comm.Free()


def cool(plate):
    """Run steps until the plate hardly changes; return their number and the last largest change."""
    largest = np.empty(1)
    for nsteps in range(1, MAX_STEPS + 1):
        largest[0] = plate.step()
        if nsteps % CHECK_EVERY == 0:
            plate.comm.Allreduce(MPI.IN_PLACE, largest, op=MPI.MAX)
            if largest[0] < TOLERANCE:
                break
    return nsteps, largest[0]


def hottest(plate):
    """Return the highest temperature, and its row and column."""
    own = int(plate.cells.argmax())
    row, column = divmod(own, plate.cells.shape[1])
    index = (plate.rows[0] + row) * WIDTH + plate.columns[0] + column
    value, index = plate.comm.allreduce((float(plate.cells.flat[own]), index), op=MPI.MAXLOC)
    return value, divmod(index, WIDTH)


def statistics(plate):
    """Return the mean and the standard deviation of all temperatures."""

    def join(incoming, inout, _):
        a, b = np.frombuffer(incoming), np.frombuffer(inout)
        b[:] = joined(a, b)

    op = MPI.Op.Create(join, commute=False)
    result = np.empty(3)
    plate.comm.Allreduce(moments(plate.cells), result, op=op)
    op.Free()
    return result[1], np.sqrt(result[2] / result[0])


def numbers(plate):
    """Number the warm cells of all processes; return a process's first number and its last + 1."""
    nwarm = np.array([(plate.cells > WARM).sum()])
    first, end = np.zeros(1, nwarm.dtype), np.empty(1, nwarm.dtype)
    plate.comm.Exscan(nwarm, first)
    plate.comm.Scan(nwarm, end)
    if plate.comm.rank == 0:
        first[0] = 0
    return int(first[0]), int(end[0])


def warm_columns(row):
    """Find the columns in which a row was warm at first: the answer to a task."""
    return np.flatnonzero(initial((row, row + 1), (0, WIDTH))[0] > WARM)


def hand_out(comm):
    """Give each task to the next worker that is idle; return the answers by task."""
    answers = {}
    tasks = list(range(0, HEIGHT, HEIGHT // NTASKS))
    idle, busy, status = list(range(1, comm.size)), {}, MPI.Status()
    while tasks or busy:
        while tasks and idle:
            worker = idle.pop()
            busy[worker] = tasks.pop()
            comm.send(busy[worker], worker, TASK)
        if not busy:  # there are no workers
            answers.update((row, warm_columns(row)) for row in tasks)
            break
        comm.Probe(MPI.ANY_SOURCE, ANSWER, status)
        answer = np.empty(status.Get_count(MPI.INT64_T), np.int64)
        comm.Recv(answer, status.source, ANSWER)
        answers[busy.pop(status.source)] = answer
        idle.append(status.source)
    for worker in range(1, comm.size):
        comm.send(None, worker, STOP)
    return answers


def work(comm):
    """Answer tasks until rank 0 sends STOP."""
    status = MPI.Status()
    while True:
        row = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
        if status.tag == STOP:
            return
        comm.Send(warm_columns(row).astype(np.int64), 0, ANSWER)


def main():
    comm = MPI.COMM_WORLD
    plate = Plate(comm)
    nsteps, change = cool(plate)
    value, place = hottest(plate)
    mean, deviation = statistics(plate)
    ranges = plate.comm.gather(numbers(plate))
    plate.close()
    if comm.rank > 0:
        work(comm)
        return
    answers = hand_out(comm)
    print(f"{nsteps} steps, the last change at most {change:.6f}")
    print(f"hottest: {value:.6f} in row {place[0]}, column {place[1]}")
    print(f"mean {mean:.6f}, standard deviation {deviation:.6f}")
    print("numbers of warm cells:", *[f"{first}-{end}" for first, end in ranges])
    print("warm at first:", *[f"{len(answers[row])} of row {row}" for row in sorted(answers)])


if __name__ == "__main__":
    main()
