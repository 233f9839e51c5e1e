"""``pogm measure``: runs, table, files and errors."""

import csv
import json
import re
from pathlib import Path
from statistics import pvariance

import pytest
import torch

from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.results.measurements import read_measurements, summary
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.sweep_directory import save_sweep
from pogm.cli import main, parse
from pogm.data.datasets import dataset_class
from pogm.diagnostics import Probe

SHORT = ("measure", "--steps", "9", "--evaluate-every", "4", "--device", "cpu", "--workers", "1", "--seeds", "1")
WORDS = (
    *(*SHORT, "--algorithms", "ERM", "POGM", "--set", "POGM.kappa=0.1", "--with", "Mixup"),
    *("--target", "--divergence", "--lag", "3"),
)


NEW = (
    "sum h_i·h_j",
    "Var(h_i·h) ",
    "Var(h_i·h), relative ",
    "step against a domain",
    "cos to the hull",
    "KL(p_i ‖ p_j)",
)


def filled(folder: Path, words: tuple[str, ...]) -> Path:
    """Return a folder with finished runs, made in this process, because the processes of the command start slowly."""
    for trial in parse([*words, "--out", str(folder)]).plan(RunOptions()):
        run(trial, folder / trial.id)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("measure") / "m", WORDS)


def said(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*WORDS, *words, "--out", str(folder)]) == 0
    return capsys.readouterr().out


def test_measure_prints_a_table_and_writes_every_round(folder, capsys):
    out = said(folder, capsys)
    assert "RotatedDigits, held out 0; every round measured" in out
    for row in (
        "cos(h_i, h)",
        "|θ_i − θ+|²",
        "invariant cosine",
        "|h|²",
        "correlation",
        "p*",
        "outside the hull",
        *NEW,
    ):
        assert any(line.startswith(row) for line in out.splitlines()), row
    assert "Cost: in each round, 5 copies of the model and 1 of held-out domains" in out
    *_, last = out.split("\nConclusion\n")
    assert last.startswith("In training with ERM + Mixup, domains conflict")
    assert last.splitlines()[-1].startswith(("Recommendation: ", "  "))
    assert "\nRecommendation: " in last
    with open(folder / "measures.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["algorithm"], int(row["round"])) for row in rows] == [
        (label, number) for label in ("ERM + Mixup", "POGM + Mixup") for number in range(1, 10)
    ]
    for row in rows:
        aligned = [float(row[name]) for name in row if name.startswith("alignment ")]
        assert len(aligned) == 5
        assert float(row["alignment_variance"]) == pytest.approx(pvariance(aligned), rel=1e-3)
        assert 0 <= float(row["alignment_variance_relative"]) <= 1
        assert float(row["gip"])


def test_formats_for_programs(folder, capsys):
    table = json.loads(said(folder, capsys, "--format", "json"))
    assert table["cells"]["conflicts"]["POGM + Mixup"]["n"] == 1
    for name in ("gip", "alignment_variance", "alignment_variance_relative", "worst", "hull", "divergence"):
        assert table["cells"][name]["ERM + Mixup"]["mean"] is not None, name
    assert table["conclusion"].startswith("In training with ERM + Mixup, domains conflict")
    assert "Recommendation: " in table["conclusion"]
    assert said(folder, capsys, "--format", "csv").splitlines()[0] == "algorithm,measurement,mean,stderr,n"


def test_algorithms_share_seeds_and_get_their_settings(folder):
    runs = {run.trial["algorithm"]["name"]: run for run in read_runs(folder)}
    assert runs["POGM"].trial["algorithm"]["kappa"] == 0.1
    assert runs["ERM"].trial["seed"] == runs["POGM"].trial["seed"]
    assert all(run.trial["probe"] == vars(Probe(1, 3, target=True, divergence=True)) for run in runs.values())


def test_finished_runs_stay_unfinished_ones_continue_and_failures_are_named(tmp_path, capsys):
    words = (*SHORT, "--algorithms", "ERM", "Fish", "POGM", "--set", "ERM.lr=1e30")
    folder = filled(tmp_path / "m", (*SHORT, "--algorithms", "Fish", "POGM"))
    done = {path.parent: path.stat().st_mtime_ns for path in folder.glob("*/records.jsonl")}
    interrupted = next(iter(done))
    (interrupted / "done").unlink()
    assert main([*words, "--out", str(folder)]) == 1
    said = capsys.readouterr()
    assert "ERM on RotatedDigits failed: Expected finite weights" in said.err
    assert said.out.splitlines()[2].split() == ["Fish", "POGM"]
    assert (interrupted / "done").exists()
    changed = [folder for folder, when in done.items() if (folder / "records.jsonl").stat().st_mtime_ns != when]
    assert changed == [interrupted]


