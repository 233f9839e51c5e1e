"""T3A: a classifier that is adjusted to the test images without training."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.model import Model, Network
from pogm.modifiers.base import ONLINE, Modifier, Predictor


@dataclass(frozen=True)
class T3A(Modifier):
    r"""Test-time classifier adjuster (Iwasawa and Matsuo, 2021): classify by prototypes that test images adjust.

    .. math:: \hat y = \arg\max_c \langle z, w_c \rangle, \qquad
        w_c = \frac{\sum_{s \in S_c} s / \|s\|}{\big\| \sum_{s \in S_c} s / \|s\| \big\|}

    z are the features of a test image. The set :math:`S_c` has the features that the trained classifier predicts as
    class c: first the rows of its own weight matrix, then the features of all test images so far, also of this batch.
    Of these, the ``supports`` with the lowest entropy of the trained classifier's prediction stay. Training does not
    change. The sets are reset for each domain and split. A class without support has the logit 0, as in the authors'
    code. The authors predict batches of 32 to 64 images; here a batch has 64. The head must be linear. The authors
    search M among six values; the default is our choice among them. Their value for all features, −1, removes the
    feature with the highest entropy from each class after every batch, by a mistake; 0 keeps all.

    Args:
        supports: Largest number M of features of a class; 0 for all of them.
    """

    supports: int = hyper(20, Choice(1, 5, 20, 50, 100, 0), least=0, draw_as="filter_K")  # M

    needs_classes: ClassVar[bool] = True
    needs_network: ClassVar[str] = "a linear head"
    prediction_batch_size: ClassVar[int] = 64
    sees_at_test: ClassVar[str] = ONLINE
    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")
    changes_training: ClassVar[bool] = False

    def network(self, network: Network) -> Network:
        """Check that the network predicts with a linear head on the features alone."""
        linear = isinstance(getattr(network, "head", None), nn.Linear) and type(network).forward is Network.forward
        if not linear or hasattr(network.features, "context"):
            raise UsageError(
                "Expected a linear head on the features of each image alone, for T3A; found a head or a featurizer of "
                "another kind. Choose another algorithm, set nonlinear_classifier=false, or leave T3A out."
            )
        return network

    def predictor(self, predict: Predictor, model: Model) -> Predictor:
        """Return a predictor that adds the features of each batch to the supports before it predicts them."""
        return Prototypes(self.supports, model)


class Prototypes:
    """Predictor for the images of one domain and split, with the supports of all classes."""

    def __init__(self, most: int, model: Model):
        self.most, self.model = most, model
        rows = model.params["head.weight"]  # [C, n]
        self.classes = torch.arange(len(rows), device=rows.device)
        self.sums = torch.zeros_like(rows)  # Σ s/‖s‖ of each class, if all supports are kept
        self.supports = rows.new_zeros((len(rows), most, rows.shape[1]))  # [C, M, n]
        self.entropies = torch.full_like(self.supports[..., 0], torch.inf)  # [C, M]; infinite: no support
        self._add(rows, model.head(rows))

    def __call__(self, x: Tensor) -> Tensor:
        """Add the images to the supports, then return their logits."""
        z = self.model.features(x)
        self._add(z, self.model.head(z))
        return z @ self.prototypes().T.to(z.dtype)

    def prototypes(self) -> Tensor:
        """Return the prototype w_c of each class: [C, n]."""
        sums = self.sums
        if self.most:
            sums = torch.where(self.entropies.isfinite().unsqueeze(-1), F.normalize(self.supports, dim=-1), 0.0).sum(1)
        return F.normalize(sums, dim=-1)

    def _add(self, z: Tensor, logits: Tensor) -> None:
        """Add features [B, n] to the supports of their predicted classes; keep the M with the lowest entropy."""
        z, logs = z.to(self.supports.dtype), logits.log_softmax(-1).to(self.supports.dtype)
        member = logits.argmax(-1) == self.classes.unsqueeze(-1)  # [C, B]
        if not self.most:
            self.sums = self.sums + member.to(z.dtype) @ F.normalize(z, dim=-1)
            return
        entropy = -(logs.exp() * logs).sum(-1)  # [B]
        candidates = torch.cat([self.entropies, torch.where(member, entropy, torch.inf)], 1)  # [C, M + B]
        self.entropies, chosen = candidates.topk(self.most, dim=1, largest=False)
        kept, new = chosen.clamp(max=self.most - 1), (chosen - self.most).clamp(min=0)
        old = self.supports.gather(1, kept.unsqueeze(-1).expand(-1, -1, z.shape[1]))
        fresh = z[new.flatten()].reshape(*new.shape, -1)
        self.supports = torch.where((chosen < self.most).unsqueeze(-1), old, fresh)
