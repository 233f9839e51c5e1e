"""Test the scaling of images with more than 8 bits per channel."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode, raw_png, write_files
from PIL import Image

from pogm._system.errors import UsageError
from pogm._system.files import canonical_json, digest
from pogm.data.images.cache import load_cached
from pogm.data.images.check import check
from pogm.data.images.class_folders import read_tree
from pogm.data.images.decode import BadImage, convert_image, decode, read_header, read_values
from pogm.data.images.index import read_index
from pogm.data.images.intensity import NONE, Intensity, Levels, measure_levels, resolve

TWELVE = Intensity("window", 0, 4095)
VALUES = np.array([0, 1, 9, 2047, 2048, 4095, 4096, 65535], dtype=np.uint16)
SCALED = [0, 0, 1, 127, 128, 255, 255, 255]


def grey(values: np.ndarray, kind: str = "PNG") -> bytes:
    """Return the content of a 16-bit greyscale file with one row of values, or an image of them."""
    return encode(Image.fromarray(np.atleast_2d(values).astype(np.uint16)), kind)


def colour(values: np.ndarray, channels: int = 3) -> bytes:
    """Return the content of a 16-bit PNG with one row; every channel has the values, reversed in the second channel."""
    stack = [values, values[::-1], values, values][:channels]
    return raw_png(len(values), 1, 16, {2: 4, 3: 2, 4: 6}[channels], b"\0" + np.stack(stack, 1).astype(">u2").tobytes())


@pytest.mark.parametrize(
    "text", ["none", "image", "auto", "auto:0:4095", "window:0:4095", "window:-1000:400.5", "auto:0:12345678"]
)
def test_text_of_an_intensity_is_read_back(text):
    assert str(Intensity.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "12bit", "window", "window:1", "window:5:5", "window:9:1", "window:a:b", "none:0:1"]
)
def test_other_texts_are_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"LOW < HIGH; found .* --set\s+intensity=window:0:4095"):
        Intensity.parse(text)


@pytest.mark.parametrize("content", [grey(VALUES), grey(VALUES, "TIFF"), colour(VALUES, 2), colour(VALUES, 3)])
def test_window_has_known_values_for_grey_and_colour(content):
    assert read_header(content, "x").is_wide
    assert decode(content, "x", intensity=TWELVE)[0, :, 0].tolist() == SCALED
    assert decode(content, "x")[0, :, 0].tolist() == [0, 0, 0, 7, 8, 15, 16, 255], "the upper 8 bits"


@pytest.mark.parametrize("channels", [3, 4])
def test_all_16_bits_of_every_colour_are_read(channels):
    values = read_values(colour(VALUES, channels), "x")
    assert values.shape == (1, 8, 3)
    np.testing.assert_array_equal(values[0, :, 0], VALUES)
    np.testing.assert_array_equal(values[0, :, 1], VALUES[::-1])


def colour_tiff(values: np.ndarray, order: str) -> bytes:
    """Return an uncompressed 16-bit RGB TIFF with one row; `order` is "<" or ">"."""
    width = len(values)
    tags = [(256, width), (257, 1), (258, 3), (259, 1), (262, 2), (273, 0), (277, 3), (278, 1), (279, width * 6)]
    start = 8 + 2 + 12 * len(tags) + 4
    content = (
        (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8) + struct.pack(f"{order}H", len(tags))
    )
    for tag, value in tags:
        if tag == 258:  # bits of three channels, stored after the directory
            content += struct.pack(f"{order}HHII", tag, 3, 3, start)
        else:
            content += struct.pack(f"{order}HHII", tag, 4, 1, start + 6 if tag == 273 else value)
    pixels = np.repeat(values, 3).astype(f"{order}u2").tobytes()
    return content + struct.pack(f"{order}I", 0) + struct.pack(f"{order}HHH", 16, 16, 16) + pixels


@pytest.mark.parametrize("order", ["<", ">"])
def test_16_bit_colour_of_a_tiff_is_read_in_both_byte_orders(order):
    content = colour_tiff(VALUES, order)
    np.testing.assert_array_equal(read_values(content, "x")[0, :, 2], VALUES)
    assert decode(content, "x", intensity=TWELVE)[0, :, 1].tolist() == SCALED


def test_opened_image_is_scaled_like_its_file():
    image = Image.fromarray(VALUES[None])
    np.testing.assert_array_equal(convert_image(image, intensity=TWELVE), decode(grey(VALUES), "x", intensity=TWELVE))


def test_8_bit_images_are_never_scaled():
    content = encode(Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)))
    assert not read_header(content, "x").is_wide
    for text in ("none", "image", "auto:0:4095", "window:0:5"):
        np.testing.assert_array_equal(decode(content, "x", intensity=Intensity.parse(text)), decode(content, "x"))


def test_12_bit_version_of_an_8_bit_image_gives_the_same_pixels():
    original = np.arange(256, dtype=np.uint8).reshape(16, 16)
    wide = np.rint(original * (4095 / 255))
    np.testing.assert_array_equal(
        decode(grey(wide), "x", intensity=TWELVE), decode(encode(Image.fromarray(original)), "x")
    )
    assert len(np.unique(decode(grey(wide), "x"))) == 16, "grey levels of the upper 8 bits"


def test_negative_values_need_a_range():
    content = encode(Image.fromarray(np.array([[-1000, 0, 1000]], dtype=np.int32)), "TIFF")
    with pytest.raises(BadImage, match="negative intensities; give their range"):
        decode(content, "x")
    assert decode(content, "x", intensity=Intensity("window", -1000, 1000))[0, :, 0].tolist() == [0, 128, 255]


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=50), st.integers(0, 60000), st.integers(1, 5000))
def test_scaling_is_monotonic_and_within_8_bits(values, low, width):
    ordered = np.sort(np.array(values, dtype=np.uint16))
    for intensity in (Intensity("window", low, low + width), Intensity("image"), NONE):
        scaled = intensity.apply(ordered).astype(int)
        assert (np.diff(scaled) >= 0).all()
        assert scaled.min() >= 0
        assert scaled.max() <= 255


def test_large_images_are_scaled_like_small_ones():
    values = np.arange(2**16 + 1).astype(np.uint16)
    for intensity in (TWELVE, Intensity("window", 100, 60_000)):
        parts = [intensity.apply(part) for part in np.split(values, [2**15, 2**16])]
        np.testing.assert_array_equal(intensity.apply(values), np.concatenate(parts))


def test_image_scaling_uses_the_quantiles_of_each_image():
    values = np.linspace(1000, 3000, 10_000).round().astype(np.uint16)
    values[:5] = 0  # fewer than 0.1 % dead and hot pixels
    values[-5:] = 65535
    low, high = measure_levels(values)
    assert (abs(low - 1000), abs(high - 3000)) < (5, 5)
    scaled = Intensity("image").apply(values)
    assert len(np.unique(scaled)) == 256


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([(0, 4095)], "auto:0:4095"),
        ([(12, 3001), (0, 2100)], "auto:0:4095"),
        ([(0, 4096)], "auto:0:8191"),
        ([(0, 65535)], "auto:0:65535"),
        ([(0, 100)], "auto:0:255"),
        ([(32000, 36000)], "auto:32000:36000"),  # an offset: the bit depth would leave 16 grey levels
        ([(-1024, 3071)], "auto:-1024:3071"),
        ([(7, 7)], "auto:7:262"),
        ([], "none"),
    ],
)
def test_range_of_a_dataset_is_its_bit_depth_or_its_levels(levels, expected):
    assert str(resolve(Intensity("auto"), [Levels(*level) for level in levels])) == expected


def test_known_range_is_not_measured_again():
    for text in ("none", "image", "window:1:2", "auto:1:2"):
        assert str(resolve(Intensity.parse(text), [Levels(0, 4095)])) == text


def test_auto_without_a_range_cannot_be_applied():
    with pytest.raises(UsageError, match="auto:LOW:HIGH"):
        Intensity("auto").apply(VALUES)


def make_wide_folder(root, largest: int = 4095):
    """Write an image folder of 16-bit images in two domains; the second domain has darker images."""
    noise = np.random.RandomState(0)
    files = {
        f"{domain}/{name}/{number}.png": grey(noise.randint(0, limit + 1, (6, 8)))
        for domain, limit in (("bright", largest), ("dark", largest // 3))
        for name in ("cat", "dog")
        for number in range(2)
    }
    return write_files(root, files)


def test_one_range_is_used_for_all_images_of_a_dataset(tmp_path):
    tree = read_tree(make_wide_folder(tmp_path / "data"))
    found = load_cached(tree, intensity=Intensity("auto"), cache=tmp_path)
    assert str(found.intensity) == "auto:0:4095"
    bright, dark = found.images[:4].float().mean(), found.images[4:].float().mean()
    assert 2.5 < bright / dark < 3.5, "differences between the domains stay"
    separate = load_cached(tree, intensity=Intensity("image"), cache=tmp_path).images
    assert separate[4:].float().mean() > 100, "a window for each image removes them"


def test_index_measures_wide_images_once_and_keeps_the_result(tmp_path, monkeypatch):
    tree = read_tree(make_wide_folder(tmp_path / "data"))
    first = read_index(tree, tmp_path)
    assert all(record.is_wide and record.levels.high <= 4095 for record in first)
    monkeypatch.setattr("pogm.data.images.index.read_levels", lambda *_: pytest.fail("measured again"))
    assert read_index(tree, tmp_path) == first


def test_every_scaling_has_its_own_cache_entry_and_8_bit_images_have_one(tmp_path):
    wide, narrow = read_tree(make_wide_folder(tmp_path / "wide")), tmp_path / "narrow"
    texts = ("none", "auto", "image", "window:0:9000")
    for text in texts:
        load_cached(wide, intensity=Intensity.parse(text), cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "images").iterdir())) == len(texts)
    files = {f"{domain}/x/1.png": encode(np.full((4, 4, 3), value, np.uint8)) for domain, value in (("a", 1), ("b", 2))}
    for text in texts:
        load_cached(read_tree(write_files(narrow, files)), intensity=Intensity.parse(text), cache=tmp_path / "other")
    (entry,) = (tmp_path / "other" / "images").iterdir()
    contents = [digest(content) for content in files.values()]
    key = digest(canonical_json([1, 4, 4, "refuse", contents]).encode())
    assert entry.name == key, "caches of earlier versions stay valid"


def test_truncated_wide_image_is_not_measured_and_can_be_padded(tmp_path):
    root = make_wide_folder(tmp_path / "data")
    content = grey(np.random.RandomState(1).randint(0, 65536, (60, 80)))
    (root / "dark/cat/cut.png").write_bytes(content[: len(content) // 2])
    tree = read_tree(root)
    record = next(
        record for file, record in zip(tree.files, read_index(tree, tmp_path), strict=True) if "cut" in file.path
    )
    assert record.is_wide
    assert record.levels is None
    found = load_cached(tree, "pad", intensity=Intensity("auto"), cache=tmp_path)
    assert str(found.intensity) == "auto:0:4095", "damaged images do not count"
    assert [bad.path for bad in found.bad] == ["dark/cat/cut.png"]


def test_truncated_16_bit_colour_can_be_padded():
    noise = np.random.RandomState(0).randint(0, 4096, (40, 40, 3)).astype(">u2")
    content = raw_png(40, 40, 16, 2, b"".join(b"\0" + row.tobytes() for row in noise))
    found = decode(content[: len(content) // 2], "x", truncated="pad", intensity=TWELVE)
    np.testing.assert_array_equal(found[:10], TWELVE.apply(noise[:10].astype(int)))
    assert (found[-1] == 0).all()


def test_check_reports_the_bit_depth_and_the_scaling(tmp_path):
    found = check(make_wide_folder(tmp_path))
    assert found.clean
    assert "8 images have more than 8 bits per channel; their values " in found.text()
    assert "(12 bits) are scaled to 8 bits by intensity=auto: 0 becomes 0, 4095 becomes 255." in found.text()


def test_check_compares_all_bits_of_wide_images(tmp_path):
    """Images of small values are equal in their upper 8 bits and are no duplicates."""
    found = check(make_wide_folder(tmp_path, largest=200))
    assert found.clean
    assert found.repeated == 0
