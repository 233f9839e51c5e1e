"""Measurement of time and memory for the benchmarks, CUDA graphs, and measurements in a separate process."""

import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from statistics import median, quantiles
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler logs to stderr


@dataclass(frozen=True)
class Spread:
    """Median of some values, with the first and the third quartile."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """Return the median and quartiles of one or more values."""
        low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(median(values), low, high)


def wait(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_call(function: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, including the work that it queues on the device."""
    wait(device)
    began = time.perf_counter()
    function()
    wait(device)
    return time.perf_counter() - began


def seconds(function: Callable[[], Any], device: torch.device, repeats: int = 5, lasting: float = 0.1) -> Spread:
    """Return the seconds per call of many calls; a repeat takes about ``lasting`` seconds. First calls do not count."""
    function()
    times = min(max(int(lasting / time_call(function, device)), 1), 1000)
    return Spread.of([_mean_seconds(function, device, times) for _ in range(repeats)])


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int, lasting: float) -> tuple[Spread, float]:
    """Return our time divided by theirs, and theirs in seconds. Both are measured alternately, on the same machine."""
    cpu = torch.device("cpu")
    for function in (ours, theirs):
        function()
    times = [max(int(lasting / time_call(function, cpu)), 1) for function in (ours, theirs)]
    pairs = [(_mean_seconds(ours, cpu, times[0]), _mean_seconds(theirs, cpu, times[1])) for _ in range(repeats)]
    return Spread.of([mine / other for mine, other in pairs]), median(other for _, other in pairs)


def _mean_seconds(function: Callable[[], Any], device: torch.device, times: int) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(times):
            function()
        return (time.perf_counter() - began) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


class Captured:
    """A function as a CUDA graph, with a reference to the function and so to all tensors that the graph reads."""

    def __init__(self, function: Callable[[], Any]):
        self.function = function
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # lets libraries choose their kernels
                function()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = function()

    def __call__(self) -> Any:
        self.graph.replay()
        return self.result


def capture(function: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Return the function as a CUDA graph; on a CPU, return it unchanged."""
    return Captured(function) if device.type == "cuda" else function


class Memory:
    """Peak memory of tensors inside a ``with`` block, in bytes, without the tensors that existed before.

    On a GPU the device counts. On a CPU torch's profiler counts, which is slow: do not measure times inside the block.
    """

    def __init__(self, device: torch.device):
        self.device, self.peak = device, 0

    def __enter__(self) -> "Memory":
        free_memory(self.device)
        if self.device.type == "cuda":
            torch.cuda.init()
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        else:
            self.profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
            self.profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device) - self.before
            return
        self.profile.__exit__(*error)
        changes = [event for event in self.profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes.sort(key=lambda event: event.start_ns())
        self.peak = max(accumulate((event.nbytes() for event in changes), initial=0))


def free_memory(device: torch.device) -> None:
    """Free unused memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def run_in_process(function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
    """Return the result of a function in a new process. Raise an error if the process dies or takes too long."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        return pool.submit(function, *args).result(timeout)
    except TimeoutError:
        for process in list(pool._processes.values()):  # only ours; there is no public way
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
