"""Hyperparameters: defaults, limits and search spaces."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pogm import POGM, Fishr
from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.core.hyperparameters import (
    Choice,
    Power,
    Uniform,
    fields,
    from_json,
    hyper,
    limits,
    replace_fields,
    to_json,
    validate,
)
from pogm.data.datasets import all_datasets
from pogm.diagnostics import Probe
from pogm.modifiers import all_modifiers


@dataclass(frozen=True)
class Settings:
    rate: float = hyper(0.5, Power(10, -2, 0), above=0, most=1)
    count: int = hyper(3, Uniform(1, 9, integer=True), least=1)
    free: float = 0.0
    flag: bool = hyper(False)
    kind: str = hyper("plain", options=("plain", "fancy"))

    def __post_init__(self):
        validate(self)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 0}, "above 0"),
        ({"rate": 2.0}, "at most 1"),
        ({"rate": float("nan")}, "nan"),
        ({"rate": "fast"}, "a number"),
        ({"count": 0}, "at least 1"),
        ({"count": 2.5}, "a whole number"),
        ({"count": True}, "a whole number"),
        ({"count": 1e9}, "at most 100000000"),
        ({"count": 10**400}, "characters"),
        ({"count": float("inf")}, "a whole number"),
        ({"free": -2e30}, "at least -1e+30"),
        ({"free": float("inf")}, "at most 1e+30"),
        ({"flag": "maybe"}, "true or false"),
        ({"kind": "fency"}, "Did you mean 'fancy'?"),
        ({"kind": 3}, "a text"),
    ],
)
def test_invalid_value_is_refused_with_an_explanation(values, words):
    with pytest.raises(UsageError, match="Expected") as caught:
        Settings(**values)
    assert words in str(caught.value)
    assert "found" in str(caught.value)


def test_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean 'kappa'"):
        replace_fields(POGM(), {"kapa": 0.1})


@pytest.mark.parametrize("name", ["kappa", "kapa", "scope"])
def test_null_in_json_is_refused(name):
    assert from_json(POGM(), to_json(POGM(0.2))) == POGM(0.2)
    with pytest.raises(UsageError, match=name):
        from_json(POGM(), {name: None})


def test_texts_are_converted_to_the_type_of_the_field():
    settings = replace_fields(Settings(), {"rate": "0.25", "count": "7", "flag": "true", "kind": "fancy"})
    assert settings == Settings(0.25, 7, flag=True, kind="fancy")


@pytest.mark.parametrize(
    "values",
    [{"kappa": -0.1}, {"kappa": float("nan")}, {"inner_steps": 0}, {"meta_lr": 0.0}, {"meta_lr": -1}],
)
def test_pogm_refuses_values_outside_the_definition_of_the_paper(values):
    with pytest.raises(UsageError):
        POGM(**values)


def test_tensors_are_not_validated():
    assert POGM(kappa=torch.tensor([0.1, 0.5])).kappa.shape == (2,)


@given(st.integers(0, 2**31 - 1))
def test_drawn_values_are_valid(seed):
    source = np.random.RandomState(seed)
    Settings(rate=Settings.__dataclass_fields__["rate"].metadata["space"].draw(source))
    drawn = Uniform(1, 9, integer=True).draw(source)
    assert type(drawn) is int
    assert 1 <= drawn < 9


OWNERS = {cls.__name__: cls for cls in (*all_algorithms().values(), *all_modifiers().values(), Probe)} | {
    f"{name} training": type(cls().training) for name, cls in all_datasets().items()
}


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_every_number_has_limits_that_include_its_search_space(owner):
    for field in fields(owner):
        if type(field.default) not in (int, float):
            continue
        least, most = limits(field)
        assert least < most
        spaces = [field.metadata.get("space"), getattr(field.metadata.get("large"), "space", None)]
        for source in (LowEnd(), HighEnd()):
            for space in filter(None, spaces):
                replace_fields(owner(), {field.name: space.draw(source)})
        for wrong in (least - 1 - abs(least) / 10, most + 1 + most / 10, float("nan"), float("inf")):
            with pytest.raises(UsageError, match=f"{field.name} to be"):
                replace_fields(owner(), {field.name: wrong})


class LowEnd:
    """Source that always draws the smallest value."""

    def uniform(self, low, high):
        return low

    def choice(self, values):
        return min(values)


class HighEnd:
    """Source that always draws the largest value."""

    def uniform(self, low, high):
        return high

    def choice(self, values):
        return max(values)


def test_choice_draws_python_values_that_json_can_write():
    assert type(Choice(1, 5, 10).draw(np.random.RandomState(0))) is int
    assert type(Choice(0.1, 0.5).draw(np.random.RandomState(0))) is float


def test_spaces_are_printed_as_in_papers():
    texts = [str(f.metadata["space"]) for f in Fishr.__dataclass_fields__.values() if f.metadata.get("space")]
    assert texts == ["10^U(1, 4)", "int U(0, 5000)", "U(0.9, 0.99)"]
