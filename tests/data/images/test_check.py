"""Test the check of an image folder."""

import io
import os
import struct
from pathlib import Path

from image_files import encode, picture, png, raw_png, write_files, write_small_dataset
from PIL import Image

from pogm.data.images.check import check


def encode_rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(picture(101), "JPEG", exif=exif)


GOOD = {  # unusual but valid images (row 23 of faults.md)
    "grey.png": encode(Image.fromarray(picture(102)[:, :, 0])),
    "cmyk.jpg": encode(Image.fromarray(picture(103)).convert("CMYK"), "JPEG"),
    "palette.gif": encode(Image.fromarray(picture(104)).quantize(8), "GIF"),
    "16 bits.png": raw_png(5, 1, 16, 0, b"\0" + struct.pack(">5H", 0, 9, 999, 9999, 65535)),
    "turned.jpg": encode_rotated(),
    "film.gif": encode(Image.fromarray(picture(105)), "GIF", save_all=True, append_images=[Image.new("RGB", (8, 6))]),
    "line\nbreak é 日本.png": png(106),
}
BAD = {  # rows 21 and 22 of faults.md
    "art/cat/corrupt.png": (png(201)[:30] + b"\xff" * 40 + png(201)[70:], "corrupt"),
    "art/cat/truncated.jpg": (encode(picture(202, 40, 60), "JPEG")[:1500], "truncated"),
    "art/dog/empty.jpg": (b"", "empty"),
    "art/dog/page.jpg": (b"<html>404 not found</html>", "not an image"),
    "photo/cat/bomb.png": (raw_png(9000, 9000, 1, 0, bytes(1126 * 9000)), "too large"),
    "photo/cat/header.png": (raw_png(100_000, 100_000, 8, 2, b""), "too large"),
    "photo/dog/fits.jpg": (b"SIMPLE  =                    T".ljust(2880), "format"),
    "photo/dog/eps.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "format"),
}


def write_faulty_dataset(root: Path) -> Path:
    """Write an image folder with every kind of fault."""
    write_small_dataset(root, each=3)
    write_files(root, {f"art/cat/{name}": content for name, content in GOOD.items()})
    write_files(root, {path: content for path, (content, _) in BAD.items()})
    copy = Image.open(io.BytesIO(png(301)))
    write_files(root, {"art/dog/same.png": png(301), "photo/dog/same.webp": encode(copy, "WEBP", lossless=True)})
    write_files(root, {"art/cat/both.png": png(302), "art/dog/both.bmp": encode(picture(302), "BMP")})
    write_files(root, {"photo/cat/twin 1.png": png(303), "photo/cat/twin 2.png": png(303)})
    write_files(
        root, {"art/bird/1.png": png(304), "photo/Bird/1.png": png(305), "art/fish/": b"", "photo/fish/1.png": png(306)}
    )
    write_files(
        root, {".DS_Store": b"x", "art/.git/config/a.png": b"x", "art/cat/._1.png": b"x", "art/cat/Thumbs.db": b"x"}
    )
    write_files(root.parent, {"secret/1.png": png(307)})
    (root / "art/cat/loop").symlink_to(root)
    (root / "art/dog/outside.png").symlink_to(root.parent / "secret/1.png")
    (root / "photo/dog/nowhere.png").symlink_to("missing.png")
    return root


def test_check_finds_every_fault_and_nothing_else(tmp_path):
    root = write_faulty_dataset(tmp_path / "data")
    found = check(root)
    assert not found.clean
    assert {bad.path: bad.kind for bad in found.bad} == {path: kind for path, (_, kind) in BAD.items()}
    assert found.across_domains == [["art/dog/same.png", "photo/dog/same.webp"]]
    assert found.across_classes == [["art/cat/both.png", "art/dog/both.bmp"]]
    assert found.repeated == 1
    assert found.tree.problems == {
        "Bird": "missing from art; spelt like bird, but a separate class",
        "bird": "missing from photo; spelt like Bird, but a separate class",
        "fish": "an empty folder in art",
    }
    assert found.tree.bad_links == (
        ("art/cat/loop", "is a link that loops"),
        ("art/dog/outside.png", "is a link that leaves the folder"),
        ("photo/dog/nowhere.png", "is a link that leads nowhere"),
    )
    assert len(found.tree.files) == 12 + len(GOOD) + len(BAD) + 6 + 3
    assert found.size == sum((root / file.path).stat().st_size for file in found.tree.files)


