"""Soups and ensembles: equal to the naive mean, never worse than the best member on validation images."""

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import needs_gpu

from pogm import load
from pogm._system.files import digest, read_json, readable_json
from pogm.benchmark.combining.combine import combine, plan_combinations
from pogm.benchmark.combining.evaluation import Evaluator
from pogm.benchmark.combining.members import find_groups
from pogm.benchmark.combining.soups import RunningMean
from pogm.benchmark.results.records import read_run, read_runs
from pogm.benchmark.runs.selected_model import MODEL, read_description, read_weights
from pogm.engine.engine import Engine

CPU = torch.device("cpu")


def combined(sweep, *rules, device="cpu", out="out", **options):
    """Combine the runs of a folder, and return the folder of each rule."""
    (planned,) = plan_combinations(find_groups(read_runs(sweep), **options), sweep / out, rules)
    for _ in combine([planned], None, Engine(device=device)):
        pass
    return [planned.folders[rule] for rule in rules]


def weights_of(folder):
    return read_weights(folder / MODEL, read_description(folder / MODEL))


def members_of(sweep):
    return [run.folder for run in read_runs(sweep) if "combination" not in run.trial]


def held_out_inputs(model):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, *model.transform.transform.shape, generator=generator)


def set_weights(folder, change):
    """Replace the weights of a finished run, and their digest."""
    description = read_description(folder / MODEL)
    path = folder / MODEL / description["weights"]["file"]
    save_file({name: change(name, leaf).contiguous() for name, leaf in load_file(path).items()}, path)
    content = path.read_bytes()
    description["weights"] |= {"sha256": digest(content), "bytes": len(content)}
    (folder / MODEL / "model.json").write_bytes(readable_json(description))


def test_uniform_soup_is_the_naive_mean_of_the_weights(sweep):
    (folder,) = combined(sweep, "uniform")
    soup, members = weights_of(folder), [weights_of(one) for one in members_of(sweep)]
    assert len(members) == 4
    for name, leaf in soup.items():
        naive = torch.stack([one[name].double() for one in members]).mean(0).to(leaf.dtype)
        torch.testing.assert_close(leaf, naive, rtol=1e-6, atol=1e-8)


def test_soup_of_equal_weights_is_that_model_bit_for_bit(sweep):
    first, *others = members_of(sweep)
    weights = weights_of(first)
    for folder in others:
        set_weights(folder, lambda name, leaf: weights[name])
    for folder in combined(sweep, "uniform", "greedy"):
        soup = weights_of(folder)
        assert soup.keys() == weights.keys()
        assert all(
            torch.equal(leaf, weights[name]) and leaf.dtype == weights[name].dtype for name, leaf in soup.items()
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [2, 3, 7, 20])
def test_running_mean_of_equal_tensors_is_the_tensor(dtype, count):
    x, mean = (
        torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype),
        RunningMean(),
    )
    for _ in range(count):
        mean.add({"x": x, "steps": torch.tensor(3)}, CPU)
    assert torch.equal(mean.value()["x"], x)
    assert mean.value()["steps"] == 3


def test_running_mean_with_next_does_not_add(sweep):
    mean, one, two = RunningMean(), {"x": torch.tensor([1.0, 5.0])}, {"x": torch.tensor([3.0, 6.0])}
    mean.add(one, CPU)
    assert mean.with_next(two, CPU)["x"].tolist() == [2.0, 5.5]
    assert mean.value()["x"].tolist() == [1.0, 5.0]


def test_greedy_soup_has_at_least_the_validation_accuracy_of_its_best_member(sweep):
    broken = members_of(sweep)[1]
    set_weights(broken, lambda name, leaf: -3 * leaf)  # a mean that contains it is worse
    (folder,) = combined(sweep, "greedy")
    facts = read_json(folder / MODEL / "model.json")["combination"]
    scores = {one["run"]: one["validation"] for one in facts["members"]}
    found = read_json(folder / MODEL / "model.json")["selection"]["validation"]
    assert found >= max(scores.values())
    assert broken.name not in [one["run"] for one in facts["members"] if one["kept"]]
    best = max(scores, key=scores.__getitem__)
    assert scores[best] > scores[broken.name]
    assert best in [one["run"] for one in facts["members"] if one["kept"]]


def test_greedy_soup_equals_a_naive_greedy_search(sweep):
    (folder,) = combined(sweep, "greedy")
    (group,) = find_groups(read_runs(sweep))
    evaluator = Evaluator(group, None, Engine())
    weights = {one.run.id: one.read_weights() for one in group.members}

    def score(ids):
        return evaluator.validate(
            {n: torch.stack([weights[i][n].double() for i in ids]).mean(0).float() for n in names}
        )

    names = weights[group.members[0].run.id]
    order = sorted(weights, key=lambda i: -score([i]))
    kept = order[:1]
    for one in order[1:]:
        if score([*kept, one]) >= score(kept):
            kept.append(one)
    facts = read_json(folder / MODEL / "model.json")["combination"]
    assert {one["run"] for one in facts["members"] if one["kept"]} == set(kept)
    assert facts["kept"] == len(kept)
    assert facts["considered"] == 4


