"""``pogm data features``: the features of all images by a fixed network, as a dataset of vectors."""

import csv
import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from image_folders import write_folder
from processes import pogm
from sample_files import OPTIONS, write_table

from pogm._system.errors import DataError, InUseError
from pogm.benchmark.plan.parsing import build_trial
from pogm.data.datasets.array_file import ArrayFile
from pogm.deployment import features
from pogm.deployment.feature_files import FeatureFile
from pogm.engine.session import Engine
from pogm.models import build_features

SETTINGS = ("network=small_cnn", "weights=random", "image_size=16")
WORDS = [word for text in SETTINGS for word in ("--set", text)]


def no_progress(items, count):
    """Return the items."""
    return iter(items)


def test_features_are_the_outputs_of_the_network_for_every_image(tmp_path):
    """Recompute them image by image, from the pixels of the folder."""
    folder = write_folder(tmp_path / "sites", images=5)
    out = tmp_path / "new" / "f.npz"
    assert pogm("data", "features", folder, *WORDS, "--out", out).code == 0
    found = np.load(out)
    trial = build_trial(str(folder), "ERM", (), settings=SETTINGS)
    torch.manual_seed(features.seed_hash("weights", 0))
    module, width = build_features("small_cnn", (3, 16, 16))
    transform, row = trial.dataset.transform(trial.training), 0
    for number, domain in enumerate(trial.task(folder).load()):
        for image, label in zip(domain.inputs, domain.labels, strict=True):
            with torch.no_grad():
                expected = module.eval()(transform.to_inputs(image[None], torch.float32)).flatten()
            np.testing.assert_allclose(found["x"][row], expected.numpy(), rtol=1e-4, atol=1e-5)
            assert found["y"][row] == ("cat", "dog")[int(label)]
            assert found["domain"][row] == ("north", "south", "west")[number]
            row += 1
    assert found["x"].shape == (row, width) == (30, width)
    assert (str(found["network"]), str(found["weights"]), int(found["image_size"])) == ("small_cnn", "random", 16)
    assert found["stored_size"].tolist() == list(trial.task(folder).load()[0].inputs.shape[-2:])
    assert [path.name for path in out.parent.iterdir()] == ["f.npz"]


@pytest.mark.parametrize("like", [False, True])
def test_file_in_a_new_folder_of_the_images_is_refused(tmp_path, like):
    """The folder would count as a domain or a class, and every later command on the images would fail."""
    folder = write_folder(tmp_path / "sites", images=5)
    words = ["--like", tmp_path / "f.npz"] if like else WORDS
    if like:
        assert pogm("data", "features", folder, *WORDS, "--out", tmp_path / "f.npz").code == 0
    end = pogm("data", "features", folder, *words, "--out", folder / "new" / "f.npz")
    assert end.code == 2
    assert "Expected a folder in --out outside the images of" in end.err
    assert not (folder / "new").exists()


