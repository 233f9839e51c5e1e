"""Files from elsewhere: only regular files are read, and only values of the expected form are accepted."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pogm._system.errors import UsageError
from pogm._system.files import read_json
from pogm._system.saved import LARGEST, check_form, parse_numbers, read_regular

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def test_a_fifo_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "trial.json")
    for read in (lambda path: read_regular(path, 100), read_json):
        with pytest.raises(UsageError, match=r"Expected a regular file at .*trial\.json"):
            read(tmp_path / "trial.json")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/"])
def test_devices_and_folders_are_refused(path):
    with pytest.raises(UsageError, match="Expected a regular file"):
        read_regular(Path(path), 100)


def test_a_file_is_read_up_to_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UsageError, match="Expected at most 4 bytes"):
        read_regular(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", 4)


def test_numbers_that_cannot_be_computed_with_become_none():
    assert parse_numbers(b"[1e308, -1e101, 1e999, NaN, Infinity, 1e100, 0.5, 7]") == [None] * 5 + [LARGEST, 0.5, 7]
    with pytest.raises(ValueError, match="401 digits"):
        parse_numbers(b"[1%s]" % (b"0" * 400))


FORM = {"step": int, "metrics?": {str: (float, list)}, "names": [str]}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([], "file to be an object"),
        ({"names": []}, "file.step to be int; found 'None'"),
        ({"step": True, "names": []}, "file.step to be int"),
        ({"step": 1, "names": ["a", 2]}, r"file.names\[1\] to be str; found '2'"),
        ({"step": 1, "names": "ab"}, "file.names to be a list"),
        ({"step": 1, "names": [], "metrics": {"loss": "x"}}, "file.metrics.loss to be float or list"),
    ],
)
def test_a_value_of_another_form_is_an_error_that_names_it(value, error):
    with pytest.raises(ValueError, match=error):
        check_form(value, FORM, "file")


def test_fields_that_are_optional_or_unknown_are_accepted():
    for more in ({}, {"metrics": None}, {"metrics": {"loss": 0.5, "cosine": []}}, {"other": 1}):
        check_form({"step": 1, "names": ["a"]} | more, FORM, "file")


@given(JSON)
def test_every_value_has_the_form_or_is_a_value_error(value):
    try:
        check_form(value, FORM, "file")
    except ValueError:
        return
    assert isinstance(value["step"], int)
    assert all(isinstance(name, str) for name in value["names"])
