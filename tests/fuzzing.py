"""Random inputs: the property that every command has for them, and strategies that change valid inputs."""

import contextlib
import io
import json
import os
import signal
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from pogm.cli import main

MORE = os.environ.get("POGM_FUZZ")  # factor of `make soak` for the number of inputs, which are then new in every run
CODES = (0, 2, 3, 4, 6, 7)
HANG_SECONDS = 60

TOKENS = [b"", b"{", b"}", b"[", b'"', b",", b":", b"\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"nan", b"NaN", b"-Infinity"]
TOKENS += [b"1e400", b"-1", b"9" * 30, b"9" * 5000, b"[" * 2000, b"null", b"true", b"../x", b"\x1b[2J"]
JUNK = [None, True, -1, 0, 1e308, 10**24, "", "x", "../x", "a\nb", [], [None], ["x"], {}, {"x": 1}]


def few(count: int) -> settings:
    """Return settings for this number of inputs, or more of them for `make soak`."""
    return settings(max_examples=count * int(MORE or 1), derandomize=not MORE, deadline=None, database=None)


def assert_one_message(words: Sequence[str]) -> int:
    """Run a command; check that its exit code is allowed and that it prints no traceback. Return the code."""
    said = io.StringIO()
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # a hang has exit code 130
    signal.alarm(HANG_SECONDS)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(words)
    except SystemExit as end:  # of the parser
        code = end.code
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert code in CODES, (words, code, said.getvalue())
    assert "Traceback" not in said.getvalue(), (words, said.getvalue())
    return code


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Replace a few bytes of a file, or cut it."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(changed)))
        changed[start : start + draw(st.integers(0, 8))] = draw(st.sampled_from(TOKENS) | st.binary(max_size=3))
    return bytes(changed[: draw(st.sampled_from([len(changed), len(changed), len(changed) // 2]))])


@st.composite
def changed_value(draw: st.DrawFn, content: bytes) -> bytes:
    """Replace, remove or repeat one value of the last line of a file of JSON."""
    *others, last = [content] if content.startswith(b"{\n") else content.splitlines() or [b""]
    value = json.loads(last)
    place, key = None, None
    inner: Any = value
    while isinstance(inner, dict | list) and inner and (place is None or draw(st.booleans())):
        place = inner
        key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        inner = inner[key]
    if place is None:
        value = draw(st.sampled_from(JUNK))
    elif draw(st.booleans()):
        place[key] = draw(st.sampled_from(JUNK))
    else:
        del place[key]
    return b"\n".join([*others, json.dumps(value).encode()])
