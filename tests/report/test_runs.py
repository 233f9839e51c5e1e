"""The report of runs: its series, tables, charts, and the escaping of names."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest
from html_pages import Page
from run_folders import metrics_of, write_sweep

from pogm._system.errors import UsageError
from pogm.benchmark.results.records import read_runs
from pogm.report.page import script
from pogm.report.runs import write_picture, write_report
from pogm.report.series import comparable, cosines, curves

HOSTILE = "<script>alert(1)</script>"


def page_of(runs, tmp_path, **options):
    return Page(write_report(runs, tmp_path / "report.html", **options).read_text(encoding="utf-8"))


def test_curves_are_means_over_trial_seeds_of_the_accuracy_on_the_held_out_domain(make_run, make_record, tmp_path):
    for seed, value in enumerate((0.70, 0.72, 0.74)):
        make_run([make_record(0, [value, 0.1, 0.1], [0] * 3)], trial_seed=seed)
    (series,) = curves(comparable(read_runs(tmp_path), "Toy"), 0)
    (point,) = series.points
    assert (point.y, point.stderr, point.n) == (pytest.approx(72), pytest.approx(0.9428, abs=1e-4), 3)
    assert curves(comparable(read_runs(tmp_path), "Toy"), 1) == []


def test_curves_show_default_hyperparameters_and_finished_runs_only(make_run, make_record, tmp_path):
    make_run([make_record(0, [0.5, 0, 0], [0] * 3)])
    make_run([make_record(0, [0.9, 0, 0], [0] * 3)], hparams_seed=4)
    make_run([make_record(0, [0.9, 0, 0], [0] * 3)], trial_seed=1, done=False)
    make_run([make_record(0, [0.9, 0, 0], [0] * 3)], test_domains=[0, 1])
    (series,) = curves(comparable(read_runs(tmp_path), "Toy"))
    assert [(point.y, point.n) for point in series.points] == [(50.0, 1)]


def test_runs_that_differ_in_more_than_seeds_are_not_averaged(make_run, make_record, tmp_path):
    for kappa in (0.1, 0.5):
        make_run([make_record(0, [kappa, 0, 0], [0] * 3)], kappa=kappa)
    assert curves(comparable(read_runs(tmp_path), "Toy"), 0) == []


def test_cosines_belong_to_the_source_domains_in_the_order_of_the_training_domains(make_run, make_record, tmp_path):
    make_run([make_record(0, [0] * 3, [0] * 3, metrics={"cosine": [0.2, 0.4]})], test_domains=[1])  # A, C
    make_run([make_record(0, [0] * 3, [0] * 3, metrics={"cosine": [0.6, None]})], test_domains=[0])  # B, C
    runs = read_runs(tmp_path)
    found = {
        domain: [p.y for s in cosines(comparable(runs, "Toy"), domain) for p in s.points] for domain in (0, 1, 2, None)
    }
    assert found == {0: [0.2], 1: [0.6], 2: [0.4], None: [pytest.approx(0.4)]}  # null is left out


def test_an_algorithm_keeps_its_colour_in_every_chart(make_sweep):
    runs = make_sweep(labels=("ERM", "Fish", "POGM"), seeds=1, domains=("A", "B", "C"))
    without = [run for run in runs if run.label != "Fish" or run.test_domains != {0}]
    assert [line.colour for line in curves(comparable(without, "RotatedDigits"), 0)] == [0, 2]


def test_the_report_has_tables_with_their_rules_curves_cosines_and_settings(make_sweep, tmp_path):
    runs = make_sweep(labels=("ERM", "POGM + Mixup"), seeds=2, domains=("A", "B", "C"))
    page = page_of(runs, tmp_path, command="pogm demo --out runs", title="A title")
    for words in (
        "A title",
        "pogm demo --out runs",
        "12 done",
        "torch 2.15.0",
        "Training-domain validation",
        "the test domain is not used",
        "Leave-one-domain-out cross-validation needs runs that hold out two domains",
        "Test-domain validation (oracle)",
        "Held out: A",
        "Source domain: C",
        "Higher is better; if a line fluctuates",
        "Lines are means over trial seeds of finished runs",
        "n = 2 trials",
        "POGM + Mixup has the highest mean accuracy on unseen domains of RotatedDigits",
        "POGM.kappa 0.5 · Mixup.alpha 0.2",
        "lr 0.001",
    ):
        assert words in page.text.replace("\N{NO-BREAK SPACE}", " "), words
    assert page.tags.count("svg") > 7


def test_the_report_contains_no_path_of_the_machine(make_sweep, tmp_path):
    path = write_report(make_sweep(labels=("ERM",), seeds=1, domains=("A", "B")), tmp_path / "report.html")
    assert str(tmp_path) not in path.read_text(encoding="utf-8")


def test_every_name_is_escaped(make_run, make_record, tmp_path):
    metrics = {"loss": 0.1, "cosine": [0.5, 0.5]}
    names = {"label": HOSTILE, "dataset": HOSTILE, "domains": (HOSTILE, '"onload="x', "\x00\ud800")}
    make_run([make_record(s, [0.5] * 3, [0.5] * 3, metrics=metrics) for s in (0, 30)], **names, note=HOSTILE)
    make_run([], **names, done=False, failure=f"{HOSTILE}\nsecond line", trial_seed=1)
    page = page_of(read_runs(tmp_path), tmp_path, command=HOSTILE, title=HOSTILE)
    assert page.programs == [script()]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert f"Held out: {HOSTILE}" in page.text


def test_runs_that_did_not_finish_are_listed_with_their_reason(make_run, make_record, tmp_path):
    make_run([make_record(0, [0.5] * 3, [0.5] * 3)])
    make_run(label="POGM", done=False, failure="out of memory: lower batch_size")
    make_run([make_record(30, [0.5] * 3, [0.5] * 3)], label="Fish", done=False)
    page = page_of(read_runs(tmp_path), tmp_path)
    assert "1\N{NO-BREAK SPACE}failed · 1\N{NO-BREAK SPACE}unfinished" in "".join(page.words)
    assert "out of memory: lower batch_size" in page.text
    assert "last record at step 30" in page.text
    assert "X failed" in page.text


def test_several_datasets_share_a_table_and_ranks(make_sweep, tmp_path):
    make_sweep(labels=("ERM", "POGM"), seeds=1, domains=("A", "B"))
    runs = make_sweep(labels=("ERM", "POGM"), seeds=1, domains=("A", "B", "C"), dataset="Other", pairs=True)
    page = page_of(runs, tmp_path)
    assert "All datasets" in page.text
    assert "Geometric mean" in page.text
    assert "Mean ranks over 2 datasets" in page.text


def test_a_report_without_runs_says_so(tmp_path):
    assert "There are no runs yet" in page_of([], tmp_path).text


def test_a_report_in_a_folder_leaves_no_other_files(tmp_path):
    assert write_report([], tmp_path) == tmp_path / "report.html"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_picture_is_one_svg_with_cosine_and_accuracy_side_by_side(make_sweep, tmp_path):
    runs = make_sweep(seeds=2, domains=("A", "B", "C"))
    root = ElementTree.parse(write_picture(runs, tmp_path / "picture.svg")).getroot()
    assert 2 * int(root.get("height")) < int(root.get("width")) < 1000
    text = " ".join(root.itertext())
    assert all(words in text for words in ("ERM", "POGM", "cos(hᵢ, h)", "Accuracy on the unseen domain"))


def test_a_picture_without_runs_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="Expected runs to draw"):
        write_picture([], tmp_path / "picture.svg")


def test_confusion_matrices_of_selected_models_are_shaded_by_row(make_run, make_record, tmp_path):
    for seed, answer in enumerate((0, 1)):
        metrics = metrics_of("A", [(0, 0), (1, answer)])
        make_run([make_record(0, [0.5] * 3, [0.5] * 3)], trial_seed=seed, metrics=metrics)
    page = page_of(read_runs(tmp_path), tmp_path)
    assert "Toy: metrics of the selected models" in page.text
    assert "ERM, held out: A class 0 class 1 class 0 2 0 class 1 1 1" in page.text
    shares = [value for _, value in page.attributes if value and "--share" in value]
    assert shares == ["--share:100%", "--share:50%", "--share:50%"]


def test_confusions_of_many_classes_are_a_list_of_pairs(make_run, make_record, tmp_path):
    answers = [*((i, i) for i in range(30)), (7, 12), (7, 12), (3, 4), (7, 7)]
    make_run([make_record(0, [0.5] * 3, [0.5] * 3)], metrics=metrics_of("A", answers, classes=30))
    page = page_of(read_runs(tmp_path), tmp_path)
    assert "Share of the true class, % ERM A class 7 class 12 2 50.0 ERM A class 3 class 4 1 50.0" in page.text


def test_report_of_runs_without_metrics_has_no_confusion_matrix(make_run, make_record, tmp_path):
    make_run([make_record(0, [0.5] * 3, [0.5] * 3)])
    page = page_of(read_runs(tmp_path), tmp_path)
    assert "metrics of the selected models" not in page.text
    assert "caption" not in page.tags


def test_report_without_measurements_does_not_import_torch(tmp_path):
    write_sweep(tmp_path, ("ERM", "POGM"), seeds=1, domains=("0", "15", "30"))
    code = (
        f"import sys; from pogm.cli import main; main(['report', {str(tmp_path)!r}]); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert (tmp_path / "report.html").exists()
