"""``pogm verdict``: each kind of shift is found where it is, and not where it is not."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from processes import pogm
from support import trial

from pogm import ERM
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets.folder import Folder
from pogm.deployment.features import extract_features
from pogm.deployment.verdict import analyse
from pogm.engine.session import Engine

CLASSES, WIDTH, COUNT = 3, 8, 80
NAMES = ("a", "b", "c", "d")


def sites(change=lambda site, x, y, draw: (x, y)):
    """Return features and labels of four sites, alike except for ``change``."""
    draw = np.random.default_rng(1)
    centres = 2.0 * draw.normal(size=(CLASSES, WIDTH))
    features, labels = [], []
    for site in NAMES:
        y = draw.integers(CLASSES, size=COUNT)
        x = centres[y] + draw.normal(size=(COUNT, WIDTH))
        x, y = change(site, x, y, draw)
        features.append(x)
        labels.append(y)
    return analyse(features, labels, NAMES)


def shifted(site, x, y, draw):
    return x + 4.0 * draw.normal(size=WIDTH), y


def relabelled(site, x, y, draw):
    return (x, (y + 1) % CLASSES) if site == "c" else (x, y)


def unbalanced(site, x, y, draw):
    keep = (y != 0) | (draw.random(len(y)) < 0.1) if site == "b" else np.ones(len(y), bool)
    return x[keep], y[keep]


def words(verdict) -> str:
    return "\n".join(verdict.sentences())


def test_sites_that_are_alike_have_no_shift():
    found = sites()
    assert found.covariate_shift < 0.2
    assert all(abs(site.gap) < 0.05 for site in found.sites)
    assert found.conflict == 0
    text = words(found)
    assert "Covariate shift: weak" in text
    assert "Label shift: none" in text
    assert "Concept shift: no sign" in text
    assert "Methods: ERM." in text
    assert "% accuracy" not in text  # a difference of accuracies is in points


def test_other_features_are_covariate_shift():
    found = sites(shifted)
    assert found.covariate_shift > 0.8
    text = words(found)
    assert "Covariate shift: strong" in text
    assert text.count("pogm train with --compare ERM 'ERM + Augment' 'ERM + Mixup' 'ERM + SWAD' CORAL") == 1
    assert "Concept shift: no sign" in text


def test_other_meaning_of_labels_is_concept_shift_at_that_site():
    found = sites(relabelled)
    by_name = {site.site: site for site in found.sites}
    assert by_name["c"].held_out < 0.3 < 0.7 < by_name["c"].alone
    differing = words(found).split("Concept shift: likely at ")[1].split(", where")[0]
    assert "c" in differing.split(", ")
    assert "The hardest site is c" in words(found)
    assert found.conflict > 0
    assert by_name["c"].hull >= max(by_name[name].hull for name in "abd")


def test_other_label_frequencies_are_label_shift_at_that_site():
    text = words(sites(unbalanced))
    assert "Label shift: " in text
    assert "none beyond chance" not in text
    assert "b" in text.split("Label shift: ")[1].split(" ha")[0]


@pytest.mark.parametrize("rare", [0.0, 0.05])
def test_other_label_frequencies_alone_are_no_concept_shift(rare):
    """Classes overlap, so that a classifier of the site alone gains by knowing that nearly all labels are 0."""

    def one_class(site, x, y, draw):
        x = x - 0.7 * np.array([x[y == label].mean(0) for label in range(CLASSES)])[y]
        keep = (y == 0) | (draw.random(len(y)) < rare) if site == "c" else np.ones(len(y), bool)
        return x[keep], y[keep]

    found = sites(one_class)
    c = found.sites[2]
    assert c.alone - max(c.pooled, c.aligned) > 0.05
    assert "Concept shift: no sign of it" in words(found)
    assert "It cannot be measured at c: a classifier of that site alone is hardly better" in words(found)


def test_same_features_give_the_same_verdict():
    first, second = sites(shifted), sites(shifted)
    assert first.to_json() == second.to_json()


def test_cross_validation_does_not_divide_a_group():
    """Samples of a patient have nearly the same features and the same random label."""
    draw = np.random.default_rng(0)
    features, labels, groups = [], [], []
    for _ in NAMES:
        patients = np.repeat(np.arange(20), 5)
        labels.append(draw.integers(2, size=20)[patients])
        features.append(draw.normal(size=(20, 50))[patients] + 0.01 * draw.normal(size=(100, 50)))
        groups.append(patients)
    leaking = analyse(features, labels, NAMES)
    found = analyse(features, labels, NAMES, groups=groups)
    assert min(site.alone for site in leaking.sites) > 0.9
    assert np.mean([site.alone for site in found.sites]) < 0.65
    assert np.mean([site.pooled for site in found.sites]) < 0.65


def test_groups_of_a_table_are_used_and_a_site_with_one_group_is_refused(tmp_path):
    draw, lines = np.random.default_rng(0), ["a,b,label,site,patient"]
    for site in ("east", "west"):
        for patient in range(10):
            lines += [f"{draw.normal():.3f},{draw.normal():.3f},{'xy'[patient % 2]},{site},{site}{patient}"] * 4
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    found = {}
    for name, words in {"all": (), "grouped": ("--group", "patient")}.items():
        end = pogm("verdict", "t.csv", "--data", tmp_path, *words, "--json", tmp_path / f"{name}.json")
        assert end.code == 0, end.err
        found[name] = json.loads((tmp_path / f"{name}.json").read_text())["sites"]["east"]["alone"]
    assert f"Next: pogm train t.csv --data {tmp_path} --group patient --out model" in end.out
    assert found["grouped"] < found["all"]
    text = "\n".join([f"{lines[0]},ward", *(f"{line},{line.split(',')[3]}" for line in lines[1:])])
    (tmp_path / "wards.csv").write_text(f"{text}\n")
    end = pogm("verdict", tmp_path / "wards.csv", "--group", "ward")
    assert end.code == 2
    assert "Expected two or more groups in every site" in end.err
    assert "found one in east, west." in end.err


def test_command_prints_the_verdict_and_writes_all_numbers(photographs, tmp_path):
    path = tmp_path / "verdict.json"
    options = ("--network", "small_cnn", "--set", "weights=random", "--set", "image_size=32", "--device", "cpu")
    end = pogm("verdict", photographs[0], *options, "--json", path)
    assert end.code == 0, end.err
    assert "Expected accuracy at a new site" in end.out
    numbers = json.loads(path.read_text())
    assert list(numbers["sites"]) == ["a", "b", "c"]
    assert numbers["forecast"]["mean"] == pytest.approx(np.mean([s["held_out"] for s in numbers["sites"].values()]))


def test_next_command_does_not_fail_for_a_class_of_one_site(photographs, tmp_path):
    root = shutil.copytree(photographs[0], tmp_path / "sites")
    shutil.copytree(root / "a" / "red", root / "a" / "green")
    words = ("--network", "small_cnn", "--set", "weights=random", "--set", "image_size=32")
    end = pogm("verdict", root, *words)
    assert end.code == 0, end.err
    command = end.out.splitlines()[-1].removeprefix("Next: pogm ").split()
    assert command[-4:] == ["--set", "allow_unseen=true", "--out", "model"]
    rows = [f"{'ab'[n % 2]},{n},{'dead' if n in (1, 3) else ('ill', 'well')[n % 4 < 2]}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["domain,age,label", *rows]) + "\n")
    end = pogm("verdict", tmp_path / "t.csv")
    assert end.out.splitlines()[-1].startswith(
        "Next: rename or remove classes that one site alone has (dead), then: pogm train"
    )


def test_random_weights_are_those_of_the_seed(photographs):
    def features(seed: int) -> np.ndarray:
        training = replace(trial(ERM()).training, network="small_cnn", weights="random")
        chosen = Trial(Folder.from_path(photographs[0]), ERM(), (), training, steps=2, evaluate_every=1)
        found, _, _ = extract_features(chosen, photographs[0].parent, Engine("cpu"), lambda parts, count: parts, seed)
        return np.concatenate(found)

    torch.manual_seed(0)
    first = features(0)
    torch.manual_seed(1)
    assert np.array_equal(features(0), first)
    assert not np.array_equal(features(1), first)


def test_one_site_is_refused(photographs, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a").symlink_to(photographs[0] / "a")
    end = pogm("verdict", tmp_path / "one", "--network", "small_cnn", "--set", "weights=random")
    assert end.code in (2, 3)
    assert "Expected" in end.err
    assert "Traceback" not in end.err
