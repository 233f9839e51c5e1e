"""MixStyle: mix the styles of early feature maps between images."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.core.hyperparameters import Choice, Large, hyper
from pogm.core.model import Network
from pogm.core.random_layers import RandomLayer
from pogm.modifiers.base import Modifier, add_part
from pogm.modifiers.styles import mix_styles


@dataclass(frozen=True)
class MixStyle(Modifier):
    r"""MixStyle (Zhou et al., 2021): mix the channel statistics of early feature maps between images.

    .. math:: h \leftarrow \frac{h - \mu}{\sigma} \bigl(\lambda \sigma + (1 - \lambda) \sigma_q\bigr)
            + \lambda \mu + (1 - \lambda) \mu_q, \qquad \lambda \sim \operatorname{Beta}(a, a)

    The style is the mean μ and the standard deviation σ of each channel over positions; no gradient flows through it.
    The partner q of an image is another image of the same forward pass, by a random permutation. This is the random
    mixing of the paper, which needs no domain labels; its cross-domain mixing is not implemented. A pass over all
    domains mixes styles between domains; methods with one pass per domain (POGM, Fish, MLDG and others) mix styles
    within a domain. Each block mixes with probability p, decided once per pass. Prediction is not changed.

    The authors mix after the first three blocks of a ResNet (the first two on OfficeHome). They have no small images;
    there we mix after the first two blocks.

    Args:
        probability: Probability p that a block mixes.
        alpha: Parameter a of the Beta distribution.
        blocks: Number of blocks after which styles are mixed, from the first on.
    """

    needs_network: ClassVar[str] = "a network with blocks of feature maps"
    parallel_axes: ClassVar[tuple[str, ...]] = ("domains",)  # not samples: an image needs its partner

    probability: float = hyper(0.5, Choice(0.25, 0.5), least=0, most=1, draw_as="mixstyle_p")  # p
    alpha: float = hyper(0.1, Choice(0.1, 0.2, 0.3), above=0, draw_as="mixstyle_alpha")  # a
    blocks: int = hyper(2, large=Large(3), least=1, most=100)

    def network(self, network: Network) -> Network:
        """Add a mixing layer after each of the first blocks; the names of the weights do not change."""
        found = [module for module in network.modules() if isinstance(getattr(module, "blocks", None), tuple)]
        if not found:
            raise UsageError(
                "Expected a network that names its blocks of feature maps for MixStyle; found one that does not. "
                "Choose mnist_cnn, resnet18, resnet50 or mobilenet_v2, or leave MixStyle out."
            )
        names: tuple[str, ...] = getattr(found[0], "blocks")  # noqa: B009  (torch types an attribute as a module)
        if len(names) < self.blocks:
            raise UsageError(
                f"Expected MixStyle.blocks to be at most the network's {len(names)}; found {self.blocks}. Set it lower."
            )
        device = next(network.parameters()).device
        for index, name in enumerate(names[: self.blocks]):
            layer = StyleMixing(self.probability, self.alpha).to(device)
            add_part(network, f"mixstyle{index}", layer)  # a random layer of the network gets a key
            found[0].get_submodule(name).register_forward_hook(layer.after)
        return network


class StyleMixing(RandomLayer):
    """Mixes the styles of a pass. Its parameters are buffers, so that trials with different values can be batched."""

    probability: Tensor
    alpha: Tensor

    def __init__(self, probability: float, alpha: float):
        super().__init__()
        self.register_buffer("probability", torch.tensor(probability, dtype=torch.float64), persistent=False)
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64), persistent=False)

    def after(self, block: nn.Module, inputs: tuple[Tensor, ...], maps: Tensor) -> Tensor:
        """Return the mixed maps of a block (forward hook)."""
        mixed: Tensor = self(maps)
        return mixed

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps [N, C, H, W], mixed with probability p in training and unchanged in evaluation."""
        if not self.training:
            return maps
        if maps.ndim != 4 or maps.shape[-2] * maps.shape[-1] < 2:
            raise UsageError(
                "Expected feature maps [N, C, H, W] of two positions or more for MixStyle; found "
                f"{list(maps.shape)}. Mix after fewer blocks, or leave MixStyle out."
            )
        count = maps.shape[0]
        partner = random.permutation(random.fold(self.key, 0), count)  # q
        share = random.beta(random.fold(self.key, 1), self.alpha.double(), (count,))  # λ
        mixes = random.uniform(random.fold(self.key, 2), ()) < self.probability

        return torch.where(mixes, mix_styles(maps, share, partner), maps)
