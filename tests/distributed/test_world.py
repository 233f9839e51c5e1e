"""Meshes, launch variables, results of rank 0, stop signals and collective operations."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from processes import Team, torchrun_variables
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
    """Return a task on RotatedDigits with this number of training domains and batches of 24."""
    made = trial(algorithm, test_domains=tuple(range(6 - domains)), **options).task(None)
    return replace(made, training=replace(made.training, batch_size=24))


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    made = Team(3)
    yield made
    made.end()


@pytest.mark.parametrize("domains", range(1, 10))
def test_domains_are_partitioned_evenly(domains):
    for groups in range(1, domains + 1):
        partition = Mesh(groups, 2).partition_domains(domains)
        assert [domain for group in partition for domain in group] == list(range(domains))
        assert {len(group) for group in partition} <= {domains // groups, math.ceil(domains / groups)}


@pytest.mark.parametrize(
    ("size", "domains", "mesh"),
    [(1, 3, (1, 1)), (2, 3, (2, 1)), (4, 3, (2, 2)), (5, 3, (1, 5)), (6, 3, (3, 2)), (4, 5, (4, 1)), (8, 5, (4, 2))],
)
def test_mesh_divides_domains_first_and_samples_second(size, domains, mesh):
    made = replace(task(POGM(), domains), training=replace(task(POGM()).training, batch_size=120))
    assert mesh_for(made, size) == Mesh(*mesh)


def test_spread_option_selects_the_mesh():
    assert mesh_for(task(POGM()), 4, "domains") == Mesh(4, 1)
    assert mesh_for(task(POGM()), 4, "samples") == Mesh(1, 4)
    assert mesh_for(task(POGM()), 4, "both") == Mesh(2, 2)
    assert mesh_for(task(ERM()), 4) == Mesh(1, 4)
    with pytest.raises(UsageError, match="Did you mean 'domains'"):
        mesh_for(task(POGM()), 4, "domain")


def test_single_process_accepts_every_task():
    for spread in ("auto", "domains", "samples", "both"):
        assert mesh_for(task(CORAL(), probe=Probe.each(1), modifiers=(CIRL(),)), 1, spread) == Mesh(1, 1)


def test_modifiers_that_mix_samples_allow_domains_to_be_divided():
    around_mean = POGM(centre="mean")
    assert mesh_for(task(around_mean, modifiers=(MixStyle(), Mixup())), 2) == Mesh(2, 1)
    with pytest.raises(UsageError, match=r"samples can be divided among 2 processes.*found MixStyle"):
        mesh_for(task(around_mean, modifiers=(MixStyle(), Mixup())), 2, "samples")


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_pooled_pass_that_mixes_samples_needs_all_domains(inner_steps):
    pogm = POGM(inner_steps=inner_steps)
    assert mesh_for(task(pogm, modifiers=(Mixup(),)), 2) == Mesh(2, 1)
    with pytest.raises(UsageError, match=r"domains can be divided among 2 processes.*found MixStyle"):
        mesh_for(task(pogm, modifiers=(MixStyle(),)), 2)


def test_pooled_pass_with_dropout_needs_all_domains():
    """With one inner step, or with the mean as centre, there is no pooled pass."""
    half = replace(RotatedDigits.training, dropout=0.5)
    for method in (POGM(), POGM(inner_steps=5, centre="mean")):
        assert mesh_for(task(method, training=half), 2) == Mesh(2, 1)
    with pytest.raises(UsageError, match=r"domains can be divided among 2 processes.*found dropout"):
        mesh_for(task(POGM(inner_steps=5), training=half), 2)


def test_launch_reads_the_variables_of_torchrun(monkeypatch):
    for name in torchrun_variables(0, 1, 1):
        monkeypatch.delenv(name, raising=False)
    assert Launch.from_environment() is None
    for name, value in torchrun_variables(2, 3, 29500).items():
        monkeypatch.setenv(name, value)
    assert Launch.from_environment(5.0, "both") == Launch(2, 3, 2, 5.0, "both")
    with pytest.raises(UsageError, match="timeout-seconds above 0"):
        Launch.from_environment(0.0)
    for name, value in (("RANK", "3"), ("RANK", ""), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "-1"), ("MASTER_PORT", "1e3")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(UsageError, match=f"variable {name} to be a whole number"):
                Launch.from_environment()


def test_result_of_rank_0_is_known_to_all_ranks(team):
    assert team.do(rank_0_result, False) == ["rank 0"] * 3


def test_error_of_rank_0_is_raised_on_all_ranks(team):
    failures = team.do(rank_0_result, True)
    assert [(type(failure), str(failure)) for failure in failures] == [(DataError, "rank 0")] * 3


def rank_0_result(world: World, failing: bool) -> str:
    def function() -> str:
        if failing:
            raise DataError(f"rank {world.rank}")
        return f"rank {world.rank}"

    return world.run_on_first(function)


def test_all_ranks_stop_after_the_same_round(team):
    """The rank that received the signal and the time of the signal do not matter."""
    stopped = team.do(rounds_until_stopped, 7)
    assert {signal for _, signal in stopped} == {15}
    (last,) = {number for number, _ in stopped}
    assert 7 <= last <= 7 + 50


def rounds_until_stopped(world: World, signal_round: int) -> tuple[int, int]:
    rounds = 0
    get_signal = world.share_stop_signal(lambda: 15 if world.rank == 1 and rounds >= signal_round else 0)
    while True:
        rounds += 1
        if signal := get_signal():
            return rounds, signal


def test_mean_has_the_same_bits_on_all_ranks(team):
    answers = team.do(mean_of)
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    torch.testing.assert_close(answers[0], torch.stack([numbers(rank) for rank in range(3)]).mean(0))


def mean_of(world: World) -> torch.Tensor:
    return world.all_ranks.mean(numbers(world.rank))


def numbers(rank: int) -> torch.Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(rank))
