"""Test commands on tables: run, predict, evaluate, train, sweep and measure."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from processes import pogm as pogm_command
from sample_files import OPTIONS, write_heart, write_table

import pogm
from pogm._system.errors import UsageError
from pogm.benchmark.results.model_metrics import read_metrics, selected_metrics_table
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.sweep_directory import save_sweep
from pogm.cli import main, parse
from pogm.data.datasets.array_dataset import ArrayWarning


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with tables, a run of a classification and a run of a regression."""
    folder = tmp_path_factory.mktemp("tables")
    write_table(folder / "classes.csv")
    write_table(folder / "numbers.csv", regression=True)
    write_table(folder / "new.csv", seed=1)
    write_table(folder / "new_numbers.csv", regression=True, seed=1)
    short = ["--test-domain", "c", "--steps", "61", "--evaluate-every", "20", "--algorithm", "ERM", "--set", "lr=0.01"]
    for name in ("classes", "numbers"):
        data = f"{folder / name}.csv:label=outcome,drop=version"
        assert main(["run", "--dataset", data, "--group", "patient", *short, "--out", str(folder / f"run_{name}")]) == 0
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def columns(path: Path) -> dict[str, np.ndarray]:
    found = rows(path.read_text())
    return {name: np.array([row[name] for row in found]) for name in found[0]}


def test_predictions_of_the_command_are_those_of_the_model(folder, capsys):
    assert main(["predict", str(folder / "run_classes"), str(folder / "new.csv")]) == 0
    found = rows(capsys.readouterr().out)
    model = pogm.load(folder / "run_classes")
    expected = model.probabilities(columns(folder / "new.csv"))
    written = torch.tensor([[float(row[f"probability_{name}"]) for name in model.classes] for row in found])
    torch.testing.assert_close(written, expected, atol=1e-5, rtol=1e-4)
    assert [row["row"] for row in found] == [str(number) for number in range(1, 121)]


def test_prediction_needs_neither_labels_nor_domains(folder, tmp_path, capsys):
    table = columns(folder / "new.csv")
    kept = ["age", "dose", "colour"]
    lines = [",".join(kept), *(",".join(cells) for cells in zip(*(table[name] for name in kept), strict=True))]
    (tmp_path / "plain.csv").write_text("\n".join(lines) + "\n")
    for path in (folder / "new.csv", tmp_path / "plain.csv"):
        assert main(["predict", str(folder / "run_classes"), str(path)]) == 0
    first, second = capsys.readouterr().out.split("row,", 2)[1:]
    assert first == second


def test_columns_of_a_data_frame_are_found_by_their_names(folder):
    model = pogm.load(folder / "run_classes")
    columns = {"age": [50.0, 61.0], "dose": [1.0, np.nan], "colour": ["blue", "red"]}
    expected = model.transform(columns)
    for names in (("age", "dose", "colour"), ("colour", "id", "dose", "age")):
        frame = pd.DataFrame({"id": [7, 8], **columns})[list(names)]
        assert torch.equal(model.transform(frame), expected)
        assert torch.equal(model.probabilities(frame), model(expected).softmax(-1))


def test_samples_of_another_form_are_refused(folder):
    model = pogm.load(folder / "run_classes")
    with pytest.raises(UsageError, match=r"columns of one length \[N\]; found age \[2\], dose \[1\], colour \[2\]"):
        model.transform({"age": [50.0, 61.0], "dose": [1.0], "colour": ["blue", "red"]})
    with pytest.raises(UsageError, match=r"columns of one length \[N\]; found age \[\]"):
        model.transform({"age": 50.0, "dose": 1.0, "colour": "blue"})
    with pytest.raises(UsageError, match="Expected samples of numbers; found: can't convert"):
        model.transform(np.array([[50.0, 1.0, "blue"]], dtype=object))
    with pytest.raises(UsageError, match="Expected a model of classes; found a regression"):
        pogm.load(folder / "run_numbers").probabilities({"age": [50.0], "dose": [1.0], "colour": ["red"]})


