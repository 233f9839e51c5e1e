"""Test the decoding of DICOM files."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import write_files
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    RLELossless,
    SecondaryCaptureImageStorage,
)

from pogm._system.errors import UsageError
from pogm.data.datasets.folder import Folder
from pogm.data.images.check import check
from pogm.data.images.decode import BadImage, decode, read_header, read_levels, read_values
from pogm.data.images.intensity import Intensity

STORED = np.array([[0, 24, 1024, 1064], [1424, 2024, 4000, 4095]], dtype=np.uint16)  # CT numbers plus 1024


def dicom(
    pixels: np.ndarray = STORED, *, bits: int = 12, syntax: str = ExplicitVRLittleEndian, **tags: object
) -> bytes:
    """Return the content of a DICOM file."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = syntax, SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    data = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.SOPInstanceUID = SecondaryCaptureImageStorage, "1.2.3"
    data.Rows, data.Columns = pixels.shape[:2]
    data.SamplesPerPixel = 1 if pixels.ndim == 2 else pixels.shape[2]
    data.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    data.BitsAllocated, data.BitsStored, data.HighBit = pixels.itemsize * 8, bits, bits - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    if pixels.ndim == 3:
        data.PlanarConfiguration = 0
    for name, value in tags.items():
        setattr(data, name, value)
    if syntax == RLELossless:
        data.compress(RLELossless, pixels)
    else:
        data.PixelData = pixels.tobytes()
    file = io.BytesIO()
    data.save_as(file, enforce_file_format=True)
    return file.getvalue()


def grey(content: bytes, intensity: str = "none") -> list[list[int]]:
    pixels = decode(content, "x.dcm", intensity=Intensity.parse(intensity))
    assert (pixels == pixels[:, :, :1]).all()
    return pixels[:, :, 0].tolist()


CT = {"RescaleSlope": 1, "RescaleIntercept": -1024}


def test_header_has_the_size_and_counts_as_wide():
    assert read_header(dicom(), "x") == (2, 4, True)


def test_slope_and_intercept_give_the_unit_of_the_modality():
    values = read_values(dicom(**CT), "x")
    assert values.tolist() == (STORED.astype(int) - 1024).tolist()
    assert read_levels(dicom(RescaleSlope=0.5, RescaleIntercept=10), "x") == (10, 2058)


def test_explicit_window_is_in_the_unit_of_the_modality():
    expected = [[0, 0, 182, 189], [255, 255, 255, 255]]
    assert grey(dicom(**CT), "window:-1000:400") == expected
    windowed = dicom(**CT, WindowCenter=40, WindowWidth=80)
    assert grey(windowed, "window:-1000:400") == expected, "it replaces the window of the file"


def test_display_window_has_the_values_of_the_standard():
    """PS3.3 C.11.2.1.2.1: centre 40, width 401 maps -160.5 to 0 and 239.5 to 255."""
    content = dicom(**CT, WindowCenter=40, WindowWidth=401)
    values = STORED.astype(float) - 1024
    expected = np.rint((((values - 39.5) / 400 + 0.5) * 255).clip(0, 255)).astype(int).tolist()
    assert grey(content) == grey(content, "auto:0:4095") == expected
    assert expected[0] == [0, 0, 102, 128]
    several = dicom(**CT, WindowCenter=[40, 500], WindowWidth=[401, 1000])
    assert grey(several) == expected, "the first of several windows"


def test_other_window_functions():
    exact = dicom(**CT, WindowCenter=0, WindowWidth=200, VOILUTFunction="LINEAR_EXACT")
    assert grey(exact)[0] == [0, 0, 128, 178]
    sigmoid = dicom(**CT, WindowCenter=0, WindowWidth=200, VOILUTFunction="SIGMOID")
    assert grey(sigmoid)[0] == [0, 0, 128, 176]


def test_file_without_window_is_scaled_by_stored_bits_or_dataset():
    assert grey(dicom())[1] == [89, 126, 249, 255], "values of 12 bits"
    assert grey(dicom(), "auto:0:1023")[0] == [0, 6, 255, 255]
    assert grey(dicom(), "image")[0][0] == 0


def test_monochrome1_is_inverted():
    plain, inverted = grey(dicom()), grey(dicom(PhotometricInterpretation="MONOCHROME1"))
    assert (np.array(plain) + np.array(inverted) == 255).all()


