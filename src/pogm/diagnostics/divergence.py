"""How far apart the domains' hypotheses are: the term of Theorem 3 that training can lower."""

import torch
from torch import Tensor

from pogm.algorithms.copies import Copies
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.modes import evaluating
from pogm.core.trees import Params
from pogm.diagnostics.round import Round


def divergences(copies: Copies, seen: Round) -> Tensor:
    """KL[p_i(y|x) ‖ p_j(y|x)], x the last minibatch of domain i, p_i the prediction of its copy θ_i: [K, K]."""
    problem, before, by = seen.problem, seen.before, seen.algorithm.predicts_by
    images = seen.batches[-1].x  # [K, B, ...]

    def predicted(_: list[Batch], trajectory: Params, live: Params) -> Tensor:
        state = before._replace(buffers=before.buffers | live)
        model = problem.model(trees.add(before.params, trajectory), state)  # θ_j
        parts = [x.split(by) if by else [x] for x in images]
        logits = [torch.cat([seen.algorithm.predict(model, part) for part in x]) for x in parts]
        return torch.stack(logits).double().log_softmax(-1)  # [K, B, C]

    with evaluating(problem.network):
        logs = problem.each_domain(predicted, seen.batches, copies.trajectories, copies.buffers)  # [copy, domain, B, C]
    own = torch.stack([logs[i, i] for i in range(len(images))])  # log p_i on domain i
    divergence: Tensor = (own.exp() * (own - logs)).sum(-1).mean(-1)  # [copy j, domain i]
    return divergence.T
