"""Anything made inert: a name as text or as an address, data as a block, none of which a browser would run."""

import json
import math
import re
from html import escape as escape_html

from pogm.benchmark.results.records import printable


def escape(text: object) -> str:
    """Any name as inert text of HTML or XML."""
    return escape_html(printable(text))


def slug(text: str) -> str:
    """Any name as an address within a page, or as a file's: small letters, digits and hyphens."""
    return "-".join(re.findall("[a-z0-9]+", text.lower()))[:60] or "untitled"


def data_block(value: object) -> str:
    """JSON for the page's script to read; no name in it can end the block, and what is not finite is null."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).replace("<", r"\u003c")
    return f'<script type="application/json">{text}</script>'


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
