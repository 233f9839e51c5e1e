"""Transfer: features on which no classifier near the trained one separates the domains."""

from dataclasses import dataclass

from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, Power, Uniform, hyper
from pogm.core.model import Model, over_samples
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_step
from pogm.core.optimizers import SGD, Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class Transfer(Algorithm):
    r"""Transfer (Zhang et al., NeurIPS 2021, Algorithm 1): decrease the largest gap of risks near the classifier.

    .. math:: \min_{\phi, g} \tfrac1K \sum_k L_k(g \circ \phi), \qquad
        \min_\phi \max_{\lVert h - g \rVert \le \delta} \lambda \Big(
        \max_k L_k(h \circ \phi) - \min_k L_k(h \circ \phi) \Big)

    A step has three parts, all with the same minibatch: (1) the featurizer φ and the classifier g minimise the mean
    risk; (2) φ minimises the gap of the adversary h; (3) h starts at g and takes ``ascent_steps`` steps of SGD that
    increase the gap, each followed by a projection to the ball of radius δ around g. With λ = 0 this is ERM, except
    that Adam also updates φ with a gradient of zero. Differences from DomainBed: part 3 computes the features once; in
    parts 2 and 3 all domains share one forward pass, which matters for batch norm that is not frozen; part 2 does not
    change g (there, this depends on the version of torch); ``gda`` trains φ and g by SGD (there, it trains only h, by a
    mistake, and its random search always sets it, so that nothing is learned). DomainBed also draws ``weight_decay_d``
    and ``beta1``, which have no effect.

    Args:
        penalty: Weight λ of the gap.
        radius: Radius δ of the ball around the classifier.
        ascent_steps: Number of steps of the adversary.
        lr_d: Learning rate of the adversary.
        gda: Whether to train by SGD without weight decay instead of Adam (gradient descent ascent).
    """

    penalty: float = hyper(1.0, Power(10, -2, 1), least=0, draw_as="t_lambda")  # λ
    radius: float = hyper(2.0, Uniform(0.1, 3.0), least=0, draw_as="delta")  # δ
    ascent_steps: int = hyper(10, Choice(1, 2, 5), least=1, most=1000, draw_as="d_steps_per_g")
    lr_d: float = hyper(1e-3, Power(10, -4.5, -2.5), above=0)
    gda: bool = hyper(False)

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return an optimizer for the featurizer and one for the classifier."""
        each: Optimizer = SGD(lr) if self.gda else Adam(lr, weight_decay)
        return OptimizerGroups(
            features=OptimizerGroup(("features.",), each), classifier=OptimizerGroup(("head.",), each)
        )

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return a state with the weights of the classifier as those of the adversary."""
        adversary = {name: leaf.clone() for name, leaf in params.items() if name.startswith("head.")}
        return super().start(params, buffers, key, problem)._replace(memory=adversary)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Minimise the mean risk, then the gap of the adversary; then increase the gap."""
        (batch,) = batches
        keys = [self.random_key(state, update) for update in range(3)]

        def risk(model: Model) -> Loss:
            return Loss(model.risks(batch).mean())

        def adversary_gap(model: Model) -> Loss:
            adversary = problem.model({**model.params, **state.memory}, state._replace(key=keys[1]))
            adversary.buffers = model.buffers  # of one pass: batch norm updates them
            return Loss(self.penalty * gap(adversary, over_samples(adversary.features, batch.x), batch.y))

        updated, classified = group_step(("features", "classifier"), risk, state, problem, keys[0])
        updated, separated = group_step(("features",), adversary_gap, updated, problem, keys[1])

        keyed = updated._replace(key=keys[2])
        z = over_samples(problem.model(updated.params, keyed).features, batch.x).detach()
        centre = {name: updated.params[name] for name in state.memory}  # g

        def negative_gap(weights: Params) -> Loss:
            model = problem.model({**updated.params, **weights}, keyed)
            return Loss(-self.penalty * gap(model, z, batch.y))

        adversary = centre
        for _ in range(self.ascent_steps):
            slope, _ = problem.gradient(negative_gap)(adversary)
            adversary = project(trees.move(adversary, slope, -self.lr_d), centre, self.radius)
        metrics = {"loss": classified.value, "risk_gap": separated.value}
        return updated._replace(memory=adversary, step=state.step + 1), metrics


def gap(model: Model, z: Tensor, y: Tensor) -> Tensor:
    """Return the largest minus the smallest risk of a domain; z is [K, B, n]."""
    risks = model.loss(over_samples(model.head, z), y).mean(1)
    return risks.amax() - risks.amin()


def project(weights: Params, centre: Params, radius: Scalar) -> Params:
    """Return the nearest weights in a ball around the centre."""
    difference = trees.subtract(weights, centre)
    length = trees.dot(difference, difference).sqrt()
    result: Params = trees.move(centre, difference, (radius / length.clamp(min=1e-30)).clamp(max=1))
    return result
