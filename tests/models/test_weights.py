"""Test loading weights from files."""

import io
import os
import pickle
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import trial

from pogm._system.errors import DataError, IntegrityError, PogmError, UsageError
from pogm.algorithms.erm import ERM
from pogm.cli import main
from pogm.data.datasets.base import Training
from pogm.engine.session import Engine, Session
from pogm.models import build_features, hash_weights, resnet
from pogm.models.timm_models import build_timm
from pogm.models.weights import load_published, load_tensors, read_tensors

NAME = "timm/test_resnet"
FIRST = "conv1.0.weight"


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Tensors of a file: the network in half precision, with a classifier of 1000 classes."""
    torch.manual_seed(5)
    features, width = build_features(NAME, (3, 32, 32))
    own = {name.removeprefix("model."): leaf for name, leaf in features.state_dict().items()}
    halved = {name: leaf.half() if leaf.is_floating_point() else leaf for name, leaf in own.items()}
    return halved | {"fc.weight": torch.randn(1000, width), "fc.bias": torch.randn(1000)}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("POGM_WEIGHTS", str(tmp_path))
    return tmp_path


def write(path: Path, tensors) -> str:
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return hash_weights(path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_file_is_found_by_hash_and_loaded_in_float32(name, folder, tensors):
    write(folder / "another.safetensors", {"x": torch.zeros(1)})
    features, _ = build_features(NAME, (3, 32, 32), weights=write(folder / name, tensors))
    for leaf, tensor in features.state_dict().items():
        assert torch.equal(tensor, tensors[leaf.removeprefix("model.")].to(tensor.dtype))
        assert tensor.dtype in (torch.float32, torch.int64)


def test_weights_variable_may_be_the_file_itself(folder, tensors, monkeypatch):
    weights = write(folder / "w.pth", tensors)
    monkeypatch.setenv("POGM_WEIGHTS", str(folder / "w.pth"))
    build_features(NAME, (3, 32, 32), weights=weights)


def test_wrapped_state_dict_is_unwrapped(folder, tensors):
    build_features(NAME, (3, 32, 32), weights=write(folder / "w.pth", {"epoch": 3, "state_dict": tensors}))


def test_featurizer_of_a_domainbed_checkpoint_is_read(folder, tensors):
    """DomainBed saves the whole algorithm, in which the network is twice, and hyperparameters that may be numpy's."""
    network = {f"{prefix}.network.{name}": tensor for prefix in ("featurizer", "network.0") for name, tensor in
               tensors.items()}  # fmt: skip
    saved = {
        "args": {"algorithm": "ERM", "test_envs": [0]},
        "model_hparams": {"resnet_dropout": np.random.RandomState(0).choice([0.0, 0.1, 0.5]), "n": np.int64(3)},
        "model_dict": {**network, "classifier.weight": torch.ones(2, 3), "network.1.weight": torch.ones(2, 3)},
    }
    features, _ = build_features(NAME, (3, 32, 32), weights=write(folder / "model.pkl", saved))
    assert torch.equal(features.get_submodule("model").get_parameter(FIRST), tensors[FIRST].float())


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_input_channel_i_is_pretrained_channel_i_modulo_three(channels, folder, tensors):
    weights = write(folder / "w.safetensors", tensors)
    features, _ = build_features(NAME, (channels, 32, 32), weights=weights)
    loaded = features.get_submodule("model").get_parameter(FIRST)
    assert loaded.shape[1] == channels
    for i in range(channels):
        assert torch.equal(loaded[:, i], tensors[FIRST][:, i % 3].float())


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
@pytest.mark.parametrize("channels", [2, 4])
def test_torchvision_networks_accept_any_number_of_channels(name, channels):
    features, width = build_features(name, (channels, 32, 32))
    assert features(torch.zeros(2, channels, 32, 32)).shape == (2, width)


def test_other_shapes_are_refused_with_all_differences(folder, tensors):
    del tensors["bn1.weight"]
    tensors["layer1.0.bn1.weight"] = torch.ones(7)
    tensors["extra.bias"] = torch.ones(1)
    weights = write(folder / "w.safetensors", tensors)
    with pytest.raises(DataError, match=r"w\.safetensors") as found:
        build_features(NAME, (3, 32, 32), weights=weights)
    for part in ("no bn1.weight", r"layer1.0.bn1.weight of shape [7], not [", "extra.bias, which the network does not"):
        assert part in str(found.value)
    assert "fc." not in str(found.value), "the classifier of the file is ignored"


