"""Domain-adversarial training."""

from dataclasses import dataclass

from pogm.algorithms.adversarial import Adversarial


@dataclass(frozen=True)
class DANN(Adversarial):
    r"""Domain-adversarial neural networks (Ganin et al., 2016): features that do not tell which domain they are of.

    A discriminator D names the domain k of features z; the featurizer and the classifier play against it,

    .. math:: \min_D d, \qquad \min_{\phi, g} \tfrac1K \sum_k L_k - \lambda d, \qquad
        d = \tfrac1N \sum_j c_j + \rho \tfrac1N \sum_j \Big\| \nabla_{z_j} \sum_i c_i \Big\|^2, \qquad
        c_j = \ell(D(z_j), k_j)

    over the N = KB samples of a minibatch. As in DomainBed they take turns, without a gradient-reversal layer, and the
    gradient penalty (:math:`\rho`) is part of d for both. Unlike there, it is not computed where its weight is 0, and
    a step is a whole round of the game: 1 + m minibatches, one move of the generator and m of the discriminator.
    DomainBed's tables of 2020 were made with a penalty that was always 0, by mistake: ``gradient_penalty=0.0``.
    """
