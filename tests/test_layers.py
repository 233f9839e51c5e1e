"""Imports between packages: a package imports only packages of lower layers."""

import ast
from pathlib import Path

import pytest

import pogm
from pogm.algorithms import all_algorithms

ROOT = Path(pogm.__file__).parent
METHODS = ("algorithms", "modifiers", "pareto")
BELOW = {  # layers that each layer may import, besides itself
    "_system": (),
    "core": ("_system",),
    "pareto": ("core",),
    "models": ("core", "_system"),
    "data": ("core", "_system"),
    "trackers": ("core", "_system"),
    "distributed": ("core", "_system"),
    "modifiers": ("data", "core", "_system"),
    "algorithms": ("pareto", "core", "_system"),
    "diagnostics": ("algorithms", "pareto", "core", "_system"),
    "engine": (*METHODS, "diagnostics", "distributed", "data", "models", "core", "_system"),
    "learner": ("engine", "algorithms", "modifiers", "core", "_system"),
    "integrations": ("learner", "algorithms", "_system"),
    "benchmark": ("engine", *METHODS, "diagnostics", "distributed", "trackers", "data", "models", "core", "_system"),
    "testing": ("benchmark", "engine", "algorithms", "modifiers", "diagnostics", "data", "core", "_system"),
    "report": ("benchmark", "core", "_system"),
    "deployment": ("report", "benchmark", "engine", *METHODS, "diagnostics", "data", "models", "core", "_system"),
    "evidence": ("experiments", "report", "benchmark", "algorithms", "core", "_system"),
    "experiments": ("report", "benchmark", "engine", *METHODS, "diagnostics", "data", "core", "_system"),
}
HEAVY = {
    "torchvision",
    "timm",
    "sklearn",
    "ray",
    "submitit",
    "jinja2",
    "markupsafe",
    "vl_convert",
    "PIL",
    "pydicom",
    "tensorboard",
    "wandb",
    "mlflow",
    "onnx",
    "onnxruntime",
    "lightning",
    "transformers",
}  # imported inside functions, not at the top


def imported(path: Path) -> list[tuple[str, bool]]:
    """Return every module that a file imports, and True if the import is at the top level."""
    tree = ast.parse(path.read_text())
    top = set(ast.iter_child_nodes(tree))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.append((node.module or "", node in top))
        if isinstance(node, ast.Import):
            found += [(alias.name, node in top) for alias in node.names]
    return found


@pytest.mark.parametrize("layer", BELOW)
def test_layer_imports_only_lower_layers(layer):
    for path in (ROOT / layer).rglob("*.py"):
        for module, _ in imported(path):
            parts = module.split(".")
            if module == "pogm":
                assert layer in ("benchmark", "report", "deployment"), (
                    f"{path.relative_to(ROOT)} imports the whole package"
                )
            elif parts[0] == "pogm":
                assert parts[1] in (layer, *BELOW[layer]), f"{path.relative_to(ROOT)} imports {module}"


def test_every_package_is_a_layer():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {*BELOW, "cli"}


def test_no_algorithm_imports_another():
    names = {method.__module__.rpartition(".")[2] for method in all_algorithms().values()}
    for path in (ROOT / "algorithms").glob("*.py"):
        if path.stem == "pogm_published":  # variants of POGM with other defaults and one other method
            continue
        for module, _ in imported(path):
            parts = module.split(".")
            assert not (parts[:2] == ["pogm", "algorithms"] and set(parts[2:]) & names), path


def test_core_and_pareto_depend_only_on_torch_and_numpy():
    allowed = {"torch", "numpy", "pogm", "triton"}  # Triton: of the kernels, which are imported on a GPU only
    standard = __import__("sys").stdlib_module_names
    for layer in ("_system", "core", "pareto"):
        for path in (ROOT / layer).rglob("*.py"):
            for module, _ in imported(path):
                assert module.split(".")[0] in allowed | standard, f"{path} imports {module}"


def test_heavy_packages_are_imported_inside_functions():
    derived = {ROOT / "integrations/huggingface.py", ROOT / "estimators.py"}  # subclasses of classes of these packages
    for path in set(ROOT.rglob("*.py")) - derived:
        for module, at_top in imported(path):
            assert not (at_top and module.split(".")[0] in HEAVY), f"{path} imports {module} at its top"
