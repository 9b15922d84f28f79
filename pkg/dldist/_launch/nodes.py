"""Coordinates a job's launchers, one per machine: rendezvous, first failure, restarts.

One launcher serves a store. The launchers use it under a key prefix, and the ranks of the first
attempt without a prefix. The ranks of each later attempt get a new, empty store.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from dldist import _core
from dldist._launch import options as launch_options
from dldist._launch import output, rank_environment, ranks
from dldist._launch import report as launch_report

JOIN_TIMEOUT_S = 600.0
_REPLY_TIMEOUT_S = 10.0
_RESTART_TIMEOUT_S = 60.0
# Seconds that a launcher that failed to join keeps serving the store, for others to read why.
_REFUSAL_LINGER_S = 2.0
_POLL_S = 0.05
NOTICE_S = 5.0
_HEARTBEAT_INTERVAL_S = 2.0
# Seconds without a heartbeat after which a launcher is lost: enough for a very busy machine.
HEARTBEAT_TIMEOUT_S = 30.0


class _PeriodicThread(threading.Thread):
    """A thread that calls a function every `seconds`, until stop() or the end of a `with` block."""

    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        super().__init__(name="dlrun-every", daemon=True)
        self._seconds = seconds
        self._call = call
        self._stop_event = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._stop_event.wait(self._seconds):
                self._call()
        except (_core.DistError, OSError):
            pass  # ignored: the main thread raises the same error

    def stop(self) -> None:
        self._stop_event.set()
        self.join(_POLL_S)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.stop()


class LaunchError(Exception):
    """Raised if the job cannot start; the message is the reason."""


def _run_names(given: str | None) -> tuple[str, str]:
    """Return the job's id and the name of its folder, which is unique to this run."""
    run_id = given or secrets.token_hex(4)
    return run_id, f"{run_id}_{time.strftime('%Y%m%d-%H%M%S')}_{os.getpid()}".replace("/", "_")


class _HeartbeatMonitor:
    """Finds launchers whose heartbeat has stopped."""

    def __init__(self, store: _core.Store, count: int) -> None:
        self._store = store
        self._last_beats = [(0, time.monotonic())] * count
        self._next_check = 0.0

    def find_lost(self) -> int | None:
        """Return the number of a machine whose heartbeat is HEARTBEAT_TIMEOUT_S late, or None."""
        now = time.monotonic()
        if now < self._next_check:
            return None
        self._next_check = now + _HEARTBEAT_INTERVAL_S
        for node, (last_count, since) in enumerate(self._last_beats):
            beats = self._store.add(f"beat/{node}", 0)
            if beats != last_count:
                self._last_beats[node] = beats, now
            elif now - since > HEARTBEAT_TIMEOUT_S:
                return node
        return None


