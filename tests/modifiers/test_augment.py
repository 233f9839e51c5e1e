"""Augment: RandAugment of large images, affine maps of small images."""

import pytest
import torch
from promises import accuracy, assert_batched_equals_single, assert_captured_equals_the_host, assert_resumes
from scipy.stats import kstest
from support import needs_gpu, no_synchronisation
from torchvision.transforms import InterpolationMode, functional

from pogm import ERM, POGM, Fish, Mixup
from pogm._system.errors import UsageError
from pogm.core import random
from pogm.core.batch import Batch
from pogm.data.transforms.photographs import DEVIATION, MEAN
from pogm.data.transforms.randaugment import randaugment
from pogm.modifiers.augment import Augment


def batch(*shape, seed=0, leading=(2, 3)):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(*leading, *shape, generator=generator, dtype=torch.float64)
    return Batch(x, torch.randint(4, leading, generator=generator))


def augmented(made, seed=0, **options):
    return Augment(**options).batch(made, random.key(seed), 4)


def test_small_images_are_transformed_as_by_torchvision():
    made = batch(1, 20, 20)
    numbers = 2 * random.uniform(random.key(0), (3, 2, 3)) - 1
    turned = augmented(made, shift=0.0)
    for k in range(2):
        for b in range(3):
            angle = 10 * float(numbers[0, k, b])
            expected = functional.affine(made.x[k, b], angle, [0, 0], 1.0, [0.0, 0.0], InterpolationMode.BILINEAR)
            torch.testing.assert_close(turned.x[k, b], expected, atol=1e-5, rtol=0)


def test_shifts_of_small_images_cover_the_allowed_range():
    """The shift is measured by the centre of mass of a blob."""
    blob = torch.zeros(1, 40, 20, dtype=torch.float64)
    blob[0, 16:24, 8:12] = 1
    made = Batch(blob.expand(1, 500, 1, 40, 20), torch.zeros(1, 500, dtype=torch.int64))
    after = augmented(made, degrees=0.0).x[0, :, 0]
    weight = after.sum((1, 2))
    for axis, size in ((1, 40), (2, 20)):
        position = (torch.arange(size) + 0.5 - size / 2).double()
        moved = (after.sum(3 - axis) * position).sum(1) / weight
        assert kstest(moved / size, "uniform", (-0.1, 0.2)).pvalue > 1e-3


def test_zero_degrees_and_zero_shift_are_the_identity():
    made = batch(2, 28, 28)
    torch.testing.assert_close(augmented(made, degrees=0.0, shift=0.0).x, made.x)


def test_small_images_keep_their_colours():
    """A red image stays without green, and both channels move together."""
    made = batch(2, 28, 28)
    red = made._replace(x=made.x * torch.tensor([1.0, 0.0]).view(2, 1, 1))
    after = augmented(red)
    assert not after.x[:, :, 1].any()
    torch.testing.assert_close(after.x[:, :, 0], augmented(made).x[:, :, 0])


def test_large_images_get_randaugment_on_pixels():
    mean, deviation = (torch.tensor(part, dtype=torch.float64).view(3, 1, 1) for part in (MEAN, DEVIATION))
    made = batch(3, 70, 70)
    after = augmented(made._replace(x=(made.x - mean) / deviation))
    expected = randaugment(made.x, random.key(0), 2, 9)
    torch.testing.assert_close(after.x * deviation + mean, expected)
    assert not torch.allclose(expected, made.x)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 70, 70)])
def test_labels_do_not_change_and_images_are_augmented_independently(shape):
    one = batch(*shape, leading=(1, 1))
    made = Batch(one.x.expand(2, 3, *shape), torch.arange(6).view(2, 3))
    after = augmented(made)
    assert torch.equal(after.y, made.y)
    assert len(after.x.flatten(0, 1).unique(dim=0)) >= 5
    assert not torch.equal(after.x, augmented(made, seed=1).x)
    assert torch.equal(after.x, augmented(made).x)


@pytest.mark.parametrize("algorithm", [ERM(), POGM(), Fish()], ids=lambda a: type(a).__name__)
def test_batched_trials_equal_single_trials(algorithm):
    assert_batched_equals_single(algorithm, Augment(), Mixup(), network="mlp")


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(POGM(), Augment(), Mixup(), network="mlp")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("algorithm", [ERM(), POGM()], ids=lambda a: type(a).__name__)
def test_captured_steps_equal_steps_on_the_cpu(algorithm):
    assert_captured_equals_the_host(algorithm, Augment(), network="mlp")


@pytest.mark.gpu
@needs_gpu
def test_large_images_on_a_gpu_equal_the_cpu_without_synchronisation():
    made = batch(3, 96, 96)
    there = Batch(made.x.cuda(), made.y.cuda())
    key = random.key(0, "cuda")
    Augment().batch(there, key, 4)
    with no_synchronisation():
        found = Augment().batch(there, key, 4).x
    off = (found.cpu() - augmented(made).x).abs() > 1e-6  # a point between two pixels may round to either
    assert off.double().mean() < 1e-3


def test_accuracy_is_above_chance():
    assert accuracy(ERM(), Augment(), network="mlp", batch_size=32, lr=3e-3) > 0.5


def test_data_that_are_not_images_raise():
    with pytest.raises(UsageError, match="images"):
        augmented(Batch(torch.zeros(2, 3, 4), torch.zeros(2, 3)))
