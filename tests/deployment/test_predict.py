"""Predictions for files and folders: order, batches, bad images, and models that adapt to their batch."""

import csv
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import trial

import pogm
from pogm import ARM, ERM, ITTA
from pogm._system.errors import DataError, UsageError
from pogm.benchmark.results.classification import softmax
from pogm.benchmark.runs.runner import run
from pogm.deployment.predict import ImageGroup, find_images, predict


def rows(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8", "surrogateescape"))))


@pytest.fixture(scope="module")
def model(photographs):
    return pogm.load(photographs[1])


def test_predictions_are_those_of_the_model(model, photographs):
    groups = find_images([photographs[0] / "c"])
    (group,) = groups
    found = predict(model, groups)
    assert found.paths == group.paths == tuple(sorted(map(str, (photographs[0] / "c").rglob("*.png"))))
    expected = model.probabilities(group.paths)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-4)
    assert found.names == [model.classes[i] for i in expected.argmax(-1)]


@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
def test_batches_do_not_change_predictions(model, photographs, batch_size):
    groups = find_images([photographs[0]])
    found = predict(model, groups, batch_size=batch_size)
    np.testing.assert_allclose(found.logits, predict(model, groups).logits, rtol=1e-4, atol=1e-5)


def test_progress_counts_every_image_once_after_its_prediction(model, with_bad_images):
    seen = []

    def progress(items, total):
        for item in items:
            seen.append((item, total))
            yield item

    predict(model, find_images([with_bad_images]), batch_size=2, on_bad_image="skip", progress=progress)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_images_are_listed_once_in_a_stable_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.PNG", "b/1.jpg", "b/deep/3.png", "b/notes.txt", "b/.hidden.png", "a/x.dat", "a/y.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"")
    groups = find_images([Path("b"), Path("a/x.dat"), Path("b/1.jpg"), Path("a/y.png")])
    assert groups == [ImageGroup("b", ("b/1.jpg", "b/2.PNG", "b/deep/3.png")), ImageGroup("a", ("a/x.dat", "a/y.png"))]


def test_missing_paths_and_folders_without_images_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"found none\. Check the path"):
        find_images([tmp_path / "missing.png"])
    with pytest.raises(DataError, match=r"found none whose name ends with \.jpg"):
        find_images([tmp_path])
    (tmp_path / "link.png").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"link\.png is a link that leads nowhere"):
        find_images([tmp_path])


@pytest.fixture
def with_bad_images(tmp_path, photographs) -> Path:
    """Folder of an image, an empty file, a text and a truncated image."""
    content = (photographs[0] / "a/red/0.png").read_bytes()
    for name, data in (("a.png", content), ("b.png", b""), ("c.png", b"text"), ("d.png", content[:500])):
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_bad_images_are_refused_with_a_list(model, with_bad_images):
    with pytest.raises(DataError, match="found 3 of 4 that cannot") as caught:
        predict(model, find_images([with_bad_images]), batch_size=1)
    for text in ("b.png: empty: no bytes", "c.png: not an image", "d.png: truncated", "--on-bad-image skip"):
        assert text in str(caught.value)


def test_bad_images_that_are_skipped_have_a_reason_and_no_prediction(model, with_bad_images):
    found = predict(model, find_images([with_bad_images]), on_bad_image="skip")
    assert found.names == ["red", "", "", ""]
    assert found.counts() == "red 1, not readable 3"
    first, second, *_ = rows(found.csv(reasons=True))
    assert first["reason"] == ""
    assert float(first["probability_red"]) > 0.5
    assert second["prediction"] == second["probability_red"] == ""
    assert second["reason"] == "empty: no bytes"


def test_file_that_cannot_be_read_is_a_bad_image(model, photographs, tmp_path):
    group = ImageGroup("x", (str(photographs[0] / "a/red/0.png"), str(tmp_path / "gone.png")))
    assert predict(model, [group], on_bad_image="skip").reasons == ("", "unreadable: No such file or directory")


