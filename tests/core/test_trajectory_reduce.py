"""Reduction of trajectories: inner products and weighted sums, for all weights or in blocks, in chunks or not."""

from itertools import pairwise

import pytest
import torch

from pogm import pareto
from pogm.core import trajectory_reduce, trees
from pogm.core.flat_params import flatten
from pogm.core.trajectory_reduce import Local, segments, within

K = 3
SHAPES = {"a.weight": (4, 5), "a.bias": (4,), "b.weight": (3, 4), "c.bias": (1,), "d.weight": (7,)}
BLOCKS = (("a.weight", "a.bias", "d.weight"), ("b.weight",), ("c.bias",))  # the first in two stretches
WHOLE = (tuple(SHAPES),)


def trajectories(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    wide = {name: torch.randn(K, *shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    return {name: leaf.to(dtype) for name, leaf in wide.items()}


def chosen(tree, names):
    return {name: tree[name] for name in names}


@pytest.fixture(params=[1, 2, 7, 24, 2**20], ids=lambda size: f"chunk {size}")
def chunk(request, monkeypatch):
    """Chunks of one weight, of a few (they end inside or at the end of a block), and of all weights."""
    monkeypatch.setattr(trajectory_reduce, "CHUNK", request.param)


@pytest.mark.parametrize("blocks", [WHOLE, BLOCKS, (BLOCKS[0], BLOCKS[2], BLOCKS[1])])
def test_inner_products_are_those_of_each_blocks_weights(chunk, blocks):
    rows = trajectories()
    found = Local().gramians(Local().gather(rows), blocks)
    assert found.dtype == torch.float64
    for number, names in enumerate(blocks):
        torch.testing.assert_close(found[number], pareto.gramian(chosen(rows, names)))


@pytest.mark.parametrize("blocks", [WHOLE, BLOCKS])
def test_a_combination_is_the_weighted_sum_in_each_block(chunk, blocks):
    rows = trajectories()
    weights = torch.randn(len(blocks), K, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = Local().weighted_sum(Local().gather(rows), blocks, weights, torch.ones(K, dtype=torch.bool))
    for number, names in enumerate(blocks):
        expected = trees.combine(weights[number], chosen(rows, names))
        for name in names:
            torch.testing.assert_close(found[name], expected[name])


def test_chunk_size_does_not_change_a_bit_of_the_weighted_sum(monkeypatch):
    """Every weight is a separate sum over the domains, in order."""
    h, weights, sound = Local().gather(trajectories(torch.float32)), torch.rand(3, K), torch.ones(K, dtype=torch.bool)
    results = []
    for size in (1, 5, 2**20):
        monkeypatch.setattr(trajectory_reduce, "CHUNK", size)
        results.append(Local().weighted_sum(h, BLOCKS, weights, sound).flat)
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[2])


def test_rows_that_are_not_sound_count_as_zero_even_with_a_weight_that_is_not_finite(chunk):
    rows = trajectories()
    rows["b.weight"][1] = torch.nan
    sound, weights = torch.tensor([True, False, True]), torch.tensor([[0.5, torch.nan, 0.25]], dtype=torch.float64)
    found = Local().weighted_sum(Local().gather(rows), WHOLE, weights, sound)
    for name, leaf in rows.items():
        torch.testing.assert_close(found[name], 0.5 * leaf[0] + 0.25 * leaf[2])


def test_a_block_without_weights_has_zeros():
    rows = trajectories()
    found = Local().gramians(Local().gather(rows), ((), *WHOLE))
    assert (found[0] == 0).all()
    torch.testing.assert_close(found[1], pareto.gramian(rows))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_bf16_trajectories_are_converted_before_they_are_added(chunk, stored):
    rows = trajectories(stored)
    exact = trees.map_leaves(torch.Tensor.double, rows)
    reduce = Local(dtype=torch.float32)
    h = reduce.gather(rows)
    weights, sound = torch.rand(3, K, dtype=torch.float64), torch.ones(K, dtype=torch.bool)
    found = reduce.weighted_sum(h, BLOCKS, weights, sound)
    expected = Local().weighted_sum(Local().gather(exact), BLOCKS, weights, sound)
    assert all(leaf.dtype == torch.float32 for leaf in found.values())
    for name, leaf in expected.items():
        torch.testing.assert_close(found[name].double(), leaf, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(reduce.gramians(h, BLOCKS), Local().gramians(Local().gather(exact), BLOCKS))


def test_float32_trajectories_have_inner_products_to_float64():
    """The sum of a million positive numbers in float32 would have an error a thousand times as large."""
    rows = {"w": torch.rand(2, 3 * 2**19, generator=torch.Generator().manual_seed(0))}
    found = Local().gramians(Local().gather(rows), (("w",),))[0]
    wide = rows["w"].double()
    torch.testing.assert_close(found, wide @ wide.mT, rtol=1e-13, atol=0.0)


def test_neighbouring_weights_of_a_block_are_one_stretch():
    layout = flatten(trajectories(), leading=1).layout
    assert segments(layout, WHOLE) == ((0, 44, 0),)
    assert segments(layout, BLOCKS) == ((0, 24, 0), (24, 36, 1), (36, 37, 2), (37, 44, 0))


def test_what_lies_between_two_places_is_counted_from_the_first():
    stretches = ((0, 24, 0), (24, 36, 1), (36, 37, 2), (37, 44, 0))
    assert within(stretches, 0, 44) == stretches
    assert within(stretches, 20, 37) == ((0, 4, 0), (4, 16, 1), (16, 17, 2))
    assert within(stretches, 24, 36) == ((0, 12, 1),)
    assert within(stretches, 44, 50) == ()


@pytest.mark.parametrize("cuts", [(0, 11, 44), (0, 24, 36, 44), (0, 1, 2, 30, 44)])
def test_partial_inner_products_add_up_to_the_whole(cuts):
    """Processes that hold a slice of all trajectories rely on this."""
    h = Local().gather(trajectories())
    stretches = segments(h.rows.layout, BLOCKS)
    total = sum(
        trajectory_reduce.gramians(h.rows.flat[:, start:stop], within(stretches, start, stop), len(BLOCKS))
        for start, stop in pairwise(cuts)
    )
    torch.testing.assert_close(total, Local().gramians(h, BLOCKS))


@pytest.mark.parametrize("blocks", [WHOLE, BLOCKS])
def test_a_centre_is_one_more_row(chunk, blocks):
    rows = trajectories()
    centre = {name: leaf[0] for name, leaf in trajectories(seed=1).items()}
    every = {name: torch.cat([leaf, centre[name][None]]) for name, leaf in rows.items()}
    weights = torch.randn(len(blocks), K + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sound = torch.tensor([True, False, True, True])
    apart, whole = Local().gather(rows, centre), Local().gather(every)
    torch.testing.assert_close(Local().gramians(apart, blocks), Local().gramians(whole, blocks))
    found, expected = (Local().weighted_sum(h, blocks, weights, sound) for h in (apart, whole))
    assert torch.equal(found.flat, expected.flat)


def test_mapped_over_trials_they_are_the_same():
    trials = [trajectories(seed=seed) for seed in (0, 1)]
    weights = torch.rand(2, len(BLOCKS), K, dtype=torch.float64)
    sound = torch.tensor([[True, True, True], [True, False, True]])

    def both(rows, weights, sound):
        h = Local().gather(rows)
        return Local().gramians(h, BLOCKS), dict(Local().weighted_sum(h, BLOCKS, weights, sound))

    grams, steps = torch.func.vmap(both)(trees.stack(trials), weights, sound)
    for trial, rows in enumerate(trials):
        alone = both(rows, weights[trial], sound[trial])
        torch.testing.assert_close(grams[trial], alone[0])
        torch.testing.assert_close(trees.index(steps, trial), alone[1])
