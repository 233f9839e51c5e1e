"""Continuing a sweep of results/PLAN.md from its archive."""

import sys
import tarfile
from pathlib import Path

from sample_files import write_heart

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import continue_sweep as script
from pack_records import KEPT

from pogm.evidence.sweeps import ALL_SWEEPS, SWEEPS

HEART = next(sweep for sweep in SWEEPS if sweep.name == "heart_disease")
VARIANTS = next(sweep for sweep in ALL_SWEEPS if (sweep.name, sweep.experiment) == ("heart_disease", "pogm_variants"))


def packed_names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return {name.partition("/")[0] for name in tar.getnames()}


def test_every_archive_of_results_belongs_to_one_sweep():
    assert len({sweep.archive for sweep in ALL_SWEEPS}) == len(ALL_SWEEPS)


def test_a_sweep_grows_and_runs_of_other_archives_are_neither_repeated_nor_packed_again(tmp_path):
    """ERM's runs are in the archive of the evidence; the sweep of variants has some of them, and trains Fish."""
    write_heart(tmp_path / "data")
    options = ["--data", str(tmp_path / "data"), "--trials", "1"]
    results = tmp_path / "results"
    assert script.continue_sweep(HEART, tmp_path / "a", [*options, "--algorithms", "ERM"], results=results) == 0
    first = packed_names(results / "small" / "heart_disease.tar.gz")
    assert len(first) == 4  # one seed, four hospitals
    both = [*options, "--algorithms", "ERM", "Fish"]
    assert script.continue_sweep(VARIANTS, tmp_path / "b", both, results=results) == 0
    second = packed_names(results / "variants" / "heart_disease.tar.gz")
    assert len(second) == 4
    assert not second & first
    runs = tmp_path / "b" / "small" / "runs"
    assert all({path.name for path in (runs / name).iterdir()} == set(KEPT) for name in first)  # unpacked, not trained


def test_a_sweep_is_stopped_after_its_time_and_without_finished_runs_there_is_no_archive(tmp_path):
    write_heart(tmp_path / "data")
    options = ["--data", str(tmp_path / "data")]
    assert script.continue_sweep(HEART, tmp_path / "a", options, minutes=0.001, results=tmp_path / "results") != 0
    assert not (tmp_path / "results").exists()
