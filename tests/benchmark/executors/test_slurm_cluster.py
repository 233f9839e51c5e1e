"""The Slurm executor, with commands of Slurm that run jobs on this machine."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import model_weights, records, until
from support import trial

from pogm import ERM, POGM
from pogm._system.errors import PogmError, StoppedError, UsageError
from pogm._system.files import lock_folder
from pogm.benchmark.executors import slurm_cluster, slurm_job
from pogm.benchmark.executors.slurm_cluster import JobOptions, run_on_slurm
from pogm.benchmark.executors.slurm_job import FOLDER, SweepJob
from pogm.benchmark.executors.waiting_trials import executor, run_waiting_trials
from pogm.benchmark.executors.worker import describe_versions
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.state import state_of
from pogm.benchmark.runs.sweep_directory import save_plan
from pogm.cli.options import Scheduling, Slurm
from pogm.data.datasets.base import Training
from pogm.engine.session import Engine

needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason='needs submitit: pip install "pogm[slurm]"'
)
EVERY_SAVE = RunOptions(checkpoint_seconds=0)
FINE, LONG = trial(POGM()), trial(ERM(), steps=101, evaluate_every=20)
DIVERGING = trial(ERM(), training=Training(network="mlp", lr=1e30))

COMMANDS = {
    "sbatch": """
cp "$1" "$FAKE_SLURM/job.sh"
touch "$FAKE_SLURM/active"
export SLURM_JOB_ID=7
if [ -e "$FAKE_SLURM/nodes" ]; then (bash "$FAKE_SLURM/job.sh"; rm "$FAKE_SLURM/active") > /dev/null 2>&1 & fi
echo Submitted batch job 7""",
    "srun": """
while [ "${1#--}" != "$1" ]; do [ "$1" = --unbuffered ] || shift; shift; done
exec "$@" > "$FAKE_SLURM/out" 2>&1""",
    "squeue": '[ ! -e "$FAKE_SLURM/active" ] || echo 7',
    "scontrol": "",
}


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
    """A folder in which commands of Slurm record their calls; the file "active" exists while a job does."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    for name, text in COMMANDS.items():
        path = folder / "bin" / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> "$FAKE_SLURM/calls"\n{text}\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setattr(slurm_cluster, "QUEUE_SECONDS", 0.0)
    monkeypatch.setattr(slurm_cluster, "POLL_SECONDS", 0.05)
    return folder


def calls(slurm: Path, name: str) -> list[str]:
    """Return the calls of a command."""
    lines = (slurm / "calls").read_text().splitlines() if (slurm / "calls").exists() else []
    return [line for line in lines if line.startswith(name)]


def pending(status: Path) -> int:
    """Return the signals, as bits, that wait for a process."""
    return int(re.search(r"ShdPnd:\s*(\w+)", status.read_text())[1], 16)


def submit(root: Path, trials, options=EVERY_SAVE, **jobs) -> str:
    return slurm_cluster._submit_if_none_is_active(
        slurm_job.import_submitit(), trials, root, options, JobOptions(**jobs)
    )


