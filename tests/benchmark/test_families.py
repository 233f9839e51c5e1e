"""Families, papers, requirements and costs of all methods, as lists show them."""

from pathlib import Path

import pytest
from digests import RELEASED

from pogm.benchmark.catalogue import CATALOGUES, costs
from pogm.benchmark.descriptions import describe, describe_all, description_lines
from pogm.benchmark.families import FAMILIES, FAMILY
from pogm.modifiers import all_modifiers

PAGE = Path(__file__).parents[2] / "docs/methods.md"


def test_every_released_method_has_one_family():
    """Add the method to `FAMILIES` when you release it."""
    names = [name for members in FAMILIES.values() for name in members.split()]
    assert sorted(names) == sorted(RELEASED)
    assert len(names) == len(FAMILY)


@pytest.mark.parametrize("kind", ["algorithms", "modifiers"])
def test_every_description_has_family_paper_idea_requirements_and_cost(kind):
    headings = [line.removesuffix(":") for line in CATALOGUES[kind]() if line.endswith(":")]
    for found in (found for found in describe_all(kind) if found["name"] in RELEASED):
        assert found["paper"], found["name"]
        assert found["paper"] in found["summary"]
        assert len(found["summary"]) > len(found["paper"]) + 20, "the first line has the idea"
        assert found["family"] in headings
        text = "\n".join(description_lines(found))
        for expected in (f"Family: {found['family']}", f"Paper: {found['paper']}", "relative to ERM"):
            assert expected in text, found["name"]


def test_costs_that_were_not_measured_are_said_to_be(monkeypatch):
    assert "relative to ERM: not measured" not in "\n".join(description_lines(describe("algorithms", "VREx")))
    monkeypatch.delitem(costs(), "VREx")
    assert "relative to ERM: not measured" in "\n".join(description_lines(describe("algorithms", "VREx")))


def test_method_without_a_family_is_listed_last(monkeypatch):
    monkeypatch.delitem(FAMILY, "VREx")
    lines = list(CATALOGUES["algorithms"]())
    assert lines[lines.index("other:") + 1].startswith("  VREx ")


def test_description_says_what_a_method_needs_and_sees_at_test_time():
    found = describe("modifiers", "TENT")
    assert found["needs"] == "normalization layers, class labels, test images in batches of one domain"
    assert "Predictions also use: unlabelled images of the test domain" in "\n".join(description_lines(found))
    assert describe("algorithms", "MADG")["needs"] == "2 domains, networks of its own, class labels"


def test_page_and_descriptions_name_the_modifiers_that_do_not_change_the_training():
    unchanged = sorted(name for name, found in all_modifiers().items() if not found.changes_training)
    named = " and ".join(", ".join(f"`{name}`" for name in unchanged).rsplit(", ", 1))
    assert f"{named} do not change the training" in " ".join(PAGE.read_text().split())
    for name in all_modifiers():
        lines = "\n".join(description_lines(describe("modifiers", name)))
        assert ("Training: that of the algorithm alone" in lines) == (name in unchanged)
