"""Partitions: POGM solves a separate problem for every block or layer."""

import dataclasses

import pytest
import torch
from rounds import one_round, trajectories
from support import INPUTS, WIDTH, C, K, assert_close, batches, steps, toy, trial
from torch import nn
from torch.func import vmap

from pogm import POGM, Reptile, pareto
from pogm.algorithms import all_algorithms
from pogm.algorithms.partition import split_blocks
from pogm.algorithms.rounds import WeightedRounds
from pogm.core import trees
from pogm.core.model import Network
from pogm.engine.per_domain import map_by_vmap
from pogm.engine.session import Engine, Session
from pogm.models import build_features

PARTITIONS = ("all", "block", "layer")


class Deep(POGM):
    """POGM on a network of four layers, two of which are one block."""

    def build(self, features, width, num_classes, num_domains):
        inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        return Network(nn.Sequential(features, inner, nn.Tanh()), nn.Linear(WIDTH, C))


class Shallow(POGM):
    """POGM on a network of one layer."""

    def build(self, features, width, num_classes, num_domains):
        return Network(nn.Identity(), nn.Linear(INPUTS, C))


LAYERS = ("features.0.0", "features.1.0", "features.1.2", "head")
BLOCKS = {
    "all": (tuple(f"{layer}.{leaf}" for layer in LAYERS for leaf in ("weight", "bias")),),
    "block": (
        ("features.0.0.weight", "features.0.0.bias"),
        tuple(f"features.1.{index}.{leaf}" for index in (0, 2) for leaf in ("weight", "bias")),
        ("head.weight", "head.bias"),
    ),
    "layer": tuple((f"{layer}.weight", f"{layer}.bias") for layer in LAYERS),
}


def moved(before, after):
    return trees.subtract(after.params, before.params)


def flat(tree, names):
    """Return some leaves [K, ...] as rows [K, P], in float64."""
    return torch.cat([tree[name].double().flatten(1) for name in names], 1)


def of_blocks(rows, partition):
    """Return the trajectories of each block: [K, P_l]."""
    return [flat(rows, names) for names in BLOCKS[partition]]


def step_of_blocks(step, partition):
    """Return the direction of each block: [P_l]."""
    return [flat({n: leaf[None] for n, leaf in step.items()}, names)[0] for names in BLOCKS[partition]]


def alone(rows, blocks, weights_of):
    """Return Σ_i c_i h_i with weights from the inner products of each block."""
    step = {}
    for names in blocks:
        part = {name: rows[name] for name in names}
        step |= trees.combine(weights_of(pareto.gramian(part)), part)
    return {name: step[name] for name in rows}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_block_is_solved_as_a_separate_problem(partition):
    pogm = Deep(centre="mean", kappa=0.5, meta_lr=1.0, inner_steps=2, partition=partition)
    before, after, _ = one_round(pogm)
    expected = alone(trajectories(pogm), BLOCKS[partition], lambda G: pareto.solve(G, 0.5).weights)
    assert_close(moved(before, after), expected)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_direction_of_a_block_is_best_for_its_worst_domain(partition):
    pogm = Deep(centre="mean", kappa=0.5, meta_lr=1.0, partition=partition)
    before, after, _ = one_round(pogm)
    blocks = of_blocks(trajectories(pogm), partition)
    for h, d in zip(blocks, step_of_blocks(moved(before, after), partition), strict=True):
        centre = h.mean(0)
        radius = 0.5 * centre.norm()
        torch.testing.assert_close((d - centre).norm(), radius)
        generator = torch.Generator().manual_seed(0)
        among = torch.randn(500, K, generator=generator, dtype=torch.float64) @ h  # the optimum lies in their span
        around = (d - centre) + 0.1 * radius * torch.nn.functional.normalize(among, dim=1)
        for tried in (among, around):
            others = centre + radius * torch.nn.functional.normalize(tried, dim=1)
            assert (others @ h.mT).amin(1).max() <= (h @ d).min() + 1e-12


