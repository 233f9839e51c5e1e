"""Every pair of an algorithm and a modifier trains with an effect, or raises an error before the first step."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from digests import RELEASED
from promises import modified, session
from support import assert_close
from torch import Tensor

from pogm import ERM, LPFT, POGM, SMA, SWAD, Mixup, WiSEFT
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
from pogm.testing.modifiers import check_modifier_training

PAGE = Path(__file__).parents[2] / "docs/methods.md"
MADE: dict[str, Modifier] = {  # settings with which two steps reach all phases; others have their defaults
    "CIRL": CIRL(warmup_steps=1, ramp_steps=2, masker_width=1, mask_percent=10),
    "MixStyle": MixStyle(probability=1.0),
    "LPFT": LPFT(linear_anneal_iters=1),
    "SMA": SMA(start_step=1),
    "WiSEFT": WiSEFT(start_step=1),
}

RISKS, GROUPS = "uses model.risks.*as CIRL and MIRO do", "one optimizer group.*such as CIRL or MIRO"
RATES = "one learning rate for ITTA; found one with several"
CLASSES, NORM = "labels that are classes", "frozen batch norm for SWAD.*as ARM, MADG and SelfReg do"
OWN_RISKS = """
    ARM CAD CausIRLCORAL CausIRLMMD CondCAD CORAL Fishr IBERM IBIRM IRM MMD MTL RDM RSC SD SelfReg TRM
"""
OWN_GROUPS = "ADRMX CDANN DANN MADG SagNet Transfer URM"
REFUSED = {
    **dict.fromkeys([(name, with_) for name in OWN_RISKS.split() for with_ in ("CIRL", "MIRO")], RISKS),
    **dict.fromkeys([(name, with_) for name in OWN_GROUPS.split() for with_ in ("CIRL", "MIRO")], GROUPS),
    **dict.fromkeys([(name, "ITTA") for name in OWN_GROUPS.split()], RATES),
    **dict.fromkeys([(name, "Mixup") for name in ("ADRMX", "CAD", "CDANN", "CondCAD", "SelfReg")], CLASSES),
    **dict.fromkeys([(name, "T3A") for name in ("ADRMX", "ARM", "MADG", "MTL")], "a linear head"),
    **dict.fromkeys([(name, "SWAD") for name in ("ARM", "MADG", "SelfReg")], NORM),
    ("ERMPlusPlus", "CIRL"): "a featurizer and a classifier only",
    ("ERMPlusPlus", "MIRO"): "a featurizer and a classifier only",
    ("ERMPlusPlus", "LPFT"): "trains the weights that it evaluates",
    ("PGrad", "CIRL"): "two images or more in every pass",  # PGrad divides the minibatches, which are tiny here
    ("ARM", "ITTA"): "sees every image by itself",
    ("MTL", "ITTA"): "takes the 16 features alone",
}
ADAPTS = "adapts at test time"
TWICE = {
    "CIRL": "adversary",
    "ITTA": "twin",
    "LPFT": "linear_probe",
    "MIRO": "miro",
    "MixStyle": "mixstyle0",
    "SWAD": "chooses the final weights",
    "T3A": ADAPTS,
    "TENT": ADAPTS,
}
AVERAGES = ("EMA", "SMA", "WiSEFT")  # modifiers that change only the weights to evaluate; one of them, and without SWAD
EFFECTS = {  # others change the training
    **dict.fromkeys((*AVERAGES, "SWAD"), "reported weights"),
    **dict.fromkeys(("T3A", "TENT"), "predictions"),
}


def eager(cls: type[Algorithm]) -> Algorithm:
    """Return the algorithm with every schedule starting early, so that two steps reach both phases."""
    return cls(**{field.name: 1 for field in fields(cls) if field.name.endswith("anneal_iters")})


def modifier(name: str) -> Modifier:
    return MADE.get(name) or all_modifiers()[name]()


class Trained(NamedTuple):
    """Two steps of a session."""

    session: Session
    weights: tuple[Params, ...]  # before training, after one step and after two

    @property
    def end(self) -> Params:
        return self.weights[-1]

    @property
    def reported(self) -> Params:
        """Weights that the run evaluates and stores at its end."""
        tensors = self.session.predicting_tensors()
        return {name: tensors[name] for name in self.end}

    def predictions(self) -> Tensor:
        """Return the logits of a held-out domain, with the last weights."""
        ((logits, _),) = self.session.predict(self.end | self.session.train_state.state.buffers, [0])
        return logits


def begun(algorithm: Algorithm, *modifiers: Modifier, network: str = "") -> Session:
    """Return a session on two domains, with the smallest network that works."""
    network = network or _network(modifiers)
    return session(modified(algorithm, *modifiers, network=network, test_domains=(0, 1, 2, 3)))


def trained(algorithm: Algorithm, *modifiers: Modifier, network: str = "") -> Trained:
    """Return a session after two steps, which must not depend on torch's random generator."""
    made = begun(algorithm, *modifiers, network=network)
    weights = [made.train_state.state.params]
    before = torch.get_rng_state()
    for _ in range(2):
        made.step()
        weights.append(made.train_state.state.params)
    made.observe(1)
    assert torch.equal(torch.get_rng_state(), before)
    return Trained(made, tuple(weights))


