"""Exported models: the same predictions in another program, complete files or none, and clear errors."""

import copy
import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from processes import pogm as pogm_command
from safetensors.torch import load_file
from support import trial

import pogm
from pogm import ARM
from pogm._system.errors import DataError, UsageError
from pogm._system.files import digest
from pogm.benchmark.runs.runner import run
from pogm.data.images.intensity import Intensity
from pogm.deployment import export_formats
from pogm.deployment.export import SUFFIXES, Exported, ExportError, export
from pogm.deployment.export_comparison import compare
from pogm.deployment.export_inputs import describe_preprocessing, probe_inputs
from pogm.deployment.model import TrainedModel

SOURCES = str(Path(pogm.__file__).parent).encode()


@pytest.fixture(scope="module")
def model(photographs):
    return pogm.load(photographs[1])


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory) -> Callable[[str], Exported]:
    """Function that exports the model, once for each format, to the only files of a folder."""
    return cache(lambda to: export(model, to, tmp_path_factory.mktemp("exported") / f"model{SUFFIXES[to]}"))


def with_network(model: TrainedModel, network: str) -> TrainedModel:
    """Return a model with another network and random weights, also in the statistics of batch norm."""
    training = replace(model._trial.training, network=network, freeze_bn=False)
    known = replace(model._trial, training=training)
    built = known.task(None).build_network()
    generator = torch.Generator().manual_seed(1)
    for name, leaf in built.named_buffers():
        if leaf.is_floating_point():
            leaf.copy_(torch.rand(leaf.shape, generator=generator) + (0.5 if "var" in name else -0.5))
    return TrainedModel(built, known, model.description | {"network": network})


@pytest.mark.parametrize("to", SUFFIXES)
def test_files_and_description(exported, to):
    made = exported(to)
    path, folder = made.path, made.path.parent
    assert made.comparison.difference < 1e-4
    assert made.comparison.batches == 21
    assert sorted(p.name for p in folder.iterdir()) == [path.name, f"{path.name}.json"]
    described = json.loads(made.description.read_text())
    content = path.read_bytes()
    assert described["file"] == {"name": path.name, "sha256": digest(content), "bytes": len(content)}
    assert described["classes"] == ["blue", "red"]
    assert described["input"]["shape"] == ["batch", 3, 32, 32]
    assert described["preprocessing"]["mean"] == [0.485, 0.456, 0.406]
    assert b'"classes": ["blue", "red"]' in content.replace(b"\\", b"")  # the file describes itself
    for text in (content, made.description.read_bytes()):
        assert SOURCES not in text  # no absolute paths
        assert str(folder).encode() not in text


def test_onnx_file_predicts_any_batch_size_without_torch(model, exported):
    import onnxruntime

    session = onnxruntime.InferenceSession(exported("onnx").path, providers=["CPUExecutionProvider"])
    assert [value.shape for value in session.get_inputs()] == [["batch", 3, 32, 32]]  # as the description says
    assert [value.shape for value in session.get_outputs()] == [["batch", 2]]
    for size in (1, 4, 9):
        x = torch.randn(size, 3, 32, 32)
        (logits,) = session.run(["logits"], {"input": x.numpy()})
        np.testing.assert_allclose(logits, model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["pogm.json"])["classes"] == ["blue", "red"]


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.10, in torch.export.load
def test_torch_export_file_predicts_any_batch_size(model, exported):
    extra = {"pogm.json": ""}
    loaded: Any = torch.export.load(exported("torch-export").path, extra_files=extra).module()
    for size in (1, 4, 9):
        x = torch.randn(size, 3, 32, 32)
        torch.testing.assert_close(loaded(x), model(x))
    assert json.loads(extra["pogm.json"])["classes"] == ["blue", "red"]


@pytest.mark.parametrize("network", ["resnet18", "mobilenet_v2", "timm/resnet18"])
def test_safetensors_of_published_networks_have_their_names(model, tmp_path, network):
    import timm
    import torchvision

    other = with_network(model, network)
    made = export(other, "safetensors", tmp_path / "weights.safetensors")
    code = json.loads(made.description.read_text())["load"]
    module = eval(code, {"timm": timm, "torchvision": torchvision})
    module.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(module.eval()(x), other(x))


