"""``pogm experiment``: what it runs, shows and writes; stopped, resumed, and when a run fails."""

import os
import re
import signal
import threading
from dataclasses import replace

import pytest
import torch
from processes import until

from pogm.cli import experiment, main
from pogm.cli.experiment import scale_of
from pogm.cli.parser import parser
from pogm.experiments import all_experiments, base, experiments_named, table1
from pogm.experiments.base import SCALES, Row
from pogm.models import weights, weights_of

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
    assert [line.split()[:2] for line in lines[:2]] == [["table3", "12"], ["table5", "12"]]
    assert lines[2] == "All 12 runs (12 of the above are shared), 0 of them done."
    assert lines[-1].startswith("12 runs, about ")
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table1", "--algorithms", "Fishh"), "a row of table1 out of .*found 'Fishh'. Did you mean 'Fish"),
        (("figure1", "--algorithms", "ERM"), "a row of figure1 out of none; found 'ERM'"),
        (("table1", "table5", "--algorithms", "ERM"), "a row of table5 in --algorithms .*leave out table5"),
        (("table1", "--algorithms", "ERM", "ERM"), "each of --algorithms once"),
        (("table1", "--datasets", "ColoredDigit"), "Did you mean 'ColoredDigits'?"),
        (("table1", "--datasets", "Folder"), "a dataset out of .*found 'Folder'"),
        (("table1", "--network", "resnet19"), "Did you mean 'resnet18'?"),
        (("table1", "--precision", "fp31"), "Did you mean 'fp32'?"),
        (("table1", "--steps", "0"), "--steps of at least 1; found 0"),
        (("table1", "--trials", "0"), "--trials of at least 1; found 0"),
        (("table1", "--set", "kappa=0.1"), "'kappa', which is missing from .*--set POGM.kappa=0.1"),
        (("table5", "--set", "Fish.meta_lr=0.1"), "found 'Fish.meta_lr=0.1'. Leave out this setting"),
        (("table5", "--set", "POGM.kapa=0.1"), "Did you mean 'kappa'?"),
        (("inner_optimizer", "--set", "lr=0.1"), "'lr=0.1', which all of them fix"),
    ],
)
def test_a_change_that_does_not_apply_is_refused_before_anything_is_written(tmp_path, capsys, words, message):
    assert main(["experiment", *words, "--scale", "embedded", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.count("Expected") == 1
    assert not (tmp_path / "out").exists()


def test_options_change_the_scale_and_the_rows():
    words = ["experiment", "table1", "--scale", "embedded", "--algorithms", "ERM", "ANDMask", "POGM", "pogm, kappa = 0"]
    words += ["--datasets", "ColoredDigits", "--network", "mlp", "--precision", "fp64", "--steps", "12"]
    words += ["--evaluate-every", "3", "--trials", "1", "--set", "POGM.kappa=0.3", "--set", "lr=0.02"]
    scale = scale_of(parser().parse_args(words))
    rows = all_experiments()["table1"].rows(scale)
    assert [row.name for row in rows] == ["ERM", "AND-mask", "POGM", "POGM, kappa = 0"]
    trials = [trial for own in rows.values() for trial in own]
    assert {(t.dataset.title, t.training.network, t.precision, t.steps, t.evaluate_every) for t in trials} == {
        ("ColoredDigits", "mlp", "fp64", 12, 3)
    }
    assert {t.training.lr for t in trials} == {0.02}
    assert len(trials) == 4 * 3
    kappas = {row.name: {trial.algorithm.kappa for trial in own} for row, own in rows.items() if "POGM" in row.name}
    assert kappas == {"POGM": {0.3}, "POGM, kappa = 0": {0.0}}, "a row keeps what it is named after"
    figure = all_experiments()["figure4"].trials(replace(scale, algorithms=("POGM",)))
    assert {(t.label, t.algorithm.kappa, t.training.lr, t.training.network) for t in figure} == {
        ("POGM", 0.3, 0.02, "mlp")
    }
    assert len(figure) == 1


def test_a_changed_scale_shares_runs_but_neither_tables_nor_page(tiny, tmp_path, capsys):
    words = ["--algorithms", "ERM", "--set", "ERM.batch_size=8", "--trials", "1"]
    assert command(tmp_path, "table1", more=[*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Changed from the scale embedded: --algorithms ERM --set ERM.batch_size=8 --trials 1" in said
    assert "All 3 runs" in said
    assert command(tmp_path, "table1", more=words) == 0
    assert command(tmp_path, "table1", more=["--algorithms", "ERM"]) == 0
    assert len(done(tmp_path)) == 6
    assert command(tmp_path, "table1", more=["--algorithms", "ERM", "--trials", "1"]) == 0
    assert len(done(tmp_path)) == 6, "of the same trials, by another command"
    folders = sorted(path for path in tmp_path.iterdir() if path.name != "embedded")
    assert len(folders) == 3
    assert not (tmp_path / "embedded" / "table1.txt").exists()
    (changed,) = [path for path in folders if "batch_size" in (path / "table1.txt").read_text()]
    for name in ("table1.txt", "table1.tex", "index.html"):
        assert "--algorithms ERM --set ERM.batch_size=8 --trials 1" in " ".join((changed / name).read_text().split())
    assert f"--out {tmp_path} --algorithms ERM --set ERM.batch_size=8" in (changed / "index.html").read_text()


def test_known_weights_bring_their_network_unless_another_is_named(tmp_path, monkeypatch):
    file = tmp_path / "some.safetensors"
    file.write_bytes(b"weights")
    monkeypatch.setitem(weights.TRAINED_WITH, weights_of(file), "resnet50_v1")

    def networks(*words):
        options = parser().parse_args(["experiment", "figure4", "--scale", "pacs", *words])
        trials = [t for name in ("figure4", "table2") for t in all_experiments()[name].trials(scale_of(options))]
        return {(trial.training.network, trial.training.weights) for trial in trials}

    given = ("--weights", str(file))
    assert networks() == {("resnet18", "pretrained")}
    assert networks(*given) == {("resnet50_v1", weights_of(file))}
    assert networks(*given, "--network", "resnet50") == {("resnet50", weights_of(file))}
    monkeypatch.setenv("POGM_WEIGHTS", str(tmp_path))
    assert networks() == {("resnet50_v1", weights_of(file))}, "found"
    assert networks("--network", "resnet50") == {("resnet50", "pretrained")}


def test_missing_weights_fail_once_and_say_what_to_pass(tmp_path, capsys, monkeypatch):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    words = ["experiment", "figure4", "--scale", "pacs", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(words) == 3
    said = capsys.readouterr().err
    assert said.count("Expected to download") == 1
    assert "--weights FILE" in said
    assert "network=resnet50_v1" in said
    assert not (tmp_path / "out").exists()


def test_an_experiment_that_is_stopped_goes_on_and_then_only_redraws(tiny, tmp_path, capsys):
    def stop():
        until(lambda: bool(done(tmp_path)))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop).start()
    assert command(tmp_path, "table3") != 0
    before = {path: path.stat().st_mtime_ns for path in done(tmp_path)}
    assert 0 < len(before) < 12
    assert not (tmp_path / "embedded" / "index.html").exists()

    capsys.readouterr()
    assert command(tmp_path, "table3") == 0
    assert len(done(tmp_path)) == 12, "3 domains, 2 configurations, OfficialPOGM and POGM"
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
    planned = table1.plan(TINY)[Row("ERM")]
    failing = replace(planned[0], training=replace(planned[0].training, lr=1e38))
    shortened = replace(experiments_named(["table1"])[0], plan=lambda scale: {Row("ERM"): [failing, *planned[1:]]})
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
    monkeypatch.setattr(experiment, "find_spec", lambda name: None)
    assert command(tmp_path, "figure1", "figure6") == 0
    assert capsys.readouterr().err.count("Install it: pip install") == 1
    written = {path.name for path in (tmp_path / "embedded").iterdir()}
    assert {"figure1.csv", "figure6.csv", "index.html"} <= written
    assert not any(name.endswith(".pdf") for name in written)
