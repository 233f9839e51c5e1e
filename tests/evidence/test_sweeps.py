"""Sweeps of the protocol: their trials, membership of runs, packed records, and the plan of what is missing."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from evidence_runs import COLORED, HEART, PACS, runs_of
from run_folders import record, write_run

from pogm._system.errors import DataError
from pogm.benchmark.results.record_file import RecordWarning, append_record
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.directory import write_trial
from pogm.cli import main, parse
from pogm.evidence.archives import find_archives, read_packed, sweeps_with_runs
from pogm.evidence.plan import missing_rows
from pogm.evidence.sweeps import ALL_SWEEPS, SWEEPS
from pogm.experiments import all_experiments
from pogm.models.weights import TRAINED_WITH


@pytest.mark.parametrize("sweep", ALL_SWEEPS, ids=lambda sweep: f"{sweep.experiment}, {sweep.name}")
def test_command_of_a_sweep_plans_its_trials(sweep, tmp_path):
    words = sweep.command(["ERM", "POGM"]).split()[1:]
    assert words[:2] == ["experiment", sweep.experiment]
    if sweep.weights:  # of a file that may not be here
        at = words.index("--weights")
        words[at : at + 2] = ["--network", sweep.network]
    scale = parse(words).make_scale()
    planned = all_experiments()[sweep.experiment].trials(replace(scale, weights=sweep.weights or None))
    needed = [trial.id for row, trials in sweep.needed.items() if row.name in ("ERM", "POGM") for trial in trials]
    assert [trial.id for trial in planned] == needed
    assert set(needed) <= sweep.row_names.keys()
    assert {trial.training.network for trial in planned} == {sweep.network}


def test_weights_of_photographs_are_those_of_the_network():
    assert {sweep.network for sweep in SWEEPS if sweep.weights} == set(TRAINED_WITH.values())
    assert all(TRAINED_WITH[sweep.weights] == sweep.network for sweep in SWEEPS if sweep.weights)


def test_row_counts_when_every_domain_and_seed_is_done():
    runs = runs_of(HEART, {"ERM": 0.0, "Fish": 0.01})
    assert {run.label for run in HEART.complete_rows(runs)} == {"ERM", "Fish"}
    unfinished = [*runs[:-1], replace(runs[-1], done=False)]
    assert {run.label for run in HEART.complete_rows(unfinished)} == {"ERM"}
    (fish,) = (row for row in missing_rows(HEART, unfinished) if row.name == "Fish")
    assert (fish.done, fish.missing) == (19, 1)
    assert "ERM" not in {row.name for row in missing_rows(HEART, runs)}


def test_methods_that_are_less_common_need_fewer_seeds_on_mnist():
    counts = {row.name: len({trial.trial_seed for trial in trials}) for row, trials in COLORED.needed.items()}
    assert set(counts.values()) == {3, 5}
    assert {"ERM", "POGM", "POGM, ERM centre, κ = 0", "Fish", "ERM + SMA"} <= {
        name for name, n in counts.items() if n == 5
    }
    assert {"CDANN", "MeasurementPOGM", "ERM + MIRO"} <= {name for name, n in counts.items() if n == 3}
    runs = runs_of(COLORED, {"ERM": 0.0}, 5) + runs_of(COLORED, {"DANN": 0.0, "CDANN": 0.0}, 3)
    assert {run.label for run in COLORED.complete_rows(runs)} == {"ERM", "CDANN"}


def test_further_seeds_of_a_row_count_when_all_of_their_domains_are_done():
    runs = runs_of(PACS, {"ERM": 0.0}, 3) + runs_of(PACS, {"Fish": 0.0}, 4) + runs_of(PACS, {"CORAL": 0.0}, 2)
    found = PACS.complete_rows(run for run in runs if (run.label, run.trial_seed, run.test_domains) != ("Fish", 3, {0}))
    assert {(run.label, run.trial_seed) for run in found} == {
        (row, seed) for row in ("ERM", "Fish") for seed in range(3)
    }
    found = PACS.complete_rows(runs)
    assert {run.trial_seed for run in found if run.label == "Fish"} == {0, 1, 2, 3}
    assert {row.name: (row.done, row.missing) for row in missing_rows(PACS, runs)}["CORAL"] == (8, 4)


def test_rows_that_share_their_training_are_planned_once():
    """ERM + SMA needs time of its own only if the runs of ERM are finished without it."""
    planned = {row.name: row for row in missing_rows(PACS, [])}
    assert (planned["ERM + SMA"].trained_with, planned["ERM + SMA"].seconds) == ("ERM", 0.0)
    assert planned["POGM + SWAD"].trained_with == "POGM"
    assert planned["ERM"].trained_with == planned["ERM + MIRO"].trained_with == ""
    alone = {row.name: row for row in missing_rows(PACS, runs_of(PACS, {"ERM": 0.0}))}
    assert alone["ERM + SWAD"].trained_with == ""
    assert alone["ERM + SMA"].trained_with == "ERM + SWAD"


def test_estimated_time_is_proportional_to_the_missing_runs():
    all_missing = {row.name: row for row in missing_rows(HEART, [])}
    some = {row.name: row for row in missing_rows(HEART, runs_of(HEART, {"ERM": 0.0})[:10])}
    assert some["ERM"].seconds == pytest.approx(all_missing["ERM"].seconds / 2)
    assert all_missing["ERM"].seconds == pytest.approx(20 * 0.4), "see docs/tables.md"


def test_run_of_another_package_is_a_row_if_it_is_paired_with_erm():
    """The trial must be that of ERM in everything but the method."""
    runs = runs_of(HEART, {"ERM": 0.0})
    mine = [
        replace(run, id=f"mine{n}", label="Mine", trial={**run.trial, "algorithm": {"name": "x:Mine"}})
        for n, run in enumerate(runs)
    ]
    longer = [replace(run, trial={**run.trial, "steps": 999}) for run in mine]
    assert {run.label for run in HEART.complete_rows([*runs, *mine])} == {"ERM", "Mine"}
    assert {run.label for run in HEART.complete_rows([*runs, *longer])} == {"ERM"}
    with pytest.warns(RecordWarning, match="20 of 20 runs are not of the evidence, for example Mine on HeartDisease"):
        assert sweeps_with_runs(longer) == {}


def test_archives_of_other_experiments_are_read_only_if_their_folder_is_named(tmp_path):
    for name in ("small", "variants", "centre", "search"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some.tar.gz").touch()
    assert find_archives(tmp_path) == [tmp_path / "small" / "some.tar.gz"]
    assert find_archives(tmp_path / "variants") == [tmp_path / "variants" / "some.tar.gz"]


def test_archive_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "broken.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"broken.tar.gz; found"):
        read_packed(tmp_path)


def pack(runs: Path, archive: Path) -> int:
    packed: int = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "pack_records.py"))["pack"](
        runs, archive
    )
    return packed


def test_packed_and_plain_runs_are_read_alike(tmp_path):
    plain = tmp_path / "plain"
    write_run(plain, [record(10, [0.5] * 3, [0.5] * 3)])
    (tmp_path / "packed").mkdir()
    assert pack(plain, tmp_path / "packed" / "some.tar.gz") == 1
    (one,), (other,) = read_packed(tmp_path / "packed"), read_runs(plain)
    assert (one.id, json.dumps(list(one.records))) == (other.id, json.dumps(list(other.records)))


def test_report_of_packed_records_has_a_row_for_a_run_folder_beside_them(tmp_path, capsys):
    """ERM is packed; the runs of another method are in a folder that the command names, too."""
    heart = next(sweep for sweep in SWEEPS if sweep.name == "heart_disease")
    for row, trials in heart.plan.items():
        if row.name in ("ERM", "Fish"):
            for trial in trials:
                folder = tmp_path / row.name / trial.id
                folder.mkdir(parents=True)
                write_trial(folder, trial, {"device": "cpu", "torch": "2.15.0"})
                accuracy = 0.7 + 0.01 * trial.trial_seed + 0.1 * (row.name == "Fish")
                append_record(folder / "records.jsonl", record(200, [accuracy] * 4, [0.5] * 4))
                (folder / "done").write_text("done")
    (tmp_path / "results" / "small").mkdir(parents=True)
    pack(tmp_path / "ERM", tmp_path / "results" / "small" / "records.tar.gz")
    words = ["report", str(tmp_path / "results"), str(tmp_path / "Fish")]
    assert main([*words, "--format", "csv"]) == 0
    assert "\nFish,1,0,0,1,10,10.0000,0.0000,10\n" in capsys.readouterr().out
    assert main([*words, "--format", "html"]) == 0
    assert {path.name for path in (tmp_path / "results").glob("*.html")} == {"evidence.html", "leaderboard.html"}
    assert main([*words, "--against", "paper"]) == 2