@needs_submitit
def test_a_sweep_in_a_job_has_the_records_and_weights_of_single_runs(slurm, tmp_path, monkeypatch, capsys):
    (slurm / "nodes").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    run(FINE, tmp_path / "alone", EVERY_SAVE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        outcomes = list(run_on_slurm([DIVERGING, FINE], Path("sweep"), EVERY_SAVE))
    errors = {outcome.trial: outcome.error for outcome in outcomes}
    assert errors[FINE] is None, (slurm / "out").read_text()
    assert "Expected finite weights" in errors[DIVERGING]
    folder = tmp_path / "sweep" / FINE.id
    assert records(folder) == records(tmp_path / "alone")
    assert model_weights(folder) == model_weights(tmp_path / "alone")
    assert "1 Slurm job submitted: 7. Logs:" in capsys.readouterr().err
    until(lambda: not (slurm / "active").exists())


@needs_submitit
def test_a_job_near_its_time_limit_saves_a_checkpoint_is_queued_again_and_continues(slurm, tmp_path, monkeypatch):
    submission = importlib.import_module("submitit.core.submission")
    run(LONG, tmp_path / "alone", EVERY_SAVE)
    root = tmp_path / "sweep"
    submit(root, [LONG])
    variables = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SUBMITIT_FOLDER": ""}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POGM_FAULT", "stop@step:50")  # the run cannot finish before it is warned

    def warn() -> None:
        until(lambda: any((root / LONG.id).glob("checkpoints/*.json")))
        process = Path("/proc") / (root / LONG.id / "lock").read_text().split()[1] / "status"
        until(lambda: "T (stopped)" in process.read_text())
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: pending(process) >> signal.SIGTERM - 1 & 1 == 1)
        os.kill(int(process.parent.name), signal.SIGCONT)

    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        threading.Thread(target=warn, daemon=True).start()
        with pytest.raises(SystemExit):
            submission.process_job(root / FOLDER)
        assert calls(slurm, "scontrol") == ["scontrol requeue 7"]
        assert state_of(root / LONG.id) == "interrupted"
        monkeypatch.delenv("POGM_FAULT")
        submission.process_job(root / FOLDER)  # Slurm starts the job again
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert records(root / LONG.id) == records(tmp_path / "alone")
    assert model_weights(root / LONG.id) == model_weights(tmp_path / "alone")
    assert "--signal=USR1@120" in (slurm / "job.sh").read_text()


def test_a_job_leaves_trials_of_other_jobs_and_failed_trials_alone_and_begins_at_its_own(tmp_path, capsys):
    alike = [trial(ERM(), seed=seed, steps=3) for seed in range(4)]
    save_plan(alike, tmp_path / FOLDER)
    for one in alike[:2]:
        (tmp_path / one.id).mkdir()
    (tmp_path / alike[1].id / "failed.json").write_text('{"error": "NaN"}')
    with lock_folder(tmp_path / alike[0].id):
        SweepJob(tmp_path, RunOptions(), 3, 4, describe_versions())()
    assert [state_of(tmp_path / one.id) for one in alike] == ["waiting", "failed", "done", "done"]
    ended = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(ended) == {alike[2].id, alike[3].id}


def test_a_job_refuses_a_node_with_other_versions(tmp_path):
    with pytest.raises(UsageError, match=r"Expected pogm 0\.0 on every node; found pogm .* Install the same"):
        SweepJob(tmp_path, RunOptions(), versions="pogm 0.0")()


@needs_submitit
def test_the_same_command_waits_for_active_jobs_and_submits_no_others(slurm, tmp_path, capsys):
    submit(tmp_path, [FINE])
    with lock_folder(tmp_path / FOLDER):  # another driver is about to submit
        pass
    driver = run_waiting_trials([FINE], tmp_path, EVERY_SAVE, executor("slurm"), with_running=True)
    thread = threading.Thread(target=run, args=(FINE, tmp_path / FINE.id))
    thread.start()
    try:
        assert [outcome.error for outcome in driver] == [None]
    finally:
        thread.join()
    assert len(calls(slurm, "sbatch")) == 1
    assert "The Slurm jobs 7 are active; no others are submitted." in capsys.readouterr().err


@needs_submitit
def test_a_stopped_driver_leaves_the_jobs_alone(slurm, tmp_path):
    def stop() -> None:
        until(lambda: len(calls(slurm, "squeue")) > 1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(StoppedError, match=r"The Slurm jobs 7 go on.*scancel 7") as end:
        list(run_on_slurm([FINE], tmp_path, EVERY_SAVE))
    assert end.value.exit_code == 130
    assert (slurm / "active").exists()


@needs_submitit
def test_jobs_are_submitted_again_while_runs_end_and_then_an_error_gives_the_reason(slurm, tmp_path):
    (slurm / "bin" / "squeue").write_text("#!/bin/bash\necho Invalid job id specified >&2\nexit 1")
    (tmp_path / LONG.id).mkdir()
    driver = run_on_slurm([FINE, LONG], tmp_path, EVERY_SAVE)
    thread = threading.Thread(target=lambda: (until(lambda: calls(slurm, "sbatch") != []), mark_done(tmp_path)))
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm_cluster, "QUEUE_SECONDS", 1.0)
        assert next(driver).trial == FINE
    thread.join()
    with pytest.raises(PogmError, match=r"They wrote no log to .*Choose an --out on storage that all nodes share"):
        next(driver)
    assert len(calls(slurm, "sbatch")) == 2
    (tmp_path / FOLDER / "7_0_log.err").write_text("Traceback\nModuleNotFoundError: No module named 'pogm'\n")
    with pytest.raises(PogmError, match=r"finish 1 runs; .* The last line of .*7_0_log.err: ModuleNotFoundError"):
        list(run_on_slurm([LONG], tmp_path, EVERY_SAVE))


