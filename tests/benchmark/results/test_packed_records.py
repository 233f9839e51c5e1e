"""Test that packed records are equal to records that are parsed line by line."""

import json
import random
import sys

import pytest

from pogm.benchmark.results import packed_records
from pogm.benchmark.results.packed_records import PackedRecords, pack_records
from pogm.benchmark.results.record_file import parse_records, record_line, validate_regular_record
from pogm.benchmark.results.records import read_runs

PLAIN = {
    "step": 0,
    "epoch": 0.5,
    "accuracy": {"in": [0.5, 1.0, 1e-07], "out": [-0.0, 0.25, 2.5e-12]},
    "metrics": {"loss": 1.5, "cosine": [0.1, None], "top1": 3},
    "seconds_per_step": None,
    "status": "ok",
}


def pack(content):
    return pack_records(content, validate_regular_record)


def file_of(*records):
    return b"".join(map(record_line, records))


def random_record(draw, step):
    def number():
        return draw.choice(
            [draw.random(), -draw.random(), draw.random() * 10 ** draw.randint(-20, 10), draw.randint(-9, 9)]
        )

    def maybe():
        return draw.choice([number(), number(), None])

    scores = {split: [maybe() for _ in range(draw.randint(0, 3))] for split in ("in", "out")}
    metrics = {
        draw.choice(["loss", "a 1, b", "x: 2", "angle"]): draw.choice([maybe(), [number()] * 2]) for _ in range(3)
    }
    more = {"rounds": {"round": [1, 2], "gramian": [[[number()] * 2] * 2]}} if draw.random() < 0.2 else {}
    return {"step": step, "accuracy": scores, "metrics": metrics, "epoch": maybe(), "status": "ok"} | more


def test_packed_records_are_those_of_the_lines(tmp_path):
    draw, packed = random.Random(0), 0
    for _ in range(300):
        content = file_of(*(random_record(draw, 10 * number) for number in range(draw.randint(1, 3))))
        for _ in range(2):  # the second time with a known layout
            found = pack(content)
            if found is not None:
                packed += 1
                expected = parse_records(content, tmp_path)
                assert repr(tuple(found)) == repr(expected)  # 0, 0.0 and -0.0 differ
    assert packed > 100


def test_runs_of_one_layout_share_it_and_keep_their_numbers():
    first, second = pack(file_of(PLAIN)), pack(file_of(PLAIN | {"step": 7, "epoch": -3e-05}))
    assert first._places is second._places
    assert (first[0]["step"], first[0]["epoch"]) == (0, 0.5)
    assert (second[0]["step"], second[0]["epoch"]) == (7, -3e-05)
    assert second[-1]["accuracy"] == PLAIN["accuracy"]
    assert isinstance(second[0]["step"], int)
    assert isinstance(second[0]["metrics"]["top1"], int)


def test_integer_and_float_have_different_layouts():
    (first,), (second,) = pack(file_of(PLAIN | {"epoch": 1})), pack(file_of(PLAIN | {"epoch": 1.0}))
    assert (repr(first["epoch"]), repr(second["epoch"])) == ("1", "1.0")


def test_names_with_numbers_are_not_confused():
    for name in ("top1", "top5", "x: 1, 2", "[ 3,"):
        content = file_of(PLAIN | {"metrics": {name: 0.5}, "status": name})
        for _ in range(2):
            found = pack(content)
            assert found is None or dict(found[0]) == PLAIN | {"metrics": {name: 0.5}, "status": name}


@pytest.mark.parametrize(
    "content",
    [
        file_of(PLAIN)[:-9],
        file_of(PLAIN) + b"{",
        file_of(PLAIN).replace(b"0.25", b"NaN"),
        file_of(PLAIN | {"status": "x: 1, y"}).replace(b"0.25", b"NaN"),  # as many constants as numbers
        file_of(PLAIN).replace(b"0.25", b"1e999"),
        file_of(PLAIN).replace(b"0.25", b"1e300"),
        file_of(PLAIN).replace(b"0.25", b"9" * 400),
        file_of(PLAIN).replace(b"0.25", b"01"),
        file_of(PLAIN | {"swad": True}),
        file_of(PLAIN, PLAIN),
        file_of(PLAIN | {"step": 5}, PLAIN),
        file_of(PLAIN | {"step": 0.5}),
        file_of(PLAIN | {"metrics": "x"}),
    ],
    ids=[
        "cut",
        "garbage",
        "NaN",
        "NaN and text",
        "infinite",
        "large",
        "digits",
        "zero",
        "final",
        "twice",
        "order",
        "step",
        "form",
    ],
)
def test_other_files_are_read_line_by_line(content):
    assert pack(content) is None
    assert pack(content) is None


def test_sequence():
    records = [PLAIN | {"step": step} for step in range(4)]
    found = pack(file_of(*records))
    assert len(found) == 4
    assert found[1:3] == records[1:3]
    assert found == tuple(records)
    assert [record["step"] for record in reversed(found)] == [3, 2, 1, 0]
    assert [list(values) for values in found.read_lists("accuracy", "in")] == [PLAIN["accuracy"]["in"]] * 4
    assert found.read_lists("metrics", "cosine") is None
    assert found.has_field("epoch")
    assert not found.has_field("rounds")
    with pytest.raises(IndexError):
        found[4]


def test_layouts_are_forgotten_if_there_are_too_many(monkeypatch):
    monkeypatch.setattr(packed_records, "MOST_LAYOUTS", 3)
    for number in range(10):
        assert pack(file_of(PLAIN | {"metrics": {f"name{chr(97 + number)}": 0.5}})) is not None
        assert len(packed_records._layouts) <= 3


def test_runs_that_are_read_take_less_memory(make_run, make_record, tmp_path):
    lines = [make_record(step, [0.1] * 3, [0.2] * 3, metrics={"cosine": [0.5, 0.6]}) for step in range(0, 1000, 10)]
    make_run(lines)
    (run,) = read_runs(tmp_path)
    assert isinstance(run.records, PackedRecords)
    assert tuple(run.records) == tuple(json.loads(record_line(line)) for line in lines)
    assert sys.getsizeof(run.records._numbers) < 200 * len(lines)
