"""Test splits of a domain with groups, with given splits, and stratified by class."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pogm._system.errors import DataError
from pogm.data.datasets.base import HOLDOUT, TEST, TRAIN, VAL, Domain, split, split_domain


def make_domain(labels: list[int], **options: object) -> Domain:
    tensors = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in options.items()}
    return Domain(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), torch.tensor(labels), **tensors)


def check_partition(parts: tuple[Tensor, Tensor], count: int) -> None:
    """Check that every image is in one part, and that both have images."""
    assert sorted(torch.cat(parts).tolist()) == list(range(count))
    assert all(map(len, parts))


def test_plain_domain_has_the_split_of_domainbed():
    for found, expected in zip(split_domain(make_domain([0] * 57), 3, 5), split(57, 3, 5), strict=True):
        assert found.equal(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=10, max_size=200), st.integers(0, 3), st.integers(0, 100))
def test_stratified_split_keeps_the_proportions_up_to_one_image(labels, number, seed):
    inside, outside = split_domain(make_domain(labels, stratified=True), number, seed)
    check_partition((inside, outside), len(labels))
    assert len(outside) == int(len(labels) * HOLDOUT)
    for label in set(labels):
        held_out = (torch.tensor(labels)[outside] == label).sum()
        assert abs(held_out - HOLDOUT * labels.count(label)) < 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=20, max_size=200),
    st.booleans(),
    st.integers(0, 100),
)
def test_groups_are_never_divided(rows, stratified, seed):
    groups, labels = [group for group, _ in rows], [label for _, label in rows]
    if len(set(groups)) < 2:
        return
    inside, outside = split_domain(make_domain(labels, groups=groups, stratified=stratified), 0, seed)
    check_partition((inside, outside), len(rows))
    assert not {groups[i] for i in inside.tolist()} & {groups[i] for i in outside.tolist()}


def test_many_small_groups_have_the_usual_share():
    groups = [number // 3 for number in range(300)]
    for seed in range(10):
        _, outside = split_domain(make_domain([0] * 300, groups=groups), 0, seed)
        assert abs(len(outside) - 60) <= 3


def test_stratified_groups_keep_the_proportions():
    """Every group has one class; ten of a hundred groups have the rare one."""
    groups = [number // 4 for number in range(400)]
    labels = [int(group < 10) for group in groups]
    for seed in range(10):
        _, outside = split_domain(make_domain(labels, groups=groups, stratified=True), 0, seed)
        rare = torch.tensor(labels)[outside].sum()
        assert (rare, len(outside)) == (8, 80)


def test_split_of_groups_depends_on_seed_and_domain_only():
    domain = make_domain([0] * 90, groups=[number // 3 for number in range(90)])
    first = split_domain(domain, 0, 0)[1]
    assert first.equal(split_domain(domain, 0, 0)[1])
    assert not first.equal(split_domain(domain, 0, 1)[1])
    assert not first.equal(split_domain(domain, 1, 0)[1])


def test_large_groups_leave_both_parts_nonempty():
    inside, outside = split_domain(make_domain([0] * 10, groups=[0] * 6 + [1] * 4), 0, 0)
    assert sorted(outside.tolist()) == [6, 7, 8, 9], "the smallest group is held out"
    check_partition((inside, outside), 10)


def test_one_group_cannot_be_split():
    with pytest.raises(DataError, match=r"two or more groups in domain north.*found 1\. Leave out the column"):
        split_domain(make_domain([0] * 10, groups=[7] * 10), 0, 0, "north")


def test_given_splits_are_used_and_test_images_are_in_no_part():
    domain = make_domain([0] * 6, splits=[TRAIN, VAL, TEST, TRAIN, VAL, TRAIN])
    inside, outside = split_domain(domain, 0, 0)
    assert (inside.tolist(), outside.tolist()) == ([0, 3, 5], [1, 4])


@pytest.mark.parametrize("kind", [TRAIN, VAL])
def test_validation_images_are_drawn_if_a_domain_has_only_one_part_besides_test(kind):
    splits = [kind] * 10 + [TEST] * 10
    parts = split_domain(make_domain([0] * 20, splits=splits), 0, 0)
    check_partition(parts, 10)
    assert [len(part) for part in parts] == [8, 2]


@pytest.mark.parametrize("kind", [TRAIN, VAL, TEST])
def test_domain_of_one_given_split_is_split_at_random(kind):
    """In WILDS whole domains are for validation or for test; here --test-domain says which are held out."""
    parts = split_domain(make_domain([0] * 20, splits=[kind] * 20), 0, 0)
    assert [part.tolist() for part in parts] == [part.tolist() for part in split(20, 0, 0)]


@pytest.mark.parametrize("count", [2, 4, 5, 12])
@pytest.mark.parametrize("options", [{}, {"stratified": True}, {"groups": "one"}])
def test_a_held_out_domain_may_be_smaller_than_a_training_domain(count, options):
    options = {**options, **({"groups": [7] * count} if "groups" in options else {})}
    domain = make_domain([n % 2 for n in range(count)], **options)
    parts = split_domain(domain, 0, 0, is_trained=False)
    check_partition(parts, count)
    assert len(parts[1]) == max(int(count * HOLDOUT), 1)
    if count < 5 or "groups" in options:
        with pytest.raises(DataError):
            split_domain(domain, 0, 0)
