"""The local executor: many trials in many processes, with faults in some of them."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import Deadly, model_weights, records, start, until
from support import trial

from pogm import ERM, POGM
from pogm._system.cpu import count_cores
from pogm._system.errors import UsageError
from pogm._system.files import is_locked, lock_folder
from pogm.benchmark.executors import jobs, local, worker
from pogm.benchmark.executors.local import run_all
from pogm.benchmark.executors.outcomes import Outcome
from pogm.benchmark.executors.waiting_trials import RunningElsewhereWarning, run_waiting_trials
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.results.record_digest import RECORDS
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.directory import make_folder, write_trial
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.state import find_problems, state_of
from pogm.cli.status import Status
from pogm.data.datasets.base import Training
from pogm.data.datasets.colored_digits import ColoredDigits
from pogm.engine.engine import Engine

EVERY_SAVE = RunOptions(checkpoint_seconds=0)


def test_a_pool_gives_the_bits_of_single_runs_and_the_reasons_of_failures(tmp_path, monkeypatch):
    fine, diverging = trial(POGM()), trial(ERM(), training=Training(network="mlp", lr=1e30))
    without_data = trial(ERM(), dataset="RotatedMNIST", steps=1)
    run(fine, tmp_path / "alone")
    outcomes = {o.trial: o.error for o in run_all([diverging, fine, without_data], tmp_path / "pool", RunOptions(), 1)}
    assert outcomes[fine] is None
    assert "Expected finite weights" in outcomes[diverging]
    assert "Pass --data FOLDER" in outcomes[without_data]
    assert records(tmp_path / "pool" / fine.id) == records(tmp_path / "alone")
    assert model_weights(tmp_path / "pool" / fine.id) == model_weights(tmp_path / "alone")

    monkeypatch.setattr(local, "Worker", lambda: pytest.fail("started a process for a finished trial"))
    assert [o.error for o in run_all([fine], tmp_path / "pool", RunOptions())] == [None]


@pytest.mark.parametrize("end", ["kill", "term"])
def test_a_trial_resumes_from_its_checkpoint_after_its_process_ended(tmp_path, monkeypatch, end):
    one = trial(ERM(), steps=41)
    run(one, tmp_path / "alone")
    monkeypatch.setenv("POGM_FAULT", f"{end}@step:25")
    worker, started = local.Worker, []
    monkeypatch.setattr(local, "Worker", lambda *args: started.append(args) or worker(*args))
    assert [outcome.error for outcome in run_all([one], tmp_path, EVERY_SAVE, 1)] == [None]
    assert len(started) == 2
    assert records(tmp_path / one.id) == records(tmp_path / "alone")
    assert model_weights(tmp_path / one.id) == model_weights(tmp_path / "alone")


def test_a_trial_that_always_kills_its_process_is_given_up_and_the_others_finish(tmp_path, capsys):
    deadly, fine = trial(ERM(), modifiers=(Deadly(),)), trial(ERM())
    outcomes = {o.trial: o.error for o in run_all([deadly, fine], tmp_path, RunOptions(), 1)}
    assert outcomes == {deadly: "its process died 3 times (out of memory, or killed)", fine: None}
    assert state_of(tmp_path / deadly.id) == "failed"
    assert find_problems(tmp_path) == [f"{tmp_path / deadly.id} failed: {outcomes[deadly]}"]
    assert {run.id: run.failure for run in read_runs(tmp_path)} == {deadly.id: outcomes[deadly], fine.id: None}
    Status(folder=tmp_path).run()
    said = capsys.readouterr()
    assert f"{tmp_path / deadly.id} failed: {outcomes[deadly]}" in said.err
    assert "1 failed" in said.out


def test_each_trial_gets_its_share_of_a_time_limit_and_is_stopped_with_a_model(tmp_path, monkeypatch):
    """The clock of this test advances by a third of the limit when a long trial has been evaluated."""
    long = [trial(ERM(), seed=seed, steps=10**6, evaluate_every=100) for seed in range(2)]
    clock = SimpleNamespace(monotonic=lambda: 5.0 * sum((tmp_path / one.id / RECORDS).exists() for one in long))
    monkeypatch.setattr(local, "time", clock)
    short = trial(ERM(), seed=2)
    outcomes = list(run_all([*long, short], tmp_path, EVERY_SAVE, 1, deadline=15.0))
    assert {outcome.trial: outcome.is_cut for outcome in outcomes} == {long[0]: True, long[1]: True, short: False}
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for one in long:
        assert state_of(tmp_path / one.id) == "interrupted"
        assert (tmp_path / one.id / "model/model.json").exists()
    assert state_of(tmp_path / short.id) == "done"


def test_only_waiting_and_interrupted_trials_are_run(tmp_path):
    """Finished and running trials are not touched; failed ones are run with retry_failed only."""
    plan = Sweep(("ERM", "POGM"), (ColoredDigits(),), configurations=2, trials=1).plan()
    done, failed, running = (tmp_path / t.id for t in plan[:3])
    for folder in (done, failed, running):
        folder.mkdir()
    (done / "done").touch()
    (failed / "failed.json").write_text('{"error": "out of luck"}')
    executed = []

    def pretend(trials, *_):
        executed.append([t.id for t in trials])
        return (Outcome(t) for t in trials)

    with lock_folder(running):
        for retry_failed in (True, False):
            with pytest.warns(RunningElsewhereWarning, match="found 1 that other processes run"):
                outcomes = list(run_waiting_trials(plan, tmp_path, RunOptions(), pretend, retry_failed))
    assert {o.trial.id for o in outcomes} == {t.id for t in plan}
    assert [o.error for o in outcomes if o.error] == ["out of luck"]
    assert executed == [[plan[1].id] + [t.id for t in plan[3:]], [t.id for t in plan[3:]]]


def test_trials_that_other_processes_leave_unfinished_are_run_at_the_end(tmp_path):
    """One is in use from the start, another one when its turn comes. Their processes exit before the others end."""
    in_use, taken, free = plan = [trial(ERM(), seed=seed) for seed in range(3)]
    for one in plan:
        run(one, tmp_path / "alone" / one.id)
        make_folder(tmp_path / one.id)
    write_trial(tmp_path / taken.id, taken, {})
    executed = []

    def execute(trials, *_):
        executed.append(trials)
        if len(executed) == 1:
            other_process.enter_context(lock_folder(tmp_path / taken.id))
        for one in trials:
            yield Outcome(one, *worker.run_job([one], tmp_path, RunOptions()))
        other_process.close()

    with ExitStack() as other_process:
        other_process.enter_context(lock_folder(tmp_path / in_use.id))
        outcomes = list(run_waiting_trials(plan, tmp_path, RunOptions(), execute))
    assert executed == [[taken, free], [in_use, taken]]
    assert [outcome.trial for outcome in outcomes] == [free, in_use, taken]
    for one in plan:
        assert records(tmp_path / one.id) == records(tmp_path / "alone" / one.id)


def test_a_sweep_in_a_read_only_folder_is_one_error_before_its_first_run():
    outcomes = run_waiting_trials([trial(ERM())], Path("/proc/pogm"), RunOptions(), lambda *_: pytest.fail("started"))
    with pytest.raises(UsageError, match="Expected to write to the folder /proc/pogm; found: "):
        list(outcomes)


def test_nothing_is_written_to_a_directory_in_use(tmp_path):
    one = trial(ERM())
    (tmp_path / one.id).mkdir()
    with lock_folder(tmp_path / one.id):
        assert worker.run_job([one], tmp_path, RunOptions()) == [None]
    assert [path.name for path in (tmp_path / one.id).iterdir()] == ["lock"]


def test_a_failure_before_the_start_is_noted_in_the_run_directory(tmp_path):
    one = trial(ERM(), dataset="ColoredMNIST")
    (error,) = worker.run_job([one], tmp_path, RunOptions(data=tmp_path / "missing"))
    assert "MNIST" in error
    (run,) = read_runs(tmp_path)
    assert (run.status, run.failure) == ("failed", error)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_stop_with_checkpoints_when_the_driver_ends(tmp_path, number):
    words = ("sweep", "--algorithms", "ERM", "--datasets", "RotatedDigits", "--configurations", "1", "--trials", "1")
    out = tmp_path / "sweep"
    more = ("--steps", 10**6, "--evaluate-every", 100, "--checkpoint-seconds", 0, "--workers", 2, "--device", "cpu")
    driver = start(*words, *more, "--out", out)
    until(lambda: len(list(out.glob("*/checkpoints/*.json"))) >= 2)
    os.kill(driver.process.pid, number)
    ended = driver.wait()
    assert ended.code == (75 if number == signal.SIGTERM else -9)
    until(lambda: not any(is_locked(folder) for folder in out.iterdir() if folder.is_dir()))


def test_no_process_is_left_if_the_consumer_stops_early(tmp_path):
    outcomes = run_all([trial(ERM(), seed=seed) for seed in range(3)], tmp_path, RunOptions(), 1)
    before = {process.pid for process in multiprocessing.active_children()}
    next(outcomes)
    (worker,) = {process.pid for process in multiprocessing.active_children()} - before
    blocked = int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{worker}/status").read_text())[1], 16)
    assert all(blocked >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGHUP)), "the terminal sends them to all"
    outcomes.close()
    until(lambda: not Path(f"/proc/{worker}").exists())


def test_ctrl_c_stops_the_demo_with_checkpoints_and_without_tracebacks(tmp_path):
    words = [sys.executable, "-m", "pogm", "demo", "--out", str(tmp_path), "--workers", "1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: any(tmp_path.glob("*/records.jsonl")))
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends the signal to every process
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert "The same command continues from here" in err
    started = [path.parent for path in tmp_path.glob("*/trial.json")]
    assert all(list(folder.glob("checkpoints/*.json")) for folder in started)
    until(lambda: not _has_processes(process.pid))


def test_there_is_at_least_one_core():
    assert count_cores() >= 1


@pytest.mark.parametrize(("cores", "processes", "threads"), [(16, 5, 3), (2, 5, 1), (128, 1, 32), (16, 0, 16)])
def test_processes_share_the_cores_to_compile(monkeypatch, cores, processes, threads):
    monkeypatch.setattr(jobs, "count_cores", lambda: cores)
    assert jobs.share_compile_threads(processes) == threads


@pytest.mark.parametrize(("gib", "cores", "processes"), [(139, 16, 5), (139, 6, 3), (79, 16, 2), (16, 1, 1)])
def test_processes_share_a_gpu_if_its_memory_and_the_cores_allow_it(monkeypatch, gib, cores, processes):
    monkeypatch.setattr(jobs, "count_cores", lambda: cores)
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(jobs.torch.cuda, "get_device_properties", lambda device: properties)
    small = trial(ERM())
    assert jobs.is_small(small)
    assert jobs.count_gpu_processes([small], Engine()) == processes


def _has_processes(group: int) -> bool:
    """Return whether a process group still has processes."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


