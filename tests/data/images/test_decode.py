"""Test the decoding of image files, intact and damaged."""

import io
import pickle
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import encode, picture, png, raw_png
from PIL import Image, ImageFile, ImageOps

from pogm._system.errors import DataError
from pogm.data.images.decode import FORMATS, MOST_PIXELS, BadImage, Kind, decode, ignore_warnings, read_header

LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "BMP": {}, "TIFF": {}, "PPM": {}}
EVERY = {**LOSSLESS, "JPEG": {}, "GIF": {}}
NOISE = picture(0, 40, 60)


def make_flat(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (3, 2), colour)


def decode_error_kind(content: bytes, **options: str) -> str:
    with pytest.raises(BadImage) as caught:
        decode(content, "x.jpg", **options)
    return caught.value.kind


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_rgb_is_unchanged(kind):
    found = decode(encode(NOISE, kind, **LOSSLESS[kind]), "x")
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, NOISE)


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (make_flat("1", 1), "PNG", (255, 255, 255)),
        (make_flat("L", 77), "PNG", (77, 77, 77)),
        (make_flat("L", 77), "JPEG", (77, 77, 77)),
        (make_flat("LA", (77, 0)), "PNG", (77, 77, 77)),
        (make_flat("RGBA", (10, 20, 30, 0)), "PNG", (10, 20, 30)),
        (make_flat("RGBA", (10, 20, 30, 128)), "TIFF", (10, 20, 30)),
        (make_flat("CMYK", (0, 0, 0, 0)), "TIFF", (255, 255, 255)),
        (make_flat("CMYK", (0, 255, 255, 0)), "TIFF", (255, 0, 0)),
        (make_flat("CMYK", (255, 0, 0, 0)), "JPEG", (0, 255, 255)),
        (make_flat("CMYK", (9, 9, 9, 255)), "TIFF", (0, 0, 0)),
        (make_flat("YCbCr", (76, 85, 255)), "JPEG", (254, 0, 0)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else str(value),
)
def test_other_modes_are_converted_to_defined_colours(image, kind, expected):
    content = encode(image, kind)
    assert Image.open(io.BytesIO(content)).mode in (image.mode, "RGB")
    np.testing.assert_array_equal(decode(content, "x"), np.broadcast_to(expected, (2, 3, 3)))


@pytest.mark.parametrize("transparency", [None, 1, b"\x00\x80"])
def test_palette_is_converted_and_transparency_dropped(transparency):
    image = make_flat("P", 1)
    image.putpalette([1, 2, 3, 40, 50, 60])
    options = {} if transparency is None else {"transparency": transparency}
    for kind in ("PNG", "GIF") if not isinstance(transparency, bytes) else ("PNG",):
        found = decode(encode(image, kind, **options), "x")
        np.testing.assert_array_equal(found, np.broadcast_to((40, 50, 60), (2, 3, 3)))


NUMBERS, UPPER = [0, 255, 256, 0x8000, 0xFFFF], [0, 0, 1, 128, 255]


def test_grey_16_bit_is_scaled_and_not_clipped():
    rows = np.array(NUMBERS, dtype=">u2").tobytes()
    contents = {
        "png": raw_png(5, 1, 16, 0, b"\0" + rows),
        "pgm": b"P5 5 1 65535\n" + rows,
        "tiff": encode(Image.fromarray(np.array([NUMBERS], dtype=np.uint16)), "TIFF"),
    }
    for name, content in contents.items():
        assert decode(content, name)[0, :, 0].tolist() == UPPER
    naive = Image.open(io.BytesIO(contents["pgm"])).convert("RGB")
    assert naive.getpixel((2, 0)) == (255, 255, 255)  # Pillow clips 256 of 65535 to white


def test_colour_16_bit_is_scaled_like_grey():
    rows = np.repeat(np.array(NUMBERS, dtype=">u2"), 3).tobytes()
    assert decode(raw_png(5, 1, 16, 2, b"\0" + rows), "x")[0, :, 1].tolist() == UPPER


