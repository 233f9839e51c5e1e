"""Minibatches drawn on the device."""

import torch
from torch.func import vmap

from pogm.core import random, trees
from pogm.data.datasets.base import Domain
from pogm.data.transforms.base import Pixels
from pogm.engine.input_store import Resident
from pogm.engine.sampling import (
    SampleTable,
    build_sample_indices,
    collect_labels_and_sizes,
    concatenate_inputs,
    draw_batch,
    draw_indices,
)

SIZES = (40, 25, 60)


def table_of(domains, _device):
    return SampleTable(Resident(concatenate_inputs(domains)), *collect_labels_and_sizes(domains))


def draw(table, indices, key, batch_size, dtype):
    return draw_batch(table, indices.train, key, batch_size, Pixels((1, 1, 1)), dtype)


def make_domains():
    """Return three domains whose labels are the sample indices."""
    domains, start = [], 0
    for size in SIZES:
        labels = torch.arange(start, start + size)
        domains.append(Domain(labels.reshape(-1, 1, 1, 1).to(torch.uint8), labels))
        start += size
    return domains


def test_minibatches_contain_all_samples_of_the_in_split_and_no_others():
    domains = make_domains()
    indices, segments = build_sample_indices(domains, (1,), trial_seed=0, device="cpu")
    table = table_of(domains, "cpu")
    parts = indices.evaluate.split(segments)
    seen = [draw(table, indices, key, 16, torch.float32) for key in random.split(random.key(0), 60)]
    for k, domain in enumerate((0, 2)):
        labels = set(torch.cat([batch.y[k] for batch in seen]).tolist())
        assert labels == set(parts[2 * domain].tolist()), "all training images and no others"
    assert torch.equal(seen[0].x.flatten(1), seen[0].y / 255)


def test_samples_are_drawn_uniformly():
    domains = make_domains()
    indices, _ = build_sample_indices(domains, (1,), trial_seed=0, device="cpu")
    table = table_of(domains, "cpu")
    labels = draw(table, indices, random.key(3), 32_000, torch.float32).y[0]
    shares = labels.unique(return_counts=True)[1] / len(labels)
    assert (shares - 1 / 32).abs().max() < 0.006


def test_segments_are_disjoint_and_cover_all_samples():
    indices, segments = build_sample_indices(make_domains(), (2,), trial_seed=1, device="cpu")
    assert segments == [32, 8, 20, 5, 48, 12]
    assert sorted(indices.evaluate.tolist()) == list(range(sum(SIZES)))


def test_small_domain_is_drawn_with_replacement():
    indices, _ = build_sample_indices(make_domains(), (0,), trial_seed=0, device="cpu")
    batch = draw(table_of(make_domains(), "cpu"), indices, random.key(0), 200, torch.float32)
    assert batch.y.shape == (2, 200)


def test_minibatch_is_the_same_under_vmap():
    """Also if trials have different held-out domains, and so training domains of different sizes."""
    domains = make_domains()
    table = table_of(domains, "cpu")
    indices = [build_sample_indices(domains, (held_out,), trial_seed=0, device="cpu")[0] for held_out in (0, 2)]
    keys = random.split(random.key(0), 2)
    mapped = vmap(lambda one, key: draw(table, one, key, 4, torch.float32))(trees.stack(indices), keys)
    for i in range(2):
        alone = draw(table, indices[i], keys[i], 4, torch.float32)
        assert torch.equal(mapped.y[i], alone.y)


