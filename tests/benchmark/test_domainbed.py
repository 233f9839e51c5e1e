"""Import and export of DomainBed sweeps: imported sweeps give the numbers of DomainBed's collector."""

import json
import math
import warnings

import pytest

from pogm._system.errors import UsageError
from pogm.benchmark.domainbed import export_domainbed, job_name
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import LEAVE_ONE_DOMAIN_OUT, SELECTIONS, TEST_DOMAIN, TRAINING_DOMAIN
from pogm.cli import main
from pogm.data.datasets.base import seed_hash

DATASET = "ColoredMNIST"  # +90%, +80%, -90%


def job_args(test_envs=(0,), hparams_seed=0, trial_seed=0, algorithm="ERM", dataset=DATASET, **more):
    test_envs = list(test_envs)
    return {
        "algorithm": algorithm,
        "checkpoint_freq": None,
        "data_dir": "data",
        "dataset": dataset,
        "holdout_fraction": 0.2,
        "hparams": None,
        "hparams_seed": hparams_seed,
        "save_model_every_checkpoint": False,
        "seed": seed_hash(dataset, algorithm, test_envs, hparams_seed, trial_seed),
        "skip_model_save": False,
        "steps": None,
        "task": "domain_generalization",
        "test_envs": test_envs,
        "trial_seed": trial_seed,
        "uda_holdout_fraction": 0,
    } | more


def write_job(root, records, done=True, tail="", **args):
    """Write a job folder; records are {step: (in accuracies, out accuracies)}."""
    args = job_args(**args)
    folder = root / job_name(args)
    folder.mkdir(parents=True)
    args["output_dir"] = str(folder)
    lines = []
    for step, (inside, outside) in records.items():
        line = {"step": step, "epoch": step / 100, "step_time": 0.01, "mem_gb": 0.5, "loss": 0.7, "args": args}
        line |= {f"env{i}_in_acc": value for i, value in enumerate(inside)}
        line |= {f"env{i}_out_acc": value for i, value in enumerate(outside)}
        lines.append(json.dumps(line | {"hparams": {"batch_size": 64, "lr": 0.001}}, sort_keys=True) + "\n")
    (folder / "results.jsonl").write_text("".join(lines) + tail)
    (folder / "out.txt").write_text("Environment:\n")
    if done:
        (folder / "done").write_text("done")
    return folder


A = {0: ([0.50, 0, 0], [0.90, 0.60, 0.60]), 100: ([0.55, 0, 0], [0.40, 0.80, 0.70])}
B = {0: ([0.65, 0, 0], [0.30, 0.70, 0.70]), 100: ([0.60, 0, 0], [0.45, 0.65, 0.75])}


def accuracies(runs, selection):
    """Return the result of every held-out domain that has one."""
    return {choice.domain: choice.accuracy for choice in selection(runs) if choice.accuracy is not None}


def numbers(runs, selection, dataset=DATASET):
    table = dataset_table(runs, dataset, selection)
    return {row: [(c.mean, c.stderr, c.n) for c in cells] for row, cells in zip(table.labels, table.cells, strict=True)}


def test_the_seed_and_the_name_of_the_job_folder_of_section_16():
    args = job_args(dataset="PACS")
    assert args["seed"] == 94828300
    assert job_name(args) == "5d347171b86e3b941e8400685158edec"
    assert job_name(args | {"output_dir": "anywhere", "checkpoint_freq": 30}) == job_name(args)
    assert job_name(args | {"steps": 1001}) != job_name(args)


def test_a_job_is_read_as_a_run(tmp_path):
    folder = write_job(tmp_path, A, hparams_seed=3, trial_seed=2, steps=1001)
    (run,) = read_runs(tmp_path)
    assert (run.folder, run.dataset, run.label, run.status) == (folder, DATASET, "ERM", "done")
    assert (run.test_domains, run.hparams_seed, run.trial_seed) == ({0}, 3, 2)
    assert run.domains == ("+90%", "+80%", "-90%")
    assert run.trial["algorithm"] == {"name": "ERM", "batch_size": 64, "lr": 0.001}
    assert run.trial["steps"] == 1001
    assert run.records[1]["accuracy"] == {"in": [0.55, 0, 0], "out": [0.40, 0.80, 0.70]}
    assert run.records[1]["metrics"] == {"loss": 0.7}
    assert (run.records[1]["seconds_per_step"], run.records[1]["memory_gb"]) == (0.01, 0.5)


def test_environments_of_an_unknown_dataset_are_numbered(tmp_path):
    write_job(tmp_path, A, dataset="Unknown")
    (run,) = read_runs(tmp_path)
    assert run.domains == ("env0", "env1", "env2")


