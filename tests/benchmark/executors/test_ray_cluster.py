"""The Ray executor: a cluster of two nodes on this machine, with workers and drivers that are killed."""

import contextlib
import dataclasses
import importlib.util
import io
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import Deadly, model_weights, records, until
from support import trial

from pogm import ERM, POGM
from pogm._system.errors import UsageError
from pogm._system.files import lock_folder
from pogm.algorithms import algorithm_class
from pogm.benchmark.executors import ray_cluster
from pogm.benchmark.executors.local import run_all
from pogm.benchmark.executors.outcomes import ATTEMPTS, GIVEN_UP
from pogm.benchmark.executors.ray_cluster import DIED, IN_USE, run_on_ray
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.data.datasets.base import Training
from pogm.engine.session import Engine

EVERY_SAVE = RunOptions(checkpoint_seconds=0)
LONG = trial(ERM(), steps=1001, evaluate_every=100)
FINE = trial(POGM())
GUARDED = trial(ERM(), seed=1)
DEADLY = trial(ERM(), modifiers=(Deadly(),))
DIVERGING = trial(ERM(), training=Training(network="mlp", lr=1e30))
WITHOUT_DATA = trial(ERM(), dataset="RotatedMNIST", steps=1)
PATHS = os.pathsep.join(path for path in sys.path if path)


@pytest.fixture(scope="module")
def address():
    """A cluster of two nodes with one CPU each; one node claims to have a GPU."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip('needs Ray: pip install "pogm[ray]"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)  # workers need the modifiers of the tests
        patch.setenv("RAY_AUTH_MODE", "token")  # Ray listens on every interface, and reads this when it is imported
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_enable_worker_prestart", "0")  # start no workers before there is work for them
        patch.setenv("RAY_worker_niceness", "0")  # the default, 15, makes workers wait for the tests beside them
        ray_cluster.import_ray()
        from ray.cluster_utils import Cluster

        small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=small)
        cluster.add_node(**small, num_gpus=1)
        yield cluster.address
        cluster.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Runs of the same trials by the local executor."""
    root = tmp_path_factory.mktemp("local")
    assert [outcome.error for outcome in run_all([LONG, FINE, GUARDED], root, EVERY_SAVE, 1)] == [None] * 3
    return root


@pytest.fixture(scope="module")
def eventful(address, tmp_path_factory):
    """Runs with faults: a worker is killed, a directory is in use for some time, and some trials always fail."""
    root = tmp_path_factory.mktemp("ray")
    killed = []

    def kill() -> None:
        until(lambda: any((root / LONG.id).glob("checkpoints/*.json")), seconds=240)  # Ray starts slowly under load
        killed.append(owner(root / LONG.id))
        os.kill(killed[0], signal.SIGKILL)
        killed.append((root / LONG.id / "done").exists())

    trials = [GUARDED, DEADLY, LONG, DIVERGING, WITHOUT_DATA, FINE]
    (root / GUARDED.id).mkdir()
    threading.Thread(target=kill, daemon=True).start()
    said = io.StringIO()
    twice = dataclasses.replace(DIED, attempts=2)  # every attempt starts a process, which imports torch
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(root.parent),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        patch.setattr(ray_cluster, "DIED", twice)
        outcomes = run_on_ray(trials, Path(root.name), EVERY_SAVE, address=address)
        with lock_folder(root / GUARDED.id):
            found = [next(outcomes)]
        found += outcomes
    assert len(found) == len(trials)
    errors = {outcome.trial: outcome.error for outcome in found}
    return SimpleNamespace(root=root, errors=errors, killed=killed, said=said.getvalue())


def owner(folder: Path) -> int:
    """Return the last process that locked a run directory."""
    return int((folder / "lock").read_text().split()[1])


def test_records_and_weights_equal_those_of_the_local_executor(eventful, local):
    for one in (FINE, GUARDED):
        assert eventful.errors[one] is None
        assert records(eventful.root / one.id) == records(local / one.id)
        assert model_weights(eventful.root / one.id) == model_weights(local / one.id)


