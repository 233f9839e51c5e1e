"""Records of finished runs in little memory: their numbers in one array, and their common structure once.

A file of records is text around numbers. Thousands of runs have the same text and other numbers. The text is parsed and
validated once for all of them, which is faster than to parse every record, and takes a tenth of the memory of
dictionaries.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, overload

Record = Mapping[str, Any]
Build = Callable[["array[float]", int], Any]  # builds a value from the numbers of a file and the start of the record

# A number as JSON has it, between the characters that Python's json writes around numbers.
NUMBER = re.compile(rb"(?<=[\[ ])(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?=[,\]}])")
DIGITS, SMALL = b"0123456789+-", bytes.maketrans(b"E", b"e")
EXACT = 2.0**53  # integers up to this are exact as float
MOST_LAYOUTS = 1024  # different structures that are kept
MOST_BYTES = 1 << 20  # of the text of a structure that is kept


class _Place(NamedTuple):
    """Position of a record in the numbers of its file."""

    build: Build
    start: int
    step: int  # index of its step
    layout: Record  # the record, with leaves in place of numbers


_layouts: dict[tuple[bytes, bytes], tuple[_Place, ...] | None] = {}


class PackedRecords(Sequence[Record]):
    """Records of one file. Each is built when it is read; changing it has no effect."""

    __slots__ = ("_numbers", "_places")

    def __init__(self, numbers: "array[float]", places: tuple[_Place, ...]):
        self._numbers, self._places = numbers, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            return PackedRecords(self._numbers, self._places[index])
        place = self._places[index]
        record: Record = place.build(self._numbers, place.start)
        return record

    def __iter__(self) -> Iterator[Record]:
        return (place.build(self._numbers, place.start) for place in self._places)

    def has_field(self, name: str) -> bool:
        """Return True if a record has this field."""
        return any(name in place.layout for place in self._places)

    def read_lists(self, *path: str) -> "list[array[float]] | None":
        """Return a list of numbers of every record, without building the records; None if one has no such list."""
        found = []
        for place in self._places:
            value: Any = place.layout
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            span = _span(value)
            if span is None:
                return None
            found.append(self._numbers[place.start + span[0] : place.start + span[1]])
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # its records are dictionaries

    def __repr__(self) -> str:
        return repr(tuple(self))


def pack_records(content: bytes, validate: Callable[[Any], Record]) -> PackedRecords | None:
    """Return the records of a file, in the order of their steps.

    Args:
        content: Content of the file.
        validate: Returns a valid record with present names; raises ValueError. It depends on types, not on numbers.

    Returns:
        None if the file is not one that a run has written in one go: a line is not valid, a number is large, or steps
        do not increase. Then it must be read line by line.
    """
    pieces = NUMBER.split(content)
    texts = pieces[1::2]
    numbers = array("d", map(float, texts))
    if numbers and not (min(numbers) >= -EXACT and max(numbers) <= EXACT):
        return None
    text = b"\0".join(pieces[::2])
    # Integers have neither point nor exponent; a float has a point, an exponent or both.
    kinds = b" ".join(texts).translate(SMALL, DIGITS).replace(b".e", b".").replace(b"e", b".")
    key = text, kinds
    if key in _layouts:
        places = _layouts[key]
    else:
        places = _parse_layout(content, validate)
        if len(text) < MOST_BYTES:
            if len(_layouts) >= MOST_LAYOUTS:
                _layouts.clear()
            _layouts[key] = places
    if places is None:
        return None
    steps = [numbers[place.step] for place in places]
    if any(later <= step for step, later in pairwise(steps)):
        return None
    return PackedRecords(numbers, places)


def _parse_layout(content: bytes, validate: Callable[[Any], Record]) -> tuple[_Place, ...] | None:
    """Return where each record is; None if a line is not a valid record."""
    places, start = [], 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        pieces = NUMBER.split(line)
        texts = pieces[1::2]
        leaves = iter([_FloatLeaf(i) if text.translate(None, DIGITS) else _IntLeaf(i) for i, text in enumerate(texts)])
        if b"NaN" in line or b"Infinity" in line:
            return None
        try:  # NaN in place of each number, so that its leaf is put there
            record = validate(json.loads(b"NaN".join(pieces[::2]), parse_constant=partial(_next_leaf, leaves)))
        except (ValueError, RecursionError):
            return None
        step = record.get("step")
        if next(leaves, None) is not None or not isinstance(step, _IntLeaf):  # a number is part of a text
            return None
        places.append(_Place(_builder(record), start, start + step.index, record))
        start += len(texts)
    return tuple(places)


def _next_leaf(leaves: Iterator[Any], constant: str) -> Any:
    return next(leaves)


class _IntLeaf(int):
    """Integer of a layout; ``index`` is its position among the numbers of the record."""

    index: int

    def __new__(cls, index: int) -> "_IntLeaf":
        leaf = super().__new__(cls, 0)
        leaf.index = index
        return leaf


class _FloatLeaf(float):
    """Float of a layout; ``index`` is its position among the numbers of the record."""

    index: int

    def __new__(cls, index: int) -> "_FloatLeaf":
        leaf = super().__new__(cls, 0.0)
        leaf.index = index
        return leaf


def _span(value: Any) -> tuple[int, int] | None:
    """Return the positions of the numbers of a list of floats; None if it is no such list."""
    if not isinstance(value, list) or not value or not all(type(leaf) is _FloatLeaf for leaf in value):
        return None
    return value[0].index, value[0].index + len(value)


def _builder(value: Any) -> Build:
    """Return a function that builds a value like this one, with other numbers."""
    if isinstance(value, _IntLeaf):
        return lambda numbers, start, index=value.index: int(numbers[start + index])  # type: ignore[misc]
    if isinstance(value, _FloatLeaf):
        return lambda numbers, start, index=value.index: numbers[start + index]  # type: ignore[misc]
    if isinstance(value, dict):
        fields = [(name, _builder(inner)) for name, inner in value.items()]
        return lambda numbers, start: {name: build(numbers, start) for name, build in fields}
    if isinstance(value, list):
        if span := _span(value):
            first, last = span
            return lambda numbers, start: numbers[start + first : start + last].tolist()
        builders = [_builder(inner) for inner in value]
        return lambda numbers, start: [build(numbers, start) for build in builders]
    return lambda numbers, start: value
