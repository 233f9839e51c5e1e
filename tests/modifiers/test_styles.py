"""Mixing of the styles of feature maps."""

import torch

from pogm.modifiers.styles import mix_styles

PARTNER = torch.tensor([2, 0, 1])


def maps(seed=0):
    return torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 1


def test_share_of_one_is_the_identity():
    torch.testing.assert_close(mix_styles(maps(), torch.ones(3), PARTNER), maps())


def test_share_of_zero_gives_the_style_of_the_partner():
    result, before = mix_styles(maps(), torch.zeros(3), PARTNER), maps()
    for image, partner in enumerate(PARTNER.tolist()):
        torch.testing.assert_close(result[image].mean((1, 2)), before[partner].mean((1, 2)))
        torch.testing.assert_close(result[image].std((1, 2)), before[partner].std((1, 2)), rtol=1e-5, atol=0)


def test_mixture_matches_the_equation():
    share = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    result, before = mix_styles(maps(), share, PARTNER), maps()
    for image, partner in enumerate(PARTNER.tolist()):
        for channel in range(2):
            own, other = before[image, channel], before[partner, channel]
            deviations = [(values.var() + 1e-6).sqrt() for values in (own, other)]
            mixed = share[image] * deviations[0] + (1 - share[image]) * deviations[1]
            mean = share[image] * own.mean() + (1 - share[image]) * other.mean()
            torch.testing.assert_close(result[image, channel], (own - own.mean()) / deviations[0] * mixed + mean)


def test_no_gradient_flows_through_the_style():
    share, before = torch.full((3,), 0.3, dtype=torch.float64), maps().requires_grad_()
    deviation = (before.detach().var((2, 3), keepdim=True) + 1e-6).sqrt()
    factor = (0.3 * deviation + 0.7 * deviation[PARTNER]) / deviation
    (gradient,) = torch.autograd.grad(mix_styles(before, share, PARTNER).sum(), before)
    torch.testing.assert_close(gradient, factor.expand_as(before))