def test_balanced_classes_are_drawn_equally_often():
    """For any class sizes, and if a domain lacks a class that another domain has."""
    labels = (torch.tensor([0] * 90 + [2] * 10), torch.tensor([0] * 5 + [1] * 15 + [2] * 80), torch.tensor([1] * 50))
    domains = [Domain(torch.zeros(len(label), 1, 1, 1, dtype=torch.uint8), label) for label in labels]
    for balanced, first, second in ((True, [0.5, 0, 0.5], [1 / 3] * 3), (False, [0.9, 0, 0.1], [0.05, 0.15, 0.8])):
        indices, _ = build_sample_indices(domains, (2,), trial_seed=0, device="cpu", class_balanced=balanced)
        drawn = collect_labels_and_sizes(domains)[0][draw_indices(indices.train, random.key(1), 60_000)]
        for found, expected in zip(drawn, (first, second), strict=True):
            shares = found.bincount(minlength=3) / found.numel()
            assert (shares - torch.tensor(expected)).abs().max() < (0.01 if balanced else 0.04)


def test_balanced_minibatches_contain_all_samples_of_the_in_split_and_no_others():
    domains = [Domain(d.inputs, d.labels // 7) for d in make_domains()]
    indices, segments = build_sample_indices(domains, (1,), trial_seed=3, device="cpu", class_balanced=True)
    parts = indices.evaluate.split(segments)
    drawn = draw_indices(indices.train, random.key(0), 20_000)
    for k, domain in enumerate((0, 2)):
        assert set(drawn[k].tolist()) == set(parts[2 * domain].tolist())


def test_held_out_domains_have_their_own_pool():
    domains = make_domains()
    indices, segments = build_sample_indices(domains, (2, 0), trial_seed=0, device="cpu")
    parts = indices.evaluate.split(segments)
    drawn = draw_indices(indices.held_out, random.key(0), 5000)
    for k, domain in enumerate((2, 0)):
        assert set(drawn[k].tolist()) == set(parts[2 * domain].tolist())


def test_samples_of_training_domains_are_marked():
    indices, segments = build_sample_indices(make_domains(), (1,), trial_seed=0, device="cpu")
    marks = [part.unique().tolist() for part in indices.trained.split(segments)]
    assert marks == [[True], [True], [False], [False], [True], [True]]


def test_images_that_are_adjacent_in_memory_are_not_copied():
    whole = torch.arange(24, dtype=torch.uint8).reshape(6, 1, 2, 2)
    labels = torch.zeros(3, dtype=torch.long)
    adjacent = [Domain(whole[:3], labels), Domain(whole[3:], labels)]
    assert concatenate_inputs(adjacent).data_ptr() == whole.data_ptr()
    assert torch.equal(concatenate_inputs(adjacent), whole)
    for separate in ([adjacent[1], adjacent[0]], [adjacent[0], Domain(whole[3:].clone(), labels)]):
        assert concatenate_inputs(separate).data_ptr() != whole.data_ptr()
        assert torch.equal(concatenate_inputs(separate), torch.cat([domain.inputs for domain in separate]))


def segment_sets(samples):
    """Return the sample indices of every domain and split, with the second domain held out."""
    indices, segments = build_sample_indices(make_domains(), (1,), trial_seed=3, device="cpu", samples=samples)
    return [set(part.tolist()) for part in torch.split(indices.evaluate, segments)], indices


def test_fewer_samples_are_chosen_from_both_parts_of_training_domains_only():
    everything, _ = segment_sets(None)
    chosen, indices = segment_sets(30)
    assert [len(part) for part in chosen] == [24, 6, 20, 5, 24, 6]
    assert all(part <= whole for part, whole in zip(chosen, everything, strict=True))
    assert chosen[2:4] == everything[2:4], "the held-out domain keeps all samples"
    drawn = draw_indices(indices.train, random.key(0), 2000)
    assert [set(row.tolist()) for row in drawn] == [chosen[0], chosen[4]]
    assert segment_sets(40)[0][:2] == everything[:2], "a domain that is not larger keeps all samples"


def test_samples_of_a_larger_number_contain_those_of_a_smaller_one():
    few, _ = segment_sets(10)
    more, _ = segment_sets(30)
    assert [len(few[0]), len(few[1])] == [8, 2]
    assert all(small <= large for small, large in zip(few, more, strict=True))
