"""Processes in a default world that run many cases of the c10d tests. See c10d_workers.py."""

import inspect

import dldist
import procs

CASE_TIMEOUT_S = 25.0
START_TIMEOUT_S = 60.0  # some import PyTorch


def names_of_cases(module):
    """Return the names of the cases that ranks can run: the functions of a rank and the size."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, case in functions if list(inspect.signature(case).parameters) == ["rank", "size"]]


class Team:
    """`size` processes that each run worker(channel, argument, port, rank, size)."""

    def __init__(self, worker, argument, size):
        self.children = procs.Group()
        self.store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        self.ranks = [self.children.start(worker, argument, self.store.port, rank, size) for rank in range(size)]
        try:
            assert [child.recv(START_TIMEOUT_S) for child in self.ranks] == ["ready"] * size
        except BaseException:
            self.children.close()
            raise

    def run(self, command, timeout=CASE_TIMEOUT_S):
        """Run a command on all ranks, and return the list of their replies."""
        for child in self.ranks:
            child.send(command)
        return [child.recv(timeout) for child in self.ranks]

    def close(self, is_silent=True):
        """End the processes. With is_silent, check that they wrote no output."""
        try:
            for child in self.ranks:
                child.send(None)
            results = [child.result() for child in self.ranks]
            noise = [child.stderr_text() for child in self.ranks]
        finally:
            self.children.close()
        assert results == ["closed"] * len(self.ranks)
        assert not is_silent or noise == [""] * len(self.ranks), "\n".join(noise)


class Teams:
    """Start a team on first use, and a new one after run() failed or give_up() was called."""

    def __init__(self, *how, team_type=Team):
        self._how = how
        self._type = team_type
        self._team = None

    def run(self, command):
        if self._team is None:
            self._team = self._type(*self._how)
        try:
            return self._team.run(command)
        except BaseException:
            self.discard()
            raise

    def discard(self):
        team, self._team = self._team, None
        if team is not None:
            team.children.close()

    def close(self, is_silent=True):
        team, self._team = self._team, None
        if team is not None:
            team.close(is_silent)
