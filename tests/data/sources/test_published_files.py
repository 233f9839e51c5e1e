"""Test the catalogue: https addresses, plain names and valid hashes."""

import re
from contextlib import nullcontext
from urllib.parse import urlsplit

import pytest

from pogm.data.sources import fetch
from pogm.data.sources.catalogue import CATALOGUE, MNIST_HASHES
from pogm.data.sources.transfer import refuse_insecure

FILES = [(name, file) for name, publication in CATALOGUE.items() for file in publication.files]


@pytest.mark.parametrize(("name", "file"), FILES, ids=lambda value: getattr(value, "name", value))
def test_published_file_description_is_valid(name, file):
    assert re.fullmatch(r"[\w.-]+", file.name)
    assert file.mirrors
    for mirror in file.mirrors:
        refuse_insecure(mirror)
        assert urlsplit(mirror).hostname.count(".") >= 1
    assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
    assert urlsplit(file.page).scheme in ("http", "https")
    assert not file.unpacked or file.name.endswith(".gz")


def test_file_names_of_a_dataset_are_unique():
    for publication in CATALOGUE.values():
        names = [file.name for file in publication.files]
        assert len(set(names)) == len(names)


def test_domain_net_has_six_archives_and_duplicates_list():
    names = [file.name for file in CATALOGUE["DomainNet"].files]
    archives = [f"{name}.zip" for name in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")]
    assert names == [*archives, "domain_net_duplicates.txt"]


def test_only_mnist_has_published_hashes():
    known = {file.sha256 for _, file in FILES if file.sha256}
    assert known == set(MNIST_HASHES.values())


def test_fetch_downloads_every_file_of_the_dataset(tmp_path, monkeypatch):
    requested = []
    monkeypatch.setattr("pogm.data.sources._download", lambda file, raw, progress: requested.append(file.name) or raw)
    shown = []
    assert fetch("TerraIncognita", tmp_path, lambda what: shown.append(what) or nullcontext()) == [tmp_path, tmp_path]
    assert requested == ["eccv_18_all_images_sm.tar.gz", "eccv_18_annotations.tar.gz"]
    assert shown == ["eccv_18_all_images_sm.tar.gz (1 of 2)", "eccv_18_annotations.tar.gz (2 of 2)"]
