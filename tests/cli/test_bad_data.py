"""Bad images, folders, domains and weights: one message of ``pogm run`` and ``train``, and nothing is written."""

import os
import struct
import sys
import zlib
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch
from image_folders import picture, write_folder
from safetensors.torch import save_file

from pogm.cli import main

SMALL = ("--set", "network=small_cnn", "--set", "weights=random", "--set", "image_size=16", "--set", "batch_size=4")
BRIEF = ("--steps", "3", "--device", "cpu")


def png_header(width: int, height: int) -> bytes:
    """Return a PNG file whose header asks for this many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
              for kind, data in parts]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def add_class(root: Path) -> None:
    (root / "west/bird").mkdir()
    picture(0).save(root / "west/bird/1.png")


def keep_one_image(root: Path) -> None:
    for path in sorted((root / "south").rglob("*.png"))[1:]:
        path.unlink()


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda root: cut(root / "north/cat/001.png"), "north/cat/001.png (truncated"),
    "empty": (lambda root: (root / "north/cat/001.png").write_bytes(b""), "north/cat/001.png (empty"),
    "text": (lambda root: (root / "north/cat/001.png").write_bytes(b"text"), "north/cat/001.png (not an image"),
    "bomb": (lambda root: (root / "north/cat/001.png").write_bytes(png_header(100_000, 100_000)), "too large"),
    "FITS": (lambda root: (root / "north/cat/1.jpg").write_bytes(b"SIMPLE  =" + b" " * 20 + b"T"), "(format: FITS"),
    "EPS": (lambda root: (root / "north/cat/1.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n"), "(format: PostScript"),
    "unseen class": (add_class, "found none with images of class bird"),
    "one image": (keep_one_image, "domain south to leave both a training and a validation part; found 1 samples"),
    "no images": (lambda root: [path.unlink() for path in (root / "south").rglob("*.png")], "found none in south"),
    "link loop": (lambda root: (root / "north/cat/loop").symlink_to(".."), "north/cat/loop is a link that loops"),
    "link out": (
        lambda root: (root / "north/cat/a.png").symlink_to(__file__),
        "a.png is a link that leaves the folder",
    ),
    "loose image": (lambda root: picture(0).save(root / "north/1.png"), "north; found the image 1.png"),
}


@pytest.fixture
def sites(tmp_path) -> Path:
    return write_folder(tmp_path / "sites", images=6)


@pytest.mark.filterwarnings("ignore::pogm.data.images.class_folders.FolderWarning")
@pytest.mark.parametrize("verb", ["run", "train"])
@pytest.mark.parametrize("name", FAULTS)
def test_bad_data_give_one_message_and_exit_code_3_and_write_nothing(sites, tmp_path, capsys, name, verb):
    spoil, message = FAULTS[name]
    spoil(sites)
    words = {
        "run": ["run", "--dataset", str(sites), "--algorithm", "ERM", "--test-domain", "west"],
        "train": ["train", str(sites), "--algorithm", "ERM", "--workers", "1"],
    }
    assert main([*words[verb], *SMALL, *BRIEF, "--out", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert said[-1].startswith("pogm: Expected")
    assert "Traceback" not in "".join(said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--test-domain", "3"), "Expected a domain of sites, by name or by number from 0 to 2"),
        (("--test-domain", "0", "--test-domain", "0"), "each once"),
        (("--test-domain", "0", "--test-domain", "1", "--test-domain", "2"), "found 0 left of sites's 3"),
        ((), "Expected --test-domain DOMAIN or --train-on-all; found neither"),
    ],
)
def test_bad_test_domains_are_refused_before_images_are_decoded(sites, tmp_path, capsys, words, message):
    cut(sites / "north/cat/001.png")  # would be an error, too, but a later one
    run = ["run", "--dataset", str(sites), "--algorithm", "ERM", *SMALL, *BRIEF, "--out", str(tmp_path / "out")]
    assert main([*run, *words]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", ["", "model", "north/model"])
@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("verb", ["run", "train", "sweep", "measure"])
def test_output_in_the_folder_of_the_images_is_refused(sites, monkeypatch, capsys, verb, here, inside):
    before = sorted(sites.rglob("*"))
    if here:
        monkeypatch.chdir(sites)
    name = "." if here else str(sites)
    out = ["--out", str(sites / inside)]
    words = {
        "run": ["run", "--dataset", name, "--algorithm", "ERM", "--test-domain", "west", *BRIEF],
        "train": ["train", name, *BRIEF],
        "sweep": ["sweep", "--datasets", name, "--algorithms", "ERM", *BRIEF],
        "measure": ["measure", "--dataset", name, "--algorithms", "ERM", *BRIEF],
    }
    assert main([*words[verb], *SMALL, *out]) == 2
    assert "Expected a folder in --out outside the images of" in capsys.readouterr().err
    assert sorted(sites.rglob("*")) == before


class Malicious:
    """Object that creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def write_weights(path: Path, fault: str) -> None:
    """Write a weights file with this fault."""
    tensors = {"conv1.weight": torch.zeros(64, 3, 7, 7), "extra.weight": torch.zeros(3)}
    if fault == "hostile":
        torch.save({"model_dict": Malicious()}, path)
    elif fault == "truncated":
        save_file(tensors, path)
        path.write_bytes(path.read_bytes()[:-1000])
    elif fault == "other network":
        save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "fault", "code", "message"),
    [
        ("model.pkl", "hostile", 6, "would run code; it was not run (GLOBAL posix.mkdir)"),
        ("w.safetensors", "truncated", 6, "Expected only tensors in w.safetensors"),
        ("w.safetensors", "other network", 3, "found no bn1.weight; no bn1.bias"),
        ("w.safetensors", "missing", 3, "Expected to read w.safetensors; found: No such file"),
    ],
)
def test_bad_weights_give_one_message_and_write_nothing(
    sites, tmp_path, monkeypatch, capsys, name, fault, code, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POGM_WEIGHTS", "")  # the command sets it
    write_weights(Path(name), fault)
    words = ["run", "--dataset", str(sites), "--algorithm", "ERM", "--test-domain", "west", "--weights", name]
    assert main([*words, "--set", "network=resnet18", "--set", "image_size=16", *BRIEF, "--out", "out"]) == code
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert said[-1].startswith("pogm: Expected")
    assert not Path("out").exists()
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("ray", "sweep --algorithms ERM --datasets RotatedDigits --executor ray --device cpu --out out", '"pogm[ray]"'),
        (
            "wandb",
            "run --dataset RotatedDigits --algorithm ERM --test-domain 0 --track wandb --out out",
            "'pogm[wandb]'",
        ),
        (
            "mlflow",
            "run --dataset RotatedDigits --algorithm ERM --test-domain 0 --track mlflow --out out",
            "'pogm[mlflow]'",
        ),
    ],
)
def test_missing_extra_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, capsys, package, words, extra):
    monkeypatch.chdir(tmp_path)
    find = PathFinder.find_spec
    hide = classmethod(lambda cls, name, *more: None if name.partition(".")[0] == package else find(name, *more))
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(PathFinder, "find_spec", hide)
    assert main(words.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"Expected the package {package} for" in said
    assert said.endswith(f"pip install {extra}")