def test_file_is_a_dataset_with_the_groups_and_splits_of_the_images(tmp_path):
    folder = write_folder(tmp_path / "sites", images=6)
    lines = ["path,label,domain,patient,split"]
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        site, name = path.parts[-3:-1]
        lines.append(f"{path.relative_to(folder)},{name},{site},p{number // 2},{('train', 'val')[number % 6 > 3]}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    words = ("--group", "patient", "--out", tmp_path / "f.npz")
    end = pogm("data", "features", folder / "metadata.csv", *WORDS, *words)
    assert end.code == 0, end.err
    dataset = ArrayFile.from_path(tmp_path / "f.npz")
    assert (dataset.domains, dataset.classes) == (("north", "south", "west"), ("cat", "dog"))
    for domain in dataset.load(tmp_path, 0):
        assert domain.groups.tolist() == [n // 2 + domain.groups[0].item() for n in range(12)]
        assert domain.splits.tolist() == [int(n % 6 > 3) for n in range(12)]


def test_interrupted_computation_continues(tmp_path):
    folder = write_folder(tmp_path / "sites", images=16)
    trial = build_trial(str(folder), "ERM", (), settings=SETTINGS)
    FeatureFile.of_dataset(trial, folder, Engine("cpu")).write(tmp_path / "whole.npz", no_progress)
    calls = []

    def stop_after_two(items, count):
        for number, item in enumerate(items):
            if number == 2:
                raise KeyboardInterrupt
            yield item

    def count(items, count):
        calls.append(count)
        return iter(items)

    other = build_trial(str(folder), "ERM", (), settings=(*SETTINGS[:2], "image_size=12"))
    for stopped in (other, trial):
        with pytest.raises(KeyboardInterrupt):
            FeatureFile.of_dataset(stopped, folder, Engine("cpu")).write(tmp_path / "parts.npz", stop_after_two)
    assert not (tmp_path / "parts.npz").exists()
    for partial in tmp_path.glob("*.partial"):  # a power failure: the second batch is lost, and a part of the third
        content = partial.read_bytes()
        partial.write_bytes(content[: len(content) // 2] + bytes(len(content) // 2 + 10))
    FeatureFile.of_dataset(trial, folder, Engine("cpu")).write(tmp_path / "parts.npz", count)
    assert calls == [2]  # of three batches of 32 images
    for name, array in np.load(tmp_path / "whole.npz").items():
        assert np.array_equal(array, np.load(tmp_path / "parts.npz")[name])
    assert not list(tmp_path.glob("*.partial"))
    assert FeatureFile.of_dataset(trial, folder, Engine("cpu")).write(tmp_path / "parts.npz", count) == (96, 256, True)
    assert calls == [2], "a file that is complete is not computed again"


def test_a_limit_of_the_file_size_is_named_with_the_file_and_what_was_written_is_kept(tmp_path):
    """A full disk gives the same error of a write, with another reason."""
    folder = write_folder(tmp_path / "sites", images=16)
    trial = build_trial(str(folder), "ERM", (), settings=SETTINGS)
    features = FeatureFile.of_dataset(trial, folder, Engine("cpu"))
    features.write(tmp_path / "whole.npz", no_progress)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50 * np.load(tmp_path / "whole.npz")["x"].shape[1] * 4, hard))
    try:
        with pytest.raises(DataError, match=r"write .*f.npz.*partial; found: File too large. Free some space"):
            features.write(tmp_path / "f.npz", no_progress)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    features.write(tmp_path / "f.npz", no_progress)
    assert (tmp_path / "f.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_json_has_the_file_and_the_numbers_of_images_and_features(tmp_path):
    folder, out = write_folder(tmp_path / "sites", images=2), tmp_path / "f.npz"
    end = pogm("data", "features", folder, *WORDS, "--out", out, "--json")
    expected = {"command": "data features", "out": str(out), "images": 12, "has_labels": True}
    assert json.loads(end.out) == {**expected, "features": np.load(out)["x"].shape[1]}


def test_file_is_written_by_one_process_at_a_time(tmp_path):
    folder = write_folder(tmp_path / "sites", images=1)
    trial = build_trial(str(folder), "ERM", (), settings=SETTINGS)

    def start_another(items, count):
        with pytest.raises(InUseError, match="another process"):
            FeatureFile.of_dataset(trial, folder, Engine("cpu")).write(tmp_path / "f.npz", no_progress)
        return iter(items)

    FeatureFile.of_dataset(trial, folder, Engine("cpu")).write(tmp_path / "f.npz", start_another)
    assert len(np.load(tmp_path / "f.npz")["x"]) == 6


def test_features_of_a_new_site_are_those_that_training_would_have_computed(tmp_path):
    """The same images as a site of the training, with and without labels, and listed in another way."""
    folder, site = write_folder(tmp_path / "sites", images=5), tmp_path / "sites" / "south"
    trained = tmp_path / "f.npz"
    assert pogm("data", "features", folder, *WORDS, "--out", trained).code == 0
    known = np.load(trained)
    rows = known["domain"] == "south"
    for name, images in (("labelled", site), ("one class", site / "dog")):
        out = tmp_path / f"{name}.npz"
        end = pogm("data", "features", images, "--like", trained, "--out", out)
        assert end.code == 0, end.err
        found = np.load(out)
        expected = known["x"][rows & (known["y"] == "dog")] if name == "one class" else known["x"][rows]
        np.testing.assert_allclose(found["x"], expected, rtol=1e-5, atol=1e-6)
        assert ("y" in found) == (name == "labelled")
        assert set(found["domain"]) == {images.name}
        assert [str(path) for path in sorted(images.rglob("*.png"))] == sorted(found["path"])
    assert np.array_equal(np.load(tmp_path / "labelled.npz")["y"], known["y"][rows])


def test_site_without_labels_has_the_name_of_its_folder(tmp_path, monkeypatch):
    trained = tmp_path / "f.npz"
    assert pogm("data", "features", write_folder(tmp_path / "sites", images=1), *WORDS, "--out", trained).code == 0
    monkeypatch.chdir(tmp_path / "sites" / "south" / "dog")
    for images in (".", "000.png"):
        assert pogm("data", "features", images, "--like", trained, "--out", tmp_path / "new.npz").code == 0
        assert np.load(tmp_path / "new.npz")["domain"].tolist() == ["dog"]


def test_class_mapping_of_a_new_site_is_used_and_missing_labels_are_named(tmp_path):
    folder, trained = write_folder(tmp_path / "sites", images=3), tmp_path / "f.npz"
    new = write_folder(tmp_path / "all", domains=("new",), classes=("felis", "canis"), images=3) / "new"
    (tmp_path / "map.csv").write_text("from,to\nfelis,cat\ncanis,dog\n")
    assert pogm("data", "features", folder, *WORDS, "--out", trained).code == 0
    for name, labels in ((f"{new}:classes={tmp_path / 'map.csv'}", ["dog"] * 3 + ["cat"] * 3), (new, None)):
        end = pogm("data", "features", name, "--like", trained, "--out", tmp_path / "new.npz")
        assert end.code == 0, end.err
        found = np.load(tmp_path / "new.npz")
        assert (found["y"].tolist() if "y" in found else None) == labels
        assert ("no labels" in end.err) == (labels is None)
        assert f"pogm {'predict' if labels is None else 'evaluate'} model" in end.err


def test_images_of_unknown_classes_can_be_left_out_as_the_error_says(tmp_path):
    trained = tmp_path / "f.npz"
    assert pogm("data", "features", write_folder(tmp_path / "sites", images=3), *WORDS, "--out", trained).code == 0
    new = write_folder(tmp_path / "all", domains=("new",), classes=("cat", "fox"), images=3) / "new"
    words = ("data", "features", new, "--like", trained, "--out", tmp_path / "new.npz")
    end = pogm(*words)
    assert end.code == 3
    assert "fox (3 images)" in end.err
    assert "leave their images out: map them to an empty name in classes.csv" in end.err
    (new / "classes.csv").write_text("from,to\nfox,\n")
    assert pogm(*words).code == 0
    assert np.load(tmp_path / "new.npz")["y"].tolist() == ["cat"] * 3


def test_wrong_reference_or_weights_are_refused(tmp_path):
    folder, plain = write_folder(tmp_path / "sites", images=3), tmp_path / "plain.npz"
    np.savez(plain, x=np.zeros((2, 3)), y=["cat", "dog"])
    assert pogm("data", "features", folder, *WORDS, "--out", tmp_path / "f.npz").code == 0
    (tmp_path / "weights").write_bytes(b"other")
    like, given = ("--like", tmp_path / "f.npz"), tmp_path / "given.npz"
    np.savez(given, **{**np.load(tmp_path / "f.npz"), "weights": f"sha256:{'0' * 64}"})
    for words, message in (
        (("--like", plain), "found no network, weights, image_size, stored_size, intensity"),
        (("--like", tmp_path / "absent.npz"), "Expected a file of arrays"),
        (("--like", folder), "Expected a file of features, with the suffix .npz; found"),
        (("--like", given), "Pass the file with --weights"),
        ((*like, "--network", "resnet50"), "Expected --like alone"),
        ((*like, "--weights", tmp_path / "weights"), "Leave out --weights"),
    ):
        end = pogm("data", "features", folder, *words, "--out", tmp_path / "new.npz")
        assert end.code in (2, 3)
        assert message in end.err.replace("\n", " ")
        assert not (tmp_path / "new.npz").exists()


def test_images_for_a_model_of_features_are_predicted_by_the_command_that_the_error_names(tmp_path):
    folder, trained = write_folder(tmp_path / "sites", images=4), tmp_path / "f.npz"
    assert pogm("data", "features", folder, *WORDS, "--out", trained).code == 0
    assert pogm("train", trained, "--algorithm", "ERM", "--steps", "2", "--out", tmp_path / "model").code == 0
    end = pogm("evaluate", tmp_path / "model", folder)
    assert end.code == 3
    assert "found a folder. Check the path. Features of images: pogm data features IMAGES --like FILE" in end.err
    images, new = folder / "south" / "dog", tmp_path / "new.npz"
    assert pogm("data", "features", images, "--like", trained, "--out", new).code == 0
    lines = pogm("predict", tmp_path / "model", new).out.splitlines()
    assert lines[0] == "path,prediction,probability_cat,probability_dog"
    assert sorted(line.partition(",")[0] for line in lines[1:]) == [str(path) for path in sorted(images.iterdir())]


def test_evaluation_of_features_names_each_image_with_its_site_and_label(tmp_path):
    """The file lists its samples in another order than the sites of the evaluation."""
    folder, trained = write_folder(tmp_path / "sites", images=4), tmp_path / "f.npz"
    assert pogm("data", "features", folder, *WORDS, "--out", trained).code == 0
    assert pogm("train", trained, "--algorithm", "ERM", "--steps", "2", "--out", tmp_path / "model").code == 0
    new, predictions = tmp_path / "new.npz", tmp_path / "predictions.csv"
    assert pogm("data", "features", folder, "--like", trained, "--out", new).code == 0
    arrays = np.load(new)
    mixed = np.random.default_rng(0).permutation(len(arrays["y"]))
    np.savez(new, **{name: arrays[name][mixed] for name in ("x", "y", "domain", "path")})
    assert pogm("evaluate", tmp_path / "model", new, "--csv", predictions).code == 0
    rows = list(csv.DictReader(predictions.read_text().splitlines()))
    assert sorted(row["path"] for row in rows) == [str(path) for path in sorted(folder.rglob("*.png"))]
    assert all(Path(row["path"]).parts[-3:-1] == (row["site"], row["label"]) for row in rows)


def test_images_without_files_are_no_reference_for_a_new_site(tmp_path):
    """The digits have one channel, for which the network has other weights than for an image file."""
    out = tmp_path / "digits.npz"
    assert pogm("data", "features", "RotatedDigits", "--set", "weights=random", "--out", out).code == 0
    folder = write_folder(tmp_path / "sites", images=1)
    end = pogm("data", "features", folder, "--like", out, "--out", tmp_path / "new.npz")
    assert end.code == 3
    assert "Expected features of image files" in end.err
    assert not (tmp_path / "new.npz").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("./sites", "--out", "folder.npz"), "found the folder folder.npz"),
        (("./sites", "--like", "f.npz", "--out", "./f.npz"), "found f.npz in both"),
        (("RotatedDigits", "--out", "f.csv"), "suffix .npz in --out; found f.csv"),
        ((f"./table.csv:{OPTIONS}", "--out", "f.npz"), "Expected a dataset of images"),
        (("./absent", "--out", "f.npz"), "found none"),
        (("./sites", "--task", "regression", "--out", "f.npz"), "Expected a metadata file for task=regression"),
    ],
)
def test_wrong_arguments_are_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(write_table(tmp_path / "table.csv").parent)
    (tmp_path / "folder.npz").mkdir()
    end = pogm("data", "features", *words)
    assert end.code == 2
    assert message in end.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.npz", "table.csv"]
