"""Test datasets that are not images on small files of the published format, and on the real ones."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_files import HEADER, write_amazon_reviews, write_features, write_heart, write_spoken_digits

from pogm._system.errors import DataError
from pogm.data.datasets import dataset_class
from pogm.data.datasets.array_dataset import ArrayWarning
from pogm.data.datasets.base import Domain
from pogm.data.datasets.heart_disease import HeartDisease
from pogm.data.datasets.spoken_digits import WINDOW

REAL = Path(os.environ.get("POGM_DATA") or Path(__file__).parents[4] / "shared" / "data")
WRITE = {
    "HeartDisease": write_heart,
    "SpokenDigits": write_spoken_digits,
    "AmazonReviews": write_amazon_reviews,
    "PACSFeatures": write_features,
    "OfficeCaltech10Features": partial(write_features, name="OfficeCaltech10"),
}
PUBLISHED = {  # samples of each domain, and samples of class 1 in each domain
    "HeartDisease": ((303, 294, 123, 200), (139, 106, 115, 149)),
    "SpokenDigits": ((500,) * 6, (50,) * 6),
    "AmazonReviews": ((6465, 5586, 7681, 7945), (3264, 2807, 3857, 3954)),
}


@pytest.mark.parametrize("name", WRITE)
def test_loaded_data_fit_the_class_attributes(name, tmp_path):
    dataset = dataset_class(name)()
    domains = dataset.load(WRITE[name](tmp_path), seed=0)
    assert len(domains) == len(dataset.domains)
    transform = dataset.transform(dataset.training)
    statistics = transform.fit([domain.inputs for domain in domains])
    for domain in domains:
        assert domain.inputs.shape[1:] == dataset.input_shape
        assert set(domain.labels.tolist()) == set(range(dataset.num_classes))
        x = transform.prepare(domain.inputs, statistics)
        assert x.shape[1:] == transform.shape
        assert x.isfinite().all()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_have_the_published_numbers(name):
    dataset = dataset_class(name)()
    if not (REAL / dataset.folder).exists():
        pytest.skip(f"needs {dataset.folder} in POGM_DATA")
    domains = dataset.load(REAL, seed=0)
    assert tuple(len(domain.labels) for domain in domains) == PUBLISHED[name][0]
    assert tuple(int((domain.labels == 1).sum()) for domain in domains) == PUBLISHED[name][1]


def test_heart_disease_reads_every_spelling_of_a_missing_value(tmp_path):
    by_hospital = dict(zip(HeartDisease.domains, HeartDisease().load(write_heart(tmp_path), 0), strict=True))
    names = HeartDisease.encoding.numbers
    missing = {
        hospital: [name for name, share in zip(names, domain.inputs.isnan().double().mean(0)[:9], strict=True) if share]
        for hospital, domain in by_hospital.items()
    }
    assert missing == {
        "cleveland": ["fbs"],
        "hungarian": ["fbs", "ca"],  # ca is -9 in the first row
        "switzerland": ["chol", "fbs"],  # 0 is no cholesterol of a living patient
        "va": ["fbs", "ca"],
    }


def test_renamed_values_of_the_first_row_are_restored(tmp_path):
    """40,1,2,140,289,0,0,172,0,0,-9,-9,-9,0 was published as 0, 0.1, 0.2, 0.3, 0.4 and -9, -9.1, -9.2."""
    hungarian = HeartDisease().load(write_heart(tmp_path), 0)[1]
    first = dict(zip(HeartDisease.encoding.numbers, hungarian.inputs[0].tolist(), strict=False))
    assert first == pytest.approx(
        {
            "age": 40,
            "sex": 1,
            "trestbps": 140,
            "chol": 289,
            "fbs": 0,
            "thalach": 172,
            "exang": 0,
            "oldpeak": 0,
            "ca": torch.nan,
        },
        nan_ok=True,
    )
    one_hot = dict(zip(HeartDisease.encoding.pairs, hungarian.inputs[0, 9:].tolist(), strict=True))
    assert {pair for pair, value in one_hot.items() if value} == {("cp", "2"), ("restecg", "0")}
    assert hungarian.labels[0] == 0


def test_one_hot_columns_agree_with_numbers_written_with_a_point(tmp_path):
    cleveland = HeartDisease().load(write_heart(tmp_path), 0)[0]
    pairs = HeartDisease.encoding.pairs
    for column in ("cp", "restecg", "slope", "thal"):
        own = [9 + number for number, pair in enumerate(pairs) if pair[0] == column]
        assert cleveland.inputs[:, own].sum(1).eq(1).all(), column


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6,7", "Expected 0 to 4 in the column num"),
        ("old,1,1,145,233,1,2,150,0,2.3,3,0,6,0", r"the column age of .*cleveland.csv; found 'old' in row 1"),
        ("63,1,1,145", "Expected 14 cells, as in the header, in every line .* found 4 in line 2"),
    ],
)
def test_damaged_row_is_named(tmp_path, line, message):
    (write_heart(tmp_path) / "heart" / "cleveland.csv").write_text(f"{HEADER}\n{line}\n")
    with pytest.raises(DataError, match=message):
        HeartDisease().load(tmp_path, 0)


def test_recordings_are_cut_and_padded(tmp_path):
    george = dataset_class("SpokenDigits")().load(write_spoken_digits(tmp_path), 0)[0]
    with np.load(tmp_path / "spoken_digits" / "spoken_digits.npz") as file:
        lengths, audio = file["length"], file["audio"]
    second, third = lengths[0], lengths[0] + lengths[1]
    kept = min(int(lengths[1]), WINDOW)
    assert george.inputs[1, :kept].tolist() == audio[second:third][:kept].tolist()
    assert not george.inputs[1, kept:].any()


@pytest.mark.parametrize("name", WRITE)
def test_missing_file_is_named(name, tmp_path):
    dataset = dataset_class(name)()
    with pytest.raises(DataError, match=rf"Expected {dataset.files[0]} in .*{dataset.folder}; found none"):
        dataset.load(tmp_path, 0)
    with pytest.raises(DataError, match=r"Pass --data FOLDER or set POGM_DATA"):
        dataset.load(None, 0)


def test_cut_file_is_refused(tmp_path):
    path = write_amazon_reviews(tmp_path) / "amazon_reviews" / "amazon_reviews.npz"
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(DataError, match=r"Expected arrays of numbers or texts in .*amazon_reviews.npz"):
        dataset_class("AmazonReviews")().load(tmp_path, 0)


def test_pickled_objects_are_refused(tmp_path):
    path = write_amazon_reviews(tmp_path) / "amazon_reviews" / "amazon_reviews.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"label": np.array([object()] * 80)})
    with pytest.raises(DataError, match="found: objects, which are not read"):
        dataset_class("AmazonReviews")().load(tmp_path, 0)


def test_classes_of_the_domains_are_checked():
    def domains(*labels: list[int]) -> list[Domain]:
        return [Domain(torch.zeros(len(one), 22), torch.tensor(one)) for one in labels]

    heart = HeartDisease()
    with pytest.raises(DataError, match="Expected every class of the test domain va in some training domain"):
        heart.check(domains([0, 0], [0, 0], [0, 0], [0, 1]), (3,))
    with pytest.warns(ArrayWarning, match="found only 1 in switzerland"):
        heart.check(domains([0, 1], [0, 1], [1, 1], [0, 1]), (3,))


def test_features_of_another_network_or_dataset_are_refused(tmp_path):
    dataset = dataset_class("PACSFeatures")()
    with pytest.raises(DataError, match=r"found none.*pogm data features PACS --weights"):
        dataset.load(tmp_path, 0)
    with pytest.raises(DataError, match=r"Expected 2048 features of resnet50_v1.*of resnet50 with.*Compute them again"):
        dataset.load(write_features(tmp_path / "network", network="resnet50"), 0)
    with pytest.raises(DataError, match=r"with ImageNet weights.*of resnet50_v1 with weights random. Compute them"):
        dataset.load(write_features(tmp_path / "weights", weights="random"), 0)
    other = write_features(tmp_path / "images", name="OfficeCaltech10") / "features"
    (other / "OfficeCaltech10.npz").rename(other / "PACS.npz")
    with pytest.raises(DataError, match=r"7 classes in the domains A, C, P, S.*found 10 classes in A, C, D, W"):
        dataset.load(tmp_path / "images", 0)


def test_feature_labels_follow_the_names_of_the_classes(tmp_path):
    domains = dataset_class("PACSFeatures")().load(write_features(tmp_path), 0)
    for domain in domains:
        assert torch.equal(domain.inputs[:, :7].argmax(1), domain.labels)
