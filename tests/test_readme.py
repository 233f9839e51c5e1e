"""The README's code runs, and what it says of the package is so."""

import re
from pathlib import Path

import pytest

from pogm.algorithms import all_algorithms
from pogm.data.datasets import all_datasets
from pogm.modifiers import all_modifiers

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_code_runs(block, capsys):
    exec(compile(block, "README.md", "exec"), {})


def test_there_is_code_to_run():
    assert len(BLOCKS) >= 2


def test_it_names_everything_there_is():
    for name in [*all_algorithms(), *all_datasets(), *all_modifiers()]:
        assert f"`{name}`" in README, name


def test_its_links_lead_somewhere():
    for page in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/paper.md",
        "docs/data.md",
        "docs/methods.md",
        "docs/theory.md",
    ):
        text = (ROOT / page).read_text()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("http"):
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_nothing_is_left_to_be_filled_in():
    for page in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/paper.md",
        "docs/data.md",
        "docs/methods.md",
        "docs/theory.md",
    ):
        assert "<!--" not in (ROOT / page).read_text()
        assert "TODO" not in (ROOT / page).read_text()


def test_the_algorithm_of_contributing_is_the_one_in_the_folder():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert block == (ROOT / "src/pogm/algorithms/vrex.py").read_text()
