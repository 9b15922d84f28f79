"""Teams of ranks for the group tests: processes that are started once and run many cases."""

import os

import dldist
import group_workers
import procs

CASE_TIMEOUT_S = 25.0


class Team:
    """`size` processes in one group. run() runs a case of group_workers and returns all results."""

    def __init__(self, size, env=None, options=None, worker=group_workers.member):
        self.size = size
        self.has_failed = False
        self.children = procs.Group()
        self.store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        self.port = self.store.port
        try:
            self.ranks = [
                self.children.start(worker, self.port, rank, size, options, env=env) for rank in range(size)
            ]
            assert [child.recv() for child in self.ranks] == ["ready"] * size
        except BaseException:
            self.children.close()
            raise

    def run(self, case, *args, timeout=CASE_TIMEOUT_S):
        self.has_failed = True  # until everything below succeeds
        for child in self.ranks:
            child.send((case.__name__, args))
        replies = [child.recv(timeout) for child in self.ranks]
        errors = [reply for kind, reply in replies if kind == "error"]
        self.has_failed = bool(errors)
        assert not errors, "\n".join(f"{error['kinds'][0]}: {error['text']}" for error in errors)
        return [reply for _, reply in replies]

    def close(self):
        try:
            for child in self.ranks:
                if child.process.poll() is None:
                    child.send(None)
            results = [child.result() for child in self.ranks]
            noise = [child.stderr_text() for child in self.ranks]
        finally:
            self.children.close()
        assert results == ["closed"] * self.size
        self.check_stderr(noise)

    def check_stderr(self, texts):
        assert texts == [""] * self.size, "\n".join(texts)


class Teams:
    """The teams of a module, started on first use, and anew after a test broke one."""

    team_type = Team

    def __init__(self):
        self._teams = {}

    def __call__(self, size, **settings):
        key = (size, repr(settings))
        team = self._teams.get(key)
        if team is not None and team.has_failed:
            team.children.close()
            team = None
        if team is None:
            team = self._teams[key] = self.team_type(size, **settings)
        return team

    def close(self):
        failures = []
        for team in self._teams.values():
            try:
                team.close()
            except BaseException as error:
                failures.append(error)
        if failures:
            raise failures[0]


def start_ranks(children, worker, size, *args, env=None):
    """Run a worker on `size` processes that meet at a store of this process; return the children
    and the store."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    ranks = [children.start(worker, store.port, rank, size, *args, env=env) for rank in range(size)]
    return ranks, store


def host_name():
    return os.uname().nodename
