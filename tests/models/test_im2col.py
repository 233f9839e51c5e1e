"""A convolution of few channels as a product of matrices."""

import pytest
import torch

from pogm.models.im2col import FewChannels


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_product_is_the_convolution_and_so_are_its_gradients(channels, stride):
    torch.manual_seed(0)
    layer = FewChannels(channels, 8, 3, stride, padding=1).double()
    x = torch.randn(4, channels, 7, 9, dtype=torch.float64)
    convolved, multiplied = layer(x), layer.by_product(x)
    torch.testing.assert_close(multiplied, convolved, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(convolved)
    slopes = [torch.autograd.grad((y * weights).sum(), (layer.weight, layer.bias)) for y in (convolved, multiplied)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-12, atol=1e-12)


def test_what_comes_out_has_its_channels_last():
    out = FewChannels(2, 8, 3, padding=1).by_product(torch.randn(4, 2, 6, 6))
    assert out.is_contiguous(memory_format=torch.channels_last)
