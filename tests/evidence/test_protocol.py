"""Sweeps of the protocol: their trials, membership of runs, the plan of what is missing, tables and pages."""

import json
import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import record, write_run

from pogm._system.errors import DataError, UsageError
from pogm.benchmark.results.records import RecordWarning, Run, append_record, read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN
from pogm.benchmark.runs.directory import write_trial
from pogm.cli import main, parse
from pogm.evidence.leaderboard import evidence_tables, leaderboard, summary, write_evidence
from pogm.evidence.pages import new_section, update_tables
from pogm.evidence.plan import missing_rows
from pogm.evidence.protocol import (
    ALL_SWEEPS,
    SWEEPS,
    Sweep,
    find_archives,
    read_packed,
    sweeps_with_runs,
)
from pogm.evidence.tables import (
    difference_figure,
    evidence_table,
    published_table,
    run_costs,
    seed_blocks,
    seed_table,
)
from pogm.experiments import all_experiments
from pogm.experiments.output import empty_run
from pogm.models.weights import TRAINED_WITH

HEART = Sweep("heart_disease", "small", "HeartDisease", "mlp", 5, 3)
PACS = next(sweep for sweep in SWEEPS if sweep.name == "pacs")
COLORED = next(sweep for sweep in SWEEPS if sweep.name == "colored_mnist")


def run_of(sweep: Sweep, row: str, domain: int, seed: int, accuracy: float) -> Run:
    """A finished run of a sweep with one record."""
    (trials,) = (trials for found, trials in sweep.plan.items() if found.name == row)
    (trial,) = (t for t in trials if t.test_domains == (domain,) and t.trial_seed == seed)
    empty = empty_run(trial, Path("."))
    domains = len(empty.domains)
    return replace(empty, records=(record(200, [accuracy] * domains, [0.5] * domains),), done=True)


def runs_of(sweep: Sweep, gains: dict[str, float], seeds: int = 5) -> list[Run]:
    """Runs of some rows. A gain over ERM is the same on every domain, and varies a little between seeds."""
    return [
        run_of(sweep, row, domain, seed, 0.7 + 0.01 * seed + gain + 0.001 * seed * (row != "ERM"))
        for row, gain in gains.items()
        for domain in range(len(sweep.scale().dataset(sweep.dataset).domains))
        for seed in range(seeds)
    ]


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
    (cell,) = (row.cells[7] for row in evidence_table(PACS, found).rows if row.key == "Fish")
    assert cell == 3, "pairs of Fish and ERM"
    assert [sorted(block) for block in seed_blocks(found)] == [["ERM", "Fish"]] * 3


def test_marks_do_not_depend_on_the_number_of_complete_rows():
    """Bonferroni's m is that of the protocol."""
    few, more = (runs_of(HEART, dict.fromkeys(rows, 0.01)) for rows in (("ERM", "Fish"), ("ERM", "Fish", "IRM", "SD")))
    intervals = [evidence_table(HEART, runs).rows[1].cells[2] for runs in (few, more)]
    assert intervals[0] == intervals[1]
    assert evidence_table(replace(HEART, comparisons=1), few).rows[1].cells[2] != intervals[0]


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


def test_leaderboard_counts_datasets_with_intervals_above_and_below_zero():
    runs = runs_of(HEART, {"ERM": 0.0, "Fish": 0.1, "IRM": -0.1, "POGM": -0.001})
    table = leaderboard({HEART: runs})
    counts = {row.key: row.cells[1:4] for row in table.rows}
    assert counts == {"ERM": (0, 0, 0), "Fish": (1, 0, 0), "IRM": (0, 0, 1), "POGM": (0, 1, 0)}
    assert table.texts()["Fish"][0] == "+10.20 ± 0.07"
    assert summary({HEART: runs}) == (
        "3 comparisons with ERM on 1 dataset: 1 better, 1 worse, 1 tied (95 %, corrected)."
    )


def test_rows_with_fewer_than_five_seeds_have_a_difference_but_no_test():
    runs = runs_of(PACS, {"ERM": 0.0, "Fish": 0.1}, 5) + runs_of(PACS, {"CORAL": 0.1, "Reptile": 0.1}, 4)
    cells = {row.key: row.cells for row in evidence_table(PACS, runs).rows}
    assert cells["Fish"][2].endswith("≠")
    for label in ("CORAL", "Reptile"):
        difference, interval, detectable, *_, last_difference, last_interval, n = cells[label][1:8]
        assert difference.mean == last_difference.mean == pytest.approx(10.15)
        assert difference.stderr > 0
        assert (interval, last_interval, n) == ("–", "–", 4)
        assert math.isnan(detectable)
    assert {row.key: row.cells[1:4] for row in leaderboard({PACS: runs}).rows if row.key != "ERM"} == {
        "Fish": (1, 0, 0),
        "CORAL": (0, 0, 0),
        "Reptile": (0, 0, 0),
    }
    assert summary({PACS: runs}).endswith(" tied (95 %, corrected), and 2 not tested (fewer than 5 seeds).")
    panels = {
        panel.title: [mark.span is None for mark in panel.marks] for panel in difference_figure(PACS, runs).panels
    }
    assert panels == {"Wider intervals": [False], "Fewer than 5 seeds: no interval": [True, True]}


