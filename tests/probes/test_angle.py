"""The angle probe."""

import pytest
import torch
from support import K, assert_close, batches, toy, trial

from pogm import ERM, POGM, Fish, Fishr
from pogm.core import trees
from pogm.engine.session import Engine, Session
from pogm.probes.angle import AngleProbe, cosines


def test_it_is_the_cosine_of_the_step_and_each_domains_own():
    state, problem = toy(ERM())
    (batch,) = batches()
    after, _ = ERM().step(state, [batch], problem)
    probe = AngleProbe()
    _, measured = probe.measure(probe.start(state, problem), state, after, [batch], problem)
    step = torch.cat([(after.params[n] - state.params[n]).flatten() for n in state.params])
    for k in range(K):
        alone, single = toy(ERM(), domains=1)
        moved, _ = ERM().step(alone, [type(batch)(batch.x[k : k + 1], batch.y[k : k + 1])], single)
        own = torch.cat([(moved.params[n] - alone.params[n]).flatten() for n in alone.params])
        torch.testing.assert_close(measured["angle"][k], torch.cosine_similarity(own, step, dim=0))


def test_an_undefined_angle_is_not_a_number_rather_than_zero():
    rows = {"w": torch.tensor([[1.0, 0.0], [0.0, 0.0]])}
    assert cosines(rows, {"w": torch.tensor([1.0, 0.0])}).isnan().tolist() == [False, True]
    assert cosines(rows, {"w": torch.zeros(2)}).isnan().all()


@pytest.mark.parametrize("algorithm", [ERM(), Fish(), Fishr(penalty_anneal_iters=3), POGM(inner_steps=2)])
def test_a_probed_run_has_the_weights_of_an_unprobed_one(algorithm):
    """To the last bit."""
    sessions = [Session([trial(algorithm, probe_every=every).task(None)], Engine()) for every in (0, 1)]
    for _ in range(6):
        for session in sessions:
            session.step(probing=True)
    plain, probed = sessions
    assert_close(plain.progress.state, probed.progress.state, 0.0)
    assert "angle" in probed.progress.totals
    assert not trees.leaves(plain.progress.probe)