def test_finer_partition_stays_in_the_coarser_ball_and_has_smaller_p_star():
    """The balls of the parts are inside that of the whole, and Σ_l min_i ≤ min_i Σ_l: finer partitions decrease p*."""
    worst = []
    for partition in PARTITIONS:
        pogm = Deep(centre="mean", kappa=0.5, meta_lr=1.0, partition=partition)
        before, after, metrics = one_round(pogm)
        h = flat(trajectories(pogm), BLOCKS["all"][0])
        (d,) = step_of_blocks(moved(before, after), "all")
        torch.testing.assert_close((d - h.mean(0)).norm(), 0.5 * h.mean(0).norm())
        worst.append(metrics["worst"].item())
        assert worst[-1] <= (h @ d).min() + 1e-12
        assert (h @ d).min() <= worst[0] + 1e-12
    assert worst[0] > worst[1] > worst[2]


@pytest.mark.parametrize("method", [Shallow(), Shallow(centre="mean")])
def test_all_partitions_are_equal_for_a_single_layer(method):
    results = [one_round(dataclasses.replace(method, partition=partition)) for partition in PARTITIONS]
    for _, after, metrics in results[1:]:
        assert_close(after, results[0][1], 0.0)
        assert_close(metrics, results[0][2], 0.0)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_without_a_ball_every_partition_is_reptile(partition):
    assert_close(
        steps(POGM(kappa=0.0, partition=partition, centre="mean", meta_lr=0.5), 3).params,
        steps(Reptile(), 3).params,
    )


@pytest.mark.parametrize("cls", [cls for cls in all_algorithms().values() if issubclass(cls, WeightedRounds)])
@pytest.mark.parametrize("partition", ["block", "layer"])
def test_every_method_on_trajectories_solves_one_problem_per_block(cls, partition):
    class OnDeepNetwork(cls):
        build = Deep.build

    method = OnDeepNetwork(meta_lr=1.0, inner_steps=2, partition=partition)
    before, after, metrics = one_round(method)
    expected = alone(trajectories(method), BLOCKS[partition], lambda G: method.weights(G, before))
    assert_close(moved(before, after), expected)
    assert metrics["weights"].shape == (len(metrics["cosine"]),)


@pytest.mark.parametrize("partition", ["block", "layer"])
def test_every_block_is_rescaled_to_its_mean_length(partition):
    pogm = Deep(centre="mean", meta_lr=1.0, rescale="norm", partition=partition)
    before, after, _ = one_round(pogm)
    steps_by_block = step_of_blocks(moved(before, after), partition)
    for h, d in zip(of_blocks(trajectories(pogm), partition), steps_by_block, strict=True):
        torch.testing.assert_close(d.norm(), h.mean(0).norm())


@pytest.mark.parametrize("partition", ["block", "layer"])
def test_erm_centre_is_divided_into_the_same_blocks(partition):
    pogm = Deep(kappa=0.5, meta_lr=1.0, partition=partition)
    before, after, metrics = one_round(pogm)
    rows = trajectories(pogm)
    # Without a ball the model goes where ERM goes.
    centre = moved(*one_round(Deep(kappa=0.0, meta_lr=1.0))[:2])
    step, worst = moved(before, after), []
    for names in BLOCKS[partition]:
        h, h_0 = flat(rows, names), flat({n: leaf[None] for n, leaf in centre.items()}, names)[0]
        solution = pareto.solve(h @ h.mT, 0.5, centre=(h @ h_0, h_0 @ h_0))
        d = flat({n: leaf[None] for n, leaf in step.items()}, names)[0]
        torch.testing.assert_close(d, h_0 + solution.weights @ h, rtol=1e-8, atol=1e-10)
        worst.append((h @ d).min())
    torch.testing.assert_close(metrics["worst"], torch.stack(worst).sum())


def test_classifier_partition_matches_the_head_and_moves_the_features_by_the_mean():
    class TwoLayers(POGM):
        def build(self, features, width, num_classes, num_domains):
            return Network(features, nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, C)))

    heads = ("head.0.weight", "head.0.bias"), ("head.2.weight", "head.2.bias")
    pogm = TwoLayers(kappa=0.5, meta_lr=1.0, centre="mean", partition="classifier")
    before, after, _ = one_round(pogm)
    rows = trajectories(pogm)
    matched = {name: leaf for name, leaf in rows.items() if name.startswith("head.")}
    expected = alone(matched, (sum(heads, ()),), lambda G: pareto.solve(G, 0.5).weights)
    expected |= {name: leaf.mean(0) for name, leaf in rows.items() if name not in matched}
    assert_close(moved(before, after), {name: expected[name] for name in rows})


