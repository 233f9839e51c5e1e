"""Compare the transform of large images with torchvision and Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest, ks_2samp
from support import needs_gpu, no_synchronisation
from torch.func import vmap
from torch.testing import assert_close
from torchvision import transforms
from torchvision.transforms import functional

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.data.transforms import photographs
from pogm.data.transforms.base import Pixels
from pogm.data.transforms.crop import draw_crop_boxes
from pogm.data.transforms.photographs import DEVIATION, MEAN, Photographs, is_large, to_inputs, to_pixels

NORMALIZE = transforms.Normalize(MEAN, DEVIATION)
SMALL = Photographs((3, 12, 12))


def draw(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def repeat_size(size, *leading):
    return torch.tensor(size).expand(*leading, 2)


def denormalise(outputs):
    """Return outputs as they were before the normalisation."""
    mean, deviation = (torch.tensor(values, dtype=outputs.dtype).reshape(3, 1, 1) for values in (MEAN, DEVIATION))
    return outputs * deviation + mean


@pytest.mark.parametrize("size", [(256, 256), (180, 330)])
def test_plain_equals_pillow_up_to_one_level(size):
    smooth = torch.nn.functional.interpolate(draw(1, 3, 9, 9).float(), size=size, mode="bicubic").clamp(0, 255).byte()
    for image in (smooth, draw(1, 3, *size)):
        picture = Image.fromarray(image[0].permute(1, 2, 0).numpy()).resize((224, 224), Image.Resampling.BILINEAR)
        theirs = torch.from_numpy(np.array(picture)).permute(2, 0, 1).double()
        ours = 255 * denormalise(Photographs().to_inputs(image, torch.float64)[0])
        assert (ours - theirs).abs().max() <= 1 + 1e-9  # Pillow rounds rows, then columns


def test_plain_equals_torchvision_resize_and_normalize():
    images = draw(2, 3, 40, 60)
    theirs = NORMALIZE(functional.resize(images.double() / 255, [12, 12], antialias=True))
    assert_close(SMALL.to_inputs(images, torch.float64), theirs, atol=1e-12, rtol=0)
    assert_close(SMALL.to_inputs(images, torch.float32), theirs.float(), atol=1e-5, rtol=0)


def test_outputs_have_requested_dtype_and_shape():
    images, key = draw(2, 5, 3, 20, 30), random.key(0)
    reference = SMALL.to_augmented_inputs(images, repeat_size((40, 60), 2, 5), key, torch.float64)
    for dtype, tolerance in ((torch.float64, 0), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        outputs = (
            SMALL.to_augmented_inputs(images, repeat_size((40, 60), 2, 5), key, dtype),
            SMALL.to_inputs(images, dtype),
        )
        assert all(output.dtype == dtype and output.shape == (2, 5, *SMALL.shape) for output in outputs)
        assert_close(outputs[0].double(), reference, atol=tolerance, rtol=0)


def test_augmented_without_jitter_equals_torchvision(monkeypatch):
    monkeypatch.setattr(photographs, "apply_jitter", lambda images, *_: images)
    count = 60
    images, sizes, key = draw(count, 3, 30, 40), repeat_size((30, 40), count), random.key(1)
    boxes = []
    monkeypatch.setattr(
        photographs, "draw_crop_boxes", lambda *given: boxes.append(draw_crop_boxes(*given)) or boxes[0]
    )
    outputs = SMALL.to_augmented_inputs(images, sizes, key, torch.float64)
    kinds = set()
    for ours, image, box in zip(outputs, images, boxes[0].int().tolist(), strict=True):
        part = functional.resized_crop(image.double() / 255, *box, [12, 12], antialias=True)
        flips = {"as it is": part, "flipped": part.flip(-1)}
        greys = {f"{name} and grey": functional.rgb_to_grayscale(view, 3) for name, view in flips.items()}
        alike = [name for name, view in (flips | greys).items() if (NORMALIZE(view) - ours).abs().max() < 1e-9]
        assert len(alike) == 1
        kinds.add(alike[0])
    assert len(kinds) == 4


def test_boxes_are_scaled_from_original_to_stored_image(monkeypatch):
    """An original image of 60 × 20 is stored as 30 × 40."""
    monkeypatch.setattr(photographs, "apply_jitter", lambda images, *_: images)
    monkeypatch.setattr(photographs, "draw_crop_boxes", lambda *_: torch.tensor([[10.0, 4.0, 40.0, 15.0]]).double())
    monkeypatch.setattr(photographs, "FLIPPED", 0.0)
    monkeypatch.setattr(photographs, "GREYED", 0.0)
    image = draw(1, 3, 30, 40)
    theirs = NORMALIZE(functional.resized_crop(image.double() / 255, 5, 8, 20, 30, [12, 12], antialias=True))
    assert_close(
        SMALL.to_augmented_inputs(image, repeat_size((60, 20), 1), random.key(0), torch.float64),
        theirs,
        atol=1e-9,
        rtol=0,
    )


def test_output_distribution_equals_torchvision():
    count = 600
    image = torch.nn.functional.interpolate(draw(1, 3, 4, 4, seed=3).float(), size=(24, 32), mode="bilinear").byte()
    theirs = transforms.Compose(
        [
            transforms.RandomResizedCrop(12, scale=(0.7, 1.0), antialias=True),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            NORMALIZE,
        ]
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = torch.stack([theirs(image[0].float() / 255) for _ in range(count)])
    found = SMALL.to_augmented_inputs(
        image.expand(count, 3, 24, 32), repeat_size((24, 32), count), random.key(0), torch.float32
    )
    measures = {
        "mean": lambda x: x.mean((-2, -1)),
        "contrast": lambda x: x.std((-2, -1)),
        "left to right": lambda x: x[..., 6:].mean((-2, -1)) - x[..., :6].mean((-2, -1)),
        "top to bottom": lambda x: x[..., 6:, :].mean((-2, -1)) - x[..., :6, :].mean((-2, -1)),
        "colour": lambda x: (x - x.roll(1, -3)).abs().mean((-2, -1)),
    }
    for name, measure in measures.items():
        for channel in range(3):
            ours, other = measure(found)[:, channel], measure(expected)[:, channel]
            assert ks_2samp(ours, other).pvalue > 1e-3, name


def test_flip_and_greyscale_probabilities():
    count = 3000
    image = torch.tensor([200, 100, 40], dtype=torch.uint8).reshape(3, 1, 1).repeat(1, 8, 8)
    image[..., 4:] //= 2
    found = denormalise(
        Photographs((3, 6, 6)).to_augmented_inputs(
            image.expand(count, 3, 8, 8), repeat_size((8, 8), count), random.key(0), torch.float32
        )
    )
    flipped = found[..., 3:].sum((1, 2, 3)) > found[..., :3].sum((1, 2, 3))
    grey = (found.amax(1) - found.amin(1)).amax((1, 2)) < 1e-5
    assert binomtest(int(flipped.sum()), count, 0.5).pvalue > 1e-3
    assert binomtest(int(grey.sum()), count, 0.1).pvalue > 1e-3
    assert binomtest(int((flipped & grey).sum()), count, 0.05).pvalue > 1e-3


def test_draws_use_different_keys(monkeypatch):
    keys = []
    uniform = random.uniform
    monkeypatch.setattr(random, "uniform", lambda key, shape: keys.append(key.item()) or uniform(key, shape))
    SMALL.to_augmented_inputs(draw(2, 3, 20, 20), repeat_size((20, 20), 2), random.key(0), torch.float32)
    assert len(keys) == len(set(keys)) == 3


def test_same_key_gives_same_images():
    images, sizes = draw(4, 3, 20, 30), repeat_size((40, 60), 4)
    first, again, other = (
        SMALL.to_augmented_inputs(images, sizes, random.key(seed), torch.float32) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert ((first - other).abs().amax((1, 2, 3)) > 1e-2).all()


def test_result_does_not_depend_on_cpu_batch_size(monkeypatch):
    given = draw(7, 3, 20, 30), repeat_size((40, 60), 7), random.key(1), torch.float32
    few = SMALL.to_augmented_inputs(*given)
    monkeypatch.setattr(photographs, "CPU_BATCH", 100)
    assert_close(SMALL.to_augmented_inputs(*given), few, atol=1e-6, rtol=0)


def test_leading_axes_and_vmap_give_same_result():
    images, sizes, key = draw(2, 3, 3, 20, 30), torch.arange(10, 22).reshape(2, 3, 2), random.key(1)

    def augment(images, sizes, key):
        return SMALL.to_augmented_inputs(images, sizes, key, torch.float64)

    flat = augment(images.flatten(0, 1), sizes.flatten(0, 1), key)
    assert_close(augment(images, sizes, key).flatten(0, 1), flat, atol=1e-12, rtol=0)
    keys = random.split(key, 2)
    one_by_one = torch.stack([augment(*each) for each in zip(images, sizes, keys, strict=True)])
    assert_close(vmap(augment)(images, sizes, keys), one_by_one, atol=1e-12, rtol=0)
    assert_close(
        vmap(lambda x: SMALL.to_inputs(x, torch.float64))(images),
        SMALL.to_inputs(images, torch.float64),
        atol=1e-12,
        rtol=0,
    )


@pytest.mark.parametrize("shape", [(1, 224, 224), (3, 224, 200)])
def test_invalid_shapes_are_refused(shape):
    with pytest.raises(UsageError, match=r"Expected photographs of three channels.*found the shape"):
        Photographs(shape)


@pytest.mark.gpu
@needs_gpu
def test_gpu_capture_without_synchronisation_equals_cpu():
    torch.backends.cuda.matmul.allow_tf32 = False  # an earlier session may have allowed it
    images, sizes, key = draw(2, 8, 3, 64, 80), repeat_size((300, 400), 2, 8), random.key(1)
    transform = Photographs((3, 56, 56))

    def both(images, sizes, key):
        return transform.to_augmented_inputs(images, sizes, key, torch.float32), transform.to_inputs(
            images, torch.float32
        )

    on_gpu = [tensor.cuda() for tensor in (images, sizes, key)]
    both(*on_gpu)  # the first call sets up libraries
    with no_synchronisation():
        found = both(*on_gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(*on_gpu)
    on_gpu[2].copy_(random.key(2))
    graph.replay()
    for ours, theirs in zip(found, both(images, sizes, key), strict=True):
        assert_close(ours.cpu(), theirs, atol=1e-4, rtol=0)
    for ours, theirs in zip(captured, both(images, sizes, random.key(2)), strict=True):
        assert_close(ours.cpu(), theirs, atol=1e-4, rtol=0)


def test_training_images_are_augmented_by_default():
    images, sizes = draw(5, 3, 20, 20), torch.full((5, 2), 40)
    key, on, off = random.key(4), Photographs((3, 16, 16)), Photographs((3, 16, 16), augment=False)
    assert torch.equal(
        on.for_training(images, sizes, key, torch.float32), on.to_augmented_inputs(images, sizes, key, torch.float32)
    )
    assert torch.equal(off.for_training(images, sizes, key, torch.float32), off.to_inputs(images, torch.float32))


def test_evaluation_augments_only_training_domains():
    images, sizes, trained = draw(4, 3, 20, 20), torch.full((4, 2), 40), torch.tensor([True, False, True, False])
    key, on = random.key(4), Photographs((3, 16, 16))
    plain, augmented = on.to_inputs(images, torch.float32), on.to_augmented_inputs(images, sizes, key, torch.float32)
    seen = on.for_evaluation(images, sizes, key, torch.float32, trained)
    assert torch.equal(seen[trained], augmented[trained])
    assert torch.equal(seen[~trained], plain[~trained])
    assert torch.equal(on.for_evaluation(images, sizes, key, torch.float32, True), augmented)
    assert torch.equal(on.for_evaluation(images, sizes, key, torch.float32, False), plain)
    for off in (Photographs((3, 16, 16), augment=False), Photographs((3, 16, 16), augment_evaluation=False)):
        assert torch.equal(off.for_evaluation(images, sizes, key, torch.float32, trained), plain)


def test_part_of_minibatch_equals_whole():
    images, sizes, key = draw(3, 4, 3, 20, 24), repeat_size((20, 24), 3, 4), random.key(5)
    whole = SMALL.to_augmented_inputs(images, sizes, key, torch.float64)
    for part in ((slice(1, 3), slice(None)), (slice(None), slice(2, 4)), (slice(0, 1), slice(1, 3))):
        assert_close(
            SMALL.to_augmented_inputs(images[part], sizes, key, torch.float64, part), whole[part], atol=0, rtol=0
        )


BYTES = torch.randint(256, (2, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_to_pixels_and_to_inputs_are_inverse():
    inputs = Photographs((3, 96, 96)).to_inputs(BYTES, torch.float64)
    torch.testing.assert_close(to_pixels(inputs), BYTES.double() / 255)
    torch.testing.assert_close(to_inputs(to_pixels(inputs)), inputs)


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 28, 28), (3, 64, 64), (1, 224, 224)])
def test_small_images_are_not_converted(shape):
    inputs = Pixels(shape).to_inputs(torch.full((2, *shape), 51, dtype=torch.uint8), torch.float64)
    assert not is_large(inputs)
    assert to_pixels(inputs) is inputs
    assert to_inputs(inputs) is inputs


def test_images_are_normalised_with_the_statistics_of_imagenet():
    black, white = (
        Photographs((3, 8, 8)).to_inputs(torch.full((3, 8, 8), v, dtype=torch.uint8), torch.float64) for v in (0, 255)
    )
    expected = torch.tensor(
        [[-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225]]
    )
    assert_close(torch.stack([black.mean((1, 2)), white.mean((1, 2))]), expected.double())