@pytest.mark.parametrize("mean", ["logits", "probabilities"])
def test_ensemble_has_the_naive_mean_of_its_members(sweep, mean):
    (folder,) = combined(sweep, mean)
    model, members = load(folder), [load(one) for one in members_of(sweep)]
    x = held_out_inputs(model)
    logits = torch.stack([one(x) for one in members])
    expected = logits.mean(0).softmax(-1) if mean == "logits" else logits.softmax(-1).mean(0)
    torch.testing.assert_close(model(x).softmax(-1), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["uniform", "greedy", "logits", "probabilities"])
def test_recorded_accuracies_are_those_of_the_loaded_model(sweep, rule):
    (folder,) = combined(sweep, rule)
    run, model = read_run(folder), load(folder)
    (group,) = find_groups(read_runs(sweep))
    data, (held_out,) = group.trial.task(None).load(), group.trial.test_domains
    evaluator = Evaluator(group, None, Engine())
    start = sum(len(domain.labels) for domain in data[:held_out])
    (record,) = run.records
    for split in ("in", "out"):
        chosen = evaluator.indices[held_out, split] - start
        inputs = model.transform.transform.to_inputs(data[held_out].inputs[chosen], torch.float32)
        accuracy = (model(inputs).argmax(-1) == data[held_out].labels[chosen]).double().mean()
        assert record["accuracy"][split][held_out] == pytest.approx(float(accuracy), abs=1e-12)
    assert run.best_record[0] == pytest.approx(read_json(folder / MODEL / "model.json")["selection"]["validation"])


def test_a_combination_is_computed_once_and_again_if_members_are_added(sweep, add_run):
    (folder,) = combined(sweep, "uniform")
    before = (folder / "done").stat().st_mtime_ns
    assert combined(sweep, "uniform") == [folder]
    assert (folder / "done").stat().st_mtime_ns == before
    add_run()
    assert combined(sweep, "uniform") == [folder]
    assert (folder / "done").stat().st_mtime_ns > before
    assert read_run(folder).trial["combination"]["kept"] == 5
    assert len(read_runs(folder.parent)) == 1


def test_validation_images_of_pooled_trials_are_those_that_no_run_has_trained_on(sweep, add_run):
    add_run(trial_seed=1)
    runs = read_runs(sweep)
    assert [len(group.members) for group in find_groups(runs)] == [4]  # of trial 0; the run of trial 1 is alone
    (group,) = find_groups(runs, pool_trials=True)
    (alone,) = find_groups(runs)
    pooled, first = Evaluator(group, None, Engine()), Evaluator(alone, None, Engine())
    for number in range(len(group.trial.dataset.domains)):
        inside, outside = (set(pooled.indices[number, split].tolist()) for split in ("in", "out"))
        assert not inside & outside
        assert outside < set(first.indices[number, "out"].tolist())
        assert inside > set(first.indices[number, "in"].tolist())


def test_validation_images_of_runs_with_fewer_samples_are_those_of_the_runs(sweep, add_run):
    add_run(samples=40)
    (group,) = find_groups(read_runs(sweep))
    few = replace(group, members=tuple(member for member in group.members if member.trial.samples == 40))
    both, alone = Evaluator(group, None, Engine()), Evaluator(few, None, Engine())
    for number in group.trial.train_domains:
        assert [len(alone.indices[number, split]) for split in ("in", "out")] == [32, 8]
        assert set(both.indices[number, "out"].tolist()) == set(alone.indices[number, "out"].tolist())


def test_a_pooled_soup_is_a_row_of_its_own(sweep, add_run):
    add_run(trial_seed=1)
    (folder,) = combined(sweep, "uniform", pool_trials=True)
    run = read_run(folder)
    assert run.label == "ERM, uniform soup of all trials"
    assert (run.trial_seed, run.trial["combination"]["kept"], run.status) == (0, 5, "done")
    assert combined(sweep, "uniform") != [folder]  # that of trial 0 does not replace it


@pytest.mark.gpu
@needs_gpu
def test_soups_on_a_gpu_equal_those_on_a_cpu_up_to_rounding(sweep):
    (cpu,) = combined(sweep, "uniform")
    (gpu,) = combined(sweep, "uniform", device="cuda", out="gpu")
    found, expected = weights_of(gpu), weights_of(cpu)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    (record,), (other,) = read_run(gpu).records, read_run(cpu).records
    assert record["accuracy"]["in"][0] == pytest.approx(other["accuracy"]["in"][0], abs=0.02)


def test_a_copy_of_a_run_is_not_counted_twice(sweep):
    first = members_of(sweep)[0]
    shutil.copytree(first, sweep / "copy")
    (group,) = find_groups(read_runs(sweep))
    assert len(group.members) == 4
