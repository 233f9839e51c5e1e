"""Test models of timm."""

import importlib
import sys

import pytest
import torch
from support import trial

from pogm._system.errors import DataError, UsageError
from pogm.algorithms.erm import ERM
from pogm.data.datasets.base import Training
from pogm.models import build_features


@pytest.fixture
def timm():
    """Import timm when a test runs: it takes a second."""
    return importlib.import_module("timm")


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_vit", "test_convnext", "test_nfnet", "mobilenetv3_small_050.lamb_in1k"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_model_width_equals_number_of_outputs(name, channels):
    features, width = build_features(f"timm/{name}", (channels, 64, 64))
    assert features(torch.zeros(2, channels, 64, 64)).shape == (2, width)


def test_resnet18_of_timm_equals_torchvision_in_size():
    features, width = build_features("timm/resnet18", (3, 64, 64))
    assert width == 512
    assert sum(leaf.numel() for leaf in features.parameters()) == 11176512


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "rexnet_100", "ghostnet_050"])
def test_no_layer_uses_global_generators(timm, name):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0)
    from pogm.models.timm_models import _disable_randomness

    _disable_randomness(model)
    for layer in model.modules():
        assert not any(getattr(layer, rate, None) for rate in ("drop_prob", "drop_rate"))
        assert not (isinstance(layer, torch.nn.Dropout) and layer.p)


def test_missing_timm_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match="pip install timm"):
        build_features("timm/resnet18", (3, 32, 32))


def test_unknown_model_error_suggests_nearest_name():
    with pytest.raises(UsageError, match="Did you mean timm/resnet18"):
        build_features("timm/resnett18", (3, 32, 32))


def test_unknown_tag_is_refused():
    with pytest.raises(UsageError, match=r"test_resnet\.mine.*[Ii]nvalid"):
        build_features("timm/test_resnet.mine", (3, 32, 32))


def test_too_small_images_are_refused():
    with pytest.raises(UsageError, match="images of 3×4×4"):
        build_features("timm/test_vit", (3, 4, 4))


def test_trial_accepts_timm_name_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert trial(ERM(), training=Training(network="timm/resnet18")).training.network == "timm/resnet18"


def test_pretrained_weights_need_a_tag():
    with pytest.raises(UsageError, match=r"Write timm/test_resnet\.r160_in1k"):
        build_features("timm/test_resnet", (3, 64, 64), weights="pretrained")


def test_pretrained_weights_are_converted_to_channels(timm, monkeypatch):
    torch.manual_seed(0)
    hub, plain = timm.create_model("test_resnet", num_classes=0), timm.create_model

    def create(name, pretrained=False, **options):
        return hub if pretrained else plain(name, **options)

    monkeypatch.setattr(timm, "create_model", create)
    features, _ = build_features("timm/test_resnet.r160_in1k", (1, 64, 64), weights="pretrained")
    assert torch.equal(features.get_parameter("model.conv1.0.weight"), hub.conv1[0].weight[:, :1])
    assert torch.equal(features.get_parameter("model.conv1.3.weight"), hub.conv1[3].weight)


def test_unreachable_hub_raises_data_error(timm, monkeypatch):
    plain = timm.create_model

    def create(name, pretrained=False, **options):
        if pretrained:
            raise ConnectionError("no route to the hub.")
        return plain(name, **options)

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(DataError, match=r"no route to the hub\. Name a file"):
        build_features("timm/test_resnet.r160_in1k", (3, 64, 64), weights="pretrained")