def test_the_selection_of_section_16_from_a_domainbed_sweep(tmp_path):
    write_job(tmp_path, A, hparams_seed=0)
    write_job(tmp_path, B, hparams_seed=1)
    runs = read_runs(tmp_path)
    assert accuracies(runs, TRAINING_DOMAIN) == {0: 0.55}
    assert accuracies(runs, TEST_DOMAIN) == {0: 0.60}


def test_jobs_with_two_test_environments_count_for_leave_one_domain_out_only(tmp_path):
    write_job(tmp_path, A)
    write_job(tmp_path, {0: ([0, 0.9, 0], [0, 0, 0]), 100: ([0, 0.5, 0], [0, 0, 0])}, test_envs=(0, 1))
    write_job(tmp_path, {0: ([0, 0, 0.3], [0, 0, 0]), 100: ([0, 0, 0.5], [0, 0, 0])}, test_envs=(0, 2))
    runs = read_runs(tmp_path)
    assert accuracies(runs, LEAVE_ONE_DOMAIN_OUT) == {0: 0.50}  # step 0: (0.9 + 0.3) / 2 beats 0.5
    assert accuracies(runs, TRAINING_DOMAIN) == {0: 0.55}


def test_a_killed_job_counts_with_a_warning(tmp_path):
    write_job(tmp_path, A, hparams_seed=0)
    write_job(tmp_path, {0: B[0]}, hparams_seed=1, done=False)
    with pytest.warns(RecordWarning, match="1 of 2 DomainBed jobs have no `done`; their records are used"):
        runs = read_runs(tmp_path)
    assert accuracies(runs, TEST_DOMAIN) == {0: 0.55}  # out accuracies at the last step each has: 0.40 and 0.30
    assert [run.status for run in runs] == ["done", "unfinished"]


def test_an_incomplete_line_is_skipped_with_a_warning(tmp_path):
    write_job(tmp_path, A, tail='{"args": {"algorithm": "ERM", "data')
    with pytest.warns(RecordWarning, match=r"results\.jsonl: skipped 1 unreadable line"):
        (run,) = read_runs(tmp_path)
    assert [record["step"] for record in run.records] == [0, 100]


def test_nan_is_never_selected(tmp_path):
    write_job(tmp_path, {0: ([0.9, 0, 0], [0.9, math.nan, 0.9]), 100: A[100]}, hparams_seed=0)
    write_job(tmp_path, {100: ([0.8, 0, 0], [math.nan, 0.1, 0.1])}, hparams_seed=1)
    runs = read_runs(tmp_path)
    assert accuracies(runs, TRAINING_DOMAIN) == {0: 0.55}
    assert accuracies(runs, TEST_DOMAIN) == {0: 0.55}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no complete record"),
        ('{"step": 0}\n', "expected DomainBed's records"),
        ('{"step": 0, "args": {"dataset": 7}}\n', "expected dataset of type str"),
        (json.dumps({"step": 0, "args": job_args(test_envs=(3,)), "env0_out_acc": 0.5}), "some of 1 environments"),
    ],
)
def test_an_invalid_results_file_is_left_out_with_a_warning(tmp_path, content, reason):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "results.jsonl").write_text(content)
    with pytest.warns(RecordWarning, match=rf"job/results\.jsonl: run left out .*{reason}"):
        assert read_runs(tmp_path) == []


def test_a_copied_job_counts_once_as_the_copy_with_more_records(tmp_path):
    write_job(tmp_path / "copy", {0: A[0]})
    folder = write_job(tmp_path / "original", A)
    (run,) = read_runs(tmp_path)
    assert run.folder == folder


def test_runs_of_domainbed_with_a_label_of_ours_have_a_separate_row(tmp_path, make_run, make_record):
    domains = ("+90%", "+80%", "-90%")
    make_run([make_record(0, [0.7] * 3, [0.7] * 3)], dataset=DATASET, domains=domains)
    write_job(tmp_path, A)
    write_job(tmp_path, B, algorithm="IRM")
    table = dataset_table(read_runs(tmp_path), DATASET, TEST_DOMAIN)
    assert {row: texts[0] for row, texts in table.texts().items()} == {
        "ERM": "70.0",
        "ERM (DomainBed)": "55.0",
        "IRM": "60.0",
    }


def tables(runs):
    datasets = dict.fromkeys(run.dataset for run in runs)
    found = [dataset_table(runs, dataset, selection) for dataset in datasets for selection in SELECTIONS]
    return [table.text() for table in [*found, *(averages_table(runs, selection) for selection in SELECTIONS)]]


