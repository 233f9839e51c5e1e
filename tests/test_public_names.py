"""Public names of the package: lazy imports, the stub for type checkers, and errors for moved modules.

``python tests/test_public_names.py`` writes the stub again.
"""

import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from digests import RELEASED, registered

import pogm
from pogm._system.moved import MOVED

STUB = Path(pogm.__file__).with_suffix(".pyi")


def stub() -> str:
    """Return the text of ``__init__.pyi``: an import of every public name."""
    names = {name: getattr(pogm, name) for name in pogm.__all__}
    lines = [
        f"from {value.__module__} import {name} as {name}"
        if inspect.isclass(value) or inspect.isfunction(value)
        else f"from pogm import {name} as {name}"
        for name, value in names.items()
    ]
    header = "# Generated from the registries by tests/test_public_names.py. Do not edit.\n"
    return header + "\n".join(["", *sorted(lines, key=str.casefold), "", "__version__: str", ""])


def test_stub_lists_the_public_names():
    """An algorithm that is not released yet may be missing: it can be imported, but type checkers do not know it."""
    written, wanted = (set(text.splitlines()) for text in (STUB.read_text(), stub()))
    unreleased = (registered()[0] | registered()[1]).difference(RELEASED)
    missing = {line for line in wanted - written if line.rpartition(" ")[2] not in unreleased}
    assert not missing | (written - wanted), "write it again: python tests/test_public_names.py"


def test_import_of_the_package_does_not_import_torch():
    program = "import sys, pogm; pogm.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_names_are_imported_on_first_use():
    from pogm import POGM, Learner, pareto

    assert pogm.POGM is POGM is importlib.import_module("pogm.algorithms.pogm").POGM
    assert pogm.Learner is Learner
    assert pareto is sys.modules["pogm.pareto"]
    assert pogm.report is sys.modules["pogm.report"]
    assert {"POGM", "Mixup", "Batch", "Learner", "pareto"} <= set(dir(pogm))
    assert pickle.loads(pickle.dumps(pogm.POGM(kappa=0.2))) == POGM(kappa=0.2)


def test_star_import_gives_the_public_names():
    names: dict[str, object] = {}
    exec("from pogm import *", names)
    assert set(pogm.__all__) <= set(names)
    assert names["POGM"] is pogm.POGM


def test_unknown_name_is_an_attribute_error_and_an_import_error():
    with pytest.raises(AttributeError, match="no attribute 'POGN'"):
        _ = pogm.POGN
    with pytest.raises(ImportError, match="POGN"):
        exec("from pogm import POGN")


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_moved_module_gives_an_error_that_names_the_new_module(old, new):
    importlib.import_module(new)
    parent, _, name = old.rpartition(".")
    for statement in (f"import {old}", f"import {old}.something", f"from {parent} import {name}"):
        with pytest.raises(ImportError, match=f"{old} was moved. Import {new} instead."):
            exec(statement)


def test_former_names_give_errors_with_the_present_names():
    with pytest.raises(AttributeError, match="renamed: use cosines"):
        _ = pogm.pareto.angles
    for base, name, new in (
        (pogm.ERM, "predicts_by", "prediction_batch_size"),
        (pogm.Mixup, "spreads", "parallel_axes"),
    ):
        with pytest.raises(TypeError, match=rf"Expected Mine\.{new}; found its former name, {name}\."):
            type("Mine", (base,), {name: 1})


if __name__ == "__main__":
    STUB.write_text(stub())
