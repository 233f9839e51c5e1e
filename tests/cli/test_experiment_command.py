"""``pogm experiment``: plan, runs, tables and files; stop, resume and failures."""

import json
import os
import re
import shutil
import signal
import sys
import threading
from dataclasses import replace

import pytest
import torch
from image_folders import write_folder
from processes import until

from pogm.cli import main, parse
from pogm.data.datasets.base import DomainDataset
from pogm.experiments import all_experiments, base, find_experiments, table1
from pogm.experiments.base import SCALES, Row
from pogm.experiments.trials import SweepTrials
from pogm.models import hash_weights, weights

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


def test_dry_run_counts_shared_runs_once_and_writes_nothing(tiny, tmp_path, capsys):
    assert command(tmp_path / "out", "table5", "table3", more=["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["table3", "12"], ["table5", "12"]]
    assert lines[2] == "All 12 runs (12 of the above are shared), 0 of them done."
    assert [line.split() for line in lines[3:6]] == [
        ["runs", "ColoredDigits", "all"],
        ["OfficialPOGM", "6", "6"],
        ["POGM", "6", "6"],
    ]
    assert lines[6] == "12 runs to do. Their time is not known. To measure it with this data, add --estimate."
    assert command(tmp_path / "out", "table5", "table3", more=["--estimate"]) == 0
    estimated = capsys.readouterr().out.splitlines()
    assert estimated[:3] == lines[:3]
    assert estimated[-1].startswith("12 runs, about ")
    assert not (tmp_path / "out").exists()


def test_dry_run_of_the_full_scale_builds_few_trials_and_reads_no_data_and_no_weights(tmp_path, capsys, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a dry run must not do this")

    for name in ("load", "prepare"):
        monkeypatch.setattr(DomainDataset, name, refuse)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    monkeypatch.setattr(SweepTrials, "__getitem__", refuse)
    words = ["--scale", "full", "--data", str(tmp_path / "absent"), "--weights", str(tmp_path / "absent.safetensors")]
    assert main(["experiment", "table1", *words, "--device", "cuda", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "table1           42780 runs, 0 of them done" in said
    assert re.search(r"\nruns +ColoredMNIST  RotatedMNIST   VLCS   PACS  OfficeHome  TerraIncognita  DomainNet ", said)
    assert re.search(r"\nPOGM, kappa = 0 +180 +360 +240 +240 +240 +240 +360 +1860\n", said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "figure4", "all_methods", "kappa"])
def test_dry_run_counts_the_trials_that_would_run(name, tmp_path, capsys):
    scale = SCALES["embedded"]
    assert command(tmp_path, name, more=["--dry-run"]) == 0
    count = len({trial.id for trial in all_experiments()[name].trials(scale)})
    assert f"All {count} runs (0 of the above are shared), 0 of them done." in capsys.readouterr().out


def test_dry_run_counts_finished_runs_and_takes_their_time(tiny, tmp_path, capsys):
    assert command(tmp_path, "table1", more=["--algorithms", "ERM"]) == 0
    (done(tmp_path)[0]).unlink()
    capsys.readouterr()
    more = ["--dry-run", "--algorithms", "ERM", "POGM"]
    assert command(tmp_path, "table1", "all_methods", more=more) == 0
    said = capsys.readouterr().out
    assert "table1           6 runs, 2 of them done" in said
    assert "All 6 runs (6 of the above are shared), 2 of them done." in said
    assert re.search("4 runs to do. 1 of them take about 0 s on 1 process, as long as finished runs in ", said)
    assert "The time of 3 other runs is not known: add --estimate." in said


def test_status_counts_the_runs_of_experiments(tiny, tmp_path, capsys):
    """Of one scale, or of the whole folder; with trials that are planned but have not begun."""
    assert command(tmp_path, "table1", more=["--algorithms", "ERM"]) == 0
    first, second, _ = done(tmp_path)
    first.unlink()
    shutil.rmtree(second.parent)
    for folder in (tmp_path, tmp_path / "embedded", tmp_path / "embedded" / "runs"):
        capsys.readouterr()
        assert main(["status", str(folder)]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "ColoredDigits  ERM  1 done, 1 interrupted, 1 waiting",
            "3 runs: 1 done, 0 running, 1 interrupted, 0 failed, 1 waiting",
        ]


def test_status_of_a_folder_without_runs_is_an_error(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "absent"):
        assert main(["status", str(folder)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("pogm: Expected the folder of a sweep, with sweep.json, or a folder of runs; found none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tabel3", "--scale", "embedded"), "Did you mean 'table3'?"),
        (("table3", "--scale", "large"), "full, mnist, office_caltech, pacs, small; found 'large'"),
    ],
)
def test_usage_error_writes_nothing(tmp_path, capsys, words, message):
    assert main(["experiment", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table1", "--algorithms", "Fishh"), "a row of table1 .*found 'Fishh'. Did you mean 'Fish"),
        (("figure1", "--algorithms", "ERM"), "a row of figure1 out of none; found 'ERM'"),
        (("table1", "table5", "--algorithms", "ERM"), "a row of table5 in --algorithms .*leave out table5"),
        (("table1", "--algorithms", "ERM", "ERM"), "each of --algorithms once"),
        (("table1", "--datasets", "ColoredDigit"), "Did you mean 'ColoredDigits'?"),
        (("table1", "--datasets", "Folder"), "a dataset or a folder of images out of .*found 'Folder'"),
        (("table1", "--network", "resnet19"), "Did you mean 'resnet18'?"),
        (("table1", "--precision", "fp31"), "Did you mean 'fp32'?"),
        (("table1", "--set", "kappa=0.1"), "'kappa', which is missing from .*--set POGM.kappa=0.1"),
        (("table5", "--set", "Fish.meta_lr=0.1"), "found 'Fish.meta_lr=0.1'. Leave out this setting"),
        (("table5", "--set", "POGM.kapa=0.1"), "Did you mean 'kappa'?"),
        (("inner_optimizer", "--set", "lr=0.1"), "'lr=0.1', which all rows fix"),
    ],
)
def test_change_that_does_not_apply_is_an_error_and_writes_nothing(tmp_path, capsys, words, message):
    assert main(["experiment", *words, "--scale", "embedded", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.count("Expected") == 1
    assert not (tmp_path / "out").exists()


def test_options_change_the_scale_and_the_rows():
    words = ["experiment", "table1", "--scale", "embedded", "--algorithms", "ERM", "ANDMask", "POGM", "pogm, kappa = 0"]
    words += ["--datasets", "ColoredDigits", "--network", "mlp", "--precision", "fp64", "--steps", "12"]
    words += ["--evaluate-every", "3", "--trials", "1", "--set", "POGM.kappa=0.3", "--set", "lr=0.02"]
    scale = parse(words).make_scale()
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


def test_changed_scale_shares_runs_but_not_tables_and_page(tiny, tmp_path, capsys):
    words = ["--algorithms", "ERM", "--set", "ERM.batch_size=8", "--trials", "1"]
    assert command(tmp_path, "table1", more=[*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Changed from the scale embedded: --algorithms ERM --set ERM.batch_size=8 --trials 1" in said
    assert "All 3 runs" in said
    assert command(tmp_path, "table1", more=words) == 0
    assert command(tmp_path, "table1", more=["--algorithms", "ERM"]) == 0
    assert len(done(tmp_path)) == 6
    capsys.readouterr()
    assert command(tmp_path, "table1", more=["--algorithms", "ERM", "--trials", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all_done"]
    assert found["tables"]["table1"][0]["rows"]
    assert len(done(tmp_path)) == 6, "of the same trials, by another command"
    folders = sorted(path for path in tmp_path.iterdir() if path.name != "embedded")
    assert len(folders) == 3
    assert not (tmp_path / "embedded" / "table1.txt").exists()
    (changed,) = [path for path in folders if "batch_size" in (path / "table1.txt").read_text()]
    for name in ("table1.txt", "table1.tex", "index.html"):
        assert "--algorithms ERM --set ERM.batch_size=8 --trials 1" in " ".join((changed / name).read_text().split())
    assert f"--out {tmp_path} --algorithms ERM --set ERM.batch_size=8" in (changed / "index.html").read_text()


def test_known_weights_choose_their_network_unless_another_is_given(tmp_path, monkeypatch):
    file = tmp_path / "some.safetensors"
    file.write_bytes(b"weights")
    monkeypatch.setitem(weights.TRAINED_WITH, hash_weights(file), "resnet50_v1")

    def networks(*words):
        scale = parse(["experiment", "figure4", "--scale", "pacs", *words]).make_scale()
        trials = [t for name in ("figure4", "table2") for t in all_experiments()[name].trials(scale)]
        return {(trial.training.network, trial.training.weights) for trial in trials}

    given = ("--weights", str(file))
    assert networks() == {("resnet18", "pretrained")}
    assert networks(*given) == {("resnet50_v1", hash_weights(file))}
    assert networks(*given, "--network", "resnet50") == {("resnet50", hash_weights(file))}
    monkeypatch.setenv("POGM_WEIGHTS", str(tmp_path))
    assert networks() == {("resnet50_v1", hash_weights(file))}, "found"
    assert networks("--network", "resnet50") == {("resnet50", "pretrained")}


def test_missing_weights_give_one_error_that_says_what_to_pass(tmp_path, capsys, monkeypatch):
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


def test_stopped_experiment_continues_and_then_only_writes_output(tiny, tmp_path, capsys):
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
    header, *_ = (folder / "table3.csv").read_text().splitlines()
    assert header == "dataset,algorithm,selection,domain,mean,stderr,n,test_images"
    assert (folder / "table3.txt").read_text() in first.replace(f"{first.splitlines()[0]}\n\n", "") + "\n"


def test_failed_run_leaves_an_empty_cell_and_the_others_continue(tiny, tmp_path, capsys, monkeypatch):
    planned = table1.plan(TINY)[Row("ERM")]
    failing = replace(planned[0], training=replace(planned[0].training, lr=1e30))
    shortened = replace(find_experiments(["table1"])[0], plan=lambda scale: {Row("ERM"): [failing, *planned[1:]]})
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


def test_without_vl_convert_figures_are_written_as_numbers_with_one_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert command(tmp_path, "figure1", "figure6") == 0
    assert capsys.readouterr().err.count("Install it: pip install") == 1
    written = {path.name for path in (tmp_path / "embedded").iterdir()}
    assert {"figure1.csv", "figure6.csv"} <= written
    assert not any(name.endswith((".pdf", ".html")) for name in written)


def test_experiment_runs_on_a_folder_of_images(tmp_path, capsys):
    """Two rows of the ablation of ERM++, every domain held out once; a dry run finds the finished runs."""
    folder = write_folder(tmp_path / "sites", domains=("north", "south"), images=5)
    rows = ["--algorithms", "ERM++ without warm-up", "ERM"]
    words = ["--datasets", str(folder), "--network", "mlp", "--steps", "4", "--evaluate-every", "3", "--trials", "1"]
    small = ["--set", "image_size=16", "--set", "batch_size=2", "--set", "weights=random"]
    assert command(tmp_path / "out", "erm_plus_plus", more=[*rows, *words, *small]) == 0
    assert len(done(tmp_path / "out")) == 2 * 2
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ERM++ without warm-up") for line in lines)
    assert command(tmp_path / "out", "erm_plus_plus", more=[*rows, *words, *small, "--dry-run"]) == 0
    assert "4 of them done" in capsys.readouterr().out
