"""docs/faults.md has every fault, and every test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = re.findall(r"^\| (\d+) \|(.*::.*)\|$", PAGE, re.MULTILINE)
CODES = {"0", "1", "2", "3", "4", "5", "6", "7", "75", "129", "130"}


def test_every_fault_has_a_row_with_exit_codes_and_tests():
    assert [int(number) for number, _ in ROWS] == list(range(1, 39))
    for number, cells in ROWS:
        _, seen, codes, tests = map(str.strip, cells.split("|"))
        assert seen, number
        assert set(codes.split(", ")) <= CODES, number
        assert tests.startswith("`tests/"), number


def test_every_named_test_exists():
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE))
    assert len(named) > 100
    for path in {path for path, _ in named}:
        body = ast.parse((ROOT / path).read_text()).body
        defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        assert {name for file, name in named if file == path} <= defined, path
