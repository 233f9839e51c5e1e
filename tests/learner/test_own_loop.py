"""The example and the documentation page for users with their own training loop run."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

from pogm.algorithms import all_algorithms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/own_loop.md").read_text()


def test_example_learns_in_both_ways(capsys):
    spec = importlib.util.spec_from_file_location("own_loop", ROOT / "examples/own_loop.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    errors = example.main()
    assert max(errors["Learner"], errors["backward"]) < errors["untrained"] / 2
    assert "step 200" in capsys.readouterr().out


def test_code_of_the_page_runs():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "own_loop.md", "exec"), names)
    assert names["metrics"]


def test_page_lists_the_methods_that_need_classes():
    (listed,) = re.findall(r"All (\d+) algorithms .* those that use class labels: (.*?) need", PAGE, re.DOTALL)
    assert int(listed[0]) == len(all_algorithms())
    assert set(re.findall(r"`(\w+)`", listed[1])) == {n for n, a in all_algorithms().items() if a.needs_classes}


@pytest.mark.parametrize("name", ["learner", "backward", "torchjd"])
def test_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(f"pogm.learner.{name}"))
    assert result.attempted > 2
    assert result.failed == 0
