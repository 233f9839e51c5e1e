"""Names on one line."""

from hypothesis import given
from hypothesis import strategies as st

from pogm.data.images.names import shown


@given(st.text(st.characters()))
def test_any_name_can_be_printed_on_one_line(name):
    assert len(shown(name).splitlines()) <= 1
    shown(name).encode()


def test_printable_names_stay_as_they_are():
    assert shown("Real World/ß 日本 🦒.jpg") == "Real World/ß 日本 🦒.jpg"
    assert shown("a\nb\udcff\x1b") == r"a\nb\udcff\x1b"
