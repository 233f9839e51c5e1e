"""Partition of the weights into blocks, each with its own Gramian: all weights, the classifier, blocks or layers."""

from collections.abc import Iterable

from pogm._system.errors import UsageError
from pogm.core.trajectory_reduce import Blocks

Names = tuple[str, ...]


def partition_weights(names: Iterable[str], partition: str, algorithm: str) -> tuple[Blocks, Blocks]:
    """Divide the names of all weights into blocks.

    Args:
        names: Names of the weights. Those of the network begin with ``features.`` or ``head.``.
        partition: "all", "classifier", "block" or "layer".
        algorithm: Name of the algorithm, for the error.

    Returns:
        The blocks that get a problem each, and the weights without one, as a block if there are any: those that a
        modifier has added, which do not predict, and for "classifier" the features.
    """
    predicting, others = split_names(names, ("features.", "head."))
    if partition == "classifier":
        predicting, features = split_names(predicting, "head.")
        others = (*features, *others)
        if not predicting:
            raise UsageError(
                f"Expected a network with a head for {algorithm}.partition='classifier'; found one without. "
                f"Name the last layer, for example Learner(module, {algorithm}(partition='classifier'), head='fc')."
            )
    return split_blocks(predicting, partition), (others,) if others else ()


def split_names(names: Iterable[str], prefixes: str | tuple[str, ...]) -> tuple[Names, Names]:
    """Return the names that begin with one of the prefixes, and the other names."""
    names = tuple(names)
    chosen = tuple(name for name in names if name.startswith(prefixes))
    return chosen, tuple(name for name in names if name not in chosen)


def split_blocks(names: Names, partition: str) -> Blocks:
    """Group parameter names: for "block" by the children of the features, and the head; for "layer" by module."""
    if partition not in ("block", "layer"):
        return (names,)
    features, _ = split_names(names, "features.")
    levels = list(zip(*(name.split(".")[:-1] for name in features), strict=False))
    wrapped = (depth for depth, level in enumerate(levels) if len(set(level)) > 1)
    shared = next(wrapped, len(levels))  # number of modules that contain all features

    def block_of(name: str) -> tuple[str, ...]:
        path = name.split(".")[:-1]
        return tuple(path if partition == "layer" else path[: shared + 1 if name in features else 1])

    blocks: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        blocks.setdefault(block_of(name), []).append(name)
    return tuple(map(tuple, blocks.values()))