def test_dry_run_lists_the_runs_and_estimate_times_them_and_both_write_nothing(tmp_path, capsys):
    words = [*SHORT, "--algorithms", "ERM", "POGM", "--out", str(tmp_path / "m")]
    assert main([*words, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "POGM  seed 0  9 minibatches" in out
    assert "2 runs to do. Their time is not known. To measure it with this data, add --estimate." in out
    assert main([*words, "--estimate"]) == 0
    out = capsys.readouterr().out
    assert "POGM  seed 0  9 minibatches" in out
    assert "times as long as without measuring" in out
    assert "2 runs, about" in out
    assert not list(tmp_path.iterdir())


def test_dry_run_takes_the_time_from_finished_runs(folder, capsys):
    out = said(folder, capsys, "--dry-run", "--seeds", "2")
    assert re.search(r"2 runs to do. 2 of them take about \d+ s on 1 process, as long as finished runs in", out)


def test_penalty_that_never_starts_gives_a_warning(tmp_path, capsys):
    words = [*SHORT, "--algorithms", "Fishr", "--dry-run", "--out", str(tmp_path)]
    main(words)
    assert (
        "its penalty weight is never used. For example: --set Fishr.penalty_anneal_iters=3" in capsys.readouterr().err
    )
    main([*words, "--set", "Fishr.penalty_anneal_iters=3"])
    assert "penalty" not in capsys.readouterr().err


def test_average_that_never_starts_gives_a_warning(tmp_path, capsys):
    main([*SHORT, "--algorithms", "ERM", "--with", "SMA", "--dry-run", "--out", str(tmp_path)])
    assert "what begins then is never used. For example: --set SMA.start_step=3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--algorithms", "POGN"), "Did you mean 'POGM'?"),
        (("--algorithms", "ERM", "ERM"), "each of --algorithms once"),
        (("--dataset", "RotatedDigit"), "Did you mean 'RotatedDigits'?"),
        (("--test-domain", "90"), "a domain of RotatedDigits"),
        (("--every", "3", "--lag", "10"), "a multiple of 3, for example 12, or the cyclic lag"),
        (("--algorithms", "ERM", "POGM", "--set", "kappa=0.1"), "'kappa', which is missing from ERM on RotatedDigits"),
        (("--algorithms", "ERM", "--set", "POGM.kappa=1"), "Add POGM to --algorithms, or leave out this setting"),
        (("--set", "POGM.kapa=1"), "Did you mean 'kappa'?"),
    ],
)
def test_usage_error_is_one_paragraph_with_exit_code_2_and_writes_nothing(tmp_path, capsys, words, message):
    assert main([*SHORT, *words, "--out", str(tmp_path / "m")]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in said
    assert "Expected" in said
    assert "; found " in said
    assert not list(tmp_path.iterdir())


def test_runs_without_a_measured_round_are_an_error(tmp_path, capsys):
    words = (*SHORT, "--algorithms", "ERM", "--every", "50")
    folder = filled(tmp_path / "m", words)
    assert main([*words, "--out", str(folder)]) == 2
    assert "measure more often than every 50 rounds, or train for longer" in capsys.readouterr().err


def test_run_measures_with_probe_every(tmp_path):
    words = ("--algorithm", "ERM", "--dataset", "RotatedDigits", "--test-domain", "0", "--device", "cpu")
    assert main(["run", *words, "--steps", "7", "--probe-every", "3", "--out", str(tmp_path / "r")]) == 0
    (found,) = read_runs(tmp_path / "r")
    assert found.records[-1]["rounds"]["round"] == [3, 6]
    metrics = found.records[-1]["metrics"]
    assert torch.tensor(metrics["cosine"]).isfinite().all()
    assert metrics["gip"] == pytest.approx(summary(read_measurements(found))["gip"])
    assert metrics["alignment_variance"] == pytest.approx(summary(read_measurements(found))["alignment_variance"])


def test_sweep_measures_with_probe_every(tmp_path, capsys):
    sweep = Sweep(("ERM",), (dataset_class("ColoredDigits")(),), configurations=1, trials=1, probe_every=3)
    assert {one.probe for one in sweep.plan()} == {Probe(every=3, lag=12)}
    save_sweep(sweep, tmp_path / "s")
    words = ["--algorithms", "ERM", "--datasets", "ColoredDigits", "--configurations", "1", "--trials", "1"]
    assert main(["sweep", *words, "--probe-every", "4", "--device", "cpu", "--out", str(tmp_path / "s")]) == 2
    assert "probe_every is 3 there and 4 here" in capsys.readouterr().err
