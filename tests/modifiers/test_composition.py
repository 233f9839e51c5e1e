"""Every pair of an algorithm and a modifier trains with an effect, or raises an error before the first step."""

import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from digests import RELEASED
from promises import modified, session
from support import assert_close

from pogm import ERM, POGM, SWAD, Mixup
from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.algorithms.base import Algorithm
from pogm.algorithms.pogm_published import OfficialPOGM
from pogm.core import trees
from pogm.core.hyperparameters import fields
from pogm.core.trees import Params
from pogm.engine.session import Session
from pogm.engine.trainer import final
from pogm.modifiers import all_modifiers
from pogm.modifiers.augment import Augment
from pogm.modifiers.base import Modifier
from pogm.modifiers.cirl import CIRL
from pogm.modifiers.itta import ITTA
from pogm.modifiers.mixstyle import MixStyle
from pogm.modifiers.tent import TENT

MADE: dict[str, Modifier] = {  # settings with which two steps reach all phases; others have their defaults
    "CIRL": CIRL(warmup_steps=1, ramp_steps=2, masker_width=1, mask_percent=10),
    "MixStyle": MixStyle(probability=1.0),
}

RISKS, GROUPS, RATES = "uses model.risks", "one optimizer group", "one learning rate"
CLASSES, NORM = "labels that are classes", "frozen batch norm for SWAD"
OWN_RISKS = """
    ARM CAD CausIRLCORAL CausIRLMMD CondCAD CORAL Fishr IBERM IBIRM IRM MMD MTL RDM RSC SD SelfReg TRM
"""
OWN_GROUPS = "ADRMX CDANN DANN MADG SagNet Transfer URM"
REFUSED = {
    **dict.fromkeys([(name, "CIRL") for name in OWN_RISKS.split()], RISKS),
    **dict.fromkeys([(name, "CIRL") for name in OWN_GROUPS.split()], GROUPS),
    **dict.fromkeys([(name, "ITTA") for name in OWN_GROUPS.split()], RATES),
    **dict.fromkeys([(name, "Mixup") for name in ("ADRMX", "CAD", "CDANN", "CondCAD", "SelfReg")], CLASSES),
    **dict.fromkeys([(name, "T3A") for name in ("ADRMX", "ARM", "MADG", "MTL")], "a linear head"),
    **dict.fromkeys([(name, "SWAD") for name in ("ARM", "MADG", "SelfReg")], NORM),
    ("ERMPlusPlus", "CIRL"): "a featurizer and a classifier only",
    ("ARM", "ITTA"): "sees every image by itself",
    ("MTL", "ITTA"): "takes the 16 features alone",
}
ADAPTS = "adapts at test time"
TWICE = {"T3A": ADAPTS, "TENT": ADAPTS}
TWICE |= {"CIRL": "adversary", "ITTA": "twin", "MixStyle": "mixstyle0", "SWAD": "chooses the final weights"}


def eager(cls: type[Algorithm]) -> Algorithm:
    """Return the algorithm with every schedule starting early, so that two steps reach both phases."""
    return cls(**{field.name: 1 for field in fields(cls) if field.name.endswith("anneal_iters")})


def modifier(name: str) -> Modifier:
    return MADE.get(name) or all_modifiers()[name]()


def begun(algorithm: Algorithm, *modifiers: Modifier) -> Session:
    """Return a session on three domains, with the smallest network that works."""
    return _session(algorithm, modifiers, _network(modifiers))


def rounds(algorithm: Algorithm, *modifiers: Modifier, network: str = "") -> tuple[Params, ...]:
    """Return the weights before training, after one step and after two."""
    made = _session(algorithm, modifiers, network or _network(modifiers))
    weights = [made.train_state.state.params]
    for _ in range(2):
        made.step()
        weights.append(made.train_state.state.params)
    return tuple(weights)


plain = cache(rounds)  # the reference of several tests


def _network(modifiers: tuple[Modifier, ...]) -> str:
    return "mnist_cnn" if any(isinstance(one, ITTA | MixStyle | TENT) for one in modifiers) else "mlp"


def _session(algorithm: Algorithm, modifiers: tuple[Modifier, ...], network: str) -> Session:
    return session(modified(algorithm, *modifiers, network=network, test_domains=(0, 1, 2)))


class Idle(Modifier):
    """A modifier without effect."""

    parallel_axes = ("domains", "samples")


