"""Domains and samples over processes: the same numbers as in one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from processes import Team, free_port, surroundings
from support import INPUTS, WIDTH, C, assert_close, batches, needs_gpu, toy, trial
from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.algorithms.mgda import MGDA
from pogm.algorithms.pogm import POGM
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.flat_params import flatten
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.distributed.domain_parallel import DomainParallel, SampleParallel
from pogm.distributed.mesh import Mesh
from pogm.distributed.world import Launch, World, joined
from pogm.engine import evaluator
from pogm.engine.capture import Captured
from pogm.engine.session import Engine, Session
from pogm.engine.vectorise import single
from pogm.modifiers.swad import SWAD

ROUNDS, SIZE = 4, 12
P = INPUTS * WIDTH + WIDTH + WIDTH * C + C  # 59: no multiple of any number of processes


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Team]]:
    made = {world: Team(world) for world in (2, 3, 4)}
    yield made
    for team in made.values():
        team.end()


def rounds(algorithm: Algorithm, domains: int, poisoned: int | None = None, batch_norm: bool = False) -> Any:
    """Some rounds in one process: what changes in each, and the optimizers; one may have a domain of NaN."""
    first, problem = toy(algorithm, domains=domains, batch_norm=batch_norm)
    state = algorithm.start(flatten(first.params), first.buffers, first.key, problem)
    return followed(algorithm, state, problem, Batch._make, poisoned)


def followed(algorithm: Algorithm, state: State, problem: Problem, part: Any, poisoned: int | None) -> Any:
    seen = []
    for number in range(ROUNDS):
        made = batches(algorithm.minibatches, domains=problem.num_domains, size=SIZE, seed=number)
        if poisoned is not None and number == 1:
            made = [poison(batch, poisoned) for batch in made]
        with torch.no_grad():
            state, metrics = algorithm.step(state, [part(batch) for batch in made], problem)
        seen.append({"params": dict(state.params), "buffers": state.buffers, "metrics": metrics})
    return seen, state.optimizer


def poison(batch: Batch, domain: int) -> Batch:
    x = batch.x.clone()
    x[domain] = torch.nan
    return batch._replace(x=x)


def rounds_of(
    ranks: World,
    mesh: Mesh,
    algorithm: Algorithm,
    domains: int,
    poisoned: int | None = None,
    batch_norm: bool = False,
) -> Any:
    """The same in one of many processes; and the domains of its optimizers."""
    first, problem = toy(algorithm, domains=domains, batch_norm=batch_norm)
    mine, samples = slice(None), slice(None)
    if mesh.domains > 1:
        reduce = DomainParallel(ranks, mesh, domains)
        problem, mine = replace(problem, reduce=reduce), reduce.mine
    if mesh.samples > 1:
        shared = SampleParallel(ranks, mesh)
        problem, samples = replace(problem, gradient=shared.average_gradient(problem.gradient)), shared.samples(SIZE)

    def part(batch: Batch) -> Batch:
        return Batch(batch.x[mine, samples], batch.y[mine, samples])

    state = algorithm.start(flatten(first.params), first.buffers, first.key, problem)
    seen, optimizer = followed(algorithm, state, problem, part, poisoned)
    return seen, optimizer, problem.reduce.local_rows(torch.arange(domains))


GRIDS = {2: [Mesh(2, 1), Mesh(1, 2)], 3: [Mesh(3, 1), Mesh(1, 3)], 4: [Mesh(4, 1), Mesh(2, 2), Mesh(1, 4)]}
METHODS: dict[str, Algorithm] = {
    "POGM": POGM(),
    "POGM, E = 2": POGM(inner_steps=2),
    "POGM, E = 2, Adam afresh in every round": POGM(inner_steps=2, inner_state="reset"),
    "POGM around the mean": POGM(centre="mean"),
    "POGM by layer, with SGD": POGM(partition="layer", inner_optimizer="sgd"),
    "POGM of the classifier": POGM(partition="classifier", meta_lr=1.0),
    "MGDA": MGDA(inner_steps=2),
}


def assert_alike(teams: dict[int, Team], algorithm: Algorithm, domains: int, *others: Any, most: int = 4) -> None:
    """On every grid that has work for all, every process sees what one alone does, and its own optimizers."""
    seen, optimizer = rounds(algorithm, domains, *others)
    for world, grids in GRIDS.items():
        for mesh in (mesh for mesh in grids if mesh.domains <= domains and mesh.samples <= most):
            answers = teams[world].do(rounds_of, mesh, algorithm, domains, *others)
            for theirs, state, mine in answers:
                assert_same(theirs, seen, 1e-12)
                assert_same(theirs, answers[0][0], 0)  # or their weights would drift apart
                assert_same(*({n: s[n] for n in s if n == "erm"} for s in (state, optimizer)), 1e-12)
                assert_same(
                    state["domains"], trees.map_leaves(lambda leaf, m=mine: leaf[m], optimizer["domains"]), 1e-12
                )


def assert_same(left: Any, right: Any, tolerance: float) -> None:
    """Two trees with the same leaves, NaN where the other has it."""
    filled = [trees.map_leaves(lambda leaf: leaf.double().nan_to_num(-12345.0), tree) for tree in (left, right)]
    assert_close(*filled, tolerance)


@pytest.mark.parametrize("domains", [2, 3, 5])
@pytest.mark.parametrize("name", METHODS)
def test_many_processes_compute_what_one_does(teams, name, domains):
    assert_alike(teams, METHODS[name], domains)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("inner_steps", [1, 5])
def test_without_a_ball_many_processes_end_every_round_where_erm_does(teams, inner_steps, optimizer):
    """Corollary 1."""
    pogm = POGM(kappa=0.0, inner_steps=inner_steps, inner_optimizer=optimizer)
    state, problem = toy(pogm, domains=3)
    erm, seen = ERM().start(flatten(state.params), state.buffers, state.key, problem), []
    for number in range(ROUNDS):
        for batch in batches(inner_steps, domains=3, size=SIZE, seed=number):
            erm, _ = ERM().step(erm, [batch], problem)
        seen.append(dict(erm.params))
    for mesh in (Mesh(2, 1), Mesh(3, 1), Mesh(2, 2), Mesh(1, 2)):
        for theirs, _, _ in teams[mesh.world].do(rounds_of, mesh, pogm, 3):
            assert_close([one["params"] for one in theirs], seen, 1e-12)


@pytest.mark.parametrize("centre", ["erm", "mean"])
def test_a_trajectory_that_is_not_finite_is_left_out_by_everyone(teams, centre):
    algorithm = POGM(centre=centre)
    seen, _ = rounds(algorithm, 3, 2)
    assert seen[1]["metrics"]["nonfinite"].tolist() == [0, 0, 1]
    assert_alike(teams, algorithm, 3, 2)


def test_live_batch_norm_keeps_the_mean_of_all_domains(teams):
    # Adam would make steps of what is rounding error: a bias before the norm
    plain = POGM(inner_optimizer="sgd", centre="mean")
    assert_alike(teams, plain, 5, None, True, most=1)


@pytest.mark.parametrize("algorithm", [ERM(), POGM(), POGM(inner_steps=2)], ids=["ERM", "POGM", "POGM, E = 2"])
def test_what_sees_every_domain_takes_the_mean_over_all_samples(teams, algorithm):
    seen, optimizer = rounds(algorithm, 3)
    for world in (2, 3, 4):
        for theirs, state, _ in teams[world].do(rounds_of, Mesh(1, world), algorithm, 3):
            assert_close((theirs, state), (seen, optimizer), 1e-12)


def test_processes_that_share_samples_have_each_of_them_once(teams):
    (batch,) = batches(domains=3, size=12)
    for mesh in (Mesh(1, 4), Mesh(2, 2)):
        parts = teams[4].do(part_of, mesh, batch)
        for group in range(mesh.domains):
            mine = parts[group * mesh.samples : (group + 1) * mesh.samples]
            assert_close(Batch(*(torch.cat(leaves, 1) for leaves in zip(*mine, strict=True))), batch, 0)


def part_of(ranks: World, mesh: Mesh, batch: Batch) -> Batch:
    samples = SampleParallel(ranks, mesh).samples(SIZE)
    return Batch(batch.x[:, samples], batch.y[:, samples])


def test_a_process_sends_about_two_numbers_for_each_weight(teams):
    for world in (2, 3, 4):
        size = -(-P // world)
        for rank, sent in enumerate(teams[world].do(bytes_of, Mesh(world, 1), world)):
            mine = min(P, size * (rank + 1)) - size * rank  # the slice that stays
            slices, direction, gramian = P - mine, size * (world - 1), world**2 * (world - 1)
            assert sent == 8 * (slices + direction + gramian)
            assert sent <= 8 * (2 * P + world + world**3)


def test_processes_that_share_samples_share_the_sending_too(teams):
    size = -(-P // 4)
    for rank, sent in enumerate(teams[4].do(bytes_of, Mesh(2, 2), 5)):
        kept = [min(P, size * (r + 1)) - size * r for r in range(4)]
        slices = [3, 3, 2, 2][rank] * kept[[2, 3, 0, 1][rank]]  # to the one of its number in the other group
        assert sent == 8 * (slices + 3 * size + 3 * 25)


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_a_centre_costs_an_all_reduce_of_the_gradient_for_every_inner_step(teams, inner_steps):
    for world in (2, 3):
        both = [
            teams[world].do(bytes_of_a_round, Mesh(world, 1), POGM(inner_steps=inner_steps, centre=centre))
            for centre in ("erm", "mean")
        ]
        for erm, mean in zip(*both, strict=True):
            products = 8 * (world - 1) * ((world + 1) ** 2 - world**2)  # a row and a column more in the Gramian
            assert erm - mean == inner_steps * (2 * 8 * P * (world - 1) // world) + products


def bytes_of_a_round(ranks: World, mesh: Mesh, algorithm: Algorithm) -> int:
    """Bytes that a process sends in one round."""
    before = ranks.sent
    first, problem = toy(algorithm, domains=mesh.world)
    reduce = DomainParallel(ranks, mesh, mesh.world)
    problem = replace(problem, reduce=reduce)
    state = algorithm.start(flatten(first.params), first.buffers, first.key, problem)
    made = batches(algorithm.minibatches, domains=mesh.world, size=SIZE)
    algorithm.step(state, [Batch(batch.x[reduce.mine], batch.y[reduce.mine]) for batch in made], problem)
    return ranks.sent - before


def bytes_of(ranks: World, mesh: Mesh, domains: int) -> int:
    """That a process sends for one meeting."""
    reduce = DomainParallel(ranks, mesh, domains)
    h = reduce.local_rows(torch.ones(domains, P, dtype=torch.float64))
    before = ranks.sent
    gathered = reduce.gather({"head.weight": h})
    blocks = (("head.weight",),)
    reduce.weighted_sum(
        gathered, blocks, reduce.gramians(gathered, blocks)[:, 0], torch.ones(domains, dtype=torch.bool)
    )
    return ranks.sent - before


def test_no_process_has_all_of_all_trajectories(teams):
    for world in (2, 3, 4):
        for rows, optimizers in teams[world].do(held, world):
            assert rows.numel() <= 5 * -(-P // world)
            assert optimizers <= 2 * -(-5 // world) * P  # two moments of each


def held(ranks: World, world: int) -> tuple[Tensor, int]:
    """Its part of all trajectories, and the numbers in memory for its optimizers."""
    reduce = DomainParallel(ranks, Mesh(world, 1), 5)
    state, problem = toy(POGM(), domains=5)
    problem = replace(problem, reduce=reduce)
    optimizer = POGM().start(flatten(state.params), {}, state.key, problem).optimizer["domains"]
    storages = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage() for leaf in trees.leaves(optimizer)}
    counters = 8 * len(optimizer["count"])
    gathered = reduce.gather({"head.weight": reduce.local_rows(torch.ones(5, P, dtype=torch.float64))})
    return gathered.rows, (sum(storage.nbytes() for storage in storages.values()) - counters) // 8


def test_a_slice_may_be_empty(teams):
    """Three weights among four processes."""
    h = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    for gramian, direction in teams[4].do(tiny, h):
        assert torch.equal(gramian, (h @ h.mT)[None])
        assert torch.equal(direction, 0.5 * h[0] + 2 * h[1])


def tiny(ranks: World, h: Tensor) -> tuple[Tensor, Tensor]:
    reduce, blocks = DomainParallel(ranks, Mesh(2, 2), 2), (("w",),)
    gathered = reduce.gather({"w": reduce.local_rows(h)})
    weights, sound = torch.tensor([[0.5, 2.0]], dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    return reduce.gramians(gathered, blocks), reduce.weighted_sum(gathered, blocks, weights, sound)["w"]


def test_rows_of_all_domains_come_in_order_and_in_their_type(teams):
    tree = {"count": torch.arange(5), "mean": torch.rand(5, 2, 3), "flag": torch.arange(5) % 2 == 0}
    for mesh in (Mesh(2, 2), Mesh(4, 1)):
        for found in teams[4].do(there_and_back, mesh, tree):
            assert_close(found, tree, 0)


def there_and_back(ranks: World, mesh: Mesh, tree: Any) -> Any:
    reduce = DomainParallel(ranks, mesh, 5)
    return reduce.all_gather(reduce.local_rows(tree))


@pytest.mark.parametrize("images", [100, 500, 1000, 5000])
def test_processes_that_share_an_evaluation_see_what_one_does(teams, images):
    """In many passes, in fewer than processes, and in one."""
    seen = evaluated(None, images)
    for world in (2, 3):
        assert teams[world].do(evaluated, images) == [seen] * world


def evaluated(ranks: World | None, images: int) -> Any:
    """The accuracies and the validation loss of first weights, so many images of 8 × 8 at a time."""
    before = evaluator.PIXELS["cpu"]
    evaluator.PIXELS["cpu"] = 64 * images
    try:
        session = Session([trial(POGM(), modifiers=(SWAD(),)).task(None)], Engine(), ranks)
        return session.accuracies(), session.observe(0)
    finally:
        evaluator.PIXELS["cpu"] = before


@pytest.mark.gpu
@needs_gpu
def test_a_recorded_round_over_nccl_is_the_round_alone(monkeypatch):
    """With one process, which is all that one GPU can have."""
    for name, value in surroundings(0, 1, free_port()).items():
        monkeypatch.setenv(name, value)
    launch = Launch.found()
    assert launch is not None
    task = trial(POGM(inner_steps=2), precision="fp64").task(None)
    with joined(launch, torch.device("cuda:0")) as ranks:
        alone, other = (Session([task], Engine("cuda:0", domains="loop")) for _ in range(2))
        reduce, shared = DomainParallel(ranks, Mesh(1, 1), task.num_domains), SampleParallel(ranks, Mesh(1, 1))
        average_gradient = shared.average_gradient(other.config.problem.gradient)
        problem = replace(other.config.problem, reduce=reduce, gradient=average_gradient)
        other.advance = Captured(single(replace(other.config, problem=problem), other.rows))
        for _ in range(5):
            alone.step()
            other.step()
        assert ranks.sent == 0
        assert_close(alone.train_state.state, other.train_state.state, 1e-9)
        assert ranks.most(3) == [3]  # the host's, over gloo, beside
        other.close()
