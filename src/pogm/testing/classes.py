"""Contract tests of a class alone: its docstring, hyperparameters, search space and presets."""

import inspect
import re

import numpy as np

from pogm.algorithms.base import Algorithm
from pogm.core.hyperparameters import fields
from pogm.modifiers.base import Modifier
from pogm.testing.problems import expect


def check_docstring(cls: type[Algorithm]) -> None:
    """The docstring has the paper, in parentheses in the first line, and the equation."""
    first = (cls.__doc__ or "").strip().partition("\n")[0]
    expect("(" in first, f"Expected the paper in parentheses in the first line of the docstring; found {first!r}.")
    expect(".. math::" in (cls.__doc__ or ""), "Expected an equation in the docstring, after '.. math::'; found none.")


def check_descriptions(cls: type[Algorithm] | type[Modifier]) -> None:
    """Every hyperparameter is described, under ``Args:`` in the docstring or in a comment after the field."""
    classes = [base for base in cls.__mro__ if issubclass(base, Algorithm | Modifier)]
    docstrings = "\n".join(base.__doc__ or "" for base in classes)
    sources = "\n".join(inspect.getsource(base) for base in classes)
    for field in fields(cls):
        described = re.search(rf"^ +{field.name}: \w", docstrings, re.MULTILINE)
        commented = re.search(rf"^    {field.name}: \w+ = hyper\([^#]*?\)\s+# \S", sources, re.MULTILINE)
        expect(described or commented, f"Describe {field.name} under Args: in the docstring of {cls.__name__}.")


def check_search_space(cls: type[Algorithm] | type[Modifier]) -> None:
    """Every draw from the search spaces of the fields is a valid configuration."""
    for seed in range(50):
        source = np.random.RandomState(seed)
        cls(**{f.name: f.metadata["space"].draw(source) for f in fields(cls) if f.metadata.get("space")})


def check_presets(cls: type[Algorithm]) -> None:
    """Every preset is valid."""
    for name in cls.presets:
        cls.preset(name)
