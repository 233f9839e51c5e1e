"""CausIRL with CORAL."""

import torch
from support import K, batches, toy

from pogm.algorithms.caus_irl import split_samples
from pogm.algorithms.caus_irl_coral import CausIRLCORAL


def test_loss_is_mean_risk_plus_distance_of_the_moments_of_both_groups():
    method = CausIRLCORAL(penalty=3.0)
    state, problem = toy(method)
    (batch,) = batches()
    model = problem.model(state.params, state)
    sizes = split_samples(method.random_key(state), *batch.y.shape).sum(1).tolist()
    z = [model.features(x) for x in batch.x]
    first = torch.cat([z[k][: sizes[k]] for k in range(K)])
    second = torch.cat([z[k][sizes[k] :] for k in range(K)])
    means = (first.mean(0) - second.mean(0)).square().mean()
    covariances = (torch.cov(first.T) - torch.cov(second.T)).square().mean()
    loss = method.loss(model, batch, state)
    torch.testing.assert_close(loss.metrics["penalty"], means + covariances)
    torch.testing.assert_close(loss.value, model.risks(batch).mean() + 3 * (means + covariances))


def test_known_value():
    """Means 1 and 4, variances 2 and 8 give 3² + 6². The order of the samples does not matter."""
    z = torch.tensor([[0.0], [2.0], [2.0], [6.0]])
    masks = torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1]])
    assert CausIRLCORAL().distance(z[[0, 2, 1, 3]], masks).item() == 45
