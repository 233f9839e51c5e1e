"""Checkpoints: there whole, or passed over."""

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
def ages(session: Session) -> list[TrainState]:
    """The progress after one step, after two and after three."""
    result = []
    for _ in range(3):
        session.step(probing=True)
        result.append(session.train_state)
    return result


@pytest.fixture
def two(tmp_path: Path, ages: list[TrainState]) -> Path:
    """A folder with a checkpoint after step 1 and another after step 2."""
    save(tmp_path, ages[0], trial="mine", after=0)
    save(tmp_path, ages[1], trial="mine", after=1)
    return tmp_path


def same(left: TrainState, right: TrainState) -> bool:
    mine, theirs = dict(trees.named(left)), dict(trees.named(right))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def newest(folder: Path, suffix: str) -> Path:
    return max(folder.glob(f"*{suffix}"))


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def test_what_is_saved_comes_back_to_the_last_bit_with_its_facts(tmp_path, ages):
    save(tmp_path, ages[1], trial="mine", after=1, pogm="0.1.0")
    found, manifest = load(tmp_path, ages[0], "mine")
    assert same(found, ages[1])
    assert (manifest["step"], manifest["after"], manifest["pogm"]) == (2, 1, "0.1.0")
    assert any(name.startswith("totals/angle") for name, _ in trees.named(found))


def test_tensors_in_another_memory_order_are_saved_too(tmp_path, ages):
    turned = trees.map_leaves(lambda leaf: leaf.T if leaf.ndim == 2 else leaf, ages[0])
    save(tmp_path, turned, trial="mine", after=0)
    assert same(load(tmp_path, turned, "mine")[0], turned)


def test_where_nothing_was_saved_nothing_is_found(tmp_path, ages):
    assert load(tmp_path / "absent", ages[0], "mine") is None


def test_the_last_two_are_kept_and_what_a_killed_writer_left_goes(two, ages):
    (two / "00000001-00000009.safetensors").write_bytes(b"no manifest")
    save(two, ages[2], trial="mine", after=2)
    names = [f"{step:08d}-{step:08d}.{kind}" for step in (2, 3) for kind in ("json", "safetensors")]
    assert sorted(path.name for path in two.iterdir()) == names


def test_files_that_are_not_ours_stay(two, ages):
    (two / "notes.txt").touch()
    save(two, ages[2], trial="mine", after=2)
    assert (two / "notes.txt").exists()


def test_two_evaluations_of_one_step_have_two_checkpoints(tmp_path, ages):
    save(tmp_path, ages[0], trial="mine", after=0)
    save(tmp_path, ages[0], trial="mine", after=5)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert load(tmp_path, ages[0], "mine")[1]["after"] == 5


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
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_named(two, ages, damage):
    name = newest(two, ".safetensors").name
    damage(newest(two, ".safetensors"), newest(two, ".json"))
    with pytest.warns(CheckpointWarning, match=rf"{name}.* resuming from step 1"):
        found, manifest = load(two, ages[0], "mine")
    assert same(found, ages[0])
    assert manifest["after"] == 0


def test_no_flipped_bit_of_either_file_is_ever_loaded(two, ages):
    """A bit of the manifest may leave it true; then the checkpoint is the one that was saved."""
    draw = random.Random(0)
    for suffix in (".safetensors", ".json"):
        path = newest(two, suffix)
        whole = path.read_bytes()
        for _ in range(60):
            flip(path, draw.randrange(8 * len(whole)))
            with warnings.catch_warnings(record=True) as came:
                warnings.simplefilter("always")
                found, manifest = load(two, ages[0], "mine")
            assert same(found, ages[1 - len(came)])
            assert manifest["after"] == 1 - len(came)
            assert came or suffix == ".json"
            path.write_bytes(whole)


def test_after_going_back_the_next_save_keeps_the_good_one_and_drops_the_damaged(two, ages):
    save(two, ages[2], trial="mine", after=2)  # 2 and 3 are left
    newest(two, ".safetensors").write_bytes(b"")
    with pytest.warns(CheckpointWarning):
        load(two, ages[0], "mine")
    save(two, ages[1], trial="mine", after=5)
    assert [path.stem for path in sorted(two.glob("*.json"))] == ["00000002-00000002", "00000002-00000006"]
    assert load(two, ages[0], "mine")[1]["after"] == 5


def test_where_none_is_whole_all_are_named_and_the_exit_code_is_6(two, ages):
    for path in two.glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"00000002-.*SHA-256.*00000001-.*SHA-256.*[Dd]elete") as refused:
        load(two, ages[0], "mine")
    assert refused.value.exit_code == 6


def test_a_first_checkpoint_whose_writer_was_killed_does_not_exist(tmp_path, ages):
    save(tmp_path, ages[0], trial="mine", after=0)
    newest(tmp_path, ".json").unlink()
    (tmp_path / "00000001-00000001.json.part").write_bytes(b"{")
    with pytest.warns(CheckpointWarning, match="no manifest.*starting again"):
        assert load(tmp_path, ages[0], "mine") is None
    assert not list(tmp_path.glob("*.part"))


def test_tensors_of_another_method_are_refused_by_name(two):
    other = Session([trial(Fish()).task(None)], Engine()).train_state
    with pytest.raises(IntegrityError, match=r"differ from the run's in name, shape or type: .*state/optimizer/"):
        load(two, other, "mine")
