"""Parts of a saved `Learner`: checks of a state before it is loaded, and tensors to save and to load."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.trees import Tree
from pogm.learner.inputs import Samples

MOST = 8  # names of tensors in a message


def check_settings(saved: Mapping[str, Any], settings: Mapping[str, Any], domains: list[Any] | None) -> None:
    """Check that a saved state belongs to a Learner with these settings and domains.

    Args:
        saved: Object that should be a result of `Learner.state_dict`.
        settings: Settings of the Learner that loads it.
        domains: Names of its domains; None if it does not know them yet.

    Raises:
        UsageError: It is something else, or a setting differs.
    """
    if not isinstance(saved, Mapping) or "settings" not in saved:
        found = f"the keys {', '.join(map(repr, saved))}" if isinstance(saved, Mapping) else type(saved).__name__
        raise UsageError(f"Expected a state that Learner.state_dict returned; found {found}.")
    known = saved["domains"] if domains is None or saved["domains"] is None else domains
    there = {**saved["settings"], "domains": saved["domains"]}
    for name, value in {**settings, "domains": known}.items():
        if there.get(name) != value:
            raise UsageError(
                f"Expected the saved state of a Learner with {name} {value}; found {there.get(name)}. "
                "Create the Learner with the arguments of the saved one."
            )


def check_module(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Check that the module has the saved weights.

    Raises:
        UsageError: A name or a shape differs.
    """
    if different := _find_differences(module.state_dict(), saved):
        raise UsageError(
            "Expected the saved state of a module with the same weights; found differences in name or shape: "
            f"{', '.join(different[:MOST])}{', ...' if len(different) > MOST else ''}. Create the same module."
        )


def load_tensors(template: Tree, saved: Mapping[str, Tensor]) -> Tree:
    """Return a tree with the structure, devices and dtypes of the template, and copies of the saved tensors.

    Raises:
        UsageError: A name or a shape differs.
    """
    expected = dict(trees.named_leaves(template))
    if different := _find_differences(expected, saved):
        raise UsageError(
            "Expected a saved state with the same trained weights, optimizer and domains; found differences in "
            f"name or shape: {', '.join(different[:MOST])}. Freeze the same weights as before."
        )
    names = iter(expected)
    return trees.map_leaves(lambda leaf: saved[next(names)].to(leaf.device, leaf.dtype).clone(), template)


def get_generators(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's random number generators: of the CPU, and of the device if it is a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set torch's random number generators to saved states."""
    torch.set_rng_state(states["cpu"].cpu())
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


def save_samples(samples: Samples) -> list[Any]:
    """Return copies of samples as a list, which ``torch.load`` reads without trusting the file."""
    copies: Samples = trees.map_leaves(torch.clone, samples)
    return [copies.x, copies.y]


def load_samples(saved: Sequence[Any], device: torch.device) -> Samples:
    """Return saved samples on a device."""
    moved: Samples = trees.map_leaves(lambda leaf: leaf.to(device), Samples(*saved))
    return moved


def _find_differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are in only one of two mappings, or have another shape."""
    both = expected.keys() & found.keys()
    return sorted(
        (expected.keys() ^ found.keys()) | {name for name in both if expected[name].shape != found[name].shape}
    )
