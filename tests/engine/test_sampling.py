"""Minibatches drawn on the device."""

import torch
from torch.func import vmap

from pogm.core import random, trees
from pogm.data.datasets.base import Domain
from pogm.data.transforms.pixels import Pixels
from pogm.engine.image_store import Resident
from pogm.engine.sampling import (
    ImageTable,
    build_sample_indices,
    collect_labels_and_sizes,
    concatenate_images,
    draw_batch,
    draw_indices,
)

SIZES = (40, 25, 60)


def table_of(domains, _device):
    return ImageTable(Resident(concatenate_images(domains)), *collect_labels_and_sizes(domains))


def draw(table, rows, key, batch_size, dtype):
    return draw_batch(table, rows.train, key, batch_size, Pixels((1, 1, 1)), dtype)


def made():
    """Three domains whose label is the row in the table."""
    domains, start = [], 0
    for size in SIZES:
        labels = torch.arange(start, start + size)
        domains.append(Domain(labels.reshape(-1, 1, 1, 1).to(torch.uint8), labels))
        start += size
    return domains


def test_a_minibatch_has_images_of_the_training_parts_only():
    domains = made()
    rows, segments = build_sample_indices(domains, (1,), trial_seed=0, device="cpu")
    table = table_of(domains, "cpu")
    parts = rows.evaluate.split(segments)
    seen = [draw(table, rows, key, 16, torch.float32) for key in random.split(random.key(0), 60)]
    for k, domain in enumerate((0, 2)):
        labels = set(torch.cat([batch.y[k] for batch in seen]).tolist())
        assert labels == set(parts[2 * domain].tolist()), "every training image comes up, and no other"
    assert torch.equal(seen[0].x.flatten(1), seen[0].y / 255)


def test_draws_are_uniform():
    domains = made()
    rows, _ = build_sample_indices(domains, (1,), trial_seed=0, device="cpu")
    table = table_of(domains, "cpu")
    labels = draw(table, rows, random.key(3), 32_000, torch.float32).y[0]
    shares = labels.unique(return_counts=True)[1] / len(labels)
    assert (shares - 1 / 32).abs().max() < 0.006


def test_segments_are_every_domain_and_split_without_overlap():
    rows, segments = build_sample_indices(made(), (2,), trial_seed=1, device="cpu")
    assert segments == [32, 8, 20, 5, 48, 12]
    assert sorted(rows.evaluate.tolist()) == list(range(sum(SIZES)))


def test_a_domain_smaller_than_the_batch_is_drawn_with_replacement():
    rows, _ = build_sample_indices(made(), (0,), trial_seed=0, device="cpu")
    batch = draw(table_of(made(), "cpu"), rows, random.key(0), 200, torch.float32)
    assert batch.y.shape == (2, 200)


def test_the_same_key_is_the_same_minibatch_alone_and_mapped():
    """Also where the held-out domains, and so the sizes of those that are left, differ."""
    domains = made()
    table = table_of(domains, "cpu")
    rows = [build_sample_indices(domains, (held_out,), trial_seed=0, device="cpu")[0] for held_out in (0, 2)]
    keys = random.split(random.key(0), 2)
    mapped = vmap(lambda r, key: draw(table, r, key, 4, torch.float32))(trees.stack(rows), keys)
    for i in range(2):
        alone = draw(table, rows[i], keys[i], 4, torch.float32)
        assert torch.equal(mapped.y[i], alone.y)


def test_balanced_draws_give_every_class_of_a_domain_the_same_share():
    """Whatever its share of the domain, and though another domain has classes that this one lacks."""
    labels = (torch.tensor([0] * 90 + [2] * 10), torch.tensor([0] * 5 + [1] * 15 + [2] * 80), torch.tensor([1] * 50))
    domains = [Domain(torch.zeros(len(label), 1, 1, 1, dtype=torch.uint8), label) for label in labels]
    for balanced, first, second in ((True, [0.5, 0, 0.5], [1 / 3] * 3), (False, [0.9, 0, 0.1], [0.05, 0.15, 0.8])):
        rows, _ = build_sample_indices(domains, (2,), trial_seed=0, device="cpu", class_balanced=balanced)
        drawn = collect_labels_and_sizes(domains)[0][draw_indices(rows.train, random.key(1), 60_000)]
        for found, expected in zip(drawn, (first, second), strict=True):
            shares = found.bincount(minlength=3) / found.numel()
            assert (shares - torch.tensor(expected)).abs().max() < (0.01 if balanced else 0.04)


def test_balanced_draws_are_of_the_training_parts_and_reach_every_image():
    domains = [Domain(d.images, d.labels // 7) for d in made()]
    rows, segments = build_sample_indices(domains, (1,), trial_seed=3, device="cpu", class_balanced=True)
    parts = rows.evaluate.split(segments)
    drawn = draw_indices(rows.train, random.key(0), 20_000)
    for k, domain in enumerate((0, 2)):
        assert set(drawn[k].tolist()) == set(parts[2 * domain].tolist())


def test_held_out_domains_have_rows_of_their_own_for_those_who_measure_them():
    domains = made()
    rows, segments = build_sample_indices(domains, (2, 0), trial_seed=0, device="cpu")
    parts = rows.evaluate.split(segments)
    drawn = draw_indices(rows.held_out, random.key(0), 5000)
    for k, domain in enumerate((2, 0)):
        assert set(drawn[k].tolist()) == set(parts[2 * domain].tolist())


def test_rows_of_training_domains_are_marked():
    rows, segments = build_sample_indices(made(), (1,), trial_seed=0, device="cpu")
    marks = [part.unique().tolist() for part in rows.trained.split(segments)]
    assert marks == [[True], [True], [False], [False], [True], [True]]


def test_neighbours_in_memory_are_joined_without_a_copy():
    whole = torch.arange(24, dtype=torch.uint8).reshape(6, 1, 2, 2)
    labels = torch.zeros(3, dtype=torch.long)
    neighbours = [Domain(whole[:3], labels), Domain(whole[3:], labels)]
    assert concatenate_images(neighbours).data_ptr() == whole.data_ptr()
    assert torch.equal(concatenate_images(neighbours), whole)
    for apart in ([neighbours[1], neighbours[0]], [neighbours[0], Domain(whole[3:].clone(), labels)]):
        assert concatenate_images(apart).data_ptr() != whole.data_ptr()
        assert torch.equal(concatenate_images(apart), torch.cat([domain.images for domain in apart]))
