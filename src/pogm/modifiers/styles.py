"""Styles of feature maps: their mean and deviation over positions, channel by channel."""

import torch
from torch import Tensor

EPS = 1e-6  # to the variance


def restyled(maps: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    r"""Feature maps [N, C, H, W] in a mixture of their own style and that of their partners.

    .. math:: \frac{h - \mu}{\sigma} (\lambda \sigma + (1 - \lambda) \sigma_q) + \lambda \mu + (1 - \lambda) \mu_q

    ``share`` is λ, [N]; ``partner`` is q, [N]. Styles count as constants: no gradient flows through them.
    """
    wide = maps.to(torch.promote_types(maps.dtype, torch.float32))  # bfloat16 has too few digits for a variance
    constant = wide.detach()
    mean = constant.mean((2, 3), keepdim=True)
    deviation = (constant.var((2, 3), keepdim=True) + EPS).sqrt()
    weight = share.to(wide.dtype).reshape(-1, 1, 1, 1)

    def mixed(style: Tensor) -> Tensor:
        return weight * style + (1 - weight) * style[partner]

    return ((wide - mean) / deviation * mixed(deviation) + mixed(mean)).to(maps.dtype)