plain = cache(trained)  # the reference of several tests


def _network(modifiers: tuple[Modifier, ...]) -> str:
    return "mnist_cnn" if any(map(_needs_feature_maps, modifiers)) else "mlp"


@cache
def _needs_feature_maps(one: Modifier) -> bool:
    try:
        begun(ERM(), one, network="mlp")
    except UsageError:
        return True
    return False


class Idle(Modifier):
    """A modifier without effect."""

    parallel_axes = ("domains", "samples")


def effect(found: Trained, without: Trained) -> str:
    """Name the first of these that a modifier changes: the training, the reported weights, or the predictions."""
    if differ(found.end, without.end):
        return "training"
    if differ(found.reported, without.reported):
        return "reported weights"
    return "nothing" if torch.equal(found.predictions(), without.predictions()) else "predictions"


def differ(left: Params, right: Params) -> bool:
    """Return True if one of the weights that both have differs."""
    return any(not torch.equal(left[name], leaf) for name, leaf in right.items())


def assert_composes(algorithm: Algorithm, *modifiers: Modifier) -> None:
    """Check that weights change and are finite, and that every modifier has its effect."""
    found = trained(algorithm, *modifiers)
    assert trees.all_finite(found.end)
    for part in ("features.", "head."):
        assert differ(found.end, {name: leaf for name, leaf in found.weights[0].items() if name.startswith(part)}), part
    for index, one in enumerate(modifiers):
        # at the same index, because the random numbers of the others depend on it
        idle = (*modifiers[:index], Idle(), *modifiers[index + 1 :])
        without = plain(algorithm, *idle, network=_network(modifiers))
        name = type(one).__name__
        changed = effect(found, without)
        expected = EFFECTS.get(name, "training")
        if name == "MIRO" and any(isinstance(other, LPFT) for other in modifiers):
            expected = "nothing"  # LPFT keeps the pretrained features for the first step, so MIRO's gradient is still 0
        assert changed == expected or (name not in RELEASED and changed != "nothing"), f"{name} changes {changed}"
    if any(isinstance(one, SWAD) for one in modifiers):
        assert_averaged(found)
    if Modifier.find_evaluated(modifiers) is not None:
        assert_evaluated(found)


def assert_evaluated(found: Trained) -> None:
    """Check that the evaluated weights lie between those after one step and after two, and differ from both."""
    (_, first, second), evaluated = found.weights, found.reported
    inside = [torch.minimum(first[n], second[n]) - 1e-12 <= evaluated[n] for n in first]
    inside += [evaluated[n] <= torch.maximum(first[n], second[n]) + 1e-12 for n in first]
    assert all(flags.all() for flags in inside)
    assert differ(evaluated, first)
    assert differ(evaluated, second)


def assert_averaged(found: Trained) -> None:
    """Check that the result of SWAD is the mean of the weights."""
    (end,) = final(found.session)
    assert_close(found.reported, trees.mean(trees.stack(found.weights[1:])), 1e-12)
    assert end.step == 1


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


@pytest.mark.parametrize("name", all_modifiers())
@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=2)], ids=["ERM", "POGM"])
def test_runs_with_a_modifier_are_repeatable(algorithm, name):
    first, second = (trained(algorithm, modifier(name)) for _ in range(2))
    assert_close(second.session.train_state, first.session.train_state, 0.0)


@pytest.mark.parametrize("name", [name for name, found in all_modifiers().items() if not found.changes_training])
def test_modifiers_that_say_so_do_not_change_the_training(name):
    check_modifier_training(all_modifiers()[name])


@pytest.mark.parametrize("second", all_modifiers())
@pytest.mark.parametrize("first", all_modifiers())
def test_two_modifiers_combine_but_network_changes_are_not_repeated(first, second):
    both = modifier(first), modifier(second)
    if {first, second} == {"CIRL", "MIRO"}:
        assert_refused(lambda: begun(ERM(), *both), f"replaces the risk; found {first} and {second}")
    elif {first, second} <= {*AVERAGES, "SWAD"} and {first, second} != {"SWAD"}:
        assert_refused(lambda: begun(ERM(), *both), f"chooses the weights to evaluate; found {first} and {second}")
    elif first == second and first in TWICE:
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


def test_stored_errors_are_of_registered_methods_and_on_the_page_of_methods():
    assert {name for name, _ in REFUSED} <= all_algorithms().keys()
    assert {name for _, name in REFUSED} | TWICE.keys() <= all_modifiers().keys()
    _, _, section = PAGE.read_text().partition("## Pairs that raise an error")
    lines = [line.split("|")[1:3] for line in section.splitlines() if "|" in line]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in line] for line in lines]
    listed = {(algorithm, with_) for modifiers, others in rows for with_ in modifiers for algorithm in others}
    assert listed == REFUSED.keys() - {("PGrad", "CIRL")}  # of which the reason is the small batch of these tests


def test_cirl_raises_for_a_head_with_noise_inputs():
    """MTL with noise has risks that CIRL can replace, but its head takes twice the features."""
    mtl = all_algorithms()["MTL"](compat_noise=True)
    assert_refused(lambda: begun(mtl, MADE["CIRL"]), "takes the 128 features alone")
