"""Domain and sample parallelism give the same results as one process."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from processes import Team, free_port, torchrun_variables
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
from pogm.distributed.world import Launch, World, connect
from pogm.engine import evaluator
from pogm.engine.capture import GraphedStep
from pogm.engine.session import Engine, Session
from pogm.engine.vectorise import make_single_step
from pogm.modifiers.base import Modifier
from pogm.modifiers.ema import EMA
from pogm.modifiers.lpft import LPFT
from pogm.modifiers.miro import MIRO
from pogm.modifiers.sma import SMA
from pogm.modifiers.swad import SWAD

ROUNDS, SIZE = 3, 12
P = INPUTS * WIDTH + WIDTH + WIDTH * C + C  # 59, a prime: slices have different sizes


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Team]]:
    made = {size: Team(size) for size in (2, 3, 4)}
    yield made
    for team in made.values():
        team.end()


def rounds(algorithm: Algorithm, domains: int, poisoned: int | None = None, batch_norm: bool = False) -> Any:
    """Train in one process. Return weights, buffers and metrics of every round, and the final optimizer states.

    Args:
        algorithm: Algorithm to train.
        domains: Number of domains.
        poisoned: Domain whose samples are NaN in the second round.
        batch_norm: Use a network with batch norm.
    """
    first, problem = toy(algorithm, domains=domains, batch_norm=batch_norm)
    state = algorithm.start(flatten(first.params), first.buffers, first.key, problem)
    return train(algorithm, state, problem, Batch._make, poisoned)


def train(algorithm: Algorithm, state: State, problem: Problem, part: Any, poisoned: int | None) -> Any:
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


def distributed_rounds(
    world: World,
    mesh: Mesh,
    algorithm: Algorithm,
    domains: int,
    poisoned: int | None = None,
    batch_norm: bool = False,
) -> Any:
    """Do the same in one of several processes. Also return the domains that this process trains."""
    first, problem = toy(algorithm, domains=domains, batch_norm=batch_norm)
    domains_here, samples = slice(None), slice(None)
    if mesh.domains > 1:
        reduce = DomainParallel(world, mesh, domains)
        problem, domains_here = replace(problem, reduce=reduce), reduce.local_domains
    if mesh.samples > 1:
        shared = SampleParallel(world, mesh)
        problem, samples = (
            replace(problem, gradient=shared.average_gradient(problem.gradient)),
            shared.local_samples(SIZE),
        )

    def part(batch: Batch) -> Batch:
        return Batch(batch.x[domains_here, samples], batch.y[domains_here, samples])

    state = algorithm.start(flatten(first.params), first.buffers, first.key, problem)
    seen, optimizer = train(algorithm, state, problem, part, poisoned)
    return seen, optimizer, problem.reduce.local_rows(torch.arange(domains))


MESHES = {2: [Mesh(2, 1), Mesh(1, 2)], 3: [Mesh(3, 1), Mesh(1, 3)], 4: [Mesh(4, 1), Mesh(2, 2), Mesh(1, 4)]}
FEW_MESHES = {2: [Mesh(2, 1), Mesh(1, 2)], 3: [Mesh(3, 1)], 4: [Mesh(2, 2)]}  # every kind once; 3 do not divide 5
METHODS: dict[str, Algorithm] = {
    "POGM": POGM(),
    "POGM, E = 2": POGM(inner_steps=2),
    "POGM, E = 2, Adam reset in every round": POGM(inner_steps=2, inner_state="reset"),
    "POGM, mean as centre": POGM(centre="mean"),
    "POGM per layer, with SGD": POGM(partition="layer", inner_optimizer="sgd"),
    "POGM of the classifier": POGM(partition="classifier", meta_lr=1.0),
    "MGDA": MGDA(inner_steps=2),
}


def assert_meshes_agree(
    teams: dict[int, Team],
    algorithm: Algorithm,
    domains: int,
    *others: Any,
    most: int = 4,
    among: dict[int, list[Mesh]] = MESHES,
) -> None:
    """Compare every process of every mesh with training in a single process."""
    seen, optimizer = rounds(algorithm, domains, *others)
    for size, meshes in among.items():
        for mesh in (mesh for mesh in meshes if mesh.domains <= domains and mesh.samples <= most):
            answers = teams[size].do(distributed_rounds, mesh, algorithm, domains, *others)
            for theirs, state, rows in answers:
                assert_same(theirs, seen, 1e-12)
                assert_same(theirs, answers[0][0], 0)  # bit-identical: otherwise the weights would drift apart
                assert_same(*({n: s[n] for n in s if n == "erm"} for s in (state, optimizer)), 1e-12)
                assert_same(
                    state["domains"], trees.map_leaves(lambda leaf, rows=rows: leaf[rows], optimizer["domains"]), 1e-12
                )


def assert_same(left: Any, right: Any, tolerance: float) -> None:
    """Compare two trees, with NaN at the same positions."""
    without_nan = [trees.map_leaves(lambda leaf: leaf.double().nan_to_num(-12345.0), tree) for tree in (left, right)]
    assert_close(*without_nan, tolerance)


@pytest.mark.parametrize(("name", "domains"), [("POGM", 2), ("POGM", 3), *((name, 5) for name in METHODS)])
def test_several_processes_give_the_results_of_one(teams, name, domains):
    """POGM with its defaults on every mesh; its options and MGDA on one mesh of every kind."""
    assert_meshes_agree(teams, METHODS[name], domains, among=MESHES if name == "POGM" else FEW_MESHES)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("inner_steps", [1, 5])
def test_pogm_with_kappa_zero_is_erm_in_several_processes(teams, inner_steps, optimizer):
    """Corollary 1."""
    pogm = POGM(kappa=0.0, inner_steps=inner_steps, inner_optimizer=optimizer)
    state, problem = toy(pogm, domains=3)
    erm, seen = ERM().start(flatten(state.params), state.buffers, state.key, problem), []
    for number in range(ROUNDS):
        for batch in batches(inner_steps, domains=3, size=SIZE, seed=number):
            erm, _ = ERM().step(erm, [batch], problem)
        seen.append(dict(erm.params))
    for mesh in (Mesh(2, 1), Mesh(3, 1), Mesh(2, 2), Mesh(1, 2)):
        for theirs, _, _ in teams[mesh.size].do(distributed_rounds, mesh, pogm, 3):
            assert_close([one["params"] for one in theirs], seen, 1e-12)


@pytest.mark.parametrize("centre", ["erm", "mean"])
def test_trajectory_that_is_not_finite_is_left_out_by_all_processes(teams, centre):
    algorithm = POGM(centre=centre)
    seen, _ = rounds(algorithm, 3, 2)
    assert seen[1]["metrics"]["nonfinite"].tolist() == [0, 0, 1]
    assert_meshes_agree(teams, algorithm, 3, 2)


def test_batch_norm_statistics_are_the_mean_of_all_domains(teams):
    # Not Adam: a bias before batch norm has a gradient of rounding errors, which Adam would scale up.
    plain = POGM(inner_optimizer="sgd", centre="mean")
    assert_meshes_agree(teams, plain, 5, None, True, most=1)


def test_sample_parallelism_averages_over_all_samples(teams):
    """Of ERM; `MESHES` has the same meshes for POGM."""
    seen, optimizer = rounds(ERM(), 3)
    for size in (2, 3, 4):
        for theirs, state, _ in teams[size].do(distributed_rounds, Mesh(1, size), ERM(), 3):
            assert_close((theirs, state), (seen, optimizer), 1e-12)


def test_samples_are_partitioned_among_processes(teams):
    (batch,) = batches(domains=3, size=12)
    for mesh in (Mesh(1, 4), Mesh(2, 2)):
        parts = teams[4].do(part_of, mesh, batch)
        for group in range(mesh.domains):
            members = parts[group * mesh.samples : (group + 1) * mesh.samples]
            assert_close(Batch(*(torch.cat(leaves, 1) for leaves in zip(*members, strict=True))), batch, 0)


def part_of(world: World, mesh: Mesh, batch: Batch) -> Batch:
    samples = SampleParallel(world, mesh).local_samples(SIZE)
    return Batch(batch.x[:, samples], batch.y[:, samples])


def test_process_sends_about_two_numbers_per_weight(teams):
    for count in (2, 3, 4):
        size = -(-P // count)
        for rank, sent in enumerate(teams[count].do(bytes_of_reduction, Mesh(count, 1), count)):
            local = min(P, size * (rank + 1)) - size * rank  # the slice that is not sent
            slices, direction, gramian = P - local, size * (count - 1), count**2 * (count - 1)
            assert sent == 8 * (slices + direction + gramian)
            assert sent <= 8 * (2 * P + count + count**3)


def test_processes_that_share_samples_share_the_communication(teams):
    size = -(-P // 4)
    for rank, sent in enumerate(teams[4].do(bytes_of_reduction, Mesh(2, 2), 5)):
        kept = [min(P, size * (r + 1)) - size * r for r in range(4)]
        slices = [3, 3, 2, 2][rank] * kept[[2, 3, 0, 1][rank]]  # to the process with the same index in the other group
        assert sent == 8 * (slices + 3 * size + 3 * 25)


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_erm_centre_costs_one_all_reduce_per_inner_step(teams, inner_steps):
    for size in (2, 3):
        both = [
            teams[size].do(bytes_of_round, Mesh(size, 1), POGM(inner_steps=inner_steps, centre=centre))
            for centre in ("erm", "mean")
        ]
        for erm, mean in zip(*both, strict=True):
            products = 8 * (size - 1) * ((size + 1) ** 2 - size**2)  # one more row and column of the Gramian
            assert erm - mean == inner_steps * (2 * 8 * P * (size - 1) // size) + products


def bytes_of_round(world: World, mesh: Mesh, algorithm: Algorithm) -> int:
    """Return the bytes that a process sends in one round."""
    before = world.bytes_sent
    first, problem = toy(algorithm, domains=mesh.size)
    reduce = DomainParallel(world, mesh, mesh.size)
    problem = replace(problem, reduce=reduce)
    state = algorithm.start(flatten(first.params), first.buffers, first.key, problem)
    made = batches(algorithm.minibatches, domains=mesh.size, size=SIZE)
    algorithm.step(
        state, [Batch(batch.x[reduce.local_domains], batch.y[reduce.local_domains]) for batch in made], problem
    )
    return world.bytes_sent - before


def bytes_of_reduction(world: World, mesh: Mesh, domains: int) -> int:
    """Return the bytes that a process sends for one reduction of trajectories."""
    reduce = DomainParallel(world, mesh, domains)
    h = reduce.local_rows(torch.ones(domains, P, dtype=torch.float64))
    before = world.bytes_sent
    gathered = reduce.gather({"head.weight": h})
    blocks = (("head.weight",),)
    reduce.weighted_sum(
        gathered, blocks, reduce.gramians(gathered, blocks)[:, 0], torch.ones(domains, dtype=torch.bool)
    )
    return world.bytes_sent - before


def test_process_holds_only_its_part_of_trajectories_and_optimizers(teams):
    for size in (2, 3, 4):
        for rows, optimizers in teams[size].do(held_numbers, size):
            assert rows.numel() <= 5 * -(-P // size)
            assert optimizers <= 2 * -(-5 // size) * P  # two moments of each domain


def held_numbers(world: World, size: int) -> tuple[Tensor, int]:
    """Return the slice of all trajectories in this process, and the count of numbers in its optimizer states."""
    reduce = DomainParallel(world, Mesh(size, 1), 5)
    state, problem = toy(POGM(), domains=5)
    problem = replace(problem, reduce=reduce)
    optimizer = POGM().start(flatten(state.params), {}, state.key, problem).optimizer["domains"]
    storages = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage() for leaf in trees.leaves(optimizer)}
    counters = 8 * len(optimizer["count"])
    gathered = reduce.gather({"head.weight": reduce.local_rows(torch.ones(5, P, dtype=torch.float64))})
    return gathered.rows, (sum(storage.nbytes() for storage in storages.values()) - counters) // 8


def test_slice_may_be_empty(teams):
    """Three weights among four processes."""
    h = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    for gramian, direction in teams[4].do(reduce_tiny, h):
        assert torch.equal(gramian, (h @ h.mT)[None])
        assert torch.equal(direction, 0.5 * h[0] + 2 * h[1])


def reduce_tiny(world: World, h: Tensor) -> tuple[Tensor, Tensor]:
    reduce, blocks = DomainParallel(world, Mesh(2, 2), 2), (("w",),)
    gathered = reduce.gather({"w": reduce.local_rows(h)})
    weights, sound = torch.tensor([[0.5, 2.0]], dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    return reduce.gramians(gathered, blocks), reduce.weighted_sum(gathered, blocks, weights, sound)["w"]


def test_all_gather_keeps_order_and_dtype(teams):
    tree = {"count": torch.arange(5), "mean": torch.rand(5, 2, 3), "flag": torch.arange(5) % 2 == 0}
    for mesh in (Mesh(2, 2), Mesh(4, 1)):
        for found in teams[4].do(select_and_gather, mesh, tree):
            assert_close(found, tree, 0)


def select_and_gather(world: World, mesh: Mesh, tree: Any) -> Any:
    reduce = DomainParallel(world, mesh, 5)
    return reduce.all_gather(reduce.local_rows(tree))


@pytest.mark.parametrize("images", [100, 500, 1000, 5000])
def test_shared_evaluation_gives_the_results_of_one_process(teams, images):
    """With many passes, with fewer passes than processes, and with one pass."""
    seen = evaluate(None, images)
    for size in (2, 3):
        assert teams[size].do(evaluate, images) == [seen] * size


def evaluate(world: World | None, images: int) -> Any:
    """Return accuracies and validation loss of the initial weights, with passes of ``images`` images of 8 × 8."""
    before = evaluator.PIXELS["cpu"]
    evaluator.PIXELS["cpu"] = 64 * images
    try:
        session = Session([trial(POGM(), modifiers=(SWAD(),)).task(None)], Engine(), world)
        return session.accuracies(), session.observe(0)
    finally:
        evaluator.PIXELS["cpu"] = before


@pytest.mark.parametrize("parts", [(LPFT(linear_anneal_iters=1), SMA(start_step=1)), (MIRO(), EMA(decay=0.5))], ids=str)
def test_averaged_weights_are_those_of_one_process(teams, parts):
    alone = train_averages(None, parts)
    for found in teams[2].do(train_averages, parts):
        assert_close(found, alone, 1e-10)


def train_averages(world: World | None, modifiers: tuple[Modifier, ...]) -> Any:
    """Return the weights that are evaluated after three rounds of POGM."""
    made = trial(POGM(), precision="fp64", test_domains=(2,), modifiers=modifiers)
    session = Session([made.task(None)], Engine(), world)
    for _ in range(3):
        session.step()
    return session.predicting_tensors()


@pytest.mark.gpu
@needs_gpu
def test_captured_round_with_nccl_equals_the_round_of_a_single_process(monkeypatch):
    """With one process, because NCCL needs one GPU for each."""
    for name, value in torchrun_variables(0, 1, free_port()).items():
        monkeypatch.setenv(name, value)
    launch = Launch.from_environment()
    assert launch is not None
    task = trial(POGM(inner_steps=2), precision="fp64").task(None)
    with connect(launch, torch.device("cuda:0")) as world:
        alone, other = (Session([task], Engine("cuda:0", domains="loop")) for _ in range(2))
        reduce, shared = DomainParallel(world, Mesh(1, 1), task.num_domains), SampleParallel(world, Mesh(1, 1))
        average_gradient = shared.average_gradient(other.config.problem.gradient)
        problem = replace(other.config.problem, reduce=reduce, gradient=average_gradient)
        other.advance = GraphedStep(make_single_step(replace(other.config, problem=problem), other.sample_indices))
        for _ in range(5):
            alone.step()
            other.step()
        assert world.bytes_sent == 0
        assert_close(alone.train_state.state, other.train_state.state, 1e-9)
        assert world.all_reduce_max(3) == [3]  # numbers on the host use gloo
        other.close()
