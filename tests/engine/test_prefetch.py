"""Images streamed to the device are the images that lie on it."""

import pytest
import torch
from support import assert_close, needs_gpu, trial

from pogm import ERM, POGM
from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.state import Purpose
from pogm.diagnostics import Probe
from pogm.engine.image_store import Resident, fits_on_device
from pogm.engine.prefetch import Streamed
from pogm.engine.session import Engine, Session


def sessions(algorithm, device="cpu", **options):
    run = trial(algorithm, **options)
    return [Session([run.task(None)], Engine(device, images=images)) for images in ("resident", "streamed")]


def same(resident, streamed):
    assert isinstance(streamed.config.table.images, Streamed)
    assert isinstance(resident.config.table.images, Resident)
    for _ in range(4):
        resident.step(probing=True)
        streamed.step(probing=True)
    assert_close(streamed.train_state, resident.train_state, 0)
    assert streamed.accuracies() == resident.accuracies()


@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=3)])
@pytest.mark.parametrize("probe", [Probe(), Probe(every=1), Probe(every=1, target=True)])
def test_a_streamed_run_is_the_resident_run(algorithm, probe):
    """Measured or not, with images of held-out domains or without."""
    same(*sessions(algorithm, probe=probe))


def test_the_window_holds_the_rows_that_the_device_draws():
    """Labels and sizes are looked up by the row on the device, so images must be of the same rows."""
    resident, streamed = sessions(POGM(inner_steps=2))
    store, rows = streamed.config.table.images, resident.sample_indices
    for number in range(3):
        state = streamed.train_state.state
        store.prepare(state)
        for turn in range(2):
            key = state.random_key(Purpose.DATA, 2 * number + turn)
            share = random.uniform(key, (rows.train.indices.shape[0], store.batch_size))
            expected = rows.train.indices.gather(1, (share * rows.train.sizes).long())
            assert torch.equal(store.take(expected, turn), resident.config.table.images.images[expected])
        streamed.step()


def test_a_restored_state_gets_its_own_images():
    resident, streamed = sessions(ERM())
    for session in (resident, streamed):
        early = trees.map_leaves(torch.clone, session.train_state)
        for _ in range(3):
            session.step()
        session.train_state = early
        for _ in range(2):
            session.step()
    assert_close(streamed.train_state.state, resident.train_state.state, 0)


def test_trials_that_train_as_one_are_not_streamed():
    runs = [trial(ERM(), seed=seed) for seed in range(2)]
    with pytest.raises(UsageError, match=r"have to be streamed\. Run them one by one"):
        Session([run.task(None) for run in runs], Engine(images="streamed"))


def test_an_unknown_place_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'streamed'"):
        Engine(images="stream")


def test_on_a_cpu_everything_fits():
    assert fits_on_device(torch.zeros(5, 1, 1, 1, dtype=torch.uint8), torch.device("cpu"))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=3)])
def test_on_a_gpu_too_captured_or_not(algorithm):
    same(*sessions(algorithm, "cuda", probe=Probe(every=1, target=True)))
    run = trial(algorithm)
    plain = [Session([run.task(None)], Engine("cuda", images=i, capture=False)) for i in ("resident", "streamed")]
    same(*plain)