def test_text_and_json_name_every_finding(tmp_path):
    found = check(write_faulty_dataset(tmp_path / "data"))
    text, content = found.text(), found.to_json()
    for path, (_, kind) in BAD.items():
        assert f"  {path}: {kind}: " in text
        assert {"path": path, "kind": kind} in [{"path": bad["path"], "kind": bad["kind"]} for bad in content["bad"]]
    assert "8 bad images (1 corrupt, 1 empty, 2 format, 1 not an image, 2 too large, 1 truncated):" in text
    assert "1 images in several domains:\n  art/dog/same.png = photo/dog/same.webp" in text
    assert "1 images in several classes:\n  art/cat/both.png = art/dog/both.bmp" in text
    assert "1 groups of equal files in one class and domain (1 files repeat another one):" in text
    assert text.partition("To do:")[2].count("\n  ") == 5  # a line for each kind of finding
    assert "  fish: an empty folder in art" in text
    assert "  art/cat/loop is a link that loops" in text
    assert found.tree.table() in text
    assert "Nothing is wrong" not in text
    assert content["clean"] is False
    assert content["counts"] == found.tree.counts
    assert content["class_problems"] == found.tree.problems
    assert content["links"][0] == {"path": "art/cat/loop", "reason": "is a link that loops"}
    assert (content["repeated"], content["across_domains"]) == (1, found.across_domains)


def test_unusual_but_valid_images_are_clean(tmp_path):
    root = write_small_dataset(tmp_path, each=3)
    write_files(root, {f"photo/dog/{name}": content for name, content in GOOD.items()})
    found = check(root)
    assert found.clean
    assert found.text().endswith("Nothing is wrong.\n")
    assert found.to_json()["clean"] is True


def test_repetitions_within_a_class_are_counted_and_clean(tmp_path):
    root = write_small_dataset(tmp_path, each=3)
    write_files(root, {f"art/cat/copy {number}.png": png(0) for number in range(3)})
    found = check(root)
    assert (found.repeated, found.clean) == (3, True)
    assert "(3 files repeat another one):\n  art/cat/" in found.text()
    assert [len(paths) for paths in found.to_json()["repeats"]] == [4]
    assert found.text().endswith("No errors; look at the equal files.\n")


def test_same_values_in_another_shape_are_not_duplicates(tmp_path):
    pixels = picture(0, 4, 9)
    write_files(tmp_path, {"a/x/1.png": encode(pixels), "b/x/1.png": encode(pixels.reshape(9, 4, 3))})
    assert check(tmp_path).clean


def test_long_lists_are_shortened_in_text_only(tmp_path):
    root = write_files(write_small_dataset(tmp_path), {f"art/cat/{number:03}.jpg": b"" for number in range(50)})
    found = check(root)
    assert "and 30 more; the JSON lists all" in found.text()
    assert len(found.to_json()["bad"]) == 50


def test_unreadable_file_is_a_finding(tmp_path, monkeypatch):
    root = write_small_dataset(tmp_path)
    real = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "1.png" and path.parent.name == "cat":
            raise PermissionError(13, os.strerror(13))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert {(bad.path, bad.kind) for bad in check(root).bad} == {
        ("art/cat/1.png", "unreadable"),
        ("photo/cat/1.png", "unreadable"),
    }


def test_progress_counts_folders_and_every_file(tmp_path):
    totals = []

    def progress(items, total, what="images"):
        items = list(items)
        totals.append((len(items), total, what))
        return items

    check(write_small_dataset(tmp_path), progress=progress)
    assert totals == [(4, 4, "folders"), (8, 8, "images")]


def test_folder_that_is_too_small_for_training_is_reported(tmp_path):
    write_files(tmp_path, {f"{domain}/cat/{n}.png": png(10 * n + domain) for domain in (1, 2) for n in range(5)})
    write_files(tmp_path, {f"3/cat/{n}.png": png(100 + n) for n in range(4)})
    findings = check(tmp_path)
    assert "Too small for training, which needs at least 5 images in 3, two classes.\n" in findings.text()
    assert "Nothing is wrong" not in findings.text()
    assert findings.to_json()["small_domains"] == ["3"]
