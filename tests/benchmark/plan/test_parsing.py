"""Parsing of trials from names and texts."""

from dataclasses import dataclass

import pytest

from pogm import POGM, Mixup
from pogm._system.errors import UsageError
from pogm.algorithms.eqrm import EQRM
from pogm.benchmark.plan import combination, parsing
from pogm.benchmark.plan.parsing import build_trial
from pogm.core.hyperparameters import hyper
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class Twin(Modifier):
    kappa: float = hyper(1.0)


def test_a_trial_has_the_given_settings_and_the_defaults_of_the_dataset():
    made = build_trial(
        "RotatedDigits", "POGM", ["75", "1"], modifiers=["Mixup"], settings=["kappa=0.1", "lr=1e-3", "Mixup.alpha=0.4"]
    )
    assert made.algorithm == POGM(kappa=0.1)
    assert made.modifiers == (Mixup(alpha=0.4),)
    assert made.training.lr == 1e-3
    assert made.test_domains == (5, 1)
    assert (made.steps, made.evaluate_every) == (151, 15)


def test_a_prefix_selects_the_algorithm_the_modifier_or_the_part():
    texts = ["POGM.kappa=0.1", "POGM.lr=0.01", "algorithm.meta_lr=0.2", "training.batch_size=8", "Mixup.alpha=0.4"]
    made = build_trial("RotatedDigits", "POGM", ["0"], modifiers=["Mixup"], settings=texts)
    assert made.algorithm == POGM(kappa=0.1, meta_lr=0.2)
    assert (made.training.lr, made.training.batch_size) == (0.01, 8)
    assert made.modifiers == (Mixup(alpha=0.4),)


def test_settings_change_a_preset_and_the_seed_of_the_split_is_the_seed():
    made = build_trial("RotatedDigits", "EQRM", ["0"], preset="domainbed", settings=["quantile=0.9"], seed=4)
    assert made.algorithm == EQRM.preset("domainbed", quantile=0.9)
    assert (made.seed, made.trial_seed) == (4, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "rotateddigit"}, "a dataset or a folder of .*found 'rotateddigit'. Did you mean 'RotatedDigits'?"),
        ({"algorithm": "PGOM"}, "an algorithm .*Did you mean 'POGM'?"),
        ({"algorithm": "T3A"}, "found the modifier T3A. Combine it with one: ERM --with T3A"),
        ({"algorithm": "ERM + T3A"}, "Name the modifiers in an option of their own: ERM --with T3A"),
        ({"algorithm": "EQRM", "preset": "domainbad"}, "a preset of EQRM out of .*Did you mean 'domainbed'?"),
        ({"preset": "official"}, "'official' was replaced by an algorithm: OfficialPOGM"),
        ({"settings": ["erm_direction=pooled"]}, "'erm_direction', which was replaced by centre"),
        ({"algorithm": "ERM", "preset": "official"}, "a preset of ERM out of none; .*Leave it out"),
        ({"modifiers": ["Mixupp"]}, "Did you mean 'Mixup'?"),
        ({"modifiers": ["Mixup", "Mixup"]}, "each modifier once"),
        ({"settings": ["kapa=1"]}, "a hyperparameter of POGM on RotatedDigits out of .*Did you mean 'kappa'?"),
        ({"settings": ["Mixup.alpha=1"]}, "a setting for what is run .POGM.; .*Add Mixup to --with"),
        ({"settings": ["Fish.meta_lr=1"]}, "a setting for what is run .POGM.; .*Add Fish to --algorithm,"),
        ({"settings": ["PGOM.kappa=1"]}, "found 'PGOM'. Did you mean 'POGM'?"),
        ({"settings": ["POGM.kapa=1"]}, "a hyperparameter of POGM on RotatedDigits .*Did you mean 'kappa'?"),
        ({"settings": ["kappa"]}, "--set NAME=VALUE; found 'kappa'"),
        (
            {"settings": ["kappa=-1"]},
            "POGM.kappa .*at least 0 and at most 1000; found '-1'. Leave it out .*0.1",
        ),
        ({"settings": ["kappa=nan"]}, "POGM.kappa .*found 'nan'"),
        ({"settings": ["kappa=inf"]}, "POGM.kappa .*found 'inf'"),
        ({"settings": ["kappa=much"]}, "POGM.kappa .*found 'much'"),
        (
            {"settings": ["inner_steps=0"]},
            "POGM.inner_steps .*at least 1 and at most 10000; found '0'",
        ),
        ({"settings": ["inner_steps=1.5"]}, "POGM.inner_steps to be a whole number"),
        ({"settings": ["meta_lr=0"]}, "POGM.meta_lr to be a number above 0 and at most 1e.30; found '0'"),
        ({"settings": ["lr=0"]}, "SmallDigits.lr to be a number above 0"),
        ({"settings": ["batch_size=0"]}, "SmallDigits.batch_size"),
        ({"settings": ["network=mlpp"]}, "a network out of .*Did you mean 'mlp'?"),
        ({"settings": ["centre=mena"]}, "POGM.centre out of erm, mean; found 'mena'. Did you mean 'mean'?"),
        ({"test_domains": ["90"]}, "a domain of RotatedDigits, by name or by number from 0 to 5, .*found '90'"),
        ({"test_domains": ["-1"]}, "found '-1'"),
        ({"test_domains": ["0", "0"]}, "each once"),
        ({"test_domains": ["0", "15", "30", "45", "60"], "algorithm": "MADG"}, "at least 2 training domains"),
    ],
)
def test_an_invalid_name_or_value_is_an_error_with_the_nearest_name_or_the_range(changes, message):
    valid = {"dataset": "RotatedDigits", "algorithm": "POGM", "test_domains": ["0"]}
    with pytest.raises(UsageError, match=message):
        build_trial(**valid | changes)


def test_a_name_that_two_parts_have_needs_a_prefix(monkeypatch):
    """No two parts of the package have a common name, so the test defines a modifier with a name of POGM."""
    for module in (combination, parsing):
        monkeypatch.setattr(module, "modifier_class", lambda name: Twin)
    with pytest.raises(UsageError, match=r"'kappa', which is algorithm.kappa, Twin.kappa. Choose one"):
        build_trial("RotatedDigits", "POGM", ["0"], modifiers=["Twin"], settings=["kappa=2"])
    made = build_trial("RotatedDigits", "POGM", ["0"], modifiers=["Twin"], settings=["Twin.kappa=2"])
    assert (made.algorithm, made.modifiers) == (POGM(), (Twin(kappa=2.0),))
