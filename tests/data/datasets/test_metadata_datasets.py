"""Datasets of metadata files and of folders with a class mapping."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from image_folders import write_folder

from pogm._system.errors import DataError
from pogm.benchmark.plan.datasets import data_folder, find_dataset
from pogm.benchmark.plan.trial import dataset_from_json
from pogm.data.datasets.base import split_domain
from pogm.data.datasets.folder import Folder


def write_metadata(root: Path, name: str = "metadata.csv", header: str = "path,label,domain,patient") -> Path:
    """Write a metadata file of an image folder; five images in a row are of one patient."""
    lines = [header]
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        domain, label, _ = path.relative_to(root).parts
        lines.append(f"{path.relative_to(root)},{label},{domain},p{number // 5}")
    (root / name).write_text("\n".join(lines))
    return root / name


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "sites")


def test_table_has_the_images_of_the_folder(folder):
    table = find_dataset(str(write_metadata(folder)))
    plain = Folder.from_path(folder)
    assert (table.title, table.file, table.domains, table.classes) == (
        "sites",
        "metadata.csv",
        plain.domains,
        plain.classes,
    )
    assert table.content == plain.content
    for one, other in zip(table.load(folder.parent, 0), plain.load(folder.parent, 0), strict=True):
        assert one.inputs.equal(other.inputs)
        assert one.labels.equal(other.labels)
        assert one.groups is None


def test_group_column_keeps_patients_in_one_split(folder):
    dataset = find_dataset(f"{write_metadata(folder)}:group=patient")
    for number, domain in enumerate(dataset.load(folder.parent, 0)):
        inside, outside = split_domain(domain, number, trial_seed=0)
        assert not set(domain.groups[inside].tolist()) & set(domain.groups[outside].tolist())
        assert len(outside) == 5


def test_dataset_is_restored_from_json_and_found_after_a_move(folder, tmp_path):
    dataset = find_dataset(f"{write_metadata(folder, header='file,y,site,patient')}:group=patient")
    again = dataset_from_json(dataset.to_json())
    assert again == dataset
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(folder, moved)
    assert len(again.load(moved, 0)) == 3
    (folder / "metadata.csv").write_text((folder / "metadata.csv").read_text().replace("p0", "p1"))
    with pytest.raises(DataError, match="Expected the images that this run began with"):
        again.load(folder.parent, 0)


def test_folder_of_a_table_determines_the_data_folder(folder):
    path = write_metadata(folder)
    assert data_folder([f"{path}:group=patient"], None) == folder.parent.resolve()
    assert data_folder([str(path), str(folder)], None) == folder.parent.resolve()
    assert find_dataset("sites/metadata.csv", folder.parent).file == "metadata.csv"


def test_class_mapping_is_saved_with_the_dataset(folder):
    (folder / "classes.csv").write_text("from,to\ncat,animal\ndog,animal\n")
    dataset = Folder.from_path(folder)
    assert dataset.classes == ("animal",)
    (folder / "classes.csv").unlink()
    assert dataset.load(folder.parent, 0)[0].labels.tolist() == [0] * 20, "the file is needed only once"
    assert Folder.from_path(folder).content != dataset.content


def test_stratified_setting_reaches_the_split(folder):
    dataset = replace(Folder.from_path(folder), stratified=True)
    assert dataset.to_json()["stratified"] is True
    domain = dataset.load(folder.parent, 0)[0]
    _, outside = split_domain(domain, 0, trial_seed=1)
    assert domain.labels[outside].bincount().equal(torch.tensor([2, 2]))


def test_splits_column_reaches_the_split(folder):
    path = write_metadata(folder)
    lines = path.read_text().splitlines()
    kinds = ("train", "train", "val", "test", "train")
    path.write_text("\n".join([lines[0] + ",split", *(f"{line},{kinds[n % 5]}" for n, line in enumerate(lines[1:]))]))
    domain = find_dataset(str(path)).load(folder.parent, 0)[1]
    inside, outside = split_domain(domain, 1, trial_seed=0)
    assert (len(inside), len(outside)) == (12, 4)