@pytest.mark.parametrize("centre", ["mean", "erm"])
def test_weights_that_do_not_predict_follow_the_centre(centre):
    class Extra(POGM):
        def build(self, features, width, num_classes, num_domains):
            return Network(features, nn.Linear(WIDTH, C), critic=nn.Linear(WIDTH, 2))

        def loss(self, model, batch, state):
            found = super().loss(model, batch, state)
            criticised = model.part("critic")(model.part("features")(batch.x.flatten(0, 1)))
            return found._replace(value=found.value + criticised.square().mean())

    chosen = centre

    def step_of(kappa, partition):
        options = {"kappa": kappa, "meta_lr": 1.0, "centre": chosen, "inner_optimizer": "sgd"}
        return moved(*one_round(Extra(**options, partition=partition))[:2])

    centre, fine, whole = step_of(0.0, "all"), step_of(0.5, "layer"), step_of(0.5, "all")
    for name in ("critic.weight", "critic.bias"):
        assert centre[name].abs().max() > 1e-6
        torch.testing.assert_close(fine[name], centre[name])
        assert not torch.allclose(whole[name], centre[name]), "as one block, they are led by it"


def test_nonfinite_values_in_one_block_stop_the_round():
    class Cracked(Deep):
        def copies(self, state, batches, problem):
            found = super().copies(state, batches, problem)
            bias = found.trajectories["features.1.0.bias"].clone()
            bias[2, 0] = torch.inf
            return found._replace(trajectories=found.trajectories | {"features.1.0.bias": bias})

    before, after, metrics = one_round(Cracked(partition="layer"))
    assert_close(after.params, before.params, 0.0)
    assert metrics["nonfinite"].tolist() == [0.0, 0.0, 1.0]
    assert metrics["skipped"] == 1


