"""Runs with streamed images equal runs with resident images."""

import pytest
import torch
from support import assert_close, needs_gpu, trial

from pogm import ERM, POGM
from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.state import Purpose
from pogm.diagnostics import Probe
from pogm.engine.input_store import Resident, fits_on_device
from pogm.engine.prefetch import Streamed
from pogm.engine.session import Engine, Session


def sessions(algorithm, device="cpu", **options):
    run = trial(algorithm, **options)
    return [Session([run.task(None)], Engine(device, images=images)) for images in ("resident", "streamed")]


def assert_same_run(resident, streamed):
    assert isinstance(streamed.config.table.inputs, Streamed)
    assert isinstance(resident.config.table.inputs, Resident)
    for _ in range(4):
        resident.step(probing=True)
        streamed.step(probing=True)
    assert_close(streamed.train_state, resident.train_state, 0)
    assert streamed.accuracies() == resident.accuracies()


@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=3)])
@pytest.mark.parametrize("probe", [Probe(), Probe(every=1), Probe(every=1, target=True)])
def test_streamed_run_equals_resident_run(algorithm, probe):
    """With and without a probe, and with images of held-out domains."""
    assert_same_run(*sessions(algorithm, probe=probe))


def test_window_holds_the_samples_that_the_device_draws():
    """The device looks up labels and sizes by sample index, so the images must have the same indices."""
    resident, streamed = sessions(POGM(inner_steps=2))
    store, indices = streamed.config.table.inputs, resident.sample_indices
    for number in range(3):
        state = streamed.train_state.state
        store.prepare(state)
        for turn in range(2):
            key = state.random_key(Purpose.DATA, 2 * number + turn)
            share = random.uniform(key, (indices.train.indices.shape[0], store.batch_size))
            expected = indices.train.indices.gather(1, (share * indices.train.sizes).long())
            assert torch.equal(store.take(expected, turn), resident.config.table.inputs.inputs[expected])
        streamed.step()


def test_restored_state_gets_the_right_images():
    resident, streamed = sessions(ERM())
    for session in (resident, streamed):
        early = trees.map_leaves(torch.clone, session.train_state)
        for _ in range(3):
            session.step()
        session.train_state = early
        for _ in range(2):
            session.step()
    assert_close(streamed.train_state.state, resident.train_state.state, 0)


def test_batched_trials_are_not_streamed():
    runs = [trial(ERM(), seed=seed) for seed in range(2)]
    with pytest.raises(UsageError, match=r"have to be streamed\. Run them one by one"):
        Session([run.task(None) for run in runs], Engine(images="streamed"))


def test_unknown_option_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'streamed'"):
        Engine(images="stream")


def test_images_always_fit_on_a_cpu():
    assert fits_on_device(torch.zeros(5, 1, 1, 1, dtype=torch.uint8), torch.device("cpu"))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=3)])
def test_streamed_run_equals_resident_run_on_a_gpu(algorithm):
    assert_same_run(*sessions(algorithm, "cuda", probe=Probe(every=1, target=True)))
    run = trial(algorithm)
    plain = [Session([run.task(None)], Engine("cuda", images=i, capture=False)) for i in ("resident", "streamed")]
    assert_same_run(*plain)