def test_truth_values_match_their_spelling_in_the_training_data(tmp_path):
    lines = [f"{domain},{'TRUE' if i % 2 else 'FALSE'},{i % 2}" for domain in "ab" for i in range(10)]
    (tmp_path / "t.csv").write_text("site,smoker,label\n" + "\n".join(lines))
    run = ["run", "--dataset", str(tmp_path / "t.csv"), "--algorithm", "ERM", "--steps", "3", "--test-domain", "b"]
    assert main([*run, "--out", str(tmp_path / "run")]) == 0
    model = pogm.load(tmp_path / "run")
    assert torch.equal(model.transform({"smoker": [True, False]}), model.transform({"smoker": ["TRUE", "FALSE"]}))


def test_column_with_a_usual_name_of_a_label_stays_an_input(tmp_path, capsys):
    """In training, another column is the label; a prediction must not take this one for it."""
    numbers = np.random.default_rng(0)
    lines = ["site,class,outcome", *(f"{'ab'[n % 2]},{numbers.normal():.3f},{n % 3}" for n in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    run = ["run", "--dataset", f"{tmp_path / 't.csv'}:label=outcome", "--algorithm", "ERM", "--steps", "3"]
    assert main([*run, "--test-domain", "b", "--out", str(tmp_path / "run")]) == 0
    (tmp_path / "new.csv").write_text("class\n0.5\n")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 0
    assert len(rows(capsys.readouterr().out)) == 1
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 3
    assert "Expected the column outcome in new.csv; found class" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "run" / "trial.npz")]) == 3
    assert "Expected a CSV, TSV or Parquet file, as the model was trained on" in capsys.readouterr().err


def test_unknown_category_is_predicted_and_a_missing_column_is_named(folder, tmp_path, capsys):
    model = pogm.load(folder / "run_classes")
    with pytest.warns(ArrayWarning, match="in the column colour of the table; found violet. The model has not seen"):
        x = model.transform({"age": [50.0, 50.0], "dose": [1.0, np.nan], "colour": ["violet", "red"]})
    assert x[0, 2:5].eq(0).all()
    assert x[1, 2:5].eq(torch.tensor([0.0, 0.0, 1.0])).all()
    (tmp_path / "t.csv").write_text("age,colour\n50,red\n")
    assert main(["predict", str(folder / "run_classes"), str(tmp_path / "t.csv")]) == 3
    assert "found none named dose" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_new_texts_in_a_column_are_a_warning(folder, tmp_path, capsys):
    (tmp_path / "t.csv").write_text("age,dose,colour\n50,1,red\n51,1,RED\n52,1,Red\n53,1,\n")
    assert main(["predict", str(folder / "run_classes"), str(tmp_path / "t.csv")]) == 0
    assert "in the column colour of t.csv; found RED, Red. The model has not seen them" in capsys.readouterr().err


def test_evaluation_of_a_table(folder, tmp_path, capsys):
    new = str(folder / "new.csv")
    files = ["--json", str(tmp_path / "m.json"), "--csv", str(tmp_path / "p.csv")]
    assert main(["evaluate", str(folder / "run_classes"), f"{new}:domain=site", *files]) == 0
    found = json.loads((tmp_path / "m.json").read_text())
    written = rows((tmp_path / "p.csv").read_text())
    for site, metrics in found["sites"].items():
        own = [row for row in written if row["site"] == site]
        right = sum(row["label"] == row["prediction"] for row in own)
        assert metrics["accuracy"]["value"] == pytest.approx(right / len(own))
    truth = columns(folder / "new.csv")
    assert all(row["label"] == truth["outcome"][int(row["row"]) - 1] for row in written)
    assert found["all_sites"]["accuracy"]["value"] > 0.7
    shown = capsys.readouterr().out
    assert "samples of one site are taken" in shown
    assert "images" not in shown


