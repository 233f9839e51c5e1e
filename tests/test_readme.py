"""The README's code runs, and what it says of the package is so."""

import re
from pathlib import Path

import pytest

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


def test_the_algorithm_of_contributing_works_as_it_stands():
    """A newcomer pastes it into a file; it must run as it is."""
    from support import batches, toy

    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    header = (
        "from dataclasses import dataclass\n"
        "from pogm.algorithms.base import Algorithm\n"
        "from pogm.core.hyper import Power, hyper\n"
        "from pogm.core.state import Loss\n"
    )
    scope: dict = {"__name__": "contributed"}
    exec(compile(header + block, "CONTRIBUTING.md", "exec"), scope)
    algorithm = scope["VREx"]()
    state, problem = toy(algorithm)
    (batch,) = batches()
    loss = algorithm.loss(problem.model(state.params, state), batch, state)
    risks = problem.model(state.params, state).risks(batch)
    assert loss.value == risks.mean() + 10 * ((risks - risks.mean()) ** 2).mean()
    after, metrics = algorithm.step(state, [batch], problem)
    assert metrics["loss"].isfinite()
    assert after.step == 1
