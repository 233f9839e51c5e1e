"""Settings of all tests."""

import gc
import importlib.util
import os
import signal
import sys
import tempfile
from multiprocessing import forkserver

import pytest
import torch

gc.disable()  # until all tests are imported: every collection would traverse large packages and thousands of tests

# Write the tests with rewritten assertions to __pycache__, where the other workers find them, also if
# PYTHONDONTWRITEBYTECODE is set: rewriting takes 4 s.
sys.dont_write_bytecode = False

# Workers of pytest-xdist share the cores: torch's own threads on top make small operations wait for one another.
torch.set_num_threads(1)

# A shell that starts the tests in the background, or nohup, makes them ignore signals that some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_cache = tempfile.TemporaryDirectory(prefix="pogm-test-cache-", ignore_cleanup_errors=True)
os.environ["POGM_CACHE"] = _cache.name  # decoded images of tests; one folder for each worker

# The compiler of torch would compile and load a program to test the vector instructions that the CPU reports: 9 s.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

pytest_plugins = ["browsers", "run_folders"]


def import_lazily(name: str) -> None:
    """Import a package when one of its attributes is first used."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.loader is not None and name not in sys.modules:
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


import_lazily("cvxpy")  # TorchJD imports it for one of its methods; this takes 1.5 s in every worker

# Modules whose tests wait for other processes. They start first, so that no worker of pytest-xdist waits for them alone
# at the end. Work is stolen from the other end of a worker's queue, so that one worker runs all tests with Ray.
STARTED_FIRST = ("test_ray_cluster.py", "test_torchrun.py", "test_executors.py", "test_trackers.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests that wait for other processes to the front."""
    rank = {name: number for number, name in enumerate(STARTED_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    """Start the fork server of `processes.py`, if a test uses it. Exclude what exists now from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()
    if "processes" in sys.modules:
        forkserver.ensure_running()


def pytest_sessionfinish() -> None:
    """Free at the end what was excluded: some packages report what is left when Python ends."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for ``-n auto``: one more than cores, because some tests wait.

    Each worker imports all tests, which takes 20 s of CPU time.
    """
    return (os.cpu_count() or 1) + 1
