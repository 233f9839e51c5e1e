"""Evaluation at new sites: layouts, classes by name, warnings, and bad input."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import pogm
from pogm._system.errors import DataError, UsageError
from pogm.benchmark.results.classification import calibration_error, classification_metrics, softmax
from pogm.deployment.evaluate import evaluate
from pogm.deployment.labelled_images import read_sites

CLASSES = ("blue", "red")


@pytest.fixture(scope="module")
def model(photographs):
    return pogm.load(photographs[1])


@pytest.fixture
def new_sites(photographs, tmp_path) -> Path:
    """Two sites with other names; in one of them, two blue images are in the folder of red ones."""
    root = tmp_path / "new"
    shutil.copytree(photographs[0] / "c", root / "east")
    shutil.copytree(photographs[0] / "c", root / "far")
    for number in range(2):
        (root / "far/blue" / f"{number}.png").rename(root / "far/red" / f"wrong{number}.png")
    return root


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def test_one_site(model, new_sites):
    found = evaluate(model, new_sites / "far")
    (metrics,) = found.metrics.values()
    assert list(found.metrics) == ["far"]
    assert metrics.n == 12
    assert metrics.confusion == ((4, 0), (2, 6))
    assert metrics.accuracy.value == 10 / 12
    assert metrics.recalls[1].value == 6 / 8
    text = found.text()
    assert "83.3 [55.2, 95.3]" in text
    assert "blue (2)" in text
    assert found.warnings() == []


def test_accuracy_that_is_not_above_the_most_frequent_class_is_a_warning(model, new_sites):
    for number in range(2, 6):
        (new_sites / "far/blue" / f"{number}.png").rename(new_sites / "far/red" / f"wrong{number}.png")
    (new_sites / "far/red/0.png").rename(new_sites / "far/blue/0.png")
    found = evaluate(model, new_sites / "far")
    assert found.metrics["far"].confusion == ((0, 1), (6, 5))
    assert found.warnings() == [
        "The accuracy at far is 41.7%; a model that always predicts red would have 91.7%. Look at the balanced "
        "accuracy and at the recall of every class."
    ]


def test_accuracy_at_new_sites_is_compared_with_the_forecast(photographs, new_sites):
    model = pogm.load(photographs[1])
    assert "Forecast" not in evaluate(model, new_sites).text()
    model.description["forecast"] = {"low": 0.7, "mean": 0.8, "high": 0.9}
    assert (
        evaluate(model, new_sites)
        .text()
        .endswith(
            "Forecast of the model for a new site: 80.0%, 95 % interval 70.0% to 90.0%. The accuracy at east, 100.0%, "
            "is above it; at far, 83.3%, is inside it.\n"
        )
    )


def test_several_sites_have_a_row_each_and_one_of_all_images(model, new_sites):
    found = evaluate(model, new_sites)
    assert {name: metrics.n for name, metrics in found.metrics.items()} == {"east": 12, "far": 12, "all sites": 24}
    assert found.metrics["east"].accuracy.value == 1
    assert found.metrics["all sites"].accuracy.value == 22 / 24
    p = found.predictions.probabilities
    labels = [CLASSES.index(Path(path).parent.name) for path in found.predictions.paths]
    assert found.metrics["all sites"] == classification_metrics(p, labels, CLASSES)
    values = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert values["sites"].keys() == {"east", "far"}
    assert values["all_sites"]["n"] == 24
    assert str(new_sites) not in json.dumps(values)  # no absolute paths


def write_table(root: Path, columns: str = "path,label,domain") -> Path:
    """Write a metadata file of all images below a folder; every second image of a class is in the split test."""
    paths = sorted(path.relative_to(root) for path in root.rglob("*.png"))
    rows = [f"{path},{path.parts[1]},{path.parts[0]},{('train', 'test')[i % 2]}" for i, path in enumerate(paths)]
    (root / "metadata.csv").write_text("\n".join([f"{columns},split", *rows]))
    return root / "metadata.csv"


def test_metadata_file_gives_the_metrics_of_the_folder(model, new_sites):
    """Columns may have other names, which are given after a colon, as in training."""
    expected = evaluate(model, new_sites).to_json()
    assert evaluate(model, write_table(new_sites)).to_json() == expected
    table = write_table(new_sites, "image,kind,ward")
    assert evaluate(model, f"{table}:label=kind,domain=ward").to_json() == expected
    with pytest.raises(DataError, match=r"Expected one column 'label' in line 1 of .*name the column after the path"):
        evaluate(model, table)


def test_one_site_or_one_split_of_a_metadata_file(model, new_sites):
    table = write_table(new_sites)
    assert evaluate(model, table, sites=["far"]).to_json() == evaluate(model, new_sites / "far").to_json()
    assert evaluate(model, new_sites, sites=["far"]).to_json() == evaluate(model, new_sites / "far").to_json()
    assert {name: found.n for name, found in evaluate(model, table, split="test").metrics.items()} == {
        "east": 6,
        "far": 6,
        "all sites": 12,
    }
    with pytest.raises(UsageError, match=r"Expected a site of .*; found 'fra'\. Did you mean 'far'\?"):
        evaluate(model, table, sites=["fra"])
    with pytest.raises(UsageError, match=r"Expected a split .*; found 'tset'\. Did you mean 'test'\?"):
        evaluate(model, table, split="tset")
    with pytest.raises(DataError, match=r"Expected images of the split val in .*; found none"):
        evaluate(model, table, split="val")
    with pytest.raises(UsageError, match="Expected a metadata file for the split test"):
        evaluate(model, new_sites, split="test")


def test_unknown_label_of_a_metadata_file_is_refused(model, new_sites):
    table = write_table(new_sites)
    table.write_text(table.read_text().replace(",red,far", ",Red,far"))
    with pytest.raises(DataError, match=r"Expected labels .* blue, red, .*found Red \(8 images\)\. Did you mean 'red'"):
        evaluate(model, table)
    assert evaluate(model, table, ignore_unknown_classes=True).metrics["far"].n == 4


def test_class_mapping_of_the_training_or_of_the_new_site_renames_classes(photographs, new_sites):
    model = pogm.load(photographs[1])
    expected = evaluate(model, new_sites / "far").to_json()
    (new_sites / "far/red").rename(new_sites / "far/crimson")
    shutil.copytree(new_sites / "east/blue", new_sites / "far/blurred")
    (new_sites / "names.csv").write_text("from,to\ncrimson,red\nblurred,\n")
    found = evaluate(model, f"{new_sites / 'far'}:classes={new_sites / 'names.csv'}")
    assert found.ignored == {"blurred": 6}
    assert {**found.to_json(), "warnings": []} == expected
    model.description["trial"]["dataset"]["mapping"] = ["crimson", "red", "blurred", ""]
    assert evaluate(model, new_sites / "far").metrics == found.metrics
    assert evaluate(model, write_table(new_sites), sites=["far"]).metrics == found.metrics


def test_csv_has_site_and_label(model, new_sites):
    written = list(csv.DictReader(io.StringIO(evaluate(model, new_sites).csv().decode())))
    assert len(written) == 24
    wrong = [row for row in written if row["label"] != row["prediction"]]
    assert {row["site"] for row in wrong} == {"far"}
    assert [Path(row["path"]).name for row in wrong] == ["wrong0.png", "wrong1.png"]


def test_calibration_uses_the_temperature_of_the_model_or_fits_one(photographs, new_sites):
    model = pogm.load(photographs[1])
    shutil.copytree(new_sites / "far", new_sites / "farther")
    fitted = evaluate(model, new_sites)
    assert list(fitted.scalings) == ["all sites"]  # 36 images; 12 are too few
    assert "The temperature is fitted" in fitted.text()
    model.description["temperature"] = 3.0
    found = evaluate(model, new_sites / "far")
    scaling, labels = found.scalings["far"], [0] * 4 + [1] * 8
    assert scaling.temperature == 3
    assert scaling.before == calibration_error(softmax(found.predictions.logits), labels)
    assert scaling.after == found.metrics["far"].ece
    assert "The temperature is that of the model." in found.text()


def test_sites_of_the_training_are_warned_about(model, photographs):
    found = evaluate(model, photographs[0]).warnings()
    assert [text.split(" has the name of ")[0] for text in found] == ["a", "b", "c"]
    assert "training site" in found[0]
    assert "held out" in found[2]


def test_unknown_class_is_refused_or_left_out(model, new_sites):
    (new_sites / "far/blue").rename(new_sites / "far/Blues")
    with pytest.raises(
        DataError, match=r"classes of the model, blue, red, .*found Blues \(4 images\)\. Did you mean 'blue'"
    ):
        evaluate(model, new_sites / "far")
    found = evaluate(model, new_sites / "far", ignore_unknown_classes=True)
    assert found.metrics["far"].n == 8
    assert found.metrics["far"].missing == ("blue",)
    assert found.warnings() == ["4 images of classes unknown to the model are left out: Blues (4)."]
    assert "far: no images of blue." in found.text()


def test_bad_images_are_refused_or_left_out(model, new_sites):
    (new_sites / "far/red/0.png").write_bytes(b"")
    with pytest.raises(DataError, match="found 1 of 24 that cannot"):
        evaluate(model, new_sites)
    found = evaluate(model, new_sites, on_bad_image="skip")
    assert found.metrics["far"].n == 11
    assert found.warnings() == ["1 images that cannot be decoded are left out."]
    for path in (new_sites / "far").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="found none in far"):
        _ = evaluate(model, new_sites, on_bad_image="skip").metrics


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("blue/1.png", "red/1.png"), {"root": 2}),
        (("blue/deep/1.png", "red/1.png"), {"root": 2}),
        (("blue/deep/1.png",), {"root": 1}),
        (("north/blue/1.png", "south/red/1.png", "south/red/2.png"), {"north": 1, "south": 2}),
        (("blue/blue/1.png", "red/red/1.png"), {"blue": 1, "red": 1}),  # sites with the names of classes
        (("blue/1.png", "notes.txt", ".hidden/blue/1.png"), {"root": 1}),
    ],
)
def test_layouts(tmp_path, names, expected):
    sites, ignored = read_sites(touch(tmp_path / "root", *names), CLASSES)
    assert {site.name: len(site.paths) for site in sites} == expected
    assert not ignored
    for site in sites:
        assert all(CLASSES[i] in Path(path).parts for path, i in zip(site.paths, site.labels, strict=True))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "found none"),
        (("1.png",), "For images without labels: pogm predict"),
        (("north/blue/1.png", "north/2.png"), "Expected only class folders in .*north; found 1 images"),
        (("green/1.png",), r"found green \(1 images\)"),
        (("north/green/1.png",), r"found green \(1 images\)"),
        (("north/blue/1.png", "south/notes.txt"), "found none in south"),
    ],
)
def test_wrong_layouts_are_refused(tmp_path, names, message):
    (tmp_path / "root").mkdir()
    with pytest.raises(DataError, match=message):
        read_sites(touch(tmp_path / "root", *names), CLASSES)


def test_missing_folder_and_dead_link_are_refused(tmp_path):
    with pytest.raises(DataError, match="Check the path"):
        read_sites(tmp_path / "missing", CLASSES)
    touch(tmp_path, "blue/1.png")
    (tmp_path / "blue/link.png").symlink_to("nowhere")
    with pytest.raises(DataError, match="leads nowhere"):
        read_sites(tmp_path, CLASSES)


def test_labels_follow_the_classes_of_the_model_and_not_the_folder(tmp_path):
    sites, _ = read_sites(touch(tmp_path, "blue/1.png", "red/1.png"), ("red", "other", "blue"))
    assert np.array_equal(sites[0].labels, [2, 0])
