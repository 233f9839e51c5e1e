"""DANN: domain-adversarial training."""

from dataclasses import dataclass

from pogm.algorithms.adversarial import Adversarial


@dataclass(frozen=True)
class DANN(Adversarial):
    r"""Domain-adversarial neural networks (Ganin et al., 2016): features that do not predict the domain.

    A discriminator D predicts the domain k from the features z; the featurizer φ and the classifier g work against it:

    .. math:: \min_D d, \qquad \min_{\phi, g} \tfrac1K \sum_k L_k - \lambda d, \qquad
        d = \tfrac1N \sum_j c_j + \rho \tfrac1N \sum_j \Big\| \nabla_{z_j} \sum_i c_i \Big\|^2, \qquad
        c_j = \ell(D(z_j), k_j)

    over the N = KB samples of a minibatch. As in DomainBed, the two are updated in turn, without a gradient-reversal
    layer, and the gradient penalty is part of d for both. Differences from DomainBed: the penalty is not computed if
    its weight is 0, and a step is a whole round of 1 + m minibatches, with one update of the generator and m of the
    discriminator. The tables of DomainBed of 2020 were made without the penalty, by a mistake in its code; to reproduce
    them, set ``gradient_penalty=0.0``. See `Adversarial` for the hyperparameters.
    """
