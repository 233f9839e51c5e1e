"""Processes, their places in a grid, and what they agree upon."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from processes import Team, surroundings
from support import trial

from pogm._system.errors import DataError, UsageError
from pogm.algorithms.base import Algorithm
from pogm.algorithms.coral import CORAL
from pogm.algorithms.erm import ERM
from pogm.algorithms.pogm import POGM
from pogm.data.datasets.rotated_digits import RotatedDigits
from pogm.diagnostics import Probe
from pogm.distributed.mesh import Mesh
from pogm.distributed.world import Launch, World
from pogm.engine.parallel import mesh_for
from pogm.engine.task import Task
from pogm.modifiers.cirl import CIRL
from pogm.modifiers.mixstyle import MixStyle
from pogm.modifiers.mixup import Mixup


def task(algorithm: Algorithm, domains: int = 5, **options: object) -> Task:
    """RotatedDigits with some of its six domains trained on, in batches of 24."""
    made = trial(algorithm, test_domains=tuple(range(6 - domains)), **options).task(None)
    return replace(made, training=replace(made.training, batch_size=24))


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    made = Team(3)
    yield made
    made.end()


@pytest.mark.parametrize("domains", range(1, 10))
def test_every_domain_is_dealt_once_and_no_group_is_idle(domains):
    for groups in range(1, domains + 1):
        dealt = Mesh(groups, 2).dealt(domains)
        assert [domain for group in dealt for domain in group] == list(range(domains))
        assert {len(group) for group in dealt} <= {domains // groups, math.ceil(domains / groups)}


@pytest.mark.parametrize(
    ("world", "domains", "mesh"),
    [(1, 3, (1, 1)), (2, 3, (2, 1)), (4, 3, (2, 2)), (5, 3, (1, 5)), (6, 3, (3, 2)), (4, 5, (4, 1)), (8, 5, (4, 2))],
)
def test_domains_go_as_far_as_they_can_and_samples_take_the_rest(world, domains, mesh):
    made = replace(task(POGM(), domains), training=replace(task(POGM()).training, batch_size=120))
    assert mesh_for(made, world) == Mesh(*mesh)


def test_a_way_to_spread_can_be_chosen():
    assert mesh_for(task(POGM()), 4, "domains") == Mesh(4, 1)
    assert mesh_for(task(POGM()), 4, "samples") == Mesh(1, 4)
    assert mesh_for(task(POGM()), 4, "both") == Mesh(2, 2)
    assert mesh_for(task(ERM()), 4) == Mesh(1, 4)
    with pytest.raises(UsageError, match="Did you mean 'domains'"):
        mesh_for(task(POGM()), 4, "domain")


def test_a_single_process_may_do_anything():
    for spread in ("auto", "domains", "samples", "both"):
        assert mesh_for(task(CORAL(), probe=Probe.each(1), modifiers=(CIRL(),)), 1, spread) == Mesh(1, 1)


def test_what_needs_whole_minibatches_may_have_its_domains_divided():
    around_mean = POGM(centre="mean")
    assert mesh_for(task(around_mean, modifiers=(MixStyle(), Mixup())), 2) == Mesh(2, 1)
    with pytest.raises(UsageError, match=r"samples can be divided among 2 processes.*found MixStyle"):
        mesh_for(task(around_mean, modifiers=(MixStyle(), Mixup())), 2, "samples")


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_a_pooled_pass_that_mixes_samples_needs_all_domains(inner_steps):
    pogm = POGM(inner_steps=inner_steps)
    assert mesh_for(task(pogm, modifiers=(Mixup(),)), 2) == Mesh(2, 1)
    with pytest.raises(UsageError, match=r"domains can be divided among 2 processes.*found MixStyle"):
        mesh_for(task(pogm, modifiers=(MixStyle(),)), 2)


def test_a_pooled_pass_draws_one_dropout_mask_for_all_domains():
    """With one inner step there is none; around the mean there never is."""
    half = replace(RotatedDigits.training, dropout=0.5)
    for method in (POGM(), POGM(inner_steps=5, centre="mean")):
        assert mesh_for(task(method, training=half), 2) == Mesh(2, 1)
    with pytest.raises(UsageError, match=r"domains can be divided among 2 processes.*found dropout"):
        mesh_for(task(POGM(inner_steps=5), training=half), 2)


def test_torchrun_says_who_we_are(monkeypatch):
    for name in surroundings(0, 1, 1):
        monkeypatch.delenv(name, raising=False)
    assert Launch.found() is None
    for name, value in surroundings(2, 3, 29500).items():
        monkeypatch.setenv(name, value)
    assert Launch.found(5.0, "both") == Launch(2, 3, 2, 5.0, "both")
    with pytest.raises(UsageError, match="timeout-seconds above 0"):
        Launch.found(0.0)


def test_what_the_first_finds_out_is_known_to_all(team):
    assert team.do(found_out, False) == ["rank 0"] * 3


def test_what_fails_for_the_first_fails_for_all(team):
    failures = team.do(found_out, True)
    assert [(type(failure), str(failure)) for failure in failures] == [(DataError, "rank 0")] * 3


def found_out(ranks: World, failing: bool) -> str:
    def function() -> str:
        if failing:
            raise DataError(f"rank {ranks.rank}")
        return f"rank {ranks.rank}"

    return ranks.first(function)


def test_all_stop_after_the_same_round(team):
    """Whoever was asked, and whenever."""
    stopped = team.do(rounds_until_stopped, 7)
    assert {signal for _, signal in stopped} == {15}
    (last,) = {number for number, _ in stopped}
    assert 7 <= last <= 7 + 50


def rounds_until_stopped(ranks: World, asked_at: int) -> tuple[int, int]:
    rounds = 0
    agreed = ranks.agreement(lambda: 15 if ranks.rank == 1 and rounds >= asked_at else 0)
    while True:
        rounds += 1
        if signal := agreed():
            return rounds, signal


def test_a_mean_over_processes_has_the_same_bits_everywhere(team):
    answers = team.do(mean_of)
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    torch.testing.assert_close(answers[0], torch.stack([numbers(rank) for rank in range(3)]).mean(0))


def mean_of(ranks: World) -> torch.Tensor:
    return ranks.everyone.mean(numbers(ranks.rank))


def numbers(rank: int) -> torch.Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(rank))
