"""Checkpoints: written completely, or skipped."""

import json
import random
import warnings
from pathlib import Path

import pytest
import torch
from support import trial

from pogm import POGM, Fish
from pogm._system.errors import IntegrityError
from pogm.core import trees
from pogm.diagnostics import Probe
from pogm.engine.checkpoint import CheckpointWarning, load, save
from pogm.engine.session import Engine, Session
from pogm.engine.vectorise import TrainState


@pytest.fixture(scope="module")
def session() -> Session:
    return Session([trial(POGM(), probe=Probe(every=1, target=True, divergence=True)).task(None)], Engine())


@pytest.fixture(scope="module")
def states(session: Session) -> list[TrainState]:
    """The states after one, two and three steps."""
    result = []
    for _ in range(3):
        session.step(probing=True)
        result.append(session.train_state)
    return result


@pytest.fixture
def two(tmp_path: Path, states: list[TrainState]) -> Path:
    """A folder with checkpoints of steps 1 and 2."""
    save(tmp_path, states[0], trial="mine", after=0)
    save(tmp_path, states[1], trial="mine", after=1)
    return tmp_path


def is_same(left: TrainState, right: TrainState) -> bool:
    one, other = dict(trees.named_leaves(left)), dict(trees.named_leaves(right))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def newest(folder: Path, suffix: str) -> Path:
    return max(folder.glob(f"*{suffix}"))


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def test_load_restores_all_bits_and_the_manifest(tmp_path, states):
    save(tmp_path, states[1], trial="mine", after=1, pogm="0.1.0")
    found, manifest = load(tmp_path, states[0], "mine")
    assert is_same(found, states[1])
    assert (manifest["step"], manifest["after"], manifest["pogm"]) == (2, 1, "0.1.0")
    assert any(name.startswith("totals/cosine") for name, _ in trees.named_leaves(found))


def test_former_names_of_metrics_are_loaded_under_their_present_names(tmp_path, states):
    former = {{"cosine": "angle"}.get(name, name): total for name, total in states[1].totals.items()}
    assert "angle" in former
    save(tmp_path, states[1]._replace(totals=former), trial="mine", after=1)
    assert is_same(load(tmp_path, states[0], "mine")[0], states[1])


def test_metric_with_a_slash_in_its_name_is_loaded(tmp_path, states):
    state = states[1]._replace(totals={"loss/site": states[1].totals["loss"]})
    save(tmp_path, state, trial="mine", after=1)
    found, _ = load(tmp_path, states[0], "mine")
    assert is_same(found, state)


def test_tensors_that_are_not_contiguous_are_saved(tmp_path, states):
    transposed = trees.map_leaves(lambda leaf: leaf.T if leaf.ndim == 2 else leaf, states[0])
    save(tmp_path, transposed, trial="mine", after=0)
    assert is_same(load(tmp_path, transposed, "mine")[0], transposed)


def test_load_without_checkpoints_returns_none(tmp_path, states):
    assert load(tmp_path / "absent", states[0], "mine") is None


def test_save_keeps_two_checkpoints_and_deletes_unfinished_ones(two, states):
    (two / "00000001-00000009.safetensors").write_bytes(b"no manifest")
    save(two, states[2], trial="mine", after=2)
    names = [f"{step:08d}-{step:08d}.{kind}" for step in (2, 3) for kind in ("json", "safetensors")]
    assert sorted(path.name for path in two.iterdir()) == names


def test_other_files_are_not_deleted(two, states):
    (two / "notes.txt").touch()
    save(two, states[2], trial="mine", after=2)
    assert (two / "notes.txt").exists()


def test_one_step_can_have_two_checkpoints(tmp_path, states):
    save(tmp_path, states[0], trial="mine", after=0)
    save(tmp_path, states[0], trial="mine", after=5)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert load(tmp_path, states[0], "mine")[1]["after"] == 5


DAMAGES = {
    "truncated": lambda tensors, manifest: tensors.write_bytes(tensors.read_bytes()[:-1]),
    "zero length": lambda tensors, manifest: tensors.write_bytes(b""),
    "one bit": lambda tensors, manifest: flip(tensors, 8 * 5000),
    "tensors missing": lambda tensors, manifest: tensors.unlink(),
    "manifest missing": lambda tensors, manifest: manifest.unlink(),
    "manifest cut short": lambda tensors, manifest: manifest.write_bytes(manifest.read_bytes()[:-9]),
    "manifest empty": lambda tensors, manifest: manifest.write_bytes(b""),
    "manifest a list": lambda tensors, manifest: manifest.write_bytes(b"[]"),
    "other digest": lambda tensors, manifest: rewrite(manifest, sha256="0" * 64),
    "other evaluation": lambda tensors, manifest: rewrite(manifest, after=0),
    "other trial": lambda tensors, manifest: rewrite(manifest, trial="theirs"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoint_is_skipped_with_a_warning(two, states, damage):
    name = newest(two, ".safetensors").name
    damage(newest(two, ".safetensors"), newest(two, ".json"))
    with pytest.warns(CheckpointWarning, match=rf"{name}.* resuming from step 1"):
        found, manifest = load(two, states[0], "mine")
    assert is_same(found, states[0])
    assert manifest["after"] == 0


def test_flipped_bits_are_detected(two, states):
    """Some bits of the manifest do not matter. Then the loaded checkpoint is the one that was saved."""
    draw = random.Random(0)
    for suffix in (".safetensors", ".json"):
        path = newest(two, suffix)
        content = path.read_bytes()
        for _ in range(60):
            flip(path, draw.randrange(8 * len(content)))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found, manifest = load(two, states[0], "mine")
            assert is_same(found, states[1 - len(caught)])
            assert manifest["after"] == 1 - len(caught)
            assert caught or suffix == ".json"
            path.write_bytes(content)


def test_save_after_a_skipped_checkpoint_deletes_the_damaged_one(two, states):
    save(two, states[2], trial="mine", after=2)  # checkpoints of steps 2 and 3 are left
    newest(two, ".safetensors").write_bytes(b"")
    with pytest.warns(CheckpointWarning):
        load(two, states[0], "mine")
    save(two, states[1], trial="mine", after=5)
    assert [path.stem for path in sorted(two.glob("*.json"))] == ["00000002-00000002", "00000002-00000006"]
    assert load(two, states[0], "mine")[1]["after"] == 5


def test_error_names_all_damaged_checkpoints_and_has_exit_code_6(two, states):
    for path in two.glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"00000002-.*SHA-256.*00000001-.*SHA-256.*[Dd]elete") as refused:
        load(two, states[0], "mine")
    assert refused.value.exit_code == 6


def test_unfinished_first_checkpoint_is_ignored(tmp_path, states):
    save(tmp_path, states[0], trial="mine", after=0)
    newest(tmp_path, ".json").unlink()
    (tmp_path / "00000001-00000001.json.part").write_bytes(b"{")
    with pytest.warns(CheckpointWarning, match="no manifest.*starting again"):
        assert load(tmp_path, states[0], "mine") is None
    assert not list(tmp_path.glob("*.part"))


def test_tensors_of_another_algorithm_are_refused(two):
    other = Session([trial(Fish()).task(None)], Engine()).train_state
    with pytest.raises(IntegrityError, match=r"differ from the run's in name, shape or type: .*state/optimizer/"):
        load(two, other, "mine")


def test_tensors_of_another_precision_are_refused(two, states):
    wide = trees.map_leaves(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, states[0])
    with pytest.raises(IntegrityError, match=r"differ from the run's in name, shape or type: .*state/params/"):
        load(two, wide, "mine")