def test_more_than_eight_differences_are_counted(folder):
    weights = write(folder / "w.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(DataError, match=r"and \d+ more"):
        build_features(NAME, (3, 32, 32), weights=weights)


def test_non_strict_load_returns_differences(tensors):
    featurizer = build_timm("test_resnet", (3, 32, 32))
    del tensors["bn1.weight"]
    assert load_tensors(featurizer, tensors, "a test", strict=False) == ["no bn1.weight"]
    assert torch.equal(featurizer.module.get_parameter("model." + FIRST), tensors[FIRST].float())


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_weights_that_are_not_floating_point_are_refused(name, dtype, folder, tensors):
    tensors[FIRST] = tensors[FIRST].to(dtype)
    with pytest.raises(DataError, match=rf"{FIRST} of dtype {dtype}, not torch\.float32"):
        build_features(NAME, (3, 32, 32), weights=write(folder / name, tensors))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_weights_that_are_not_finite_are_refused_when_the_file_is_loaded(value, folder, tensors):
    tensors[FIRST] = tensors[FIRST].double()
    tensors[FIRST].view(-1)[3] = value
    with pytest.raises(DataError, match=rf"finite weights in .*w\.pth; found NaN or infinity in {FIRST}"):
        build_features(NAME, (3, 32, 32), weights=write(folder / "w.pth", tensors))


def test_not_finite_classifier_of_the_file_is_ignored(folder, tensors):
    tensors["fc.bias"][0] = float("nan")
    build_features(NAME, (3, 32, 32), weights=write(folder / "w.pth", tensors))


def test_converted_file_has_the_same_tensors(folder, tensors, capsys):
    tensors["copy.weight"] = tensors["fc.weight"][::2].T  # shares memory, and is not contiguous
    torch.save({"state_dict": tensors}, folder / "w.pth")
    assert main(["weights", "convert", str(folder / "w.pth")]) == 0
    found = load_file(folder / "w.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype
    assert hash_weights(folder / "w.safetensors") in capsys.readouterr().out
    assert main(["weights", "convert", str(folder / "w.pth")]) == 2, "an existing file is not replaced"


def test_conversion_of_a_malicious_pickle_runs_no_code_and_writes_nothing(folder, capsys):
    torch.save({"conv1.weight": Malicious(folder / "proof")}, folder / "w.pth")
    assert main(["weights", "convert", str(folder / "w.pth"), "--out", str(folder / "new.safetensors")]) == 6
    assert "would run code; it was not run" in capsys.readouterr().err
    assert os.listdir(folder) == ["w.pth"]


@pytest.mark.parametrize(
    ("tensor", "code"),
    [(torch.zeros(2, 2).to_sparse(), 3), (torch.zeros(1).expand(10**6, 10**6), 6), (torch.zeros(2, device="meta"), 3)],
)
def test_conversion_of_unusual_tensors_is_refused(folder, capsys, tensor, code):
    torch.save({"x": tensor}, folder / "w.pth")
    assert main(["weights", "convert", str(folder / "w.pth")]) == code
    assert capsys.readouterr().err.startswith("pogm: Expected ")
    assert os.listdir(folder) == ["w.pth"]


class Malicious:
    """Object that creates a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_malicious_pickle_runs_no_code(how, folder):
    proof, path = folder / "proof", folder / "w.pth"
    if how == "pickle":
        path.write_bytes(pickle.dumps({"conv1.weight": Malicious(proof)}))
    else:
        torch.save({"conv1.weight": torch.zeros(1), "more": Malicious(proof)}, path)
    with pytest.raises(IntegrityError, match="would run code; it was not run") as found:
        build_features(NAME, (3, 32, 32), weights=hash_weights(path))
    assert found.value.exit_code == 6
    assert ("(Unsupported operand 149)" if how == "pickle" else "(GLOBAL posix.mkdir)") in str(found.value)
    assert "weights_only" not in str(found.value), "torch's advice to run the code is not shown"
    assert not proof.exists()
    pickle.loads(pickle.dumps(Malicious(proof)))
    assert proof.exists(), "a normal load runs the code"


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"PK\x03\x04 and so on", b"<html>404</html>" * 9])
def test_damaged_file_is_refused(name, content):
    with pytest.raises(IntegrityError, match=r"only tensors in w\."):
        read_tensors(name, content)


@pytest.mark.parametrize("zipped", [True, False])
def test_file_with_changed_bytes_loads_or_is_refused(zipped):
    file, generator = io.BytesIO(), random.Random(0)
    torch.save({"a": torch.ones(3), "b": torch.ones(2, 2)}, file, _use_new_zipfile_serialization=zipped)
    for _ in range(200):
        content = bytearray(file.getvalue())
        for _ in range(4):
            content[generator.randrange(len(content))] = generator.randrange(256)
        with suppress(PogmError):
            read_tensors("w.pth", bytes(content[: generator.randrange(len(content)) or None]))


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {3: torch.ones(1)}])
def test_file_without_named_tensors_is_refused(content, folder):
    with pytest.raises(DataError, match="tensors by name"):
        build_features(NAME, (3, 32, 32), weights=write(folder / "w.pth", content))


def test_missing_weights_are_refused(folder, monkeypatch):
    wanted = "sha256:" + "0" * 64
    (folder / "other.pth").write_bytes(b"x")
    with pytest.raises(DataError, match=r"found other\.pth"):
        build_features(NAME, (3, 32, 32), weights=wanted)
    monkeypatch.setenv("POGM_WEIGHTS", str(folder / "nowhere"))
    with pytest.raises(DataError, match="nowhere; found"):
        build_features(NAME, (3, 32, 32), weights=wanted)
    monkeypatch.delenv("POGM_WEIGHTS")
    with pytest.raises(DataError, match="set the variable to it"):
        build_features(NAME, (3, 32, 32), weights=wanted)


@pytest.mark.parametrize("weights", ["imagenet", "folder/w.pth", "sha256:123", ""])
def test_trial_refuses_weights_given_as_path(weights):
    with pytest.raises(UsageError, match="sha256sum"):
        trial(ERM(), training=Training(network="resnet18", weights=weights))


@pytest.mark.parametrize("network", ["mlp", "mnist_cnn", "resnet50_v1"])
def test_networks_without_published_weights_refuse_pretrained(network):
    with pytest.raises(UsageError, match="found one without"):
        build_features(network, (3, 8, 8), weights="pretrained")


def test_session_starts_from_weights_file(folder, tensors):
    training = Training(network=NAME, weights=write(folder / "w.pth", tensors), batch_size=2)
    params = Session([trial(ERM(), training=training).task(None)], Engine()).train_state.state.params
    assert torch.equal(params["features.model." + FIRST], tensors[FIRST][:, :1].float())


def write_hub_file(folder: Path, tensors) -> Path:
    """Write a file with a name as in torch's hub: it ends with the first digits of its SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / "made.pth")
    return (folder / "made.pth").rename(folder / f"made-{hash_weights(folder / 'made.pth').partition(':')[2][:8]}.pth")


def test_published_weights_are_read_from_folder_cache_or_address(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.delenv("POGM_WEIGHTS", raising=False)
    source = write_hub_file(tmp_path / "server", {"x": torch.ones(2)})
    url = source.as_uri()
    for _ in range(2):
        assert load_published(url)["x"].tolist() == [1, 1]
        source.unlink(missing_ok=True)
    cached = tmp_path / "hub" / "checkpoints" / source.name
    (tmp_path / "mine").mkdir()
    cached.rename(tmp_path / "mine" / source.name)
    with pytest.raises(DataError, match="Expected to download"):
        load_published(url)
    monkeypatch.setenv("POGM_WEIGHTS", str(tmp_path / "mine"))
    assert load_published(url)["x"].tolist() == [1, 1]


def test_published_weights_with_wrong_hash_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("POGM_WEIGHTS", str(tmp_path))
    torch.save({}, tmp_path / "made-01234567.pth")
    with pytest.raises(IntegrityError, match="begins with 01234567"):
        load_published("https://example.org/made-01234567.pth")


def test_pretrained_loads_published_weights(monkeypatch):
    torch.manual_seed(0)
    wanted = resnet.build_resnet(18, (3, 32, 32)).module.state_dict()
    seen = []
    monkeypatch.setattr(resnet, "load_published", lambda url: seen.append(url) or wanted)
    features, _ = build_features("resnet18", (3, 32, 32), weights="pretrained")
    assert seen == ["https://download.pytorch.org/models/resnet18-f37072fd.pth"]
    assert torch.equal(features.get_parameter("layer3.0.conv1.weight"), wanted["layer3.0.conv1.weight"])


def test_devices_pipes_and_files_that_are_too_large_are_refused_without_reading_them(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.pth")
    for path in (Path("/dev/zero"), tmp_path / "pipe.pth", tmp_path):
        with pytest.raises(DataError, match="is not a regular file"):
            hash_weights(path)
    with open(tmp_path / "w.pth", "wb") as file:
        file.truncate((64 << 30) + 1)
    with pytest.raises(DataError, match="at most 64 GiB"):
        hash_weights(tmp_path / "w.pth")
    monkeypatch.setenv("POGM_WEIGHTS", str(tmp_path))
    (tmp_path / "w.pth").unlink()
    with pytest.raises(DataError, match="found no weights file"):
        build_features(NAME, (3, 32, 32), weights="sha256:" + "0" * 64)
