"""A Ray cluster: connecting to it, and what its nodes must have."""

import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

import pogm
from pogm._system.errors import UsageError
from pogm._system.files import TEMPORARY
from pogm.benchmark.runs.local import cores
from pogm.benchmark.runs.runner import Settings

CONNECT_SECONDS = 10  # for a cluster to answer at all; Ray itself tries for minutes
ANSWER_SECONDS = 120  # for a node to start Python and look at the folder; where a mount hangs, it never does
OBJECT_STORE = 100 * 2**20  # bytes; trials and outcomes are small


@contextmanager
def connected(address: str | None, threads: int) -> Iterator[Any]:
    """Ray, connected to a cluster or to one of our own, and quiet."""
    ray = _imported()
    if address is None:
        own = {"num_cpus": max(cores(), threads), "object_store_memory": OBJECT_STORE}
        options: dict[str, Any] = {"address": "local", "include_dashboard": False, **own}
    else:
        _check_address(address)
        options = {"address": address}
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            raise UsageError(
                f"Expected to connect to Ray on {address or 'this machine'}; found: {error} Ask `ray status` there."
            ) from error
        yield ray
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray leaves its own


def _imported() -> Any:
    """The package, which is an extra, told to call nobody and to print nothing about workers that die."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."  # of all lines; read when the package is imported
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"Expected the package ray for --executor ray; found: {error}. "
            'Install it on every node: pip install "pogm[ray]"'
        ) from error


def _check_address(address: str) -> None:
    """Make sure that somebody listens there."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"Expected the address of a Ray cluster, such as auto or 10.0.0.1:6379; found {address!r}: {error}. "
            "Start one with `ray start --head`, or leave --address out."
        ) from error


def needs_of(ray: Any, settings: Settings) -> dict[str, int]:
    """What a task takes of a node, which some node must have, or it would wait forever."""
    device = settings.engine.device
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"Expected the device auto, cpu or cuda with Ray; found {device!r}. Leave the number out.")
    on_gpu = device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU"))
    needs = {"CPU": 1, "GPU": 1} if on_gpu else {"CPU": settings.threads, "GPU": 0}
    if not _nodes(ray, needs):
        wanted = " and ".join(f"{count} {kind}" for kind, count in needs.items() if count)
        raise UsageError(
            f"Expected a Ray node with {wanted}; found none. Pass --device cpu or fewer --threads, or add such a node."
        )
    return needs


def _nodes(ray: Any, needs: dict[str, int]) -> list[dict[str, Any]]:
    """The living nodes on which a task can run."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in nodes if all(node["Resources"].get(kind, 0) >= count for kind, count in needs.items())]


def places(ray: Any, needs: dict[str, int]) -> int:
    """How many tasks can run at the same time."""
    wanted = {kind: count for kind, count in needs.items() if count}
    nodes = _nodes(ray, needs)
    return sum(min(int(node["Resources"][kind] // count) for kind, count in wanted.items()) for node in nodes)


def check_nodes(ray: Any, root: Path, needs: dict[str, int]) -> None:
    """Make sure that every node on which a task can run sees the root, and would run the same versions."""
    nodes = _nodes(ray, needs)
    near = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    look = ray.remote(num_cpus=0, max_retries=0)(_look)
    with NamedTemporaryFile(dir=root, suffix=TEMPORARY) as token:  # a folder of the same name would not do
        asked = [
            look.options(scheduling_strategy=near(node["NodeID"], soft=False)).remote(token.name) for node in nodes
        ]
        ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS)
        for node, answer in zip(nodes, asked, strict=True):
            _check_answer(ray, answer, node["NodeManagerAddress"], root)


def _look(token: str) -> tuple[bool, str]:
    """Whether a node sees a file, and what it would run."""
    return Path(token).exists(), f"pogm {pogm.__version__} with torch {torch.__version__}"


def _check_answer(ray: Any, answer: Any, name: str, root: Path) -> None:
    try:
        seen, versions = ray.get(answer, timeout=0)
    except ray.exceptions.RayError as error:  # one of them: no answer in time
        raise UsageError(
            f"Expected the Ray node {name} to run pogm; found: {error}. Install the same there as here."
        ) from error
    if not seen:
        raise UsageError(
            f"Expected every Ray node to see {root}; found that {name} does not. "
            "Choose an --out on storage that all of them share, at the same path."
        )
    if versions != (here := _look("")[1]):
        raise UsageError(f"Expected {here} on every Ray node; found {versions} on {name}. Install the same on all.")