def assert_composes(algorithm: Algorithm, *modifiers: Modifier) -> None:
    """Check that weights change, are finite and repeatable, and differ if one of the modifiers is left out."""
    start, *_, end = found = rounds(algorithm, *modifiers)
    assert trees.all_finite(end)
    for part in ("features.", "head."):
        assert any(not torch.equal(end[name], leaf) for name, leaf in start.items() if name.startswith(part)), part
    assert_close(rounds(algorithm, *modifiers), found, 0.0)
    for index, one in enumerate(modifiers):
        idle = (
            *modifiers[:index],
            Idle(),
            *modifiers[index + 1 :],
        )  # at the same index, because the random numbers of the others depend on it
        without = plain(algorithm, *idle, network=_network(modifiers))[-1]
        same = all(torch.equal(end[name], leaf) for name, leaf in without.items())
        assert same == (isinstance(one, SWAD) or one.changes_only_prediction), (
            f"training with and without {type(one).__name__}"
        )
    if any(isinstance(one, SWAD) for one in modifiers):
        assert_averaged(algorithm, *modifiers)


def assert_averaged(algorithm: Algorithm, *modifiers: Modifier) -> None:
    """Check that SWAD does not change training, and that the result is the mean of the weights."""
    made = begun(algorithm, *modifiers)
    for _ in range(2):
        made.step()
    made.observe(1)
    (end,) = final(made)
    index = Modifier.find_final(modifiers)
    mean, step = modifiers[index].final(made.train_state.modifiers[str(index)], made.train_state.state.params)
    assert_close(mean, trees.mean(trees.stack(plain(algorithm, *modifiers)[1:])), 1e-12)
    assert end.step == step == 1


def assert_refused(make: Callable[[], Session], why: str) -> None:
    """Check for an error before the first update that says what was expected, what was found and what to do."""
    sessions: list[Session] = []

    def train() -> None:
        sessions.append(make())
        sessions[0].step()

    with pytest.raises(UsageError, match=why) as error:
        train()
    assert re.fullmatch(r"Expected .+; found .+\. \w.+\.", str(error.value))
    assert not any(made.train_state.state.step for made in sessions)


@pytest.mark.parametrize("with_", all_modifiers())
@pytest.mark.parametrize("algorithm", all_algorithms())
def test_pair_trains_with_an_effect_of_the_modifier_or_raises(algorithm, with_):
    method, change = eager(all_algorithms()[algorithm]), modifier(with_)
    if why := REFUSED.get((algorithm, with_)):
        assert_refused(lambda: begun(method, change), why)
    elif algorithm in RELEASED:
        assert_composes(method, change)
    else:  # a new algorithm needs no entry in REFUSED
        try:
            assert_composes(method, change)
        except UsageError:
            assert_refused(lambda: begun(method, change), "Expected")


@pytest.mark.parametrize("second", all_modifiers())
@pytest.mark.parametrize("first", all_modifiers())
def test_two_modifiers_combine_but_network_changes_are_not_repeated(first, second):
    both = modifier(first), modifier(second)
    if first == second and first in TWICE:
        assert_refused(lambda: begun(ERM(), *both), TWICE[first])
    elif all(one.sees_at_test for one in both):
        assert_refused(lambda: begun(ERM(), *both), ADAPTS)
    else:
        assert_composes(ERM(), *both)


@pytest.mark.parametrize("with_", ["Mixup", "Augment", "CIRL", "SWAD"])
@pytest.mark.parametrize("pogm", [POGM(inner_steps=2), OfficialPOGM()], ids=["E=2", "official"])
def test_pairs_of_table_2_work_with_all_variants_of_pogm(pogm, with_):
    assert_composes(pogm, modifier(with_))


@pytest.mark.parametrize(
    ("algorithm", "modifiers"),
    [
        (POGM(inner_steps=2), (Augment(), MADE["CIRL"], SWAD())),
        (POGM(), (MADE["MixStyle"], Mixup(), SWAD())),
        (ERM(), (MADE["MixStyle"], Mixup(), ITTA())),
    ],
    ids=["POGM+Augment+CIRL+SWAD", "POGM+MixStyle+Mixup+SWAD", "ERM+MixStyle+Mixup+ITTA"],
)
def test_three_modifiers_combine(algorithm, modifiers):
    assert_composes(algorithm, *modifiers)


def test_stored_errors_are_of_registered_methods():
    assert {name for name, _ in REFUSED} <= all_algorithms().keys()
    assert {name for _, name in REFUSED} | TWICE.keys() <= all_modifiers().keys()


def test_cirl_raises_for_a_head_with_noise_inputs():
    """MTL with noise has risks that CIRL can replace, but its head takes twice the features."""
    mtl = all_algorithms()["MTL"](compat_noise=True)
    assert_refused(lambda: begun(mtl, MADE["CIRL"]), "takes the 128 features alone")
