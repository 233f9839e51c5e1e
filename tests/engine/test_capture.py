"""What a recorded step copies back into its own tensors."""

import torch

from pogm.core.flat_params import flatten
from pogm.engine.capture import _copy


def test_a_state_may_swap_its_tensors():
    """The new first is the old second, and the other way round: no copy reads what another has overwritten."""
    mine = {"first": torch.tensor([1.0, 2.0]), "second": torch.tensor([3.0, 4.0])}
    _copy(mine, {"first": mine["second"], "second": mine["first"]})
    assert mine["first"].tolist() == [3.0, 4.0]
    assert mine["second"].tolist() == [1.0, 2.0]


def test_what_is_there_already_stays_and_the_rest_is_copied():
    kept = torch.ones(2)
    mine = {"kept": kept, "weights": flatten({"a": torch.zeros(2), "b": torch.zeros(1)}), "count": torch.tensor(0)}
    new = {"kept": kept, "weights": {"a": torch.tensor([5.0, 6.0]), "b": torch.ones(1)}, "count": torch.tensor(7)}
    _copy(mine, new)
    assert mine["weights"].flat.tolist() == [5.0, 6.0, 1.0]
    assert mine["count"].item() == 7
    assert mine["kept"] is kept
