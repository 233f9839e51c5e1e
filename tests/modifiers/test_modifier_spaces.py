"""Defaults and search spaces of the released modifiers, stored here under the names that seed their random draws."""

import pytest
from digests import RELEASED

from pogm.core.hyperparameters import fields
from pogm.modifiers import all_modifiers

STORED = {
    "Augment": {"operations": "2", "magnitude": "9", "degrees": "10.0", "shift": "0.1"},
    "CIRL": {
        "cirl_lambda": "5.0 in 10^U(-1, 1)",
        "cirl_mask_ratio": "60 in {50, 60, 80}",
        "ramp_steps": "500",  # a tenth of 5001
        "warmup_steps": "600",  # 6 of 50 epochs
        "masker_width": "4",
    },
    "EMA": {"decay": "0.999 in {0.99, 0.995, 0.999}"},
    "ITTA": {"alpha": "0.1", "adaptation": "1e-06", "adapts": "True"},
    "LPFT": {"linear_anneal_iters": "500"},
    "MIRO": {"ld": "0.01, large 0.01"},
    "MixStyle": {
        "mixstyle_p": "0.5 in {0.25, 0.5}",
        "mixstyle_alpha": "0.1 in {0.1, 0.2, 0.3}",
        "blocks": "2, large 3",
    },
    "Mixup": {"mixup_alpha": "0.2 in 10^U(-1, 1)"},
    "SMA": {"start_step": "100"},
    "T3A": {"filter_K": "20 in {1, 5, 20, 50, 100, 0}"},
    "TENT": {"tent_lr": "0.001 in {0.0001, 0.001, 0.01}"},
    "SWAD": {"converge": "3", "tolerate": "6", "tolerance": "0.3", "compat": "False"},
    "WiSEFT": {"alpha": "0.5 in {0.3, 0.5, 0.7, 0.9}", "start_step": "0"},
}


@pytest.mark.parametrize("name", STORED)
def test_defaults_and_search_space_are_the_stored_ones(name):
    found = {}
    for field in fields(all_modifiers()[name]):
        space, large = field.metadata["space"], field.metadata["large"]
        text = f"{field.default} in {space}" if space else str(field.default)
        found[field.metadata["draw_as"] or field.name] = f"{text}, large {large.default}" if large else text
    assert found == STORED[name]


def test_every_released_modifier_is_stored():
    assert STORED.keys() == set(RELEASED) & all_modifiers().keys()