@pytest.mark.parametrize("method", [("ERM", "--with", "T3A"), ("ARM",)])
def test_model_that_adapts_predicts_each_site_of_a_table_on_its_own(folder, tmp_path, method, capsys):
    data, out = f"{folder / 'classes.csv'}:label=outcome,drop=version+patient", tmp_path / "run"
    words = ["run", "--dataset", data, "--algorithm", *method, "--test-domain", "c", "--steps", "21"]
    assert main([*words, "--set", "lr=0.01", "--out", str(out)]) == 0
    header, *lines = (folder / "new.csv").read_text().splitlines()  # row i is of site i modulo 4
    files = {"all": lines} | {site: lines[number::4] for number, site in enumerate("abcd")}
    found = {}
    for name, kept in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *kept]))
        capsys.readouterr()
        assert main(["predict", str(out), str(tmp_path / f"{name}.csv")]) == 0
        shown = capsys.readouterr()
        assert "Each domain of the file is predicted as one domain" in shown.err
        found[name] = [row["probability_well"] for row in rows(shown.out)]
    for number, site in enumerate("abcd"):
        assert found["all"][number::4] == found[site]
        words = ["evaluate", str(out), str(tmp_path / "all.csv"), "--site", site, "--csv", str(tmp_path / "p.csv")]
        assert main(words) == 0
        assert [row["probability_well"] for row in rows((tmp_path / "p.csv").read_text())] == found[site]


def test_evaluation_of_a_regression(folder, tmp_path, capsys):
    files = ["--json", str(tmp_path / "m.json"), "--csv", str(tmp_path / "p.csv")]
    assert main(["evaluate", str(folder / "run_numbers"), str(folder / "new_numbers.csv"), *files]) == 0
    found, written = json.loads((tmp_path / "m.json").read_text()), rows((tmp_path / "p.csv").read_text())
    error = [float(row["prediction"]) - float(row["target"]) for row in written]
    assert found["all_sites"]["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(error))), rel=1e-4)
    assert found["all_sites"]["r2"] > 0.5
    shown = capsys.readouterr()
    assert "R²" in shown.out
    assert "a has the name of a training site of the model. If it has the same samples, the errors are" in shown.err


def test_evaluation_of_a_table_speaks_of_samples(folder, capsys):
    assert main(["evaluate", str(folder / "run_classes"), str(folder / "new.csv")]) == 0
    assert "If it has the same samples, the accuracy is higher" in capsys.readouterr().err


def test_records_and_metrics_of_a_regression(folder):
    run = folder / "run_numbers"
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert {"r2", "rmse", "mae"} <= records[0].keys()
    assert "accuracy" not in records[0]
    metrics = json.loads((run / "metrics.json").read_text())
    chosen = next(record for record in records if record["step"] == metrics["selection"]["step"])
    assert metrics["domains"]["c"]["in"]["rmse"] == pytest.approx(chosen["rmse"]["in"][2], rel=1e-4)
    best = max(records, key=lambda record: np.mean([record["r2"]["out"][number] for number in (0, 1, 3)]))
    assert metrics["selection"]["step"] == best["step"]


@pytest.mark.parametrize(("name", "score"), [("classes", r"\d+\.\d%"), ("numbers", r"R² -?\d\.\d{3}")])
def test_summary_of_a_run_has_its_score_and_commands_that_work(folder, name, score, capsys):
    arguments = ["--algorithm", "ERM", "--test-domain", "c", "--steps", "61", "--evaluate-every", "20"]
    data, out = f"{folder / name}.csv:label=outcome,drop=version", folder / f"run_{name}"
    again = ["run", "--dataset", data, "--group", "patient", "--set", "lr=0.01", *arguments, "--out", str(out)]
    assert main([*again, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["held_out"][0]
    assert set(found) == {"domain", "images", "accuracy" if name == "classes" else "r2"}
    assert main(again) == 0
    printed = capsys.readouterr().err
    assert re.search(f"^Selected: .* validation: {score} ", printed, re.MULTILINE)
    assert re.search(f"^Held out: c {score} ", printed, re.MULTILINE)
    commands = re.findall(r"^(?:Next|Or): pogm (.*)$", printed, re.MULTILINE)
    assert commands == [f"evaluate {out} FILE", f"predict {out} FILE --csv predictions.csv", f"report {out}"]


def test_model_of_a_published_table_has_no_commands_for_files(tmp_path, capsys):
    """`pogm evaluate` and `pogm predict` refuse it, because only a model of a file knows the columns of files."""
    write_heart(tmp_path)
    words = ["train", "HeartDisease", "--data", str(tmp_path), "--steps", "2", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "model")]) == 0
    shown = "".join(capsys.readouterr())
    assert f"Model: {tmp_path / 'model'} (ERM)" in shown
    assert "Next:" not in shown
    assert "pogm predict" not in (tmp_path / "model" / "card.md").read_text()
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "new.csv")]) == 2
    assert "Expected a model of a table or of a file of arrays; found one of HeartDisease" in capsys.readouterr().err


