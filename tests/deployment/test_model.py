"""Loading a trained model: preprocessing as in training, and clear errors for damaged or foreign files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import trial

import pogm
from pogm import ARM, DANN, ERM, ITTA, T3A, TENT
from pogm._system.errors import IntegrityError, UsageError
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.data.datasets.folder import Folder
from pogm.data.images.decode import BadImage


def test_model_of_a_folder_predicts_its_images(photographs):
    root, folder = photographs
    model = pogm.load(folder)
    assert model.classes == ("blue", "red")
    assert not model.training
    paths = sorted((root / "c").rglob("*.png"))
    predicted = [model.classes[i] for i in model.probabilities(paths).argmax(-1)]
    record = max(
        (json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()),
        key=lambda r: (sum(r["accuracy"]["out"][:2]), -r["step"]),
    )
    assert record["step"] == model.description["selection"]["step"]
    right = np.mean([name == path.parent.name for name, path in zip(predicted, paths, strict=True)])
    held_out = record["accuracy"]
    assert right == pytest.approx((10 * held_out["in"][2] + 2 * held_out["out"][2]) / 12)  # sizes of the splits


def test_transform_takes_paths_and_images_of_any_mode(photographs):
    root, folder = photographs
    transform = pogm.load(folder).transform
    path = root / "a/red/3.png"
    from_path, from_image = transform(path), transform(Image.open(path))
    assert from_path.shape == (3, 32, 32)
    assert torch.equal(from_path, from_image)
    for mode in ("L", "P", "RGBA", "CMYK", "1"):
        assert transform(Image.new(mode, (17, 90))).shape == (3, 32, 32)
    with pytest.raises(BadImage, match="more than 8 bits per channel, and the model was trained on 8-bit images"):
        transform(Image.new("I;16", (17, 90)))
    with pytest.raises(UsageError, match="PIL image or a path; found ndarray"):
        transform(np.zeros((4, 4, 3)))
    with pytest.raises(BadImage, match="not an image"):
        transform(folder / "records.jsonl")


def test_images_of_12_bits_are_scaled_as_in_training(tmp_path):
    noise = np.random.default_rng(0)
    for site in ("a", "b", "c"):
        for name, level in (("dark", 900), ("light", 3000)):
            (tmp_path / "sites" / site / name).mkdir(parents=True)
            for number in range(5):
                values = np.clip(level + noise.integers(-300, 1000, (20, 20)), 0, 4095).astype(np.uint16)
                Image.fromarray(values).save(tmp_path / "sites" / site / name / f"{number}.png")
    dataset = Folder.from_path(tmp_path / "sites")
    training = type(dataset.training)(network="small_cnn", weights="random", image_size=32, batch_size=4, lr=1e-3)
    one = Trial(dataset=dataset, algorithm=ERM(), test_domains=(2,), training=training, steps=2, evaluate_every=1)
    run(one, tmp_path / "run", RunOptions(data=tmp_path / "sites"))
    model = pogm.load(tmp_path / "run")
    assert str(model.transform.intensity) == "auto:0:4095"
    stored = one.task(tmp_path / "sites").load()[0].inputs[0]
    path = tmp_path / "sites/a/dark/0.png"
    assert torch.equal(model.transform.to_stored(path), stored)
    assert torch.equal(model.transform.to_stored(Image.open(path)), stored)
    assert len(stored.unique()) > 32, "not reduced to 16 grey levels"


def test_inputs_of_another_shape_are_refused(digits):
    with pytest.raises(UsageError, match=r"shape \[N, 1, 8, 8\]; found \[2, 3, 8, 8\]"):
        pogm.load(digits)(torch.zeros(2, 3, 8, 8))


def test_parts_that_only_training_needs_are_left_out(tmp_path):
    run(trial(DANN(), steps=3), tmp_path / "run")
    model = pogm.load(tmp_path / "run")
    assert not model.adapts
    assert {name.split(".")[1] for name in model.state_dict()} == {"features", "head"}


@pytest.mark.parametrize(
    ("algorithm", "modifiers"),
    [(ARM(), ()), (ERM(), (ITTA(),)), (ERM(), (T3A(),)), (ERM(), (TENT(),))],
    ids=["ARM", "ITTA", "T3A", "TENT"],
)
def test_models_that_adapt_to_a_batch_say_so_and_predict(tmp_path, algorithm, modifiers):
    training = replace(trial(algorithm).training, network="small_cnn" if modifiers else "mlp")
    run(trial(algorithm, modifiers=modifiers, steps=2, training=training), tmp_path / "run")
    model = pogm.load(tmp_path / "run")
    assert (model.adapts, model.batch_size) == (True, 64)
    assert model(torch.rand(7, 1, 8, 8)).shape == (7, 10)


def test_images_with_two_channels_have_no_transform(tmp_path):
    run(trial(ERM(), "ColoredDigits", steps=1), tmp_path / "run")
    with pytest.raises(UsageError, match="2 channels"):
        pogm.load(tmp_path / "run").transform(Image.new("RGB", (8, 8)))


# Damaged and foreign files.


def damaged(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def edit(folder: Path, **fields: object) -> None:
    path = folder / "model/model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_truncated_weights_are_refused(digits, tmp_path):
    copy = damaged(digits, tmp_path)
    (path,) = (copy / "model").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(IntegrityError, match=r"Expected \d+ bytes .* found \d+ bytes"):
        pogm.load(copy)
    path.unlink()
    with pytest.raises(IntegrityError, match=r"No such file.*Copy the whole folder"):
        pogm.load(copy)


def test_model_of_a_later_version_is_refused(digits, tmp_path):
    copy = damaged(digits, tmp_path)
    edit(copy, format=3, provenance={"pogm": "9.1"})
    with pytest.raises(UsageError, match=r"format 1 .*; found format 3\. .*pogm 9\.1"):
        pogm.load(copy)


def test_weights_of_another_network_are_refused(digits, tmp_path):
    copy = damaged(digits, tmp_path)
    trial_values = json.loads((copy / "model/model.json").read_text())["trial"]
    trial_values["training"]["network"] = "small_cnn"
    edit(copy, trial=trial_values)
    with pytest.raises(IntegrityError, match="Expected weights of the network"):
        pogm.load(copy)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}'])
def test_damaged_description_is_refused(digits, tmp_path, content):
    copy = damaged(digits, tmp_path)
    (copy / "model/model.json").write_text(content)
    with pytest.raises(IntegrityError, match="Expected"):
        pogm.load(copy)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": ["a", "b", "c"]}, "10 classes, and 3 names of them"),
        ({"classes": 3}, "Expected classes to be a list of names in .*; found '3'"),
        ({"weights": {}}, "Expected weights to be a file name with its sha256 and bytes"),
        ({"stored_size": "big"}, "Expected stored_size to be height and width, above 0"),
        ({"stored_size": [0, 0]}, "Expected stored_size to be height and width, above 0"),
        ({"provenance": [1]}, "Expected provenance to be an object"),
        ({"trial": []}, "Expected a trial with the fields"),
    ],
)
def test_description_with_other_values_is_refused(digits, tmp_path, fields, message):
    copy = damaged(digits, tmp_path)
    edit(copy, **fields)
    with pytest.raises(IntegrityError, match=message):
        pogm.load(copy)


def test_folder_without_a_model_is_refused(digits, tmp_path):
    with pytest.raises(UsageError, match=r"found nothing at .*Check the path"):
        pogm.load(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"model\.json in .*; found none"):
        pogm.load(tmp_path)
    copy = damaged(digits, tmp_path)
    shutil.rmtree(copy / "model")
    with pytest.raises(UsageError, match="a run without a selected model"):
        pogm.load(copy)