def test_export_and_import_preserve_every_table(make_sweep, tmp_path):
    make_sweep(["ERM", "POGM + Mixup"], dataset="Folder", domains=("art", "cartoon", "photo"), pairs=True)
    runs = make_sweep(["ERM", "POGM + Mixup"], dataset="RotatedMNIST", seeds=2)
    with pytest.warns(RecordWarning, match="prints no table of Folder, which it does not know"):
        jobs = export_domainbed(runs, tmp_path / "out")
    back = read_runs(tmp_path / "out")
    assert len(jobs) == len(back) == len(runs)
    assert tables(back) == tables(runs)
    again = tmp_path / "again"
    with pytest.warns(RecordWarning, match="no table of Folder"):
        export_domainbed(back, again)
    assert tables(read_runs(again)) == tables(runs)


def test_an_exported_job_folder_has_the_format_of_domainbed(make_run, make_record, tmp_path):
    domains = ("+90%", "+80%", "-90%")
    lines = [make_record(0, [0.1, 0.2, 0.3], [0.4, 0.5, None], metrics={"loss": None, "cosine": [0.5, 0.6]})]
    make_run(lines, label="POGM + Mixup", dataset=DATASET, domains=domains, hparams_seed=2, trial_seed=1)
    (job,) = export_domainbed(read_runs(tmp_path), tmp_path / "out")
    assert sorted(path.name for path in job.iterdir()) == ["done", "results.jsonl"]
    assert (job / "done").read_text() == "done"
    (text,) = (job / "results.jsonl").read_text().splitlines()
    line = json.loads(text)
    assert text == json.dumps(line, sort_keys=True)
    assert job.name == job_name(line["args"])
    assert line["args"]["algorithm"] == "POGM + Mixup"
    assert line["args"]["output_dir"] == str(job)
    assert (line["args"]["hparams_seed"], line["args"]["trial_seed"], line["args"]["steps"]) == (2, 1, 300)
    assert line["hparams"] == {"Mixup.alpha": 0.2, "batch_size": 32, "kappa": 0.5, "lr": 0.001, "network": "mlp"}
    assert [line["env1_in_acc"], line["env1_out_acc"], line["cosine"]] == [0.2, 0.5, [0.5, 0.6]]
    assert math.isnan(line["env2_out_acc"])  # DomainBed's collector can compute with it
    assert line["nonfinite"] is True


def test_unfinished_runs_are_not_exported(make_run, make_record, tmp_path):
    lines = [make_record(0, [0.5] * 3, [0.5] * 3)]
    make_run(lines, dataset=DATASET, domains=("+90%", "+80%", "-90%"))
    make_run(lines, dataset=DATASET, domains=("+90%", "+80%", "-90%"), hparams_seed=1, done=False)
    runs = read_runs(tmp_path)
    with pytest.warns(RecordWarning, match="Left out 1 unfinished run: DomainBed's collector would count"):
        export_domainbed(runs, tmp_path / "out")
    assert numbers(read_runs(tmp_path / "out"), TEST_DOMAIN) == numbers(runs, TEST_DOMAIN)


def test_runs_with_the_same_job_folder_are_an_error(make_run, make_record, tmp_path):
    for kappa in (0.1, 0.5):
        make_run([make_record(0, [0.5] * 3, [0.5] * 3)], kappa=kappa)
    with pytest.raises(UsageError, match="differ in other settings only"):
        export_domainbed(read_runs(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_export_to_a_folder_with_files_is_an_error(make_run, make_record, tmp_path):
    make_run([make_record(0, [0.5] * 3, [0.5] * 3)])
    with pytest.raises(UsageError, match="new or empty"):
        export_domainbed(read_runs(tmp_path), tmp_path)


def test_the_command_line_exports_and_reports_a_domainbed_sweep(tmp_path, capsys):
    for test_env in range(3):
        write_job(tmp_path / "sweep", A, test_envs=(test_env,))
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "sweep"), "--layout", "domainbed", "--out", str(out)]) == 0
    assert "3 job folders" in capsys.readouterr().err
    assert main(["report", str(out), "--format", "csv"]) == 0
    exported = capsys.readouterr().out
    assert main(["report", str(tmp_path / "sweep"), "--format", "csv"]) == 0
    assert capsys.readouterr().out == exported
    assert f"{DATASET},ERM,training-domain,+90%,55.0000,,1" in exported


def test_reading_a_valid_sweep_gives_no_warning(tmp_path):
    write_job(tmp_path, A)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_runs(tmp_path)


@pytest.mark.filterwarnings("ignore:DomainBed's collector prints no table")
def test_only_the_record_of_averaged_weights_is_exported(make_run, make_record, tmp_path):
    plain = [make_record(step, [0.9] * 3, [0.9] * 3) for step in (0, 30)]
    make_run([*plain, make_record(30, [0.4] * 3, [0.5] * 3, swad=True)], label="ERM + SWAD")
    (job,) = export_domainbed(read_runs(tmp_path), tmp_path / "out")
    (line,) = (job / "results.jsonl").read_text().splitlines()
    assert (json.loads(line)["step"], json.loads(line)["env0_in_acc"]) == (30, 0.4)