def test_grey_4_bit_is_scaled():
    assert decode(raw_png(2, 1, 4, 0, b"\0\x0f"), "x")[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize("image", [make_flat("F", 0.5), make_flat("I", 70_000), make_flat("I", -1)])
def test_pixels_of_unknown_range_are_refused(image):
    assert decode_error_kind(encode(image, "TIFF")) == "format"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = picture(1, 4, 6)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encode(pixels, exif=exif)))))
    for kind, options in {"PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}}.items():
        content = encode(pixels, kind, exif=exif, **options)
        np.testing.assert_array_equal(decode(content, "x"), expected)
        assert read_header(content, "x")[:2] == expected.shape[:2]
    content = encode(pixels, "JPEG", exif=exif)
    assert decode(content, "x").shape == expected.shape
    assert read_header(content, "x")[:2] == expected.shape[:2]


def test_orientation_6_moves_left_column_to_top_row():
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = picture(1, 4, 6)
    found = decode(encode(pixels, exif=exif), "x")
    np.testing.assert_array_equal(found[0], pixels[::-1, 0])


@pytest.mark.parametrize("tags", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense", b""])
def test_damaged_tags_do_not_change_pixels(tags):
    content = encode(NOISE, "JPEG")
    segment = b"\xff\xe1" + (len(tags) + 2).to_bytes(2, "big") + tags
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(decode(content[:2] + segment + content[2:], "x"), decode(content, "x"))


def test_animation_gives_first_frame():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    for kind, options in {"GIF": {}, "PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}}.items():
        content = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        np.testing.assert_array_equal(decode(content, "x"), np.broadcast_to((255, 0, 0), (4, 4, 3)))


@pytest.mark.parametrize("kind", EVERY)
def test_size_is_read_from_header_only(kind, monkeypatch):
    content = encode(NOISE, kind, **EVERY[kind])
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert read_header(content, "x")[:2] == (40, 60)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"just words", "not an image"),
        (b"<html>404</html>", "not an image"),
        (b"\0" * 1000, "not an image"),
        (encode(NOISE, "PCX"), "not an image"),  # an image of a format that is not supported
        (b"SIMPLE  =                    T" + b" " * 3000, "format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "format"),
        (b"\xc5\xd0\xd3\xc6" + b"\0" * 100, "format"),
        (b"%PDF-1.7\n", "format"),
        (b"8BPS\0\1" + b"\0" * 100, "format"),
        (b'<?xml version="1.0"?>\n<svg xmlns="x"></svg>', "format"),
        (encode(NOISE, "AVIF") if "AVIF" in Image.SAVE else b"\0\0\0\x18ftypavif", "format"),
        (png()[:30] + b"\xff" * 40 + png()[70:], "corrupt"),
        (encode(NOISE, "JPEG")[:20] + b"\0" * 600 + b"\xff\xd9", "corrupt"),
        (encode(NOISE, "JPEG")[:1500], "truncated"),
        (encode(NOISE, "PNG")[:3000], "truncated"),
        (encode(NOISE, "WEBP")[:1000], "truncated"),
        (encode(NOISE, "GIF")[:2000], "truncated"),
        (encode(NOISE, "BMP")[:2000], "truncated"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_files_have_the_right_kind(content, kind):
    assert decode_error_kind(content) == kind
    assert kind in get_args(Kind)


def test_other_formats_are_never_parsed(monkeypatch):
    opened = []
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda file, **options: opened.append(options) or real(file, **options))
    assert decode_error_kind(b"SIMPLE  =                    T" + b" " * 3000) == "format"
    assert opened == []
    assert decode_error_kind(b"SIMPLE= T" + b" " * 3000) == "not an image"
    assert opened == [{"formats": FORMATS}]


@pytest.mark.parametrize("side", [8193, 12_000, 100_000])
def test_too_large_image_is_refused_before_decoding(side, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    content = raw_png(side, side, 8, 2, b"\0" * 1000)
    assert decode_error_kind(content) == "too large"
    with pytest.raises(BadImage, match="too large"):
        read_header(content, "x")


def test_image_with_largest_number_of_pixels_is_accepted():
    height = 2
    assert read_header(raw_png(MOST_PIXELS // height, height, 1, 0, b""), "x")[:2] == (height, MOST_PIXELS // height)


def test_compressed_text_bomb_is_refused():
    bomb = b"comment\0\0" + zlib.compress(b"\0" * 2**27)
    assert decode_error_kind(raw_png(1, 1, 8, 0, b"\0\0", (b"zTXt", bomb))) == "corrupt"


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("GIF", {})])
@pytest.mark.parametrize("part", [0.5, 0.7, 0.95])
def test_padded_image_equals_pillow_load_truncated_images(kind, options, part, monkeypatch):
    whole = encode(NOISE, kind, **options)
    content = whole[: int(len(whole) * part)]
    found = decode(content, "x", truncated="pad")
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


def test_padding_keeps_decoded_part_and_complete_images():
    white = encode(Image.new("RGB", (64, 640), (255, 255, 255)), "JPEG")
    scan = white.index(b"\xff\xda")
    found = decode(white[: scan + 30], "x", truncated="pad")
    assert (found[0] == 255).all()
    whole = decode(png(), "x", truncated="pad")
    np.testing.assert_array_equal(whole, decode(png(), "x"))


@pytest.mark.parametrize("content", [b"", b"words", png()[:30], encode(NOISE, "WEBP")[:900]])
def test_image_without_decoded_pixels_cannot_be_padded(content):
    assert decode_error_kind(content, truncated="pad") == decode_error_kind(content)


def test_bad_image_error_names_file_and_can_be_pickled():
    error = pickle.loads(pickle.dumps(BadImage("a\nb.jpg", "corrupt", "a hole")))
    assert isinstance(error, DataError)
    assert (error.name, error.kind, error.reason, error.exit_code) == ("a\nb.jpg", "corrupt", "a hole", 3)
    assert str(error).startswith("Expected an image in a\\nb.jpg; found corrupt: a hole.")


GOOD = [encode(picture(2, 12, 10), kind, **options) for kind, options in EVERY.items()]
GOOD += [encode(picture(2, 12, 10), "JPEG", progressive=True, exif=Image.Exif()), encode(make_flat("P", 1), "GIF")]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_give_pixels_or_bad_image(data):
    content = bytearray(data.draw(st.sampled_from(GOOD)))
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=8)):
        content[position] = data.draw(st.integers(0, 255))
    start = data.draw(st.integers(0, len(content)))
    content[start : start + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    changed = bytes(content[: data.draw(st.sampled_from([len(content), start]))])
    for truncated in ("refuse", "pad"):
        try:
            found = decode(changed, "x", truncated=truncated)
        except BadImage:
            continue
        assert found.dtype == np.uint8
        assert found.ndim == 3
        assert found.shape[2] == 3


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"P6 "]), st.binary())
def test_any_bytes_give_pixels_or_bad_image(start, rest):
    try:
        size = read_header(start + rest, "x")[:2]
        found = decode(start + rest, "x")
    except BadImage:
        return
    assert found.shape == (*size, 3)


def test_warnings_are_ignored_only_inside_the_block():
    with ignore_warnings(), ignore_warnings():
        warnings.warn("ignored", stacklevel=1)
    with pytest.raises(UserWarning, match="raised"):
        warnings.warn("raised", stacklevel=1)


def test_exception_inside_the_block_restores_warnings():
    with pytest.raises(ZeroDivisionError), ignore_warnings():
        1 / 0  # noqa: B018
    with pytest.raises(UserWarning, match="raised"):
        warnings.warn("raised", stacklevel=1)


def test_decoding_threads_restore_warning_filters():
    image = Image.new("P", (3, 2), 1)
    image.putpalette([1, 2, 3, 40, 50, 60])
    content = encode(image, transparency=b"\x00\x80")  # Pillow warns when it converts this image
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: decode(content, "x"), range(500)))
    assert warnings.filters == before
    with pytest.raises(UserWarning, match="raised"):
        warnings.warn("raised", stacklevel=1)