OPTIONS = [
    {"centre": "mean"},
    {"centre": "erm"},
    {"centre": "erm", "inner_steps": 2},
    {"rescale": "norm"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("partition", ["classifier", "block", "layer"])
def test_vmap_over_domains_or_trials_gives_the_same_result(partition, options):
    pogm = Deep(partition=partition, **options)
    assert_close(steps(pogm, 3, each_domain=map_by_vmap), steps(pogm, 3))
    state, problem = toy(pogm)
    made = batches(pogm.minibatches)
    mapped = vmap(lambda state: pogm.step(state, made, problem)[0])(trees.stack([state, state]))
    assert_close(trees.index(mapped, 1), pogm.step(state, made, problem)[0])


@pytest.mark.parametrize("partition", ["block", "layer"])
@pytest.mark.parametrize("method", [POGM(), POGM(centre="mean"), POGM(inner_steps=2)])
def test_trials_that_differ_in_kappa_can_be_batched(partition, method):
    first = trial(dataclasses.replace(method, kappa=0.5, partition=partition), precision="fp64")
    second = dataclasses.replace(first, seed=1, algorithm=dataclasses.replace(first.algorithm, kappa=0.1))
    together = Session([one.task(None) for one in (first, second)], Engine())
    apart = [Session([one.task(None)], Engine()) for one in (first, second)]
    for session in (together, *apart):
        for _ in range(4):
            session.step()
    for row, session in enumerate(apart):
        assert_close(trees.index(together.train_state.state, row), session.train_state.state, 1e-8)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_metrics_describe_the_step(partition):
    pogm = Deep(centre="mean", kappa=0.5, meta_lr=1.0, inner_steps=2, partition=partition)
    before, after, metrics = one_round(pogm)
    rows, step = trajectories(pogm), moved(before, after)
    h = flat(rows, BLOCKS["all"][0])
    (d,) = step_of_blocks(step, "all")
    torch.testing.assert_close(metrics["norm"], d.norm())
    torch.testing.assert_close(metrics["centre_norm"], h.mean(0).norm())
    torch.testing.assert_close(metrics["cosine"], torch.nn.functional.cosine_similarity(h, d[None]))
    parts_of = zip(of_blocks(rows, partition), step_of_blocks(step, partition), strict=True)
    torch.testing.assert_close(metrics["worst"], torch.stack([(h @ d).min() for h, d in parts_of]).sum())
    mixtures = [pareto.mixture(pareto.gramian(h), 0.5) for h in of_blocks(rows, partition)]
    torch.testing.assert_close(metrics["mixture"], torch.stack(mixtures).mean(0), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(metrics["agreement"], pareto.agreement(h @ h.mT))
    assert metrics["gap"] < 1e-12
    assert metrics["stationary"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"inner_steps": 2},
        *({"centre": "mean", **options} for options in OPTIONS[3:]),
        {"partition": "classifier", "centre": "mean"},
    ],
)
def test_block_without_updates_stays_and_does_not_affect_others(options):
    class Frozen(Deep):
        def train_copy(self, *args):
            found = super().train_copy(*args)
            still = {
                n: leaf if BLOCKS["layer"][2].count(n) == 0 else 0 * leaf for n, leaf in found.trajectories.items()
            }
            return found._replace(trajectories=still)

    changing = {"meta_lr": 1.0, "partition": "layer", **options}
    before, after, metrics = one_round(Frozen(**changing))
    free = moved(*one_round(Deep(**changing))[:2])
    step = moved(before, after)
    for name, leaf in step.items():
        expected = torch.zeros_like(leaf) if name in BLOCKS["layer"][2] else free[name]
        torch.testing.assert_close(leaf, expected)
    assert metrics["skipped"] == 0
    assert all(value.isfinite().all() for value in metrics.values())


def names_of(network, shape=(3, 32, 32)):
    features, width = build_features(network, shape)
    return tuple(name for name, _ in Network(features, nn.Linear(width, 2)).named_parameters())


def assert_modules(blocks, modules):
    """Assert that each block has all parameters of the module with the same index."""
    names = sum(blocks, ())
    found = [{name for name in names if name.startswith(f"{module}.")} for module in modules]
    assert [set(block) for block in blocks] == found


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("mlp", ["features.1", "features.3", "head"]),
        ("mnist_cnn", [*(f"features.block{n}" for n in (1, 2, 3, 4)), "head"]),
        ("resnet18", ["features.conv1", "features.bn1", *(f"features.layer{n}" for n in (1, 2, 3, 4)), "head"]),
        ("mobilenet_v2", [*(f"features.features.{n}" for n in range(19)), "head"]),
    ],
)
def test_a_block_is_a_child_of_the_featurizer_or_the_head(network, expected):
    names = names_of(network)
    blocks = split_blocks(names, "block")
    assert_modules(blocks, expected)
    assert sorted(sum(blocks, ())) == sorted(names), "every weight is in one block"


def test_weight_outside_the_children_is_a_separate_block():
    """An example is the class token of a vision transformer, inside the module that wraps it."""
    pytest.importorskip("timm")
    tokens, *blocks = split_blocks(names_of("timm/test_vit", (3, 64, 64)), "block")
    assert set(tokens) >= {"features.model.cls_token", "features.model.pos_embed"}
    assert {name.count(".") for name in tokens} == {2}
    assert_modules(blocks, [*(f"features.model.{child}" for child in ("patch_embed", "blocks", "norm")), "head"])


@pytest.mark.parametrize(("network", "count"), [("mlp", 3), ("mnist_cnn", 9), ("resnet18", 41), ("mobilenet_v2", 105)])
def test_layer_is_a_module_with_weights(network, count):
    names = names_of(network)
    layers = split_blocks(names, "layer")
    assert len(layers) == count
    assert {name.rpartition(".")[0] for name in names} == {
        name.rpartition(".")[0] for names in layers for name in names
    }
    assert all(len({name.rpartition(".")[0] for name in names}) == 1 for names in layers)


def test_partition_all_is_one_block():
    names = names_of("mlp")
    assert split_blocks(names, "all") == (names,)