def test_a_trial_resumes_from_its_checkpoint_after_its_worker_was_killed(eventful, local):
    first_worker, was_done = eventful.killed
    assert not was_done
    assert owner(eventful.root / LONG.id) != first_worker
    assert eventful.errors[LONG] is None
    assert records(eventful.root / LONG.id) == records(local / LONG.id)
    assert model_weights(eventful.root / LONG.id) == model_weights(local / LONG.id)


def test_trials_that_always_fail_have_reasons_and_do_not_stop_the_others(eventful):
    assert eventful.errors[DEADLY] == GIVEN_UP
    assert ray_cluster.DIED.attempts == ATTEMPTS
    assert "Expected finite weights" in eventful.errors[DIVERGING]
    assert "Pass --data FOLDER" in eventful.errors[WITHOUT_DATA]


def test_workers_that_die_or_warn_print_nothing(eventful):
    assert eventful.said == ""


DRIVER = """
import sys
from pathlib import Path
from test_ray_cluster import EVERY_SAVE, FINE, LONG, RunOptions, ray_cluster, run_on_ray
ray_cluster.check_nodes = lambda *_: None  # tested elsewhere; it starts a process on each node
root, address = Path(sys.argv[1]), sys.argv[2]
trials, options = ([FINE, LONG], EVERY_SAVE) if address else ([LONG], RunOptions())
print([outcome.error for outcome in run_on_ray(trials, root, options, address=address or None)])
"""


@contextlib.contextmanager
def running_driver(root: Path, begun: str, address: str = ""):
    """Start a driver in another process, and wait until the long trial has a certain file."""
    words = [sys.executable, "-c", DRIVER, str(root), address]
    paths = os.environ | {"PYTHONPATH": PATHS}
    driver = subprocess.Popen(words, env=paths, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: any((root / LONG.id).glob(begun)) or driver.poll() is not None)
        assert driver.poll() is None, driver.communicate()
        yield driver
    finally:
        driver.kill()
        driver.communicate(timeout=60)


def test_the_same_call_resumes_after_a_kill_of_the_driver_and_keeps_finished_runs(
    address, local, tmp_path, monkeypatch
):
    monkeypatch.setattr(ray_cluster, "check_nodes", lambda *_: None)
    finished = tmp_path / FINE.id
    shutil.copytree(local / FINE.id, finished)
    with running_driver(tmp_path, "checkpoints/*.json", address) as driver:
        driver.kill()
    assert not (tmp_path / LONG.id / "done").exists()
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    outcomes = list(run_on_ray([FINE, LONG], tmp_path, EVERY_SAVE, address=address))
    assert {outcome.trial: outcome.error for outcome in outcomes} == {FINE: None, LONG: None}
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    assert records(tmp_path / LONG.id) == records(local / LONG.id)
    assert model_weights(tmp_path / LONG.id) == model_weights(local / LONG.id)


def test_a_stopped_driver_that_started_ray_leaves_checkpoints_and_no_worker(address, tmp_path):
    with running_driver(tmp_path, "records.jsonl") as driver:
        driver.terminate()
        out, err = driver.communicate(timeout=60)
    folder = tmp_path / LONG.id
    assert out == ""
    assert "StoppedError: Stopped by SIGTERM" in err.splitlines()[-1]
    assert list(folder.glob("checkpoints/*.json"))
    assert not (folder / "done").exists()
    assert not Path(f"/proc/{owner(folder)}").exists()


