"""Mixing of the styles of feature maps, for MixStyle and ITTA."""

import torch
from torch import Tensor

EPS = 1e-6  # added to the variance


def mix_styles(maps: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    r"""Return feature maps [N, C, H, W] with a mixture of their style and that of their partners.

    .. math:: \frac{h - \mu}{\sigma} (\lambda \sigma + (1 - \lambda) \sigma_q) + \lambda \mu + (1 - \lambda) \mu_q

    The style is the mean μ and the standard deviation σ of each channel over positions. No gradient flows through it.

    Args:
        maps: Feature maps h.
        share: λ, [N].
        partner: Index q of the partner of each image, [N].
    """
    wide = maps.to(torch.promote_types(maps.dtype, torch.float32))  # bfloat16 is too coarse for a variance
    constant = wide.detach()
    mean = constant.mean((2, 3), keepdim=True)
    deviation = (constant.var((2, 3), keepdim=True) + EPS).sqrt()
    weight = share.to(wide.dtype).reshape(-1, 1, 1, 1)

    def mix(style: Tensor) -> Tensor:
        return weight * style + (1 - weight) * style[partner]

    return ((wide - mean) / deviation * mix(deviation) + mix(mean)).to(maps.dtype)
