"""The README's code runs, and what it says of the package is so."""

import re
from pathlib import Path

import pytest
import torch
from support import batches, toy

from pogm.algorithms import all_algorithms
from pogm.datasets import all_datasets
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
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/paper.md"):
        text = (ROOT / page).read_text()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("http"):
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_nothing_is_left_to_be_filled_in():
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/paper.md"):
        assert "<!--" not in (ROOT / page).read_text()
        assert "TODO" not in (ROOT / page).read_text()


def test_the_algorithm_of_contributing_works_as_it_stands():
    """A newcomer pastes it into a file."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    scope: dict = {"__name__": "contributed"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), scope)
    algorithm = scope["VREx"]()
    state, problem = toy(algorithm)
    (batch,) = batches()
    model = problem.model(state.params, state)
    risks = model.risks(batch)
    variance = ((risks - risks.mean()) ** 2).mean()
    torch.testing.assert_close(algorithm.loss(model, batch, state).value, risks.mean() + 10 * variance)
    after, metrics = algorithm.step(state, [batch], problem)
    assert metrics["loss"].isfinite()
    assert after.step == 1
