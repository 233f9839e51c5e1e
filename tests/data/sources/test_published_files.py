"""The catalogue: safe addresses, plain names, hashes that are hashes, and none that is invented."""

import re
from urllib.parse import urlsplit

import pytest

from pogm.data.sources import fetch
from pogm.data.sources.catalogue import CATALOGUE, MNIST_HASHES
from pogm.data.sources.transfer import refuse_insecure

FILES = [(name, source) for name, publication in CATALOGUE.items() for source in publication.files]


@pytest.mark.parametrize(("name", "source"), FILES, ids=lambda value: getattr(value, "name", value))
def test_published_file_description_is_valid(name, source):
    assert re.fullmatch(r"[\w.-]+", source.name)
    assert source.mirrors
    for mirror in source.mirrors:
        refuse_insecure(mirror)
        assert urlsplit(mirror).hostname.count(".") >= 1
    assert source.sha256 is None or re.fullmatch("[0-9a-f]{64}", source.sha256)
    assert urlsplit(source.page).scheme in ("http", "https")
    assert not source.unpacked or source.name.endswith(".gz")


def test_file_names_of_a_dataset_are_unique():
    for publication in CATALOGUE.values():
        names = [source.name for source in publication.files]
        assert len(set(names)) == len(names)


def test_domain_net_has_six_archives_and_duplicates_list():
    names = [source.name for source in CATALOGUE["DomainNet"].files]
    archives = [f"{name}.zip" for name in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")]
    assert names == [*archives, "domain_net_duplicates.txt"]


def test_only_mnist_has_published_hashes():
    known = {source.sha256 for _, source in FILES if source.sha256}
    assert known == set(MNIST_HASHES.values())


def test_fetch_downloads_every_file_of_the_dataset(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("pogm.data.sources._download", lambda source, raw, progress: asked.append(source.name) or raw)
    assert fetch("TerraIncognita", tmp_path) == [tmp_path, tmp_path]
    assert asked == ["eccv_18_all_images_sm.tar.gz", "eccv_18_annotations.tar.gz"]
