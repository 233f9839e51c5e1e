"""The registry: a lookup imports one file, iteration finds every class."""

import subprocess
import sys

import pytest

from pogm.algorithms import all_algorithms
from pogm.core.registry import Registry
from pogm.data.datasets import all_datasets
from pogm.modifiers import all_modifiers


@pytest.mark.parametrize("registry", [all_algorithms(), all_modifiers(), all_datasets()], ids=lambda r: r.package)
def test_lookup_and_iteration_agree(registry):
    names = list(registry)
    assert names == sorted(names)
    assert len(names) == len(registry) > 3
    for name in names:
        fresh = Registry(registry.package, registry.base)  # has not imported all files
        assert fresh[name] is registry[name]
        assert name in fresh


def test_lookup_imports_only_the_file_of_the_class():
    code = (
        "import sys; from pogm.algorithms import algorithm_class; assert algorithm_class('VREx').__name__ == 'VREx';"
        "assert 'pogm.algorithms.vrex' in sys.modules; assert 'pogm.algorithms.mldg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", ["vrex", "VREX", "Algorithm", "base", "DomainRounds", "V_REx"])
def test_lookup_needs_the_exact_name_of_a_concrete_class(name):
    assert name not in all_algorithms()
    with pytest.raises(KeyError):
        all_algorithms()[name]
