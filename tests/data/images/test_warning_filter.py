"""Silence, and its end."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from image_files import encoded
from PIL import Image

from pogm.data.images.decode import decode
from pogm.data.images.warning_filter import quiet


def test_warnings_are_ignored_inside_and_heard_after():
    with quiet(), quiet():
        warnings.warn("unheard", stacklevel=1)
    with pytest.raises(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_an_error_inside_ends_the_silence_too():
    with pytest.raises(ZeroDivisionError), quiet():
        1 / 0  # noqa: B018
    with pytest.raises(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_threads_that_decode_leave_the_filters_of_warnings_as_they_were():
    image = Image.new("P", (3, 2), 1)
    image.putpalette([1, 2, 3, 40, 50, 60])
    content = encoded(image, transparency=b"\x00\x80")  # of which Pillow warns when it is converted
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: decode(content, "x"), range(500)))
    assert warnings.filters == before
    with pytest.raises(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)