@pytest.mark.parametrize("network", ["resnet18", "timm/test_resnet"])
def test_residual_networks_can_be_exported_to_onnx(model, tmp_path, network):
    made = export(with_network(model, network), "onnx", tmp_path / "model.onnx")
    assert made.comparison.difference < 1e-4


def test_safetensors_of_own_networks_have_the_names_of_the_model(model, tmp_path):
    export(model, "safetensors", tmp_path / "weights.safetensors")
    tensors = load_file(tmp_path / "weights.safetensors")
    assert tensors.keys() == dict(model.network.named_parameters()).keys()
    assert torch.equal(tensors["head.weight"], model.network.head.weight)


def test_network_with_the_names_of_torchvision_that_computes_otherwise_is_no_network_of_torchvision(model, tmp_path):
    made = export(with_network(model, "resnet50_v1"), "safetensors", tmp_path / "weights.safetensors")
    assert "torchvision" not in json.loads(made.description.read_text())["load"]
    assert made.comparison.difference == 0


def test_nonlinear_classifier_keeps_the_names_of_the_model(model, tmp_path):
    training = replace(model._trial.training, network="resnet18", nonlinear_classifier=True, freeze_bn=False)
    known = replace(model._trial, training=training)
    other = TrainedModel(known.task(None).build_network(), known, model.description | {"network": "resnet18"})
    export(other, "safetensors", tmp_path / "weights.safetensors")
    assert "head.0.weight" in load_file(tmp_path / "weights.safetensors")


def test_preprocessing_in_numbers_gives_the_inputs_of_the_transform(model):
    """Follow the description with Pillow and numpy only. The last resize of Pillow rounds to bytes, ours does not."""
    described = describe_preprocessing(model)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 200, 3)).astype(np.uint8))
    resized = image
    for height, width in (described["stored_size"], described["input_size"]):
        resized = resized.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, np.float32) * described["scale"]
    inputs = ((pixels - described["mean"]) / described["std"]).transpose(2, 0, 1)
    np.testing.assert_allclose(model.transform(image), inputs, atol=2.5 / 255 / 0.224)
    assert "Resize it to 256 × 256" in described["steps"][1]


def test_preprocessing_of_small_grey_images(digits):
    described = describe_preprocessing(pogm.load(digits))
    assert (described["channels"], described["mean"], described["std"]) == (1, [0.0], [1.0])
    assert "8-bit greyscale" in described["steps"][0]


def test_preprocessing_of_wide_images_names_the_recorded_scaling(photographs, tmp_path):
    """A 12-bit image, scaled to 8 bits by the description, has the inputs of the image itself."""
    model = pogm.load(photographs[1])
    assert "intensity" not in describe_preprocessing(model)
    assert "scale linearly" not in describe_preprocessing(model)["steps"][0]
    model.transform.intensity = Intensity("auto", 0, 4095)
    described = describe_preprocessing(model)
    assert described["intensity"] == "auto:0:4095"
    assert "scale linearly so that 0 becomes 0 and 4095 becomes 255" in described["steps"][0]
    wide = np.random.default_rng(0).integers(0, 4096, (50, 40)).astype(np.uint16)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    low, high = map(float, described["intensity"].split(":")[1:])
    narrow = np.rint((wide - low) * 255 / (high - low)).astype(np.uint8)
    assert model.transform(tmp_path / "wide.png").equal(model.transform(Image.fromarray(narrow)))


# Comparison.


def test_comparison_finds_any_difference(model):
    assert compare(model, model).difference == 0
    assert compare(model, lambda x: model(x) * 1.01).difference == pytest.approx(0.01, rel=0.01)
    assert compare(model, lambda x: model(x)[:, :1]).difference == float("inf")
    assert compare(model, lambda x: model(x) + float("nan")).difference == float("inf")
    only_large = compare(model, lambda x: model(x) + (1.0 if len(x) == 5 else 0.0))
    assert only_large.difference > 0.1
    assert "batch size 5" in only_large.inputs
    names = {name for name, _ in probe_inputs(model)}
    assert {"random inputs", "random inputs times 100", "black images", "white images", "zeros"} <= names