COMPILED_SWEEP = (
    "sweep",
    "--algorithms",
    "ERM",
    "--datasets",
    "ColoredDigits",
    "--configurations",
    "1",
    "--trials",
    "1",
)
COMPILED_SWEEP += ("--set", "network=mlp", "--workers", "1", "--device", "cpu", "--compile", "on")
NOISE = ("Traceback", "leaked", "resource_tracker", "Warning", "torch/")
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)


def start_compiled_sweep(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a sweep with compilation as a user does, in a process group of its own."""
    command = [sys.executable, "-m", "pogm", *COMPILED_SWEEP, *words, "--out", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, start_new_session=True, **pipes)


@needs_compiler
def test_a_sweep_with_compilation_prints_only_its_progress(tmp_path):
    """No warnings of the compiler, and no semaphores that it leaves in the worker."""
    process = start_compiled_sweep(tmp_path / "sweep", "--steps", "5", "--evaluate-every", "4")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert not [word for word in NOISE if word in err], err


@needs_compiler
def test_ctrl_c_of_a_sweep_with_compilation_leaves_no_semaphores(tmp_path):
    process = start_compiled_sweep(tmp_path / "sweep", "--steps", "1000000", "--evaluate-every", "10")
    until(lambda: any(tmp_path.glob("sweep/*/records.jsonl")), seconds=240)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert f"with checkpoints. Continue with: pogm resume {tmp_path}/sweep" in err
    assert not [word for word in NOISE if word in err], err
    assert list(tmp_path.glob("sweep/*/checkpoints/*.json"))
