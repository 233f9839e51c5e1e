"""Test the preparation of datasets from small archives in the published formats."""

import gzip
import hashlib
import json
import multiprocessing
import os
import signal
import tarfile
import warnings
import zipfile
from collections import Counter
from contextlib import nullcontext

import pytest

from pogm._system import fault_injection
from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm.data.datasets.office_home import OfficeHome
from pogm.data.datasets.pacs import PACS
from pogm.data.images.decode import IMAGE_SUFFIXES
from pogm.data.sources import catalogue, domain_net, fetch, layout, mnist, preparations, prepare, vlcs
from pogm.data.sources import terra_incognita as terra
from pogm.data.sources.catalogue import CATALOGUE, Publication, PublishedFile

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def write_files(root, paths):
    """Write files, each with its path as content."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def list_files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def read_files(folder):
    return {path: (folder / path).read_bytes() for path in list_files(folder)}


def write_zip(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, name)


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def pacs_files():
    return [f"{environment}/{kind}/pic_1.jpg" for environment in PACS.folders for kind in PACS_CLASSES]


def test_preparations_equal_catalogue():
    assert preparations().keys() == CATALOGUE.keys()


def test_unknown_name_error_suggests_nearest_name(raw, out):
    with pytest.raises(UsageError, match="Did you mean 'PACS'"):
        prepare("PACs", raw, out)
    with pytest.raises(UsageError, match="Did you mean 'VLCS'"):
        fetch("VLSC", raw, nullcontext)


@pytest.mark.parametrize("around", ["kfold/", "", "pacs/images/"])
def test_pacs_archive_with_any_top_folder(raw, out, pacs_files, around):
    noise = [
        f"{around}art_painting_train_kfold.txt",
        f"{around}photo/.DS_Store",
        f"{around}photo/dog/._pic_1.jpg",
        "__MACOSX/x.jpg",
    ]
    write_zip(raw / "PACS.zip", [around + path for path in pacs_files] + noise)
    assert prepare("PACS", raw, out) == out / "PACS"
    assert list_files(out) == sorted(f"PACS/{path}" for path in pacs_files)


def test_manually_unpacked_folders_are_used_and_not_changed(raw, out, pacs_files):
    write_files(raw / "kfold", pacs_files)
    before = read_files(raw)
    prepare("PACS", raw, out)
    assert read_files(raw) == before
    assert read_files(out / "PACS") == {path: path.encode() for path in pacs_files}


def test_second_preparation_does_nothing(raw, out, pacs_files):
    write_files(raw, pacs_files)
    made = prepare("PACS", raw, out)
    born = made.stat().st_ino
    assert prepare("PACS", raw, out).stat().st_ino == born


def test_folder_with_other_files_is_not_overwritten(raw, out, pacs_files):
    write_files(raw, pacs_files)
    write_files(out / "PACS", ["mine.txt"])
    with pytest.raises(UsageError, match="found 1 files instead of 28"):
        prepare("PACS", raw, out)
    assert list_files(out) == ["PACS/mine.txt"]


@pytest.mark.parametrize("suffix", IMAGE_SUFFIXES)
def test_preparation_accepts_every_image_suffix_of_the_decoder(raw, out, pacs_files, suffix):
    files = [path.replace(".jpg", suffix) for path in pacs_files]
    write_files(raw, files)
    assert list_files(prepare("PACS", raw, out)) == sorted(files)


def test_files_are_copied_if_links_are_not_possible(raw, out, pacs_files, monkeypatch):
    def refuse(*_):
        raise OSError(layout.errno.EXDEV, "another disk")

    write_files(raw, pacs_files)
    monkeypatch.setattr(os, "link", refuse)
    made = prepare("PACS", raw, out)
    assert read_files(made) == {path: path.encode() for path in pacs_files}
    assert (made / pacs_files[0]).stat().st_nlink == 1


def test_missing_class_is_refused_by_name(raw, out, pacs_files):
    write_files(raw, [path for path in pacs_files if path != "sketch/guitar/pic_1.jpg"])
    with pytest.raises(DataError, match=r"same 7 classes.* found 6 .*sketch \(it lacks guitar"):
        prepare("PACS", raw, out)
    assert not out.exists()


def test_wrong_raw_files_are_named(raw, out):
    write_files(raw, ["holiday.jpg"])
    for name in ("PACS", "VLCS", "OfficeHome", "TerraIncognita"):
        with pytest.raises(DataError, match=r"found holiday\.jpg"):
            prepare(name, raw, out)
    with pytest.raises(DataError, match="pogm data fetch"):
        prepare("PACS", raw / "nowhere", out)


def _prepare_with_fault(raw, out, fault):
    os.environ["POGM_FAULT"] = fault
    fault_injection._passed.clear()
    prepare("PACS", raw, out)


@pytest.mark.parametrize("fault", ["kill@write:10", "kill@replace:1"])
def test_killed_preparation_leaves_nothing_and_next_one_succeeds(raw, out, pacs_files, fault):
    write_files(raw, pacs_files)
    process = multiprocessing.get_context("fork").Process(target=_prepare_with_fault, args=(raw, out, fault))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about a fork with torch's threads, which the child does not use
        process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "PACS").exists()
    prepare("PACS", raw, out)
    assert os.listdir(out) == ["PACS"]
    assert list_files(out / "PACS") == sorted(pacs_files)


def test_full_disk_leaves_nothing(raw, out, pacs_files, monkeypatch):
    write_files(raw, pacs_files)
    monkeypatch.setattr(fault_injection, "_passed", Counter())
    monkeypatch.setenv("POGM_FAULT", "full@write:10")
    with pytest.raises(DataError, match="No space left"):
        prepare("PACS", raw, out)
    assert os.listdir(out) == []


def test_office_home_keeps_space_in_environment_name(raw, out):
    kinds = [f"Class_{number}" for number in range(65)]
    paths = [f"{environment}/{kind}/00001.jpg" for environment in OfficeHome.folders for kind in kinds]
    top = "OfficeHomeDataset_10072016"
    write_zip(raw / f"{top}.zip", [f"{top}/{path}" for path in paths] + [f"{top}/ImageInfo.csv"])
    prepare("OfficeHome", raw, out)
    assert list_files(out) == sorted(f"office_home/{path}" for path in paths)
    assert sorted(os.listdir(out / "office_home")) == ["Art", "Clipart", "Product", "Real World"]


def test_vlcs_with_named_classes(raw, out):
    paths = [f"{environment}/{kind}/img.jpg" for environment in vlcs.ENVIRONMENTS for kind in vlcs.CLASSES]
    write_files(raw / "there", [f"VLCS/{path}" for path in paths])
    with tarfile.open(raw / "VLCS.tar.gz", "w:gz") as archive:
        archive.add(raw / "there" / "VLCS", "VLCS")
    vlcs.prepare(raw, out)
    assert list_files(out) == sorted(f"VLCS/{path}" for path in paths)


def test_vlcs_with_numbered_classes_uses_only_full_folders(raw, out):
    names = ("CALTECH", "LABELME", "PASCAL", "SUN")
    splits = ("full", "train", "crossval", "test")
    write_files(
        raw / "VLCS",
        [f"{environment}/{split}/{n}/{split}.jpg" for environment in names for split in splits for n in range(5)],
    )
    vlcs.prepare(raw, out)
    expected = {
        f"{environment}/{kind}/full.jpg": f"{capitals}/full/{number}/full.jpg".encode()
        for environment, capitals in vlcs.CAPITALS.items()
        for number, kind in enumerate(("bird", "car", "chair", "dog", "person"))
    }
    assert read_files(out / "VLCS") == expected
    assert expected["VOC2007/dog/full.jpg"] == b"PASCAL/full/3/full.jpg"


def test_vlcs_with_numbered_classes_needs_full_folders(raw, out):
    write_files(
        raw,
        [f"{environment}/train/{n}/x.jpg" for environment in ("CALTECH", "LABELME", "PASCAL", "SUN") for n in range(5)],
    )
    with pytest.raises(DataError, match=r"images of bird in .*CALTECH has train"):
        vlcs.prepare(raw, out)


def domain_net_files():
    kinds = [f"class_{number:03}" for number in range(345)]
    return [f"{environment}/{kind}/{environment}_1.jpg" for environment in domain_net.ENVIRONMENTS for kind in kinds]


def test_domain_net_without_listed_duplicates(raw, out):
    paths = [*domain_net_files(), "real/class_007/real_2.jpg", "clipart/class_001/clipart_2.jpg"]
    for environment in domain_net.ENVIRONMENTS:
        write_zip(raw / f"{environment}.zip", [path for path in paths if path.startswith(environment)])
    (raw / "domain_net_duplicates.txt").write_text("real/class_007/real_2.jpg\nclipart/class_001/clipart_1.jpg\n\n")
    domain_net.prepare(raw, out)
    gone = {"real/class_007/real_2.jpg", "clipart/class_001/clipart_1.jpg"}
    assert list_files(out) == sorted(f"domain_net/{path}" for path in set(paths) - gone)
    assert set(list_files(raw / "unpacked" / "real.zip")) >= {"real/class_007/real_2.jpg"}


def test_domain_net_without_duplicates_list_names_its_address(raw, out):
    with pytest.raises(DataError, match=r"facebookresearch/DomainBed.*domain_net_duplicates\.txt"):
        domain_net.prepare(raw, out)


def test_duplicates_list_of_other_images_is_refused(raw, out):
    write_files(raw, domain_net_files())
    (raw / "domain_net_duplicates.txt").write_text("real/class_007/real_1.jpg\nreal/zebra/real_9.jpg\n")
    with pytest.raises(DataError, match=r"found 1 that do not, such as 'real/zebra/real_9\.jpg'"):
        domain_net.prepare(raw, out)


def test_domain_net_names_missing_archive(raw, out):
    write_files(raw, [path for path in domain_net_files() if not path.startswith("sketch")])
    (raw / "domain_net_duplicates.txt").write_text("")
    with pytest.raises(DataError, match="the folders sketch in"):
        domain_net.prepare(raw, out)


def write_release(raw, pictures, **files):
    """Write images, and annotation files given as lists of (image, location, categories)."""
    names = [*terra.CATEGORIES, "deer"]
    write_files(raw, [f"{terra.IMAGES}/{name}.jpg" for name in pictures])
    (raw / terra.ANNOTATIONS).mkdir()
    for part in terra.FILES:
        rows = files.get(part, [])
        marks = [(image, names.index(kind) + 10) for image, _, kinds in rows for kind in kinds]
        content = {
            "categories": [{"id": number + 10, "name": name} for number, name in enumerate(names)],
            "images": [{"id": f"id-{i}", "file_name": f"{i}.jpg", "location": location} for i, location, _ in rows],
            "annotations": [{"id": n, "image_id": f"id-{i}", "category_id": c} for n, (i, c) in enumerate(marks)],
        }
        (raw / terra.ANNOTATIONS / f"{part}_annotations.json").write_text(json.dumps(content))


def full_set():
    """Return annotations of one image of every category at every location."""
    return [(f"{kind}-{location}", int(location), [kind]) for location in terra.LOCATIONS for kind in terra.CATEGORIES]


def test_terra_merges_annotations_and_selects_locations_and_categories(raw, out):
    more = [("night", "38", ["cat"]), ("elsewhere", "7", ["cat"]), ("other", "38", ["deer"])]
    write_release(
        raw, [*(i for i, _, _ in full_set()), "night", "elsewhere", "other"], train=full_set(), trans_test=more
    )
    terra.prepare(raw, out)
    expected = [
        f"location_{location}/{kind}/{kind}-{location}.jpg" for location in terra.LOCATIONS for kind in terra.CATEGORIES
    ]
    assert list_files(out / "terra_incognita") == sorted([*expected, "location_38/cat/night.jpg"])


def test_terra_puts_image_once_into_each_of_its_categories(raw, out):
    rows = [*full_set(), ("pair", 43, ["dog", "dog", "coyote", "deer"])]
    again = [("pair", "43", ["bird"])]  # a second file with another category
    write_release(raw, [*(i for i, _, _ in full_set()), "pair"], cis_val=rows, cis_test=again)
    terra.prepare(raw, out)
    found = [path for path in list_files(out / "terra_incognita") if path.endswith("pair.jpg")]
    assert found == [f"location_43/{kind}/pair.jpg" for kind in ("bird", "coyote", "dog")]


def test_terra_names_missing_image(raw, out):
    write_release(raw, [i for i, _, _ in full_set()][1:], train=full_set())
    with pytest.raises(DataError, match=r"found 1 missing, such as 'bird-38\.jpg'"):
        terra.prepare(raw, out)
    assert not out.exists()


def test_terra_names_missing_or_damaged_annotation_file(raw, out):
    write_release(raw, [i for i, _, _ in full_set()], train=full_set())
    path = raw / terra.ANNOTATIONS / "cis_val_annotations.json"
    for content in (b"{", b"[]", b'{"categories": []}', b"\xff"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cis_val_annotations"):
            terra.prepare(raw, out)
    path.unlink()
    with pytest.raises(DataError, match="cis_val_annotations"):
        terra.prepare(raw, out)


def test_terra_refuses_location_without_annotations(raw, out):
    rows = [row for row in full_set() if row[1] != 46]
    write_release(raw, [i for i, _, _ in rows], train=rows)
    with pytest.raises(DataError, match="found none of 46"):
        terra.prepare(raw, out)


def test_annotated_path_outside_of_folder_is_refused(raw, out):
    write_release(raw, [i for i, _, _ in full_set()], train=[*full_set(), ("../../outside", 38, ["cat"])])
    write_files(raw.parent, ["outside.jpg"])
    with pytest.raises(DataError, match="outside"):
        terra.prepare(raw, out)


@pytest.fixture
def tiny_mnist(monkeypatch):
    """Replace MNIST in the catalogue by four short files; return their names."""
    sources = tuple(
        PublishedFile(source.name, (), "", hashlib.sha256(source.name.encode()).hexdigest(), unpacked=True)
        for source in CATALOGUE["MNIST"].files
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "MNIST", Publication(sources, ""))
    return [source.name for source in sources]


def test_mnist_is_prepared_plain_or_gzipped(raw, out, tiny_mnist):
    for number, name in enumerate(tiny_mnist):
        content = name.encode()
        plain = raw / name.removesuffix(".gz")
        _ = plain.write_bytes(content) if number % 2 else (raw / name).write_bytes(gzip.compress(content))
    made = mnist.prepare(raw, out)
    assert made == out / "MNIST" / "raw"
    assert read_files(made) == read_files(raw)


def test_mnist_in_its_final_folder_is_not_moved(out, tiny_mnist):
    raw = out / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in tiny_mnist:
        (raw / name).write_bytes(gzip.compress(name.encode()))
    (raw / "lock").touch()
    assert mnist.prepare(raw, out) == raw
    assert len(list_files(raw)) == 5


def test_mnist_with_other_content_is_refused(raw, out, tiny_mnist):
    for name in tiny_mnist:
        (raw / name).write_bytes(gzip.compress(b"other digits"))
    with pytest.raises(IntegrityError, match="train-images"):
        mnist.prepare(raw, out)
    (raw / tiny_mnist[0]).unlink()
    with pytest.raises(DataError, match="found neither"):
        mnist.prepare(raw, out)
