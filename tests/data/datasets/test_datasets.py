"""Test the datasets of digits, and splits and seeds."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import trial

from pogm import ERM
from pogm._system.errors import DataError, UsageError
from pogm.data import datasets
from pogm.data.datasets import all_datasets, dataset_class, digits
from pogm.data.datasets.array_dataset import ArrayDataset
from pogm.data.datasets.base import Domain, check_loaded, seed_hash, split
from pogm.data.datasets.colored_digits import ColoredDigits
from pogm.data.datasets.colored_mnist import color_digits, make_colored_domains
from pogm.data.datasets.digits import read_digits, read_idx, read_mnist
from pogm.data.datasets.image_dataset import ImageDataset
from pogm.data.datasets.rotated_mnist import rotate

REAL = Path(os.environ.get("POGM_DATA") or Path(__file__).parents[4] / "shared" / "data")
needs_mnist = pytest.mark.skipif(not (REAL / "MNIST" / "raw").exists(), reason="needs MNIST in POGM_DATA")


def write_idx(path: Path, numbers: np.ndarray, zipped: bool) -> None:
    header = bytes([0, 0, 8, numbers.ndim]) + b"".join(n.to_bytes(4, "big") for n in numbers.shape)
    content = header + numbers.astype(np.uint8).tobytes()
    name = path.with_name(path.name + ".gz") if zipped else path
    name.write_bytes(gzip.compress(content) if zipped else content)


@pytest.fixture(params=[False, True], ids=["plain", "gzipped"])
def small_mnist(request, tmp_path):
    """A data folder with MNIST's four files, with 90 and 30 images."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    numbers = np.random.RandomState(0)
    for part, count in (("train", 90), ("t10k", 30)):
        write_idx(raw / f"{part}-images-idx3-ubyte", numbers.randint(0, 256, (count, 28, 28)), request.param)
        write_idx(raw / f"{part}-labels-idx1-ubyte", numbers.randint(0, 10, (count,)), request.param)
    return tmp_path


DIGITS = [name for name, found in all_datasets().items() if not issubclass(found, ImageDataset | ArrayDataset)]


@pytest.mark.parametrize("name", DIGITS)
def test_class_attributes_match_loaded_data(name, small_mnist):
    dataset = dataset_class(name)()
    domains = dataset.load(small_mnist, seed=0)
    assert len(domains) == len(dataset.domains)
    for domain in domains:
        assert domain.inputs.dtype == torch.uint8
        assert domain.inputs.shape[1:] == dataset.input_shape
        assert len(domain.inputs) == len(domain.labels)
        assert set(domain.labels.tolist()) <= set(range(dataset.num_classes))
    assert dataset.__doc__


@pytest.mark.parametrize("name", ["RotatedDigits", "ColoredDigits"])
def test_seed_decides_which_digits_are_in_a_domain(name):
    first, again, other = (dataset_class(name)().load(None, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0].inputs, other[0].inputs)


def test_no_digit_is_in_two_domains():
    images = torch.arange(70, dtype=torch.uint8).reshape(70, 1, 1)
    domains = make_colored_domains(images, torch.zeros(70, dtype=torch.long), seed=0)
    seen = torch.cat([domain.inputs.sum((1, 2, 3)) for domain in domains])
    assert sorted(seen.tolist()) == list(range(70))
    assert [len(domain.labels) for domain in domains] == [24, 23, 23]


def test_color_and_label_noise_have_their_probabilities():
    digits = torch.arange(10).repeat(4000)
    images = torch.full((len(digits), 2, 2), 255, dtype=torch.uint8)
    for noise in (0.1, 0.2, 0.9):
        domain = color_digits(images, digits, noise, torch.Generator().manual_seed(0))
        colors = (domain.inputs[:, 1].sum((1, 2)) > 0).long()  # colour 1 is channel 1
        assert ((domain.inputs.sum((2, 3)) > 0).sum(1) == 1).all(), "the other channel is black"
        assert abs((colors != domain.labels).float().mean() - noise) < 0.01
        assert abs((domain.labels == (digits < 5)).float().mean() - 0.75) < 0.01


@pytest.mark.parametrize("found", [True, False], ids=["file", "function"])
def test_digits_equal_those_of_scikit_learn(monkeypatch, found):
    """They are read from its file without an import of the package, or by its function if the file is not found."""
    from sklearn.datasets import load_digits

    expected = load_digits()
    if found:
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # an import would fail
    else:
        monkeypatch.setattr(digits, "find_spec", lambda name: None)
    images, labels = read_digits()
    assert images.dtype == torch.uint8
    assert np.array_equal(images, np.round(expected.images * 255 / 16))
    assert np.array_equal(labels, expected.target)


@pytest.mark.parametrize("degrees", [0, 15, 30, 45, 60, 75])
def test_rotation_is_bit_identical_to_pillow(degrees):
    """The published RotatedMNIST was made with Pillow."""
    images, _ = read_digits()
    large = torch.from_numpy(np.random.RandomState(1).randint(0, 256, (5, 28, 28)).astype(np.uint8))
    for batch in (images[:20], large):
        ours = rotate(batch, degrees)
        for image, found in zip(batch, ours, strict=True):
            theirs = Image.fromarray(image.numpy()).rotate(degrees, Image.Resampling.BILINEAR)
            assert np.array_equal(found.numpy(), np.asarray(theirs))