@pytest.mark.parametrize("to", SUFFIXES)
def test_export_that_differs_is_refused_and_leaves_old_files(model, tmp_path, monkeypatch, to):
    original, made = export_formats.EXPORTERS[to], []

    def damaged(*args: Any) -> Any:
        made.append(made[0] if made else original(*args))
        content, predict, more = made[-1]
        return content, lambda x: predict(x) + 0.1, more

    monkeypatch.setitem(export_formats.EXPORTERS, to, damaged)
    with pytest.raises(ExportError, match=r"at most 0\.0001; found a difference of .* for .* Nothing was written"):
        export(model, to, tmp_path / "model")
    assert not list(tmp_path.iterdir())
    (tmp_path / "model").write_bytes(b"old")
    with pytest.raises(ExportError):
        export(model, to, tmp_path / "model")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
    export(model, to, tmp_path / "model", tolerance=1.0)
    assert (tmp_path / "model").read_bytes() != b"old"
    assert len(made) == 3


# Bad input.


def test_models_that_adapt_are_refused(tmp_path):
    run(trial(ARM(), steps=2), tmp_path / "run")
    for to in SUFFIXES:
        with pytest.raises(UsageError, match="found ARM, which adapts to the other samples of its batch"):
            export(pogm.load(tmp_path / "run"), to, tmp_path / "file")


def test_missing_packages_are_named(model, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(export_formats, "find_spec", lambda name: None if name == "onnxruntime" else found(name))
    with pytest.raises(UsageError, match=r"found no onnxruntime\. Install them: pip install 'pogm\[onnx\]'"):
        export(model, "onnx", tmp_path / "model.onnx")


def test_network_that_cannot_be_traced_is_refused(model, tmp_path):
    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    other = copy.deepcopy(model)
    other.network.features = torch.nn.Sequential(Branch(), other.network.features)
    with pytest.raises(UsageError, match=r"Expected a network that torch\.export supports; found that small_cnn gives"):
        export(other, "torch-export", tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_output_must_be_a_file_in_an_existing_folder(model, tmp_path):
    with pytest.raises(UsageError, match=f"found the folder {tmp_path}.*--out {tmp_path}/model.safetensors"):
        export(model, "safetensors", tmp_path)
    with pytest.raises(UsageError, match="found no folder"):
        export(model, "safetensors", tmp_path / "missing/model")
    with pytest.raises(UsageError, match="tolerance of at least 0; found -1"):
        export(model, "safetensors", tmp_path / "model", tolerance=-1)


def test_full_disk_leaves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr("pogm._system.fault_injection._passed", Counter())
    monkeypatch.setenv("POGM_FAULT", "full@write:2")  # the first file is the description
    with pytest.raises(DataError, match="No space left"):
        export(model, "safetensors", tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("POGM_FAULT")
    old = [
        path.read_bytes() for path in (export(model, "safetensors", tmp_path / "model").path, tmp_path / "model.json")
    ]
    monkeypatch.setenv("POGM_FAULT", "full@write:4")
    with pytest.raises(DataError, match="An existing file is unchanged"):
        export(model, "torch-export", tmp_path / "model")
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == old


def test_killed_export_leaves_no_model_and_the_next_one_cleans_up(photographs, tmp_path):
    out = tmp_path / "model.safetensors"
    words = ("export", photographs[1], "--to", "safetensors", "--out", out)
    for fault in ("kill@write:1", "kill@replace:1", "kill@write:2", "kill@replace:2"):
        assert pogm_command(*words, fault=fault).code == -9
        assert not out.exists()
    assert pogm_command(*words).code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [out.name, f"{out.name}.json"]
    assert torch.equal(load_file(out)["head.bias"], pogm.load(photographs[1]).network.head.bias)
