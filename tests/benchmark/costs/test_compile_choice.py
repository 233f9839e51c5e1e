"""``--compile auto`` compiles if that saves more time than it takes."""

from dataclasses import replace

import pytest

from pogm import ERM
from pogm.benchmark.costs import compile_choice
from pogm.benchmark.costs.compile_choice import choose_compile, pays_off, shape_key
from pogm.benchmark.costs.reference import reference_costs, run_cost
from pogm.benchmark.executors.jobs import CompileChoice
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.data.datasets import dataset_class
from pogm.engine.engine import Engine
from pogm.testing import make_trial


def pacs(steps: int) -> Trial:
    sweep = Sweep(("ERM",), (dataset_class("PACS")(),), configurations=1, trials=1, steps=steps, evaluate_every=steps)
    (trial,) = (trial for trial, _ in sweep.sample())
    return trial


def test_compilation_pays_off_from_the_run_on_that_saves_its_time():
    """ResNet-50: every minibatch saves about as long as a compiled one takes."""
    network = reference_costs()["networks"]["resnet50"]
    cost = run_cost(pacs(1001))
    saved = (cost.train_seconds + cost.evaluation_seconds) * (network["uncompiled_ratio"] - 1)
    runs = network["compile_seconds"] / saved
    assert 1 < runs < 8
    assert not pays_off(pacs(1001), int(runs), is_warm=False)
    assert pays_off(pacs(1001), int(runs) + 1, is_warm=False)


def test_a_warm_cache_makes_compilation_pay_off_earlier():
    assert not pays_off(pacs(1001), 1, is_warm=False)
    assert pays_off(pacs(1001), 1, is_warm=True)
    assert not pays_off(pacs(101), 1, is_warm=True)


def test_compilation_beside_other_processes_costs_a_share_of_its_time():
    """A random search on ColoredMNIST has three runs of each minibatch size, and small images share a GPU."""
    sweep = Sweep(("ERM",), (dataset_class("ColoredMNIST")(),), configurations=1, trials=1)
    trial, _ = next(iter(sweep.sample()))
    assert not pays_off(trial, 3, is_warm=False)
    assert pays_off(trial, 3, is_warm=False, processes=3)


def test_networks_without_measurements_have_no_answer():
    assert pays_off(make_trial(ERM(), dataset="ColoredDigits"), 1, is_warm=True) is None


def test_nothing_is_compiled_on_a_cpu_unless_asked_for():
    assert choose_compile(Engine(compile="auto"), pacs(10**6)).compile == "off"
    assert choose_compile(Engine(compile="on"), pacs(1)).compile == "on"


def test_trials_that_differ_only_in_floats_and_seeds_share_compiled_code():
    trial = make_trial(ERM(), dataset="ColoredDigits")
    slower = replace(trial, training=replace(trial.training, lr=trial.training.lr / 2), trial_seed=3)
    larger = replace(trial, training=replace(trial.training, batch_size=trial.training.batch_size + 1))
    assert shape_key(trial) == shape_key(slower) != shape_key(larger)
    assert shape_key(trial, with_batch_size=False) == shape_key(larger, with_batch_size=False)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_sweep_with_several_minibatch_sizes_is_compiled_once_for_all(tmp_path, monkeypatch, deterministic):
    """Counted are all runs of the sweep, not only those of one size. Deterministic runs choose by their length."""
    monkeypatch.setattr(Engine, "compiles", lambda self: self.compile != "off")
    monkeypatch.setattr(compile_choice, "is_cached", lambda engine, trial: False)
    trials = [replace(t, training=replace(t.training, batch_size=8 + n)) for n, t in enumerate([pacs(1001)] * 20)]
    options = RunOptions(engine=Engine(compile="auto", deterministic=deterministic))
    choose = CompileChoice(trials, options, gpus=1, sharing=1)
    chosen = [choose.options([trial], tmp_path).engine.compile for trial in trials]
    assert chosen == ["auto"] * 20 if deterministic else chosen[0] == "dynamic"
    one_size = CompileChoice([pacs(1001)] * 20, options, gpus=1, sharing=1)
    assert one_size.options([pacs(1001)], tmp_path).engine.compile == ("auto" if deterministic else "on")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_resumed_run_keeps_its_first_choice(tmp_path, compiled, monkeypatch):
    """The choice may change when the runs of a sweep are counted again, and compiled code rounds differently."""
    from pogm.benchmark.runs import runner

    monkeypatch.setattr(runner, "read_provenance", lambda what, folder: {"compiled": compiled}.get(what))
    chosen = runner._choose_engine([pacs(1001)], [tmp_path], RunOptions(engine=Engine(compile="auto")))
    assert chosen.compile == ("on" if compiled else "off")


def test_the_choice_is_in_the_provenance(tmp_path):
    trial = make_trial(ERM(), dataset="ColoredDigits", steps=1)
    run(trial, tmp_path, RunOptions(engine=Engine(compile="auto")))
    from pogm.benchmark.runs.provenance import read_provenance

    assert read_provenance("compiled", tmp_path) is False