@pytest.mark.parametrize(
    ("parts", "value"),
    [
        ((0, 0), 894182419),
        ((0, 1), 1514274641),
        ((1, 0), 785910682),
        ((1, 2), 1981683110),
        ((2, 3), 1709828778),
        ((1, "lr"), 103267603),
        (("PACS", "ERM", [0], 0, 0), 94828300),
        (("ColoredMNIST", "POGM", [2], 0, 0), 75921242),
        (("TerraIncognita", "CAG1", [1], 4, 2), 311533180),
    ],
)
def test_seed_hash_has_the_published_values(parts, value):
    assert seed_hash(*parts) == value


def test_split_equals_domainbed():
    inside, outside = split(10, 0, 0)
    assert outside.tolist() == [2, 3]
    assert inside.tolist() == [8, 1, 4, 5, 0, 9, 6, 7]
    assert torch.cat(split(10, 2, 1)[::-1]).tolist() == [1, 0, 3, 9, 8, 7, 4, 5, 6, 2]


@pytest.mark.parametrize(("count", "sizes"), [(2656, (2125, 531)), (23334, (18668, 4666))])
def test_one_fifth_is_held_out(count, sizes):
    assert tuple(len(part) for part in split(count, 0, 0)) == sizes


def test_split_refuses_small_domain():
    with pytest.raises(DataError, match=r"found 3 samples.*Give it 5 or more samples, hold it out, or remove it"):
        split(3, 0, 0)
    with pytest.raises(DataError, match=r"found 1 samples.*Give it 2 or more samples, or remove it"):
        split(1, 0, 0, is_trained=False)


def test_errors_name_missing_and_damaged_files(tmp_path):
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        read_mnist(tmp_path)
    with pytest.raises(DataError, match="--data"):
        read_mnist(None)
    for content, words in ((b"<html>", "begin with"), (bytes([0, 0, 8, 1, 0, 0, 0, 9]) + b"ab", r"\[9\]")):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_idx(path)
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(b"some bytes that are long enough")[:-9])
    with pytest.raises(DataError, match="damaged"):
        read_idx(tmp_path / "cut")


def test_unknown_dataset_error_suggests_nearest_name():
    with pytest.raises(UsageError, match="Did you mean 'RotatedDigits'"):
        dataset_class("rotateddigit")


def test_new_dataset_needs_only_its_file(tmp_path, monkeypatch):
    (tmp_path / "new_digits.py").write_text(
        "from pogm.data.datasets.rotated_digits import RotatedDigits\nclass NewDigits(RotatedDigits): steps = 11\n"
    )
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
    found = datasets.all_datasets.__wrapped__()
    assert found["NewDigits"]().steps == 11
    assert found.keys() - all_datasets().keys() == {"NewDigits"}
    sys.modules.pop("pogm.data.datasets.new_digits")


X, Y = torch.zeros(9, 2, 8, 8, dtype=torch.uint8), torch.arange(9) % 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (None, r"a Domain for each of \+90%, \+80%, -90% from load of ColoredDigits; found 2 of the type Domain"),
        ((X, Y), "a Domain for each of .*; found 3 of the type Domain, tuple"),
        (Domain(X.numpy(), Y), "tensors from load of ColoredDigits; found ndarray and Tensor in -90%"),
        (Domain(X, Y[1:]), r"labels \[N\], .*; found inputs torch.uint8 \[9, 2, 8, 8\] and labels \[8\] in -90%"),
        (Domain(X[:, :1], Y), r"inputs \[N, ...\] of one shape and type, .*; found inputs torch.uint8 \[9, 1, 8, 8\]"),
        (Domain(X.float(), Y), "of one shape and type, .*; found inputs torch.float32"),
        (Domain(X, Y.int()), "labels of torch.int64 .*; found torch.int32 in -90%"),
        (Domain(X, Y + 1), "labels from 0 to 1 from load of ColoredDigits; found 1 to 2 in -90%. Correct the dataset."),
    ],
)
def test_domains_of_another_form_are_refused(changed, message):
    """Without the check, labels of another number would belong to other samples."""
    domains = [Domain(X, Y)] * 2
    check_loaded(ColoredDigits(), [*domains, Domain(X, Y)])
    with pytest.raises(DataError, match=message):
        check_loaded(ColoredDigits(), domains if changed is None else [*domains, changed])


def test_domains_of_a_trial_are_checked(monkeypatch):
    monkeypatch.setattr(ColoredDigits, "load", lambda self, root, seed: [Domain(X, Y[1:])] * 3)
    with pytest.raises(DataError, match="from load of ColoredDigits; found inputs"):
        trial(ERM(), "ColoredDigits", data_seed=12345).task(None).load()


@needs_mnist
def test_mnist_datasets_have_protocol_counts():
    for name, counts in (
        ("ColoredMNIST", [23334, 23333, 23333]),
        ("RotatedMNIST", [11667] * 4 + [11666] * 2),
    ):
        domains = dataset_class(name)().load(REAL, seed=0)
        assert [len(domain.labels) for domain in domains] == counts


@needs_mnist
def test_mnist_has_known_digit_counts():
    _, labels = read_mnist(REAL)
    assert labels[:60000].bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
