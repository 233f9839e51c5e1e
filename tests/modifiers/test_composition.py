"""Every algorithm with every modifier: it trains and the modifier tells, or it is refused before the first step."""

import re
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from digests import RELEASED
from promises import modified, session
from support import assert_close

from pogm import ERM, POGM, SWAD, Mixup, models
from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.algorithms.base import Algorithm
from pogm.algorithms.pogm_published import OfficialPOGM
from pogm.core import trees
from pogm.core.hyperparameters import fields
from pogm.core.trees import Params
from pogm.engine.session import Session
from pogm.engine.trainer import final
from pogm.models import mnist_cnn
from pogm.modifiers import all_modifiers
from pogm.modifiers.augment import Augment
from pogm.modifiers.base import Modifier
from pogm.modifiers.cirl import CIRL
from pogm.modifiers.itta import ITTA
from pogm.modifiers.mixstyle import MixStyle

MADE: dict[str, Modifier] = {  # so that two rounds see all of it; the others as they are
    "CIRL": CIRL(warmup_steps=1, ramp_steps=2, masker_width=1, mask_percent=10),
    "MixStyle": MixStyle(probability=1.0),
}

RISKS, PLAYERS, RATES = "takes risks as they come", "one player", "one learning rate"
REFUSED = {
    **dict.fromkeys([(name, "CIRL") for name in ("ARM", "CORAL", "Fishr", "IRM", "MMD", "MTL", "RDM", "RSC")], RISKS),
    **dict.fromkeys([(name, "CIRL") for name in ("CDANN", "DANN", "MADG", "SagNet")], PLAYERS),
    **dict.fromkeys([(name, "ITTA") for name in ("CDANN", "DANN", "MADG", "SagNet")], RATES),
    ("ARM", "ITTA"): "sees every image by itself",
    ("ARM", "SWAD"): "batch norm keeps its statistics",
    ("CDANN", "Mixup"): "labels that are classes",
    ("MADG", "SWAD"): "batch norm keeps its statistics",
    ("MTL", "ITTA"): "takes the 16 features alone",
}
TWICE = {"CIRL": "adversary", "ITTA": "twin", "MixStyle": "mixstyle0", "SWAD": "chooses the final weights"}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """The network for small images, with an eighth of its width."""
    monkeypatch.setitem(models._builders(), "mnist_cnn", partial(mnist_cnn.build, width=8))


def eager(cls: type[Algorithm]) -> Algorithm:
    """With every schedule at its beginning, so that two rounds see both of its phases."""
    return cls(**{field.name: 1 for field in fields(cls) if field.name.endswith("anneal_iters")})


def modifier(name: str) -> Modifier:
    return MADE.get(name) or all_modifiers()[name]()


def begun(algorithm: Algorithm, *modifiers: Modifier) -> Session:
    """A session on three domains, with the cheapest network that will do."""
    return _session(algorithm, modifiers, _network(modifiers))


def rounds(algorithm: Algorithm, *modifiers: Modifier, network: str = "") -> tuple[Params, ...]:
    """The weights before training, after one round and after two."""
    made = _session(algorithm, modifiers, network or _network(modifiers))
    weights = [made.train_state.state.params]
    for _ in range(2):
        made.step()
        weights.append(made.train_state.state.params)
    return tuple(weights)


plain = cache(rounds)  # what several compare with


def _network(modifiers: tuple[Modifier, ...]) -> str:
    return "mnist_cnn" if any(isinstance(one, ITTA | MixStyle) for one in modifiers) else "mlp"


def _session(algorithm: Algorithm, modifiers: tuple[Modifier, ...], network: str) -> Session:
    return session(modified(algorithm, *modifiers, network=network, test_domains=(0, 1, 2)))


class Idle(Modifier):
    """Changes nothing."""

    spreads = ("domains", "samples")


def assert_composes(algorithm: Algorithm, *modifiers: Modifier) -> None:
    """Finite weights that moved, the same ones again, and others than without any one of the modifiers."""
    start, *_, end = found = rounds(algorithm, *modifiers)
    assert trees.all_finite(end)
    for part in ("features.", "head."):
        assert any(not torch.equal(end[name], leaf) for name, leaf in start.items() if name.startswith(part)), part
    assert_close(rounds(algorithm, *modifiers), found, 0.0)
    for place, one in enumerate(modifiers):
        idle = (
            *modifiers[:place],
            Idle(),
            *modifiers[place + 1 :],
        )  # in its place, which others' numbers depend on
        without = plain(algorithm, *idle, network=_network(modifiers))[-1]
        same = all(torch.equal(end[name], leaf) for name, leaf in without.items())
        assert same == isinstance(one, SWAD), f"training with and without {type(one).__name__}"
    if any(isinstance(one, SWAD) for one in modifiers):
        assert_averaged(algorithm, *modifiers)


def assert_averaged(algorithm: Algorithm, *modifiers: Modifier) -> None:
    """SWAD leaves training alone; what stands for the run is the mean of its rounds."""
    made = begun(algorithm, *modifiers)
    for _ in range(2):
        made.step()
    made.observe(1)
    (end,) = final(made)
    place = Modifier.ending(modifiers)
    mean, step = modifiers[place].final(made.train_state.modifiers[str(place)], made.train_state.state.params)
    assert_close(mean, trees.mean(trees.stack(plain(algorithm, *modifiers)[1:])), 1e-12)
    assert end.step == step == 1


def assert_refused(make: Callable[[], Session], why: str) -> None:
    """Before any weight has moved, in words: what was expected, what was found, what to do."""
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
def test_so_do_two_modifiers_in_either_order_but_not_one_that_changes_the_network_twice(first, second):
    both = modifier(first), modifier(second)
    if first == second and first in TWICE:
        assert_refused(lambda: begun(ERM(), *both), TWICE[first])
    else:
        assert_composes(ERM(), *both)


@pytest.mark.parametrize("with_", ["Mixup", "Augment", "CIRL", "SWAD"])
@pytest.mark.parametrize("pogm", [POGM(inner_steps=2), OfficialPOGM()], ids=["E=2", "official"])
def test_the_pairs_of_table_2_compose_however_pogm_is_set(pogm, with_):
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
def test_recipes_of_three_compose(algorithm, modifiers):
    assert_composes(algorithm, *modifiers)


def test_every_refusal_is_of_an_algorithm_and_a_modifier_that_are_there():
    assert {name for name, _ in REFUSED} <= all_algorithms().keys()
    assert {name for _, name in REFUSED} | TWICE.keys() <= all_modifiers().keys()


def test_a_head_that_takes_noise_beside_features_is_refused_by_cirl_too():
    """MTL as published leaves its risks to the modifier, but its head takes twice the features."""
    mtl = all_algorithms()["MTL"](compat_noise=True)
    assert_refused(lambda: begun(mtl, MADE["CIRL"]), "takes the 128 features alone")
