"""Copies between the state of a step and the tensors of its CUDA graph."""

import torch

from pogm.core.flat_params import flatten
from pogm.engine.capture import _copy


def test_state_may_swap_its_tensors():
    """No copy reads a tensor that another copy has overwritten."""
    target = {"first": torch.tensor([1.0, 2.0]), "second": torch.tensor([3.0, 4.0])}
    _copy(target, {"first": target["second"], "second": target["first"]})
    assert target["first"].tolist() == [3.0, 4.0]
    assert target["second"].tolist() == [1.0, 2.0]


def test_only_other_tensors_are_copied():
    kept = torch.ones(2)
    target = {"kept": kept, "weights": flatten({"a": torch.zeros(2), "b": torch.zeros(1)}), "count": torch.tensor(0)}
    source = {"kept": kept, "weights": {"a": torch.tensor([5.0, 6.0]), "b": torch.ones(1)}, "count": torch.tensor(7)}
    _copy(target, source)
    assert target["weights"].flat.tolist() == [5.0, 6.0, 1.0]
    assert target["count"].item() == 7
    assert target["kept"] is kept
