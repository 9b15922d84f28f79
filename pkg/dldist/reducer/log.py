"""Measures the times of a Reducer's passes, and reports them as torch's Logger."""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import Any

import dldist.reducer  # not `from dldist import`, because the import is circular
from dldist import _core

_ALWAYS_SAMPLED = 10  # number of initial passes, which are all sampled


class Times:
    """Times of the current pass, and averages over all ended passes, in nanoseconds."""

    INTERVALS = ("forward_compute_time", "backward_compute_time", "backward_comm_time", "backward_compute_comm_overlap_time")

    def __init__(self, parameter_count: int) -> None:
        self.passes = 0
        self.sample_rate = 1
        """After the first passes, one pass in this many is sampled."""
        self._samples = 0
        self.ready_ns = [0] * parameter_count
        """Nanoseconds from the start of the pass until each gradient was ready."""
        self.last = dict.fromkeys(self.INTERVALS, 0)
        self._sums = dict.fromkeys(self.INTERVALS, 0)
        self._forward_ns = 0
        self._begin_ns = self._computed_ns = self._comm_begin_ns = self._comm_end_ns = 0

    def begin_forward(self) -> None:
        self._forward_ns = perf_counter_ns()

    def begin_backward(self) -> None:
        self._begin_ns = self._computed_ns = perf_counter_ns()
        self._comm_begin_ns = self._comm_end_ns = 0
        self.ready_ns = [0] * len(self.ready_ns)

    def record_ready(self, index: int) -> None:
        """Record that a gradient is ready. The last gradient to be ready ends the computation."""
        self._computed_ns = now = perf_counter_ns()
        self.ready_ns[index] = now - self._begin_ns

    def record_start(self) -> int:
        """Record that a bucket is being sent, and return the current time."""
        now = perf_counter_ns()
        self._comm_begin_ns = self._comm_begin_ns or now
        return now

    def record_end(self, started_ns: int, outcome: Any) -> None:
        """Record the end of a bucket's reduction: now, or after the time that a Work measured."""
        now = perf_counter_ns()
        duration_s = outcome.duration if type(outcome) is _core.Work else None
        end = now if duration_s is None else min(now, started_ns + int(duration_s * 1e9))
        self._comm_end_ns = max(self._comm_end_ns, end)

    def end_pass(self) -> None:
        overlap_end = min(self._computed_ns, self._comm_end_ns)
        values = (
            self._begin_ns - self._forward_ns if self._forward_ns else 0,
            self._computed_ns - self._begin_ns,
            self._comm_end_ns - self._comm_begin_ns,
            max(overlap_end - self._comm_begin_ns, 0),
        )
        self._forward_ns = 0
        self.passes += 1
        if self.passes > _ALWAYS_SAMPLED and self.passes % self.sample_rate:
            return
        self._samples += 1
        for name, value in zip(self.INTERVALS, values, strict=True):
            self.last[name] = value
            self._sums[name] += value

    def describe(self) -> dict[str, int]:
        averages = {f"avg_{name}": total // max(self._samples, 1) for name, total in self._sums.items()}
        return {**self.last, **averages}


class DDPLoggingData:
    """Statistics by name; strings and integers are separate."""

    def __init__(self) -> None:
        self.strs_map: dict[str, str] = {}
        self.ints_map: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"DDPLoggingData({ {**self.strs_map, **self.ints_map} })"


class Logger:
    """torch's interface to the statistics of a Reducer, which reducer.stats() also returns."""

    def __init__(self, reducer: dldist.reducer.Reducer) -> None:
        self._reducer = reducer
        self._construction: dict[str, Any] = {}
        self._overrides: dict[str, Any] = {}

    def set_construction_data_and_log(
        self,
        module_name: str,
        device_ids: list[int],
        output_device: int,
        broadcast_buffers: bool,
        has_sync_bn: bool,
        static_graph: bool,
    ) -> None:
        """Store data about the model for _get_ddp_logging_data(). Nothing is logged."""
        self._construction = {
            "module_name": module_name,
            "device_ids": ", ".join(map(str, device_ids)),
            "output_device": output_device,
            "broadcast_buffers": int(broadcast_buffers),
            "has_sync_bn": int(has_sync_bn),
            "static_graph": int(static_graph),
        }

    def set_runtime_stats_and_log(self) -> None:
        """Do nothing, because the statistics are always up to date."""

    def set_error_and_log(self, error: str) -> None:
        """Record an error for _get_ddp_logging_data()."""
        self._overrides.update(has_error=1, error=error)

    def _set_comm_hook_name(self, comm_hook: str) -> None:
        self._overrides["comm_hook"] = comm_hook

    def _set_uneven_input_join(self) -> None:
        self._overrides["join_uneven_inputs"] = 1

    def _set_static_graph(self) -> None:
        self._overrides["static_graph"] = 1

    def _get_ddp_logging_data(self) -> DDPLoggingData:
        """Return all data under torch's names."""
        environment = {
            "master_addr": os.environ.get("MASTER_ADDR", "N/A"),
            "master_port": os.environ.get("MASTER_PORT", "N/A"),
            "torch_distributed_debug": os.environ.get("TORCH_DISTRIBUTED_DEBUG", "N/A"),
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES", "N/A"),
            "is_multi_device_module": 0,
        }
        data = DDPLoggingData()
        for name, value in {**environment, **self._reducer.stats(), **self._construction, **self._overrides}.items():
            if isinstance(value, str):
                data.strs_map[name] = value
            else:
                data.ints_map[name] = value
        return data
