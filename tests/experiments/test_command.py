"""``pogm experiment``: what it runs, shows and writes; stopped, resumed, and when a run fails."""

import os
import signal
import threading
from dataclasses import replace

import pytest
from processes import until

from pogm import experiment_command
from pogm.cli import main
from pogm.experiments import all_experiments, base, experiments_named, table1
from pogm.experiments.base import SCALES

TINY = replace(SCALES["embedded"], datasets=("ColoredDigits",), ablation=2, trials=1, steps=6, evaluate_every=5)


@pytest.fixture
def tiny(monkeypatch):
    """The embedded scale, with runs of six minibatches."""
    monkeypatch.setitem(base.SCALES, "embedded", TINY)


def command(out, *names, more=()):
    words = ["experiment", *names, "--scale", "embedded", "--out", str(out), "--workers", "1", "--device", "cpu"]
    return main([*words, *more])


def done(out):
    return sorted((out / "embedded" / "runs").glob("*/done"))


def test_a_dry_run_counts_shared_runs_once_and_writes_nothing(tiny, tmp_path, capsys):
    assert command(tmp_path / "out", "table5", "table3", more=["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["table3", "6"], ["table5", "6"]]
    assert lines[2] == "All 6 runs (6 of the above are shared), 0 of them done."
    assert lines[-1].startswith("6 runs, about ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tabel3", "--scale", "embedded"), "Did you mean 'table3'?"),
        (("table3", "--scale", "large"), "a scale out of embedded, full, mnist, pacs; found 'large'"),
        (("table3", "--scale", "embedded", "--workers", "0"), "--workers of at least 1"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_written(tmp_path, capsys, words, message):
    assert main(["experiment", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_experiment_that_is_stopped_goes_on_and_then_only_redraws(tiny, tmp_path, capsys):
    def stop():
        until(lambda: bool(done(tmp_path)))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop).start()
    assert command(tmp_path, "table3") != 0
    before = {path: path.stat().st_mtime_ns for path in done(tmp_path)}
    assert 0 < len(before) < 6
    assert not (tmp_path / "embedded" / "index.html").exists()

    capsys.readouterr()
    assert command(tmp_path, "table3") == 0
    assert len(done(tmp_path)) == 6
    assert all(path.stat().st_mtime_ns == when for path, when in before.items()), "what was done stays"
    first = capsys.readouterr().out
    assert first.startswith("Table 3: ")
    assert "n = 1 trial" in first

    when = [path.stat().st_mtime_ns for path in done(tmp_path)]
    assert command(tmp_path, "table3", "table4") == 0, "which needs no further run"
    assert capsys.readouterr().out.startswith(first)
    assert [path.stat().st_mtime_ns for path in done(tmp_path)] == when

    assert command(tmp_path, "figure6") == 0
    folder = tmp_path / "embedded"
    written = {path.name for path in folder.iterdir()}
    assert {f"table{n}.{form}" for n in (3, 4) for form in ("txt", "csv", "tex")} <= written
    assert {"figure6.pdf", "figure6.svg", "figure6.csv"} <= written
    page = (folder / "index.html").read_text()
    for name in ("table3", "table4", "figure6"):
        assert f"pogm experiment {name} --scale embedded --out {tmp_path}" in page, "what was made before stays on it"
    assert "Table 5" not in page
    assert (folder / "table3.csv").read_text().startswith("dataset,algorithm,selection,domain,mean,stderr,n\n")
    assert (folder / "table3.txt").read_text() in first.replace(f"{first.splitlines()[0]}\n\n", "") + "\n"


def test_a_run_that_fails_leaves_a_hole_and_the_others_go_on(tiny, tmp_path, capsys, monkeypatch):
    planned = [trial for trial in table1.plan(TINY) if trial.label == "ERM"]
    failing = replace(planned[0], training=replace(planned[0].training, lr=1e38))
    shortened = replace(experiments_named(["table1"])[0], plan=lambda scale: [failing, *planned[1:]])
    monkeypatch.setitem(all_experiments(), "table1", shortened)
    assert command(tmp_path, "table1") == 1
    said = capsys.readouterr()
    assert f"{failing.id}: ERM on ColoredDigits failed: Expected finite weights" in said.err
    assert "X (diverged)" in said.out
    assert "Failed: ERM on ColoredDigits, held out +90%, trial 0: Expected finite" in " ".join(said.out.split())
    assert "held out +90%, trial 0: Expected finite weights" in (tmp_path / "embedded" / "index.html").read_text()
    assert len(done(tmp_path)) == 2

    why = tmp_path / "embedded" / "runs" / failing.id / "failed.json"
    before = why.stat().st_mtime_ns
    assert command(tmp_path, "table1") == 1, "a failure is not forgotten"
    assert why.stat().st_mtime_ns == before
    assert command(tmp_path, "table1", more=["--retry-failed"]) == 1
    assert why.stat().st_mtime_ns > before


def test_without_matplotlib_figures_are_numbers_and_that_is_said_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment_command, "find_spec", lambda name: None)
    assert command(tmp_path, "figure1", "figure6") == 0
    assert capsys.readouterr().err.count("Install it: pip install") == 1
    written = {path.name for path in (tmp_path / "embedded").iterdir()}
    assert {"figure1.csv", "figure6.csv", "index.html"} <= written
    assert not any(name.endswith(".pdf") for name in written)
