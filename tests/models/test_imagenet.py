"""Test real ImageNet weights on real photographs, if both are available."""

import os
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from pogm.models import build_features, hash_weights

SHARED = Path(__file__).parents[2].parent / "shared"
WEIGHTS = Path(os.environ.get("POGM_WEIGHTS") or SHARED / "weights")
PHOTOS = Path(os.environ.get("POGM_DATA") or SHARED / "data") / "PACS" / "photo" / "dog"
RESNET, MOBILENET = "resnet50_imagenet_v1.safetensors", "mobilenet_v2_imagenet.safetensors"
DOGS = slice(151, 269)  # ImageNet classes of dogs
SIZE = 128

pytestmark = [
    pytest.mark.skipif(not (WEIGHTS / RESNET).exists(), reason=f"needs {RESNET} in POGM_WEIGHTS or ../shared/weights"),
    pytest.mark.skipif(not PHOTOS.exists(), reason="needs PACS in POGM_DATA or ../shared/data"),
]


@cache
def dogs() -> Tensor:
    """Return twenty normalised photographs of dogs: [20, 3, SIZE, SIZE]."""
    pillow, numpy = pytest.importorskip("PIL.Image"), pytest.importorskip("numpy")
    images = []
    for path in sorted(PHOTOS.iterdir())[:20]:
        with pillow.open(path) as image:
            images.append(numpy.asarray(image.convert("RGB").resize((SIZE, SIZE), pillow.Resampling.BILINEAR)))
    x = torch.from_numpy(numpy.stack(images)).permute(0, 3, 1, 2) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)


def predict(network: str, file: str, classifier: str, monkeypatch) -> Tensor:
    """Return the probabilities [20, 1000] of the classifier in the file."""
    monkeypatch.setenv("POGM_WEIGHTS", str(WEIGHTS))
    features, _ = build_features(network, (3, SIZE, SIZE), weights=hash_weights(WEIGHTS / file))
    tensors = load_file(WEIGHTS / file)
    weight, bias = (tensors[f"{classifier}.{name}"].float() for name in ("weight", "bias"))
    with torch.no_grad():
        return F.linear(features.eval()(dogs()), weight, bias).softmax(-1)


def count_dogs(found: Tensor) -> int:
    top = found.argmax(-1)
    return int(((top >= DOGS.start) & (top < DOGS.stop)).sum())


def test_resnet50_v1_recognises_dogs_better_than_resnet50(monkeypatch):
    right = predict("resnet50_v1", RESNET, "fc", monkeypatch)
    wrong = predict("resnet50", RESNET, "fc", monkeypatch)
    assert count_dogs(right) >= 17
    assert count_dogs(right) > count_dogs(wrong)
    assert right[:, DOGS].sum(1).mean() > wrong[:, DOGS].sum(1).mean() + 0.1


def test_mobilenet_v2_recognises_dogs(monkeypatch):
    assert count_dogs(predict("mobilenet_v2", MOBILENET, "classifier.1", monkeypatch)) >= 17
