"""Exported models of tables, series, audio and text: they contain their preprocessing and take stored samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sample_files import OPTIONS, write_table

import pogm
from pogm import ERM
from pogm._system.errors import UsageError
from pogm.benchmark.plan.datasets import find_dataset
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.data.transforms.arrays import mel_filters
from pogm.data.transforms.base import Transform
from pogm.deployment.export import export
from pogm.deployment.model import TrainedModel

RNG = np.random.default_rng(0)
N = 60
ARRAYS: dict[str, tuple[Any, str]] = {
    "vectors": (np.where(RNG.random((N, 5)) < 0.2, np.nan, RNG.normal(10, 3, (N, 5))), ""),
    "series": (RNG.normal(2, 1, (N, 2, 40)).astype(np.float32), ""),
    "audio": (RNG.integers(-3000, 3000, (N, 1200)).astype(np.int16), ":kind=audio"),
    "counts": (RNG.poisson(1.0, (N, 12)), ":kind=counts"),
    "tokens": (RNG.integers(0, 9, (N, 7)), ":kind=tokens"),
}


def train(name: str, folder: Path) -> TrainedModel:
    """Train for a few steps on a file."""
    dataset = find_dataset(name)
    options = {"test_domains": (), "training": dataset.training, "steps": 3, "evaluate_every": 2}
    run(Trial(dataset=dataset, algorithm=ERM(), **options), folder, RunOptions(data=folder.parent))
    return pogm.load(folder)


def train_arrays(kind: str, folder: Path) -> TrainedModel:
    x, options = ARRAYS[kind]
    labels, domains = np.arange(N) % 2, np.array(["a", "b", "c"])[np.arange(N) // 2 % 3]
    rate = {"rate": np.array(8000)} if kind == "audio" else {}
    np.savez(folder / "data.npz", x=x, y=labels, domain=domains, **rate)
    return train(f"{folder / 'data.npz'}{options}", folder / "run")


def predict_onnx(path: Path, output: str, x: torch.Tensor) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run([output], {"input": x.numpy()})
    return found


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.10, in torch.export.load
def test_files_of_every_kind_take_stored_samples(kind, tmp_path):
    model = train_arrays(kind, tmp_path)
    mel_filters.cache_clear()  # as in a process that has not trained
    stored = model.transform.to_stored(ARRAYS[kind][0])
    made = export(model, "onnx", tmp_path / "model.onnx")
    expected = model(model.transform(stored)).numpy()
    given = stored if kind == "tokens" else stored.float() / (2**15 if kind == "audio" else 1)
    np.testing.assert_allclose(predict_onnx(made.path, "logits", given), expected, rtol=1e-3, atol=1e-4)
    export(model, "torch-export", tmp_path / "model.pt2")
    loaded: Any = torch.export.load(tmp_path / "model.pt2").module()
    np.testing.assert_allclose(loaded(given).numpy(), expected, rtol=1e-4, atol=1e-5)
    described = json.loads(made.description.read_text())
    assert described["input"]["shape"] == ["batch", *stored.shape[1:]]
    assert described["input"]["dtype"] == ("int64" if kind == "tokens" else "float32")


@pytest.mark.parametrize("regression", [False, True])
def test_a_row_made_by_the_description_gives_the_prediction_of_the_table(regression, tmp_path):
    """Follow the JSON file with Python's csv only, as another program does."""
    import csv

    name = f"{write_table(tmp_path / 'table.csv', regression)}:{OPTIONS}"
    model = train(name, tmp_path / "run")
    made = export(model, "onnx", tmp_path / "model.onnx")
    described = json.loads(made.description.read_text())
    with open(tmp_path / "table.csv", newline="") as file:
        samples = list(csv.DictReader(file))
    rows = [
        [
            float(sample[column["name"]] == column["value"])
            if column["kind"] == "category"
            else float(sample[column["name"]] or "nan")
            for column in described["preprocessing"]["columns"]
        ]
        for sample in samples
    ]
    x = torch.tensor(rows, dtype=torch.float32)
    assert {column["kind"] for column in described["preprocessing"]["columns"]} == {"number", "category"}
    assert bool(x.isnan().any()), "the table has missing values"
    found = predict_onnx(made.path, described["output"]["name"], x)
    columns = {name: np.array([sample[name] for sample in samples]) for name in samples[0]}
    np.testing.assert_allclose(found, model(model.transform(columns)).numpy(), rtol=1e-4, atol=1e-5)
    assert described["output"] == {
        "name": "prediction" if regression else "logits",
        "shape": ["batch", 1 if regression else 2],
        "dtype": "float32",
    }
    assert ("probabilities" in described) == (not regression)


def test_a_transform_of_a_plug_in_is_exported_without_known_statistics(tmp_path):
    class Halved(Transform):
        def to_inputs(self, stored, dtype):
            return stored.to(dtype) / 2

    model = train_arrays("series", tmp_path)
    model.transform.transform = Halved(model.transform.transform.shape)
    model._statistics = ()
    model.transform.statistics = {}
    stored = torch.from_numpy(ARRAYS["series"][0])
    made = export(model, "torch-export", tmp_path / "model.pt2")
    loaded: Any = torch.export.load(made.path).module()
    np.testing.assert_allclose(loaded(stored).numpy(), model(stored / 2).numpy(), rtol=1e-4, atol=1e-5)


def test_weights_alone_are_refused_because_they_lack_the_preprocessing(tmp_path):
    model = train_arrays("vectors", tmp_path)
    with pytest.raises(UsageError, match=r"Expected onnx or torch-export for a model of data.*found safetensors"):
        export(model, "safetensors", tmp_path / "weights.safetensors")
    assert not (tmp_path / "weights.safetensors").exists()