def test_report_names_the_score_of_a_regression(folder, capsys):
    assert main(["report", str(folder / "run_numbers"), "--out", str(folder / "report")]) == 0
    assert "The numbers are 100 R² of a regression, not accuracies." in capsys.readouterr().out


def test_run_again_does_nothing_and_other_content_is_refused(folder, tmp_path, capsys):
    path = tmp_path / "t.csv"
    arguments = ["run", "--dataset", f"{path}:{OPTIONS}", "--algorithm", "ERM", "--test-domain", "a", "--steps", "3"]
    write_table(path)
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    write_table(path, seed=1)
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    assert "dataset.content" in capsys.readouterr().err


def test_train_on_a_regression_forecasts_r2(folder, tmp_path, capsys):
    data = f"{folder / 'numbers.csv'}:{OPTIONS}"
    out = tmp_path / "model"
    options = ["--algorithm", "ERM", "--steps", "31", "--workers", "1", "--hold-out", "d", "--set", "lr=0.01"]
    assert main(["train", data, *options, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "numbers: regression; samples by site: a 30, b 30, c 30, d 30 (held out)" in text
    assert "Expected R² at a new site" in text
    description = json.loads((out / "model.json").read_text())
    assert description["task"] == "regression"
    assert set(description["sites"]) == {"a", "b", "c"}
    card = (out / "card.md").read_text()
    assert "Regression: one number for each sample." in card
    assert "Calibration" not in card
    assert "pogm predict FOLDER FILE --csv predictions.csv" in card
    assert str(tmp_path) not in card
    prediction = pogm.load(out)(pogm.load(out).transform(columns(folder / "new_numbers.csv")))
    target = columns(folder / "new_numbers.csv")["outcome"].astype(float)
    assert np.corrcoef(prediction[:, 0], target)[0, 1] > 0.7


def test_verdict_on_a_table_finds_the_site_with_other_labels(tmp_path, capsys):
    draw = np.random.default_rng(0)
    lines = ["site,x,y,colour,label"]
    for site in "abcd":
        for number in range(80):
            x, y = draw.normal(size=2)
            label = int((x > 0) != (site == "c"))  # the classes of c are interchanged
            lines.append(f"{site},{'' if number == 0 else x},{y},{'red' if number % 2 else 'blue'},{label}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    assert main(["verdict", str(tmp_path / "t.csv"), "--json", str(tmp_path / "v.json")]) == 0
    text = capsys.readouterr().out
    assert "Concept shift: likely at c" in text
    assert "The hardest site is c" in text
    assert "samples" in text
    assert "images" not in text
    found = json.loads((tmp_path / "v.json").read_text())["sites"]
    assert {site: values["images"] for site, values in found.items()} == dict.fromkeys("abcd", 80)
    assert found["c"]["held_out"] < 0.2 < 0.9 < found["c"]["alone"]
    assert min(found[site]["held_out"] for site in "abd") > 0.7


def test_verdict_on_a_regression_is_refused(folder, capsys):
    assert main(["verdict", f"{folder / 'numbers.csv'}:{OPTIONS}"]) == 2
    assert "found a regression in numbers" in capsys.readouterr().err


def test_sweep_on_a_table_holds_out_each_site(tmp_path, capsys):
    write_table(tmp_path / "t.csv")
    data, out = f"{tmp_path / 't.csv'}:{OPTIONS}", tmp_path / "sweep"
    words = ["sweep", "--algorithms", "ERM", "--datasets", data, "--configurations", "1", "--trials", "1"]
    words += ["--steps", "11", "--evaluate-every", "10", "--workers", "1", "--out", str(out)]
    options = RunOptions(data=tmp_path)
    sweep = parse(words).sweep(options)
    save_sweep(sweep, out)
    for trial in sweep.plan():  # in this process: those of the command start slowly
        run(trial, out / trial.id, options)
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/records.jsonl")}
    assert main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/records.jsonl")} == times  # nothing trained again
    runs = read_runs(out)
    assert {run.held_out for run in runs} == set("abcd")
    shown = [line.split() for line in capsys.readouterr().out.partition("t: metrics of")[2].splitlines()]
    for site in "abcd":
        (found,) = [read_metrics(each).held_out[site] for each in runs if each.held_out == site]
        (line,) = [words for words in shown if words[:2] == ["ERM", site]]
        assert line[2:4] == [str(found.images), f"{found.values['balanced_accuracy']:.1f}"]


@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_measure_on_a_table_measures_every_round(folder, tmp_path, name, capsys):
    words = ["measure", "--dataset", f"{folder / name}.csv:{OPTIONS}", "--algorithms", "ERM", "POGM", "--seeds", "1"]
    words += ["--test-domain", "c", "--steps", "7", "--evaluate-every", "3", "--lag", "2", "--out", str(tmp_path / "m")]
    for trial in parse(words).plan(RunOptions(data=folder)):  # in this process: those of the command start slowly
        run(trial, tmp_path / "m" / trial.id, RunOptions(data=folder))
    assert main(words) == 0
    assert f"{name}, held out c; every round measured" in capsys.readouterr().out
    rounds = rows((tmp_path / "m" / "measures.csv").read_text())
    assert [(row["algorithm"], row["round"]) for row in rounds] == [
        (label, str(number)) for label in ("ERM", "POGM") for number in range(1, 8)
    ]
    cosines = [float(row[column]) for row in rounds for column in row if column.startswith("cosine ")]
    assert len(cosines) == 14 * 3  # training sites a, b and d
    assert all(-1 <= cosine <= 1 for cosine in cosines)


def test_divergence_of_a_regression_is_refused(folder, capsys):
    data = f"{folder / 'numbers.csv'}:{OPTIONS}"
    assert main(["measure", "--dataset", data, "--algorithms", "ERM", "--test-domain", "c", "--divergence"]) == 2
    assert "compares the probabilities of classes; found the regression numbers" in capsys.readouterr().err


def test_tables_of_a_regression_have_its_errors(folder, tmp_path, capsys):
    metrics = json.loads((folder / "run_numbers" / "metrics.json").read_text())["domains"]["c"]["in"]
    table = selected_metrics_table(read_runs(folder / "run_numbers"), "numbers")
    (row,) = json.loads(table.json())["rows"]
    assert (row["algorithm"], row["held_out"], row["test_images"]) == ("ERM", "c", metrics["n"])
    for name in ("r2", "rmse", "mae"):
        assert row[name]["mean"] == pytest.approx(metrics[name])
    assert main(["report", str(folder / "run_numbers"), "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report").read_text()
    for text in (capsys.readouterr().out, page):
        assert "numbers: metrics of the selected models" in text
        assert "RMSE" in text


def test_one_site_of_a_table_is_evaluated(folder, tmp_path, capsys):
    model, new = str(folder / "run_classes"), f"{folder / 'new.csv'}:domain=site"
    assert main(["evaluate", model, new, "--site", "c", "--json", str(tmp_path / "m.json")]) == 0
    found = json.loads((tmp_path / "m.json").read_text())
    assert list(found["sites"]) == ["c"]
    assert found["sites"]["c"]["n"] == 30
    assert main(["evaluate", model, new, "--site", "z"]) == 3
    assert "Expected sites of new.csv: a, b, c, d; found z" in capsys.readouterr().err


def test_rows_of_classes_that_a_model_does_not_know_can_be_left_out(folder, tmp_path, capsys):
    table = rows((folder / "new.csv").read_text())
    strange = [dict(row, outcome="dead") if number < 3 else row for number, row in enumerate(table)]
    for name, found in (("new.csv", strange), ("rest.csv", table[3:])):
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(found)
    model, new, rest = (str(path) for path in (folder / "run_classes", tmp_path / "new.csv", tmp_path / "rest.csv"))
    assert main(["evaluate", model, new]) == 3
    assert "found dead" in capsys.readouterr().err
    assert main(["evaluate", model, new, "--ignore-unknown-classes", "--json", str(tmp_path / "new.json")]) == 0
    assert "3 samples of classes unknown to the model are left out: dead (3)." in capsys.readouterr().err
    assert main(["evaluate", model, rest, "--json", str(tmp_path / "rest.json")]) == 0
    read = [json.loads((tmp_path / name).read_text())["sites"] for name in ("new.json", "rest.json")]
    assert read[0] == read[1]


def test_missing_column_of_splits_is_named_by_its_role(folder, capsys):
    assert main(["evaluate", str(folder / "run_classes"), str(folder / "new.csv"), "--split", "test"]) == 3
    assert "name another one after the path: new.csv:split=COLUMN" in capsys.readouterr().err


def test_export_of_a_table_model_writes_onnx_and_refuses_weights_alone(folder, tmp_path, capsys):
    assert main(["export", str(folder / "run_classes"), "--to", "onnx", "--out", str(tmp_path / "m.onnx")]) == 0
    assert "Largest difference from the original in 15 batches" in capsys.readouterr().out
    assert main(["export", str(folder / "run_classes"), "--to", "safetensors", "--out", str(tmp_path / "m")]) == 2
    assert "Expected onnx or torch-export for a model of classes" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("m*")) == ["m.onnx", "m.onnx.json"]


@pytest.mark.filterwarnings("default::pogm.data.datasets.array_dataset.ArrayWarning")
def test_a_site_with_equal_targets_has_no_r2_and_the_others_select_and_forecast(tmp_path, capsys):
    write_table(tmp_path / "t.csv", regression=True)
    with open(tmp_path / "t.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        line["outcome"] = "0" if line["site"] == "b" else line["outcome"]  # such as a code for a missing value
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    data, out = f"{tmp_path / 't.csv'}:{OPTIONS},task=regression", tmp_path / "m"
    assert main(["data", "check", data]) == 7
    assert "Domains with one target, where R² is undefined" in capsys.readouterr().out
    words = [data, "--steps", "12", "--workers", "1", "--threads", "1", "--device", "cpu"]
    assert main(["train", *words, "--out", str(out)]) == 0
    assert "found only 0 in b" in capsys.readouterr().err
    description = json.loads((out / "model.json").read_text())
    assert description["sites"]["b"]["r2"] is None
    others = [description["sites"][site]["r2"] for site in "acd"]
    assert description["forecast"]["accuracies"] == pytest.approx(others)
    assert "It is undefined (-) where all targets are equal." in " ".join((out / "card.md").read_text().split())

    sweep = ["sweep", "--datasets", data, "--algorithms", "ERM", "--configurations", "2", "--trials", "1"]
    assert main([*sweep, "--shared-init", "--out", str(tmp_path / "s"), *words[1:]]) == 0
    shown = capsys.readouterr().out
    assert "X (R² undefined)" in shown
    assert "diverged" not in shown
    assert main(["soup", str(tmp_path / "s"), "--device", "cpu"]) == 0
    for folder in (tmp_path / "s" / "soup").iterdir():
        if (folder / "model" / "model.json").exists():
            assert json.loads((folder / "model" / "model.json").read_text())["selection"]["validation"] is not None


def test_validation_parts_without_any_r2_are_refused(tmp_path, capsys):
    rows = [f"{site},{n},{n * n}" for site in "abc" for n in range(8)]  # one validation sample for each site
    (tmp_path / "t.csv").write_text("\n".join(["domain,x,label", *rows]) + "\n")
    words = ["run", "--dataset", f"{tmp_path / 't.csv'}:task=regression", "--algorithm", "ERM", "--test-domain", "a"]
    assert main([*words, "--steps", "3", "--device", "cpu", "--out", str(tmp_path / "r")]) == 3
    assert "found equal targets only, in samples: 1 in b, 1 in c" in " ".join(capsys.readouterr().err.split())


def test_fewer_samples_are_those_of_the_plan_and_of_the_checks(tmp_path, capsys):
    rows = [f"{site},{n},{n * (n % 12 == 0)}" for site in "abc" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["domain,x,label", *rows]) + "\n")
    words = ["run", "--dataset", f"{tmp_path / 't.csv'}:task=regression", "--algorithm", "ERM", "--test-domain", "a"]
    words += ["--steps", "3", "--device", "cpu", "--out", str(tmp_path / "r"), "--samples"]
    assert main([*words, "20", "--dry-run"]) == 0
    shown = capsys.readouterr().err
    assert "a: held out, 48 + 12 samples" in shown
    assert "b: training, 16 + 4 samples" in shown
    assert main([*words, "10"]) == 3
    assert "found equal targets only, in samples: 2 in b, 2 in c" in " ".join(capsys.readouterr().err.split())


@pytest.mark.filterwarnings("default::pogm.data.datasets.array_dataset.ArrayWarning")
def test_a_site_with_few_rows_can_be_held_out(tmp_path, capsys):
    write_table(tmp_path / "all.csv")
    lines = (tmp_path / "all.csv").read_text().splitlines(keepends=True)
    tiny = [line for line in lines if line.startswith("d,")][:3]
    (tmp_path / "t.csv").write_text("".join([*(line for line in lines if not line.startswith("d,")), *tiny]))
    data = f"{tmp_path / 't.csv'}:label=outcome,drop=version"
    assert main(["verdict", data]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert command == f"Next: pogm train {data} --hold-out d --out model"
    short = ["--steps", "12", "--workers", "1", "--threads", "1", "--device", "cpu"]
    assert main(["train", data, *short, "--out", str(tmp_path / "m")]) == 3
    assert "Give it 5 or more samples, hold it out, or remove it." in capsys.readouterr().err
    assert main(["train", data, *short, "--hold-out", "d", "--out", str(tmp_path / "m")]) == 0
    assert main(["evaluate", str(tmp_path / "m"), data, "--site", "d"]) == 0
    words = ["run", "--dataset", data, "--algorithm", "ERM", "--test-domain", "d", *short[:2], *short[4:]]
    assert main([*words, "--out", str(tmp_path / "r")]) == 0
    assert "Held out: d" in capsys.readouterr().err


def test_the_forecast_does_not_use_samples_of_the_split_test(tmp_path):
    write_table(tmp_path / "all.csv")
    head, *lines = (tmp_path / "all.csv").read_text().splitlines()
    marked = [f"{line},{'test' if number % 3 == 0 else 'train'}" for number, line in enumerate(lines)]
    (tmp_path / "t.csv").write_text("\n".join([f"{head},split", *marked]) + "\n")
    words = ["train", f"{tmp_path / 't.csv'}:{OPTIONS}", "--steps", "12", "--workers", "1", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "m")]) == 0
    sites = json.loads((tmp_path / "m" / "model.json").read_text())["sites"]
    assert {name: site["accuracy"]["n"] for name, site in sites.items()} == dict.fromkeys("abcd", 20)


def test_train_prints_a_warning_about_the_table_once(tmp_path):
    write_table(tmp_path / "t.csv")
    short = ["--steps", "12", "--workers", "2", "--threads", "1", "--device", "cpu"]
    found = pogm_command("train", f"{tmp_path / 't.csv'}:label=outcome", *short, "--out", tmp_path / "m")
    assert found.code == 0
    assert found.err.count("found version constant or missing there") == 1