def mark_done(root: Path) -> None:
    (root / FINE.id).mkdir()
    (root / FINE.id / "done").touch()


@needs_submitit
def test_options_become_parameters_of_sbatch(slurm, tmp_path):
    given = ("account=0123", "mem_gb=32", "setup=module load cuda", "setup=ulimit -n 4096", "reservation=night")
    jobs = {"jobs": 2, "partition": "gpu", "time_limit": 30, "slurm": (*given, "requeue=true")}
    submit(tmp_path, [FINE, LONG, DIVERGING], RunOptions(engine=Engine("cuda")), **jobs)
    lines = (slurm / "job.sh").read_text().splitlines()
    found = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    wanted = {"partition=gpu", "time=30", "gpus-per-node=1", "account=0123", "mem=32GB", "reservation=night", "requeue"}
    assert wanted | {"array=0-1%2", "job-name=pogm"} <= found
    assert {"module load cuda", "ulimit -n 4096"} <= set(lines)
    assert json.loads((tmp_path / FOLDER / "jobs.json").read_text()) == {"job": "7", "jobs": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("account", "Expected --slurm NAME=VALUE"),
        ("time=1:00", "Expected --time-limit for time"),
        ("mem_gb=much", "Expected a number"),
    ],
)
def test_wrong_parameters_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        list(slurm_cluster.job_parameters(JobOptions(slurm=(text,)), "auto"))


@needs_submitit
def test_a_refusal_of_slurm_is_an_error_with_its_words(slurm, tmp_path):
    (slurm / "bin" / "sbatch").write_text("#!/bin/bash\necho invalid partition specified: gpux >&2\nexit 1")
    with pytest.raises(UsageError, match="invalid partition specified: gpux"):
        submit(tmp_path, [FINE], partition="gpux")


def test_missing_commands_and_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"found no sbatch, srun, squeue here. Start pogm on a login node"):
        slurm_cluster.check_commands()
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r'pip install "pogm\[slurm\]"'):
        list(run_on_slurm([FINE], tmp_path, RunOptions()))
    assert not list(tmp_path.iterdir())


def test_finished_trials_need_no_slurm(tmp_path, monkeypatch):
    mark_done(tmp_path)
    monkeypatch.setattr(slurm_cluster, "import_submitit", lambda: pytest.fail("imported submitit"))
    assert [outcome.error for outcome in run_on_slurm([FINE], tmp_path, RunOptions())] == [None]


def test_a_busy_server_of_slurm_does_not_end_the_driver(slurm):
    (slurm / "bin" / "squeue").write_text("#!/bin/bash\necho Unable to contact slurm controller >&2\nexit 1")
    assert slurm_cluster._is_active_or_unknown("7")
    with pytest.raises(UsageError, match="Unable to contact slurm controller"):
        slurm_cluster.is_active("7")
    assert subprocess.run(["squeue"], capture_output=True).returncode == 1


def test_options_of_slurm_need_the_executor():
    with pytest.raises(UsageError, match="Expected --jobs --slurm only with --executor slurm; found --executor ray"):
        Scheduling(executor="ray", slurm=Slurm(jobs=2, slurm=("account=a",))).make_executor()
    assert Scheduling(executor="slurm", slurm=Slurm(jobs=2)).make_executor().keywords["jobs"].jobs == 2


@pytest.mark.parametrize(("visible", "found"), [("2,5", ["2", "5"]), (None, ["0", "1"])])
def test_every_gpu_of_a_job_gets_a_process(monkeypatch, visible, found):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert slurm_job.visible_gpus() == found
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert slurm_job.visible_gpus() == (None,)