def test_images_of_any_size_and_mode_are_predicted(model, tmp_path):
    for mode, size in (("L", (3, 500)), ("RGBA", (17, 17)), ("P", (1, 1)), ("CMYK", (400, 30)), ("1", (64, 64))):
        image = Image.new(mode, size)
        image.save(tmp_path / f"{mode}.{'tif' if mode == 'CMYK' else 'png'}")
    assert predict(model, find_images([tmp_path])).is_predicted.all()


def test_csv_has_unusual_names_and_exact_columns(model, photographs, tmp_path):
    content = (photographs[0] / "a/red/0.png").read_bytes()
    names = ['with,comma "quoted".png', "new\nline.png", os.fsdecode(b"not utf-8 \xff.png")]
    for name in names:
        (tmp_path / name).write_bytes(content)
    found = predict(model, find_images([tmp_path]))
    written = rows(found.csv(more={"label": ["x", "y", "z"]}))
    assert list(written[0]) == ["path", "label", "prediction", "probability_blue", "probability_red"]
    assert {row["path"] for row in written} == {str(tmp_path / name) for name in names}


def test_temperature_of_the_description_scales_probabilities(photographs):
    model = pogm.load(photographs[1])
    groups = find_images([photographs[0] / "c"])
    plain = predict(model, groups)
    model.description["temperature"] = 4.0
    scaled = predict(model, groups)
    np.testing.assert_allclose(scaled.probabilities, softmax(plain.logits, 4.0))
    assert scaled.names == plain.names
    np.testing.assert_allclose(model.probabilities(scaled.paths), scaled.probabilities, rtol=1e-4)
    for wrong in (0, -1.0, "warm", None):
        model.description["temperature"] = wrong
        with pytest.raises(UsageError, match="Expected a temperature above 0"):
            predict(model, groups)


def test_logits_that_are_not_finite_are_no_prediction(photographs):
    model = pogm.load(photographs[1])
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match="not finite"):
        predict(model, find_images([photographs[0] / "c"]))


def test_batch_size_below_one_is_refused(model, photographs):
    with pytest.raises(UsageError, match="at least 1; found 0"):
        predict(model, find_images([photographs[0]]), batch_size=0)


# Models that adapt to their batch.


@pytest.fixture(scope="module")
def digit_folders(tmp_path_factory) -> Path:
    """Two folders of 70 grey images each."""
    root, draw = tmp_path_factory.mktemp("digits"), np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 100)):
        (root / name).mkdir()
        for number in range(70):
            pixels = draw.integers(low, low + 150, (8, 8)).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02}.png")
    return root


@pytest.mark.parametrize(("algorithm", "modifiers"), [(ARM(), ()), (ERM(), (ITTA(),))], ids=["ARM", "ITTA"])
def test_models_that_adapt_predict_each_folder_as_one_domain(tmp_path, digit_folders, algorithm, modifiers):
    known = trial(algorithm)
    training = type(known.training)(network="small_cnn" if modifiers else "mlp")
    run(trial(algorithm, modifiers=modifiers, steps=2, training=training), tmp_path / "run")
    model = pogm.load(tmp_path / "run")
    together = predict(model, find_images([digit_folders / "dark", digit_folders / "light"]))
    light = find_images([digit_folders / "light"])
    alone = predict(model, light)
    np.testing.assert_array_equal(together.logits[70:], alone.logits)
    predictor = model.predictor()  # one predictor for a domain: it keeps state between the batches
    inputs = torch.stack([model.transform(path) for path in light[0].paths])
    expected = torch.cat([predictor(batch) for batch in inputs.split(64)])
    np.testing.assert_allclose(alone.logits, expected.numpy(), rtol=1e-5, atol=1e-6)
    pooled = [ImageGroup("all", tuple(path for group in find_images([digit_folders]) for path in group.paths))]
    assert not np.allclose(predict(model, pooled).logits[:70], together.logits[:70], rtol=1e-7, atol=0)
    with pytest.raises(UsageError, match="adapts to its batch and another size"):
        predict(model, light, batch_size=8)
