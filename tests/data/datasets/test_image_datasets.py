"""Test datasets of image folders: published ones, and any folder."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from image_folders import picture, write_folder

from pogm._system.errors import DataError
from pogm.core.hyperparameters import Power
from pogm.data.datasets import all_datasets, dataset_class
from pogm.data.datasets.folder import Folder
from pogm.data.datasets.image_dataset import ImageDataset, LargeImages
from pogm.data.images.class_folders import FolderWarning
from pogm.data.sources.catalogue import CATALOGUE

PUBLISHED = [name for name, found in all_datasets().items() if issubclass(found, ImageDataset) and found is not Folder]
DOMAINBED = ("VLCS", "PACS", "OfficeHome", "TerraIncognita", "DomainNet")
SHARED = Path(__file__).parents[4] / "shared" / "data"
needs_pacs = pytest.mark.skipif(not (SHARED / "PACS").exists(), reason="needs PACS in ../shared/data")


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request, tmp_path_factory):
    """A published dataset, and a data folder with small images in its layout."""
    dataset = dataset_class(request.param)()
    root = tmp_path_factory.mktemp("data")
    classes = [f"class {number:03}" for number in range(dataset.num_classes)]
    write_folder(root / dataset.folder, dataset.folders, classes, images=1, size=(4, 4))
    return dataset, root


def test_class_attributes_match_folder_layout(published):
    dataset, root = published
    with pytest.warns(FolderWarning, match=f"Expected {sum(dataset.counts)} images of {dataset.title}; found"):
        domains = dataset.load(root, seed=0)
    assert len(domains) == len(dataset.domains) == len(dataset.counts) == len(dataset.folders)
    for domain in domains:
        assert domain.labels.tolist() == list(range(dataset.num_classes))
        assert domain.inputs.shape == (dataset.num_classes, 3, 4, 4)
        assert domain.inputs.dtype == torch.uint8
    assert sorted(dataset.folders) == list(dataset.folders), "domains are numbered in the order of sorted folders"


def test_errors_for_missing_folder_and_missing_dataset(published, tmp_path):
    dataset, root = published
    with pytest.raises(DataError, match="Pass --data FOLDER or set POGM_DATA"):
        dataset.load(None, seed=0)
    advice = f"pogm data fetch {dataset.title}" if dataset.is_fetched else "copy the published images"
    assert dataset.is_fetched == (dataset.title in CATALOGUE)
    with pytest.raises(DataError, match=advice):
        dataset.load(tmp_path, seed=0)
    other = tmp_path / dataset.folder
    shutil.copytree(root / dataset.folder / dataset.folders[0], other / "elsewhere")
    shutil.copytree(root / dataset.folder / dataset.folders[1], other / dataset.folders[1])
    with pytest.raises(DataError, match=r"Expected the folders .* found .*elsewhere"):
        dataset.load(tmp_path, seed=0)


def test_published_counts_add_up():
    totals = {name: sum(dataset_class(name).counts) for name in DOMAINBED}
    assert totals == {"VLCS": 10729, "PACS": 9991, "OfficeHome": 15588, "TerraIncognita": 24330, "DomainNet": 586575}
    assert tuple(map(sum, dataset_class("VLCS").class_counts)) == dataset_class("VLCS").counts


def test_count_warning_names_class_with_other_count(tmp_path):
    vlcs = dataset_class("VLCS")()
    write_folder(tmp_path / "VLCS", vlcs.folders, ["bird", "car", "chair", "dog", "person"], images=1)
    with pytest.warns(FolderWarning, match=r"5 instead of 1415 in Caltech101.* 1 instead of 420 in VOC2007/dog"):
        vlcs.scan(tmp_path)


def test_search_spaces_equal_protocol():
    assert [dataset_class(name).training for name in DOMAINBED if name != "DomainNet"] == [LargeImages()] * 4
    spaces = LargeImages.__dataclass_fields__
    assert spaces["lr"].metadata["space"] == Power(10, -5, -3.5)
    assert spaces["batch_size"].metadata["space"] == Power(2, 3, 5.5, integer=True)
    many = type(dataset_class("DomainNet").training).__dataclass_fields__
    assert many["batch_size"].metadata["space"] == Power(2, 3, 5, integer=True)
    assert {dataset_class(name).evaluate_every for name in DOMAINBED} == {300, 1000}


@needs_pacs
def test_pacs_has_published_counts_and_classes():
    tree = dataset_class("PACS")().scan(SHARED).tree
    assert [sum(column) for column in zip(*tree.counts, strict=True)] == [2048, 2344, 1670, 3929]
    assert tree.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


@pytest.fixture
def own(tmp_path):
    return write_folder(tmp_path / "sites")


def test_image_folder_is_a_dataset(own):
    dataset = Folder.from_path(own)
    assert (dataset.title, dataset.domains, dataset.classes) == ("sites", ("north", "south", "west"), ("cat", "dog"))
    assert dataset.num_classes == 2
    domains = dataset.load(own.parent, seed=0)
    assert [domain.labels.tolist() for domain in domains] == [[0] * 10 + [1] * 10] * 3
    assert all(domain.sizes.unique(dim=0).tolist() == [[12, 10]] for domain in domains)
    first = torch.from_numpy(np.array(picture(1))).permute(2, 0, 1)
    assert torch.equal(domains[0].inputs[0], first)


def test_moved_or_renamed_folder_is_same_dataset(own, tmp_path):
    dataset = Folder.from_path(own)
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(own, moved)
    other = Folder.from_path(moved)
    assert other.content == dataset.content
    assert other.seed_name == dataset.seed_name
    assert replace(other, title=dataset.title) == dataset
    assert len(dataset.load(moved, seed=0)) == 3, "the data folder may be the renamed folder itself"


def test_changed_images_are_refused(own):
    dataset = Folder.from_path(own)
    picture(999).save(own / "north" / "cat" / "000.png")
    with pytest.raises(DataError, match="Expected the images that this run began with"):
        dataset.load(own.parent, seed=0)


def test_domains_share_classes_and_missing_class_gives_warning(own):
    shutil.rmtree(own / "north" / "cat")
    with pytest.warns(FolderWarning, match=r"cat: missing from north(?s:.)*north  south  west"):
        dataset = Folder.from_path(own)
    assert dataset.load(own.parent, seed=0)[0].labels.tolist() == [1] * 10, "a class has the same label in every domain"


def test_class_only_in_test_domain_is_refused_unless_allowed(own):
    for domain in ("south", "west"):
        shutil.rmtree(own / domain / "cat")
    with pytest.warns(FolderWarning):
        dataset = Folder.from_path(own)
    domains = dataset.load(own.parent, seed=0)
    with pytest.raises(DataError, match=r"test domain north in some training domain; found none .* of class cat"):
        dataset.check(domains, (0,))
    dataset.check(domains, (1,))
    replace(dataset, allow_unseen=True).check(domains, (0,))


def test_bad_image_is_refused_or_skipped_and_changes_trial(own):
    (own / "north" / "cat" / "003.png").write_bytes(b"not a picture")
    dataset = Folder.from_path(own)
    with pytest.raises(DataError, match=r"north/cat/003.png"):
        dataset.load(own.parent, seed=0)
    domains = replace(dataset, on_bad_image="skip").load(own.parent, seed=0)
    assert [len(domain.labels) for domain in domains] == [19, 20, 20]
    assert replace(dataset, on_bad_image="skip").to_json() != dataset.to_json()


def test_prepare_shows_progress_only_when_it_builds(own, tmp_path, monkeypatch):
    monkeypatch.setenv("POGM_CACHE", str(tmp_path / "cache"))
    dataset, shown = Folder.from_path(own), []

    def progress(items, total, what="images", work=()):
        if total:
            shown.append((total, what))
        return items

    dataset.prepare(own.parent, progress)
    assert (60, "images") in shown
    shown.clear()
    dataset.prepare(own.parent, progress)
    assert {what for _, what in shown} == {"folders"}


def test_domains_are_slices_of_one_mapped_file(own):
    from pogm.engine.sampling import concatenate_inputs

    domains = Folder.from_path(own).load(own.parent, seed=0)
    assert concatenate_inputs(domains).data_ptr() == domains[0].inputs.data_ptr()