def test_archives_of_other_experiments_are_read_only_if_their_folder_is_named(tmp_path):
    for name in ("small", "variants", "centre", "search"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some.tar.gz").touch()
    assert find_archives(tmp_path) == [tmp_path / "small" / "some.tar.gz"]
    assert find_archives(tmp_path / "variants") == [tmp_path / "variants" / "some.tar.gz"]


def test_seed_table_has_the_standard_deviation_over_seeds():
    runs = runs_of(HEART, {"ERM": 0.0})
    runs[0] = run_of(HEART, "ERM", 0, 0, 0.3)  # 30, 71, 72, 73, 74 % on the first domain
    (row,) = seed_table(runs).rows
    assert row.cells[0] == pytest.approx(5.70, abs=0.01)  # of 60, 71, 72, 73, 74
    assert row.cells[1:] == (pytest.approx(19.04, abs=0.01), "cleveland", "30.0 … 74.0", 5)


def test_time_of_runs_that_trained_as_one_batch_is_shared():
    """Trials of one batch have the same seconds per step to the last digit. A CPU has no GPU memory."""
    runs = [
        replace(
            run, records=(*run.records, record(200, [0.7] * 4, [0.5] * 4, seconds_per_step=0.1 if n < 4 else 0.2 + n))
        )
        for n, run in enumerate(runs_of(HEART, {"ERM": 0.0}))
    ]
    seconds, memory = run_costs(runs[:4])["ERM"]
    assert seconds == pytest.approx(0.1 * 201 / 4)
    assert math.isnan(memory)
    assert run_costs(runs[4:5])["ERM"][0] == pytest.approx(4.2 * 201)


def test_marked_table_of_a_page_is_computed_again_and_the_text_stays():
    heart = next(sweep for sweep in SWEEPS if sweep.name == "heart_disease")
    complete = {heart: runs_of(HEART, {"ERM": 0.0, "Fish": 0.01})}
    mark = "<!-- records: domains, heart_disease, training-domain -->"
    page = f"Text\n\n{mark}\n\n| old |\n|---|\n| 1 |\n\nMore text\n"
    updated = update_tables(page, complete)
    assert updated.startswith(f"Text\n\n{mark}\n\n| | cleveland |")
    assert updated.endswith("|\n\nMore text\n")
    assert "| Fish | 73.2 ± 0.7 |" in updated
    assert update_tables(updated, complete) == updated
    with pytest.raises(UsageError, match="found none"):
        update_tables(page, {})
    with pytest.raises(UsageError, match="heart_disease"):
        update_tables(page.replace("heart_disease", "hart_disease"), complete)


def test_table_of_published_results_has_the_rows_that_a_publication_has():
    runs = runs_of(COLORED, {"ERM": 0.0, "Fish": 0.01, "POGM, ERM centre, κ = 0": 0.0})
    table = published_table(COLORED.complete_rows(runs), TEST_DOMAIN)
    assert [column.key for column in table.columns] == ["ours", "DomainBed (2020)", "paper, Table 1"]
    assert {row: texts[1:] for row, texts in table.texts().items()} == {
        "ERM": ["57.8 ± 0.2", "57.8 ± 0.2"],
        "Fish": ["–", "61.8 ± 0.8"],
    }
    table = published_table(COLORED.complete_rows(runs), TRAINING_DOMAIN)
    assert [row[1:] for row in table.texts().values()] == [["51.5 ± 0.1"]]


def test_new_section_of_a_sweep_has_all_tables_and_is_up_to_date():
    heart = next(sweep for sweep in SWEEPS if sweep.name == "heart_disease")
    runs = runs_of(HEART, {"ERM": 0.0, "Fish": 0.01})
    text = new_section(heart, runs)
    assert "mlp, 201 minibatches, fp32" in text
    assert "| Fish | 73.2 ± 0.7 | +1.20 ± 0.07 | +0.6 … +1.8 ≠ | 0.7 |" in text
    assert text.count("<!-- records: ") == 4
    assert text.count("| Fish |") == 4
    assert update_tables(text, {heart: runs}) == text


def test_pages_have_the_tables_and_load_nothing(tmp_path):
    complete = {HEART: runs_of(HEART, {"ERM": 0.0, "Fish": 0.1})}
    evidence, board = write_evidence(complete, tmp_path, "pogm report results")
    for path in (evidence, board):
        text = path.read_text()
        assert "+10.20" in text
        assert "default-src 'none'" in text
        assert 'src="http' not in text
        assert 'href="http' not in text
    assert "Critical differences" in evidence.read_text()
    assert len(board.read_text()) < 100_000
    with pytest.raises(UsageError, match="complete rows of ERM and another method"):
        write_evidence({HEART: runs_of(HEART, {"ERM": 0.0})}, tmp_path, "")
    titles = [table.title for table in evidence_tables(complete)]
    assert titles[:2] == ["Leaderboard", "HeartDisease: all methods against ERM"]


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
    assert "\nFish,10.0000,0.0000,10,1,0,0,1,10\n" in capsys.readouterr().out
    assert main([*words, "--format", "html"]) == 0
    assert {path.name for path in (tmp_path / "results").glob("*.html")} == {"evidence.html", "leaderboard.html"}
    assert main([*words, "--against", "paper"]) == 2