def test_trials_that_are_alike_share_a_batch_on_a_node_with_a_gpu_that_finds_their_class(
    address, tmp_path, monkeypatch
):
    """The class is in the current folder of the driver."""
    text = "from pogm import ERM\n\n\nclass HereOnly(ERM):\n    pass\n"
    (tmp_path / "here_only.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    here_only = algorithm_class("here_only:HereOnly")
    like = [trial(here_only(), seed=seed) for seed in range(2)]
    on_gpu = RunOptions(engine=Engine(device="auto"))
    root = tmp_path / "runs"
    assert [o.error for o in run_on_ray(like, root, on_gpu, address=address)] == [None, None]
    first, second = (root / one.id for one in like)
    assert records(first)
    last_begun = (second / "trial.json").stat().st_mtime_ns
    first_done = (first / "done").stat().st_mtime_ns
    assert owner(first) == owner(second)
    assert last_begun < first_done


def test_unsuitable_nodes_are_an_error_before_the_first_run(address, tmp_path, monkeypatch):
    resources = {"CPU": 1, "GPU": 1}  # of one node
    before = signal.getsignal(signal.SIGTERM)
    with ray_cluster.connect(address, 1) as ray:
        with pytest.raises(UsageError, match="Expected a Ray node with 9 CPU; found none"):
            ray_cluster.required_resources(ray, RunOptions(threads=9))
        with pytest.raises(UsageError, match="auto, cpu or cuda"):
            ray_cluster.required_resources(ray, RunOptions(engine=Engine(device="cuda:1")))
        with monkeypatch.context() as patch:
            patch.setattr(ray_cluster, "NamedTemporaryFile", _not_shared)
            with pytest.raises(UsageError, match=r"see .*; found that [\d.]+ does not"):
                ray_cluster.check_nodes(ray, tmp_path, resources)
        ray_cluster.check_nodes(ray, tmp_path, resources)
        monkeypatch.setattr("pogm.__version__", "0.0.1")
        with pytest.raises(UsageError, match=r"Expected pogm 0\.0\.1 .*; found pogm .* Install the same on all"):
            ray_cluster.check_nodes(ray, tmp_path, resources)
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before  # Ray sets another one


@contextlib.contextmanager
def _not_shared(dir: Path, suffix: str):
    yield SimpleNamespace(name=str(dir / f"not-shared{suffix}"))


def test_a_trial_of_another_process_is_tried_later_and_not_changed(tmp_path):
    (tmp_path / FINE.id).mkdir()
    with lock_folder(tmp_path / FINE.id):
        assert ray_cluster._task([FINE], tmp_path, RunOptions()) == IN_USE
    assert [path.name for path in (tmp_path / FINE.id).iterdir()] == ["lock"]


def test_a_batch_with_a_trial_that_has_begun_is_tried_later(tmp_path):
    run(FINE, tmp_path / FINE.id)
    before = records(tmp_path / FINE.id)
    assert ray_cluster._task([FINE, GUARDED], tmp_path, RunOptions()) == IN_USE
    assert records(tmp_path / FINE.id) == before
    assert ray_cluster._task([FINE], tmp_path, RunOptions()) == [None]


def test_a_failure_in_a_batch_is_not_reported_as_in_use(tmp_path):
    rates = (1e-3, 1e30)
    fine, diverging = (trial(ERM(), steps=11, training=Training(network="mlp", lr=lr)) for lr in rates)
    errors = ray_cluster._task([fine, diverging], tmp_path, RunOptions())
    assert errors[0] is None
    assert "Expected finite weights" in errors[1]


def test_a_worker_that_gets_a_signal_counts_as_dead_and_its_run_has_not_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("POGM_FAULT", "term@step:5")
    monkeypatch.setattr("pogm._system.fault_injection._passed", Counter())
    assert ray_cluster._task([LONG], tmp_path, RunOptions()) == DIED
    assert list((tmp_path / LONG.id).glob("checkpoints/*.json"))


def test_a_node_without_the_directory_reports_an_error(tmp_path):
    (error,) = ray_cluster._task([FINE], tmp_path / "missing", RunOptions())
    assert "Expected the folder" in error
    assert not list(tmp_path.iterdir())


def test_the_error_without_ray_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'pip install "pogm\[ray\]"'):
        next(run_on_ray([FINE], tmp_path, RunOptions()))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://127.0.0.1:1"])
def test_an_address_without_a_server_is_an_error_at_once(address):
    with pytest.raises(UsageError, match=f"Expected the address of a Ray cluster.*{address}"):
        ray_cluster._check_address(address)


def test_finished_trials_need_no_cluster(tmp_path, monkeypatch):
    (tmp_path / FINE.id).mkdir()
    (tmp_path / FINE.id / "done").touch()
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: pytest.fail("imported Ray for a finished trial"))
    assert [outcome.error for outcome in run_on_ray([FINE], tmp_path, RunOptions())] == [None]