def test_signed_values_are_read():
    content = dicom(np.array([[-1000, 0, 400, 100]], dtype=np.int16), bits=16)
    assert grey(content, "window:-1000:400")[0] == [0, 182, 255, 200]


def test_8_bit_grey_and_colour_are_not_scaled():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 6)
    assert not read_header(dicom(pixels, bits=8), "x").is_wide
    assert grey(dicom(pixels, bits=8), "none") == pixels.tolist()
    colour = np.random.RandomState(0).randint(0, 256, (3, 5, 3), dtype=np.uint8)
    content = dicom(colour, bits=8)
    assert not read_header(content, "x").is_wide
    np.testing.assert_array_equal(decode(content, "x", intensity=Intensity("window", 0, 10)), colour)


def test_compressed_pixels_are_decoded():
    assert grey(dicom(syntax=RLELossless)) == grey(dicom())


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (dicom(NumberOfFrames=2, PixelData=STORED.tobytes() * 2), "format", "2 frames; write each frame"),
        (dicom()[:-6], "truncated", ""),
        (dicom()[:300], "corrupt", "without an image"),
        (dicom(RescaleSlope="1e300", RescaleIntercept=0), "corrupt", "not below 1e+09"),
        (dicom(Rows=60_000, Columns=60_000), "too large", "60000 × 60000"),
        (dicom(PhotometricInterpretation="PALETTE COLOR"), "format", "PALETTE COLOR with 12 bits"),
        (dicom(syntax=DeflatedExplicitVRLittleEndian), "format", "deflated"),
    ],
)
def test_damaged_and_unsupported_files_are_bad_images(content, kind, reason):
    with pytest.raises(BadImage) as caught:
        decode(content, "x.dcm")
    assert caught.value.kind == kind
    assert reason in caught.value.reason


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_changed_bytes_give_pixels_or_bad_image(data):
    content = bytearray(dicom(**CT, WindowCenter=40, WindowWidth=400))
    for position in data.draw(st.lists(st.integers(132, len(content) - 1), max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    changed = bytes(content[: data.draw(st.sampled_from([len(content), data.draw(st.integers(0, len(content)))]))])
    for intensity in (Intensity(), Intensity("image"), Intensity("window", 0, 100)):
        try:
            read_header(changed, "x")
            assert decode(changed, "x", intensity=intensity).dtype == np.uint8
        except BadImage:
            continue


def test_missing_pydicom_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    write_files(tmp_path / "data", {f"{site}/{name}/1.dcm": dicom() for site in "ab" for name in "xy"})
    monkeypatch.setitem(sys.modules, "pydicom", None)
    for action in (check, Folder.from_path):
        with pytest.raises(UsageError, match=r'found none\. Install it: pip install "pogm\[dicom\]"'):
            action(tmp_path / "data")


def make_folder(root: Path, **tags: object) -> Path:
    """Write a dataset of CT images of two sites."""
    noise = np.random.RandomState(0)
    files = {
        f"{site}/{name}/{number}.dcm": dicom(noise.randint(0, 4096, (6, 8)).astype(np.uint16), **CT, **tags)
        for site in "ab"
        for name in ("ill", "well")
        for number in range(2)
    }
    return write_files(root, files)


def test_folder_of_dicom_files_is_a_dataset(tmp_path):
    root = make_folder(tmp_path / "ct")
    dataset = Folder.from_path(root)
    assert dataset.intensity == "auto"
    assert [domain.inputs.shape for domain in dataset.load(tmp_path, 0)] == [(4, 3, 6, 8)] * 2
    low, high = (float(number) for number in dataset.describe_data(tmp_path)["intensity"].split(":")[1:])
    assert -1024 <= low < -900
    assert 2900 < high <= 3071


def test_check_counts_display_windows(tmp_path):
    assert "DICOM" not in check(make_folder(tmp_path / "plain")).text()
    root = make_folder(tmp_path / "ct", WindowCenter=40, WindowWidth=400)
    (root / "a" / "ill" / "9.dcm").write_bytes(dicom(**CT, WindowCenter=500, WindowWidth=1500))
    found = check(root)
    assert found.clean
    assert "9 of them are DICOM files with 2 different display windows." in found.text()
