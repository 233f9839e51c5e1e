"""Settings of all tests."""

import gc
import importlib.util
import os
import signal
import sys
import tempfile
from types import ModuleType
from typing import Any

import fork_server
import pytest

gc.disable()  # until all tests are imported: every collection would traverse large packages and thousands of tests

# Write the tests with rewritten assertions to __pycache__, where the other workers find them, also if
# PYTHONDONTWRITEBYTECODE is set: rewriting takes 4 s.
sys.dont_write_bytecode = False

# A shell that starts the tests in the background, or nohup, makes them ignore signals that some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_cache = tempfile.TemporaryDirectory(prefix="pogm-test-cache-", ignore_cleanup_errors=True)
os.environ["POGM_CACHE"] = _cache.name  # decoded images of tests; one folder for each worker

# The compiler of torch would compile and load a program to test the vector instructions that the CPU reports: 9 s.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

pytest_plugins = ["browsers", "run_folders"]


def import_lazily(name: str, *attributes: str) -> None:
    """Import a package when an attribute is first used that is not one of these, which are set to None until then."""
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    stub = ModuleType(name)
    stub.__file__, stub.__spec__ = spec.origin, spec  # other packages look for them in all modules

    def find(attribute: str) -> Any:
        if sys.modules.get(name) is stub:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    stub.__dict__.update(dict.fromkeys(attributes), __getattr__=find)
    sys.modules[name] = stub


# TorchJD imports it for methods that few tests use; this takes 1.5 s. Nothing here uses its NashMTL, with these names.
import_lazily("cvxpy", "Expression", "SolverError")

# Modules whose tests wait for other processes. They start first, so that no worker of pytest-xdist waits for them alone
# at the end. Work is stolen from the other end of a worker's queue, so that one worker runs all tests with Ray.
STARTED_FIRST = ("test_ray_cluster.py", "test_torchrun.py", "test_local.py", "test_trackers.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests that wait for other processes to the front."""
    rank = {name: number for number, name in enumerate(STARTED_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    """Start the fork server, if a test uses it. Exclude what exists now from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()
    if "processes" in sys.modules:
        fork_server.start()


def pytest_sessionfinish() -> None:
    """Free at the end what was excluded: some packages report what is left when Python ends."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for ``-n auto``: one more than cores, because some tests wait.

    Each worker imports all tests, which takes 7 s of CPU time.
    """
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node: Any) -> None:
    """Start one fork server for all workers of pytest-xdist."""
    node.workerinput["fork_server"] = fork_server.start()


def pytest_configure(config: pytest.Config) -> None:
    """Use the fork server of the process that started this worker. Use one thread.

    Workers share the cores: torch's own threads on top make small operations wait for one another.
    """
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        fork_server.share(workerinput["fork_server"])
    if workerinput is not None or not config.getoption("numprocesses", None):
        import torch

        torch.set_num_threads(1)
