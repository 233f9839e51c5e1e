"""Test the search for near-duplicates."""

import io
import time

import numpy as np
from image_files import encode, picture, write_files
from PIL import Image

from pogm.data.images import duplicates
from pogm.data.images.check import check
from pogm.data.images.duplicates import MOST_BITS, Thumbnail, find_near_duplicates, reduce_image


def scene(seed: int, side: int = 96) -> Image.Image:
    """Return a smooth random image; different seeds give images that do not look alike."""
    return Image.fromarray(picture(seed, 6, 6)).resize((side, side), Image.Resampling.BICUBIC)


def recompress(image: Image.Image, quality: int = 50) -> Image.Image:
    return Image.open(io.BytesIO(encode(image, "JPEG", quality=quality)))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


def test_hash_has_a_bit_for_every_increase_to_the_right():
    ramp = np.repeat(np.arange(0, 180, 20, dtype=np.uint8)[None], 8, axis=0)
    rising = reduce_image(np.repeat(ramp[:, :, None], 3, axis=2))
    falling = reduce_image(np.repeat(ramp[:, ::-1, None], 3, axis=2))
    assert (rising.bits, falling.bits) == (2**64 - 1, 0)
    assert rising.grey == ramp.tobytes()


def test_changed_copies_are_found_and_other_images_are_not():
    images = [scene(seed) for seed in range(40)]
    copies = {
        3: recompress(images[3]),
        7: images[7].resize((61, 80)),
        11: Image.eval(images[11], lambda value: int(value * 0.9)),
    }
    thumbnails = [reduce_image(pixels(image)) for image in (*images, *copies.values())]
    assert find_near_duplicates(thumbnails) == [[3, 40], [7, 41], [11, 42]]


def test_flat_images_are_not_compared():
    flat = [reduce_image(np.full((20, 20, 3), value, np.uint8)) for value in (0, 128, 255)]
    assert [thumbnail.bits for thumbnail in flat] == [None] * 3
    assert find_near_duplicates(flat) == []
    assert find_near_duplicates([]) == []


def test_result_equals_the_comparison_of_all_pairs(monkeypatch):
    """The buckets lose no pair, and the number of rows of a block does not matter."""
    monkeypatch.setattr(duplicates, "LEAST_CORRELATION", -1.0)
    monkeypatch.setattr(duplicates, "BLOCK", 7)
    source = np.random.RandomState(0)
    bits = [int.from_bytes(source.bytes(8), "big") for _ in range(60)]
    for count in range(1, 9):  # neighbours at distance 1 to 8
        flipped = source.choice(64, count, replace=False)
        bits.append(bits[count] ^ sum(1 << int(bit) for bit in flipped))
    grey = source.randint(0, 256, (len(bits), 72)).astype(np.uint8)
    thumbnails = [Thumbnail(number, values.tobytes()) for number, values in zip(bits, grey, strict=True)]
    expected = [
        [one, other]
        for one in range(len(bits))
        for other in range(one + 1, len(bits))
        if (bits[one] ^ bits[other]).bit_count() <= MOST_BITS
    ]
    assert find_near_duplicates(thumbnails) == expected
    assert len(expected) == MOST_BITS


def test_bit_counts_without_numpy_2(monkeypatch):
    numbers = np.random.RandomState(0).randint(0, 2**63, (3, 5), dtype=np.int64).astype(np.uint64)
    expected = duplicates._count_bits(numbers)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    np.testing.assert_array_equal(duplicates._count_bits(numbers), expected)


def test_10_000_images_are_compared_in_seconds():
    source = np.random.RandomState(0)
    grey = source.randint(0, 256, (10_000, 8, 9)).astype(np.uint8)
    packed = np.packbits(grey[:, :, 1:] > grey[:, :, :-1], axis=-1)[..., 0]
    thumbnails = [Thumbnail(int.from_bytes(b.tobytes(), "big"), g.tobytes()) for b, g in zip(packed, grey, strict=True)]
    start = time.perf_counter()
    assert find_near_duplicates(thumbnails) == []
    assert time.perf_counter() - start < 20  # about 0.3 s on one free core


def test_check_lists_near_duplicates_across_and_within_domains(tmp_path):
    files = {
        f"{domain}/{name}/{number}.png": encode(scene(seed * 10 + number))
        for seed, (domain, name) in enumerate([("a", "cat"), ("a", "dog"), ("b", "cat"), ("b", "dog")])
        for number in range(4)
    }
    write_files(tmp_path, files)
    assert check(tmp_path).text().endswith("Nothing is wrong.\n")
    write_files(tmp_path, {"b/cat/copy.jpg": encode(scene(0), "JPEG"), "b/dog/small.png": encode(scene(30, side=50))})
    found = check(tmp_path)
    assert found.near_across_domains == [["a/cat/0.png", "b/cat/copy.jpg"]]
    assert found.near_within_domains == [["b/dog/0.png", "b/dog/small.png"]]
    assert found.clean, "near-duplicates are a hint, not an error"
    text = found.text()
    assert "1 near-duplicates in several domains:\n  a/cat/0.png ~ b/cat/copy.jpg" in text
    assert "  b/dog/0.png ~ b/dog/small.png" in text
    assert text.endswith("No errors; look at the near-duplicates.\n")


def test_exact_copies_are_not_listed_as_near_duplicates_again(tmp_path):
    files = {f"{domain}/x/{number}.png": encode(scene(number)) for domain in "ab" for number in range(2)}
    found = check(write_files(tmp_path, files))
    assert len(found.across_domains) == 2
    assert found.near_across_domains == []
