"""``pogm predict``, ``evaluate`` and ``export``: from a run to predictions, and one clear message for bad input."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_folders import picture, write_folder

from pogm.cli import main

TRAINING = ("--set", "network=small_cnn", "--set", "weights=random", "--set", "image_size=16", "--set", "batch_size=4")
BRIEF = ("--steps", "31", "--evaluate-every", "10", "--device", "cpu", "--set", "lr=0.001")


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("sites") / "hospitals", images=8)


@pytest.fixture(scope="module")
def trained(sites) -> Path:
    """Folder of a run on three sites."""
    out = sites.parent / "run"
    words = ["run", "--dataset", str(sites), "--algorithm", "ERM", "--test-domain", "west", "--out", str(out)]
    assert main([*words, *TRAINING, *BRIEF]) == 0
    return out


@pytest.fixture
def new_site(tmp_path) -> Path:
    """Folder of 20 images of the same classes, in other sizes."""
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "new" / name).mkdir(parents=True)
        for number in range(10):
            picture(1000 + 10 * label + number, (20 + number, 30), label).save(
                tmp_path / "new" / name / f"{number}.png"
            )
    return tmp_path / "new"


def test_predict_evaluate_and_export_by_the_command_line(trained, new_site, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["predict", str(trained), "new", "--csv", "predictions.csv"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Predictions: predictions.csv" in shown.err
    rows = list(csv.DictReader(Path("predictions.csv").read_text().splitlines()))
    cats = sum(row["prediction"] == "cat" for row in rows)
    assert f"20 images: cat {cats}, dog {20 - cats}" in shown.err
    assert [row["path"] for row in rows[:2]] == ["new/cat/0.png", "new/cat/1.png"]  # as given
    right = sum(row["prediction"] == Path(row["path"]).parent.name for row in rows)
    assert right >= 15
    assert all(abs(float(row["probability_cat"]) + float(row["probability_dog"]) - 1) < 1e-4 for row in rows)

    assert main(["evaluate", str(trained), "new", "--json", "metrics.json", "--csv", "labelled.csv"]) == 0
    shown = capsys.readouterr()
    metrics = json.loads(Path("metrics.json").read_text())["sites"]["new"]
    assert (metrics["accuracy"]["value"], metrics["accuracy"]["n"]) == (right / 20, 20)
    assert f"{100 * right / 20:.1f} [{100 * metrics['accuracy']['low']:.1f}, " in shown.out
    labelled = list(csv.DictReader(Path("labelled.csv").read_text().splitlines()))
    assert [row["probability_cat"] for row in labelled] == [row["probability_cat"] for row in rows]

    for to, name in (("onnx", "run.onnx"), ("torch-export", "run.pt2"), ("safetensors", "run.safetensors")):
        assert main(["export", str(trained), "--to", to]) == 0
        shown = capsys.readouterr()
        assert "Largest difference from the original in 21 batches:" in shown.out
        assert f"{name} (" in shown.out
        assert Path(name).is_file()


def test_exported_onnx_model_gives_the_probabilities_of_predict(trained, new_site, tmp_path, monkeypatch, capsys):
    """Follow the description of the file with Pillow, numpy and ONNX Runtime only."""
    import onnxruntime
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["export", str(trained), "--to", "onnx", "--out", "m.onnx"]) == 0
    assert main(["predict", str(trained), "new"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out.partition("tolerance 0.0001)\n")[2])))
    described = json.loads(Path("m.onnx.json").read_text())
    known, (height, width) = described["preprocessing"], described["preprocessing"]["stored_size"]
    assert known["stored_size"] != known["input_size"]
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    for row in rows[::5]:
        image = Image.open(row["path"]).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
        image = image.resize(tuple(known["input_size"][::-1]), Image.Resampling.BILINEAR)
        pixels = ((np.asarray(image) * known["scale"] - known["mean"]) / known["std"]).astype(np.float32)
        (logits,) = session.run(None, {described["input"]["name"]: pixels.transpose(2, 0, 1)[None]})
        powers = np.exp((logits[0] - logits.max()) / described["temperature"])
        expected = [float(row[f"probability_{name}"]) for name in described["classes"]]
        np.testing.assert_allclose(powers / powers.sum(), expected, atol=0.02)  # this resize rounds to bytes


def test_predict_prints_csv_and_skips_bad_images(trained, new_site, capsys):
    (new_site / "cat/0.png").write_bytes(b"")
    capsys.readouterr()
    assert main(["predict", str(trained), str(new_site)]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "found 1 of 20 that cannot:" in shown.err
    assert main(["predict", str(trained), str(new_site), "--on-bad-image", "skip", "--csv", "-"]) == 0
    shown = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert (rows[0]["prediction"], rows[0]["reason"]) == ("", "empty: no bytes")
    assert len(rows) == 20
    assert "not readable 1" in shown.err


def test_evaluate_warns_about_sites_of_the_training(trained, sites, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(trained), str(sites)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("training site") == 2
    assert shown.err.count("held out") == 1
    assert "all sites" in shown.out


def test_evaluate_reads_a_metadata_file(trained, new_site, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"new/{path.parent.name}/{path.name},{path.parent.name},new" for path in sorted(new_site.rglob("*.png"))]
    Path("table.csv").write_text("\n".join(["file,y,clinic", *rows]))
    capsys.readouterr()
    assert main(["evaluate", str(trained), "table.csv:domain=clinic", "--site", "new"]) == 0
    from_table = capsys.readouterr().out
    assert main(["evaluate", str(trained), "new"]) == 0
    assert from_table == capsys.readouterr().out
    assert main(["evaluate", str(trained), "table.csv"]) == 3
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert "Expected one column 'domain' in line 1 of table.csv" in shown.err


def test_model_that_adapts_says_so_and_is_not_exported(new_site, tmp_path, capsys):
    words = ["run", "--dataset", "RotatedDigits", "--algorithm", "ARM", "--test-domain", "75", "--steps", "2"]
    assert main([*words, "--device", "cpu", "--out", str(tmp_path / "arm")]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "arm"), str(new_site)]) == 0
    assert "ARM adapts to its batch. Each folder is predicted as one domain" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "arm"), "--to", "onnx", "--out", str(tmp_path / "arm.onnx")]) == 2
    assert "found ARM, which adapts" in capsys.readouterr().err
    assert not (tmp_path / "arm.onnx").exists()


def edit_description(model: Path, **fields: object) -> None:
    path = model / "model/model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("verb", ["predict", "evaluate", "export"])
@pytest.mark.parametrize(
    ("damage", "code", "message"),
    [
        ("missing", 2, "Check the path"),
        ("truncated", 6, "Copy the file again"),
        ("version", 2, "Install the version that wrote it: pogm 9.1"),
        ("no model", 2, "a run without a selected model"),
    ],
)
def test_bad_models_give_one_message_and_an_exit_code(trained, new_site, tmp_path, capsys, verb, damage, code, message):
    model = tmp_path / "copy"
    if damage != "missing":
        shutil.copytree(trained, model)
    if damage == "truncated":
        (weights,) = (model / "model").glob("*.safetensors")
        weights.write_bytes(weights.read_bytes()[:-10])
    elif damage == "version":
        edit_description(model, format=99, provenance={"pogm": "9.1"})
    elif damage == "no model":
        shutil.rmtree(model / "model")
    capsys.readouterr()
    more = ["--to", "safetensors", "--out", str(tmp_path / "file")] if verb == "export" else [str(new_site)]
    assert main([verb, str(model), *more]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("pogm: Expected")
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("predict", "MODEL", "nowhere"), 3, "Check the path"),
        (("predict", "MODEL", "empty"), 3, "found none whose name ends with"),
        (("predict", "MODEL", "new", "--device", "tpu"), 2, "Expected a device such as cpu"),
        (("predict", "MODEL", "new", "--csv", "nowhere/deep/out.csv"), 3, "Expected to write"),
        (("evaluate", "MODEL", "nowhere"), 3, "Check the path"),
        (("evaluate", "MODEL", "empty"), 3, "Expected class folders in"),
        (("evaluate", "MODEL", "other"), 3, "classes of the model, cat, dog, in other; found horse (1 images)"),
        (("export", "MODEL"), 2, "Expected --out FOLDER for runs, or --to FORMAT for a model"),
        (("export", "MODEL", "MODEL", "--to", "onnx"), 2, "Expected one model for --to; found 2 folders"),
        (("export", "MODEL", "--out", "sweep", "--tolerance", "1"), 2, "Expected --tolerance with --to"),
        (("export", "MODEL", "--to", "onnx", "--out", "nowhere/deep/m.onnx"), 2, "found no folder"),
    ],
)
def test_bad_arguments_give_one_message(trained, new_site, tmp_path, monkeypatch, capsys, words, code, message):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("other/horse").mkdir(parents=True)
    picture(0).save("other/horse/1.png")
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert main([str(trained) if word == "MODEL" else word for word in words]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert sorted(tmp_path.rglob("*")) == before


def test_export_with_a_difference_above_the_tolerance_writes_nothing(trained, tmp_path, capsys):
    capsys.readouterr()
    words = ["export", str(trained), "--to", "onnx", "--out", str(tmp_path / "m.onnx"), "--tolerance", "0"]
    assert main(words) == 6
    assert "Nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