class Launchers:
    """The launchers of a job. Methods may raise DistError if other launchers are unreachable."""

    def __init__(self, options: launch_options.Options, secret: str) -> None:
        self._options = options
        self._secret = secret
        self._deadline = time.monotonic() + JOIN_TIMEOUT_S
        self._heartbeat: _PeriodicThread | None = None
        base, self._is_host = self._open_store()
        self._rank_store = base
        self._store = _core.PrefixStore(f"dlrun/{options.run_id or 'none'}", base)
        if self._is_host:
            self._store.set("job", json.dumps(_run_names(options.run_id)))
        try:
            self.layout = self._wait_for_all(self._claim_node())
        except LaunchError:
            self.leave(_REFUSAL_LINGER_S)
            raise
        self._run_id, self._folder = json.loads(self._store.get("job", timeout=self._remaining_s()))
        if not self.is_alone:
            store, key = self._store.clone(), f"beat/{self.layout.node}"
            self._heartbeat = _PeriodicThread(_HEARTBEAT_INTERVAL_S, lambda: store.add(key, 1))
        self._heartbeats = _HeartbeatMonitor(self._store, options.nnodes) if self._is_host else None

    @property
    def is_alone(self) -> bool:
        """True if this is the only launcher."""
        return self._options.nnodes == 1

    def _remaining_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.1)

    def _progress_messages(self, text: Callable[[], str]) -> _PeriodicThread:
        """Return a context manager that prints a message every few seconds in its block."""
        return _PeriodicThread(NOTICE_S, lambda: output.print_message(text()))

    def _open_store(self) -> tuple[_core.TCPStore, bool]:
        """Open the launchers' store. Return the store, and True if this launcher serves it: machine
        0's launcher does, or without --node-rank the first that can listen on the port."""
        options, reason = self._options, ""
        if options.node_rank in (0, None):
            try:
                return rank_environment.serve(options.host, options.port, self._secret, _REPLY_TIMEOUT_S), True
            except _core.DistNetworkError as error:
                if options.node_rank == 0 or self.is_alone:
                    raise
                reason = f"; serving here failed as well: {error}"
        try:
            text = f"waiting for the dlrun of {options.host}:{options.port}"
            with self._progress_messages(lambda: f"{text}, {self._remaining_s():.0f} s at most"):
                store = _core.TCPStore(options.host, options.port, timeout=self._remaining_s(), secret=self._secret)
        except _core.DistError as error:
            raise LaunchError(f"the dlrun at {options.host}:{options.port} is unreachable: {error}{reason}") from error
        store.set_timeout(_REPLY_TIMEOUT_S)
        return store, False

    def _claim_node(self) -> int:
        options = self._options
        node = options.node_rank if options.node_rank is not None else self._store.add("arrived", 1) - 1
        if node >= options.nnodes:
            raise LaunchError(f"the job at {options.host}:{options.port} is full: got a further machine, expected {options.nnodes} (--nnodes)")
        own = self._describe()
        published = self._store.compare_set(f"node/{node}", "", json.dumps(own))
        if json.loads(published) != own:
            other = json.loads(published)
            raise LaunchError(f"machine {node} has already joined: host {other['host']}, pid {other['pid']}; use another --node-rank")
        return node

    def _describe(self) -> dict[str, Any]:
        options = self._options
        return {
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "nproc": options.nproc,
            "--nnodes": options.nnodes,
            "--max-restarts": options.max_restarts,
        }

    def _wait_for_all(self, node: int) -> ranks.NodeLayout:
        count = self._options.nnodes
        keys = [f"node/{number}" for number in range(count)]
        try:
            with self._progress_messages(lambda: self._joined_text(keys)):
                self._store.wait(keys, timeout=self._remaining_s())
        except _core.DistTimeoutError as error:
            missing = [str(number) for number, key in enumerate(keys) if self._store.try_get(key) is None]
            raise LaunchError(f"{len(missing)} of {count} machines did not join within {JOIN_TIMEOUT_S:.0f} s: {', '.join(missing)}") from error
        descriptions = [json.loads(description) for description in self._store.multi_get(keys)]
        for number, description in enumerate(descriptions):
            for option in ("--nnodes", "--max-restarts"):
                if description[option] != descriptions[node][option]:
                    raise LaunchError(
                        f"{option} differs between machines: got {descriptions[node][option]}, "
                        f"expected {description[option]}, as on machine {number} (host {description['host']})"
                    )
        counts = [description["nproc"] for description in descriptions]
        return ranks.NodeLayout(node, count, sum(counts[:node]), counts[node], sum(counts))

    def _joined_text(self, keys: list[str]) -> str:
        descriptions = [self._store.try_get(key) for key in keys]
        hosts = [f"{number} ({json.loads(description)['host']})" for number, description in enumerate(descriptions) if description is not None]
        return (f"waiting for {len(keys) - len(hosts)} of {len(keys)} machines, {self._remaining_s():.0f} s at most; joined: {', '.join(hosts)}")

    def attempt(self, number: int) -> ranks.Attempt:
        key = f"attempt/{number}"
        if self._is_host:
            if number > 0:
                self._rank_store = rank_environment.serve(self._options.host, 0, self._secret, _REPLY_TIMEOUT_S)
            self._store.set(key, str(self._rank_store.port))
        port = int(self._store.get(key, timeout=_RESTART_TIMEOUT_S))
        return ranks.Attempt(self._options, self.layout, number, self._run_id, self._folder, port, self._secret)

    def remote_failure(self, number: int) -> launch_report.Failure | None:
        if self.is_alone:
            return None
        text = self._store.try_get(f"failed/{number}")
        if text is not None:
            return launch_report.Failure.from_json(text)
        node = self._heartbeats.find_lost() if self._heartbeats is not None else None
        if node is None:
            return None
        host = json.loads(self._store.get(f"node/{node}"))["host"]
        reason = f"the dlrun of machine {node} (host {host}) has sent no heartbeat for {HEARTBEAT_TIMEOUT_S:.0f} s"
        return self.report(number, launch_report.launcher_failure(self.layout.node, 1, reason))

    def report(self, number: int, failure: launch_report.Failure) -> launch_report.Failure:
        """Publish a failure for all launchers. Return the failure that was published first."""
        return launch_report.Failure.from_json(self._store.compare_set(f"failed/{number}", "", failure.to_json()))

    def publish_success(self, number: int) -> None:
        self._store.add(f"done/{number}", 1)

    def has_succeeded(self, number: int) -> bool:
        """True if all machines have completed an attempt."""
        return self._store.add(f"done/{number}", 0) == self._options.nnodes

    def leave(self, timeout: float) -> None:
        """Leave the job. The launcher that serves the store first waits for the other launchers."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        nleft = self._store.add("left", 1)
        deadline = time.monotonic() + timeout
        while self._is_host and nleft < self._options.nnodes and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            nleft = self._store.add("left", 0)

