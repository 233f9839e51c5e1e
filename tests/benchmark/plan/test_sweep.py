"""Sweeps: planned trials, states of runs, and random search."""

from dataclasses import dataclass, replace

import pytest

from pogm import ERM, POGM
from pogm._system.errors import UsageError
from pogm.benchmark.plan.shared_training import share_training
from pogm.benchmark.plan.sweep import Sweep, configuration, draw
from pogm.benchmark.runs.sweep_directory import load_sweep, status
from pogm.cli import main
from pogm.core.hyperparameters import Choice, Large, Power, Uniform, apply_large_defaults, hyper
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import seed_hash


def datasets(*names):
    return tuple(dataset_class(name)() for name in names)


SMALL = Sweep(("ERM", "POGM"), datasets("ColoredDigits"), configurations=2, trials=1, steps=5, evaluate_every=4)


def test_single_mode_holds_out_every_domain_and_full_mode_also_every_pair():
    protocol = Sweep(("ERM",), datasets("RotatedDigits"))
    assert len(protocol.plan()) == 60 * 6
    assert len(replace(protocol, mode="full").plan()) == 60 * 6 * 7 // 2


def test_seeds_are_those_of_domainbed():
    trials = Sweep(("POGM",), datasets("ColoredMNIST"), configurations=1, trials=1).plan()
    assert [t.seed for t in trials] == [seed_hash("ColoredMNIST", "POGM", [e], 0, 0) for e in range(3)]
    assert trials[2].seed == 75921242


def test_repetitions_draw_other_configurations_and_the_first_one_is_the_defaults():
    plan = Sweep(("POGM",), datasets("RotatedDigits"), configurations=4, trials=2).plan()
    first = [t for t in plan if t.hparams_seed == 0]
    assert all(t.algorithm == POGM() for t in first)
    drawn = {(t.trial_seed, t.hparams_seed): (t.training.lr, t.algorithm) for t in plan if t.hparams_seed > 0}
    assert len(set(drawn.values())) == 6


def test_all_trials_have_different_ids():
    plan = Sweep(
        ("ERM", "POGM"), datasets("ColoredDigits", "RotatedDigits"), configurations=3, trials=2, mode="full"
    ).plan()
    assert len({t.id for t in plan}) == len(plan)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "singel"}, "Did you mean 'single'"),
        ({"configurations": 0}, "--configurations of at least 1"),
        ({"trials": -1}, "--trials of at least 1"),
        ({"trials": 10**20}, "at most 1000000 runs"),
        ({"algorithms": ("ERM", "ERM")}, "each of --algorithms once"),
    ],
)
def test_an_invalid_sweep_is_an_error(changes, words):
    with pytest.raises(UsageError, match=words):
        replace(SMALL, **changes)


def test_an_unknown_name_is_an_error_before_anything_is_written(tmp_path, capsys):
    command = ["sweep", "--algorithms", "POGN", "--datasets", "ColoredDigits", "--out", str(tmp_path / "s")]
    assert main(command) == 2
    assert "Did you mean 'POGM'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_setting_applies_to_all_algorithms_or_to_the_one_in_its_prefix():
    settings = ("POGM.inner_steps=5", "lr=0.002", "POGM.batch_size=16", "Mixup.alpha=0.7")
    plan = replace(SMALL, modifiers=("Mixup",), settings=settings).plan()
    pogm, erm = ([t for t in plan if isinstance(t.algorithm, kind)] for kind in (POGM, ERM))
    assert {t.algorithm.inner_steps for t in pogm} == {5}
    assert {t.training.lr for t in plan} == {0.002}
    assert {t.training.batch_size for t in pogm} == {16} != {t.training.batch_size for t in erm}
    assert {modifier.alpha for t in plan for modifier in t.modifiers} == {0.7}
    assert {t.id for t in replace(SMALL, settings=("POGM.kappa=0.3",)).plan()} & {t.id for t in SMALL.plan()} == {
        t.id for t in SMALL.plan() if isinstance(t.algorithm, ERM)
    }


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("kappa=0.1", "'kappa', which is missing from ERM on ColoredDigits. Name what it is for: --set POGM.kappa=0.1"),
        ("Fish.meta_lr=0.1", "what is run (ERM, POGM); found 'Fish.meta_lr=0.1'. Add Fish to --algorithms, or leave"),
        ("Mixup.alpha=0.1", "Add Mixup to --with, or leave out this setting"),
        ("PGOM.kappa=0.1", "found 'PGOM'. Did you mean 'POGM'?"),
        ("POGM.kapa=0.1", "a hyperparameter of POGM on ColoredDigits out of"),
        ("lrr=0.1", "a hyperparameter of ERM, POGM on ColoredDigits out of"),
        ("POGM.kappa=-1", "POGM.kappa to be a number of at least 0 and at most 1000; found '-1'"),
        ("POGM.kappa", "--set NAME=VALUE; found 'POGM.kappa'"),
    ],
)
def test_a_setting_that_does_not_apply_is_one_error_before_anything_is_written(tmp_path, capsys, setting, words):
    command = ["sweep", "--algorithms", "ERM", "POGM", "--datasets", "ColoredDigits", "--set", setting]
    assert main([*command, "--out", str(tmp_path / "s")]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("Expected") == 1
    assert not (tmp_path / "s").exists()


def test_a_setting_that_only_some_datasets_have_is_an_error():
    with pytest.raises(UsageError, match="Give datasets like PACS a command of their own"):
        Sweep(("ERM",), datasets("ColoredDigits", "PACS"), settings=("image_size=64",)).plan()


def test_the_command_line_runs_resumes_and_reports_a_sweep(tmp_path, capsys):
    folder = tmp_path / "s"
    command = ["sweep", "--algorithms", "ERM", "--datasets", "ColoredDigits", "--configurations", "2", "--trials", "1"]
    command += ["--steps", "5", "--evaluate-every", "4", "--workers", "1", "--out", str(folder)]
    assert main([*command, "--dry-run"]) == 0
    assert "6 runs to do" in capsys.readouterr().out
    assert main([*command, "--estimate"]) == 0
    assert "6 runs, about" in capsys.readouterr().out
    assert not folder.exists()
    assert main(command) == 0
    assert "Training-domain validation" in capsys.readouterr().out
    assert (folder / "report.html").exists()
    first = load_sweep(folder).plan()[0]
    (folder / first.id / "done").unlink()
    assert main(["status", str(folder)]) == 0
    assert "5 done, 0 running, 1 interrupted" in capsys.readouterr().out
    untouched = {p: p.stat().st_mtime_ns for p in folder.glob("*/records.jsonl") if p.parent.name != first.id}
    assert main(["resume", str(folder), "--workers", "1"]) == 0
    assert all(p.stat().st_mtime_ns == when for p, when in untouched.items()), "finished runs are not computed again"
    assert status(folder)["ColoredDigits", "ERM"] == {"done": 6}


# Random search.


@pytest.mark.parametrize(
    ("name", "space", "value"),
    [
        ("lr", Power(10, -5, -3.5), 2.7028930742148706e-05),  # PACS and VLCS; agrees with records of DomainBed
        ("weight_decay", Power(10, -6, -2), 0.00044832883881609976),
        ("batch_size", Power(2, 3, 5.5, integer=True), 39),
        ("resnet_dropout", Choice(0.0, 0.1, 0.5), 0.5),
        ("irm_lambda", Power(10, -1, 5), 65030.52212762795),
        ("irm_penalty_anneal_iters", Power(10, 0, 4, integer=True), 2),
        ("mldg_beta", Power(10, -1, 1), 5.4211455811356215),
        ("n_meta_test", Choice(1, 2), 1),
        ("lambda", Power(10, -2, 2), 3.500347568342894),
        ("d_steps_per_g_step", Power(2, 0, 3, integer=True), 7),
        ("mlp_width", Power(2, 6, 10, integer=True), 255),
        ("mlp_depth", Choice(3, 4, 5), 4),
        ("lr_g", Power(10, -4.5, -2.5), 0.0015950807441571075),
        ("lr_d", Power(10, -4.5, -2.5), 6.700771289296927e-05),
    ],
)
def test_configuration_1_of_trial_0_has_the_published_values(name, space, value):
    assert draw(space, name, 1, 0) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "space", "seeds", "value"),
    [
        ("lr", Power(10, -5, -3.5), (1, 1), 2.2352558725944602e-05),
        ("batch_size", Power(2, 3, 5.5, integer=True), (1, 1), 8),
        ("lr", Power(10, -5, -3.5), (6, 0), 0.000211416337488096),
        ("weight_decay", Power(10, -6, -2), (6, 0), 2.812885384798702e-06),
        ("batch_size", Power(2, 3, 5, integer=True), (6, 0), 21),
        ("resnet_dropout", Choice(0.0, 0.1, 0.5), (6, 0), 0.1),
        ("meta_lr", Choice(0.05, 0.1, 0.5), (6, 0), 0.5),
        ("cagrad_c", Choice(0.05, 0.1, 0.5), (6, 0), 0.5),
        ("cag_update", Choice(1, 5, 10), (6, 0), 1),
    ],
)
def test_other_configurations_have_the_published_values(name, space, seeds, value):
    assert draw(space, name, *seeds) == pytest.approx(value, rel=1e-12)


def test_rotated_mnist_has_the_published_draw():
    training = configuration(dataset_class("RotatedMNIST").training, 1, 0)
    assert training.lr == pytest.approx(0.0001190616291, rel=1e-9)
    assert training.batch_size == 372


def test_large_images_have_the_published_draws():
    for name in ("PACS", "VLCS"):
        training = configuration(dataset_class(name).training, 1, 0)
        assert (training.lr, training.weight_decay) == pytest.approx((2.7028930742148706e-05, 0.00044832883881609976))
        assert (training.batch_size, training.dropout) == (39, 0.5)
    training = configuration(dataset_class("DomainNet").training, 6, 0)
    assert (training.lr, training.weight_decay) == pytest.approx((0.000211416337488096, 2.812885384798702e-06))
    assert (training.batch_size, training.dropout) == (21, 0.1)


@dataclass(frozen=True)
class Tuned:
    """A method with other defaults and spaces for large images."""

    rate: float = hyper(1e-3, Power(10, -4.5, -2.5), large=Large(5e-5, Power(10, -5, -3.5)), draw_as="lr_g")
    decay: float = hyper(0.0, large=Large(0.0, Power(10, -6, -2)))


def test_a_method_can_have_other_defaults_and_spaces_for_large_images():
    assert configuration(Tuned(), 0, 0) == Tuned()
    assert configuration(Tuned(), 0, 0, large=True) == Tuned(rate=5e-5)
    small, large = configuration(Tuned(), 1, 0), configuration(Tuned(), 1, 0, large=True)
    assert small.rate == pytest.approx(0.0015950807441571075, rel=1e-12)
    assert small.decay == 0
    assert 1e-5 < large.rate < 10**-3.5
    assert 1e-6 < large.decay < 1e-2


def test_a_default_for_large_images_does_not_replace_a_value_that_was_set():
    assert apply_large_defaults(Tuned(rate=0.5), large=True).rate == 0.5
    assert apply_large_defaults(Tuned(), large=False) == Tuned()


def test_configuration_0_is_the_defaults():
    assert configuration(POGM(), 0, 5) == POGM()


def test_a_hyperparameter_without_a_space_keeps_its_value():
    assert configuration(POGM(centre="mean"), 3, 0).centre == "mean"


def test_a_draw_depends_on_the_name_of_the_hyperparameter():
    assert draw(Uniform(0, 1), "a", 2, 1) != draw(Uniform(0, 1), "b", 2, 1)
    assert draw(Uniform(0, 1), "a", 2, 1) == draw(Uniform(0, 1), "a", 2, 1)


def test_plan_has_the_trials_that_are_built_one_by_one():
    datasets = dataset_class("ColoredDigits")(), dataset_class("PACS")()
    settings = ("lr=0.01", "POGM.kappa=0.25")
    sweep = Sweep(("ERM", "POGM"), datasets, configurations=3, trials=2, modifiers=("Mixup",), settings=settings)
    one_by_one = [
        sweep.trial_at(data, algorithm, [held_out], hparams_seed, trial_seed)
        for trial_seed in range(2)
        for hparams_seed in range(3)
        for data in datasets
        for held_out in range(len(data.domains))
        for algorithm in sweep.algorithms
    ]
    assert sweep.plan() == one_by_one
    assert len({trial.training for trial in one_by_one}) > 6


def test_shared_init_gives_equal_initial_weights_and_data_but_other_seeds_of_training():
    sweep = Sweep(("ERM", "POGM"), datasets("RotatedDigits"), configurations=3, trials=2, shared_init=True)
    trials = sweep.plan()
    assert {trial.init_seed for trial in trials} == {0}
    assert {(trial.trial_seed, trial.data_seed) for trial in trials} == {(0, 0), (1, 1)}
    assert len({trial.seed for trial in trials}) == len(trials)
    networks = [trial.task(None).build_network().state_dict() for trial in trials[:4]]
    assert all(leaf.equal(other[name]) for other in networks[1:] for name, leaf in networks[0].items())
    assert Sweep.from_json(sweep.to_json()) == sweep


def test_sweeps_without_shared_init_are_saved_as_before():
    sweep = replace(SMALL, shared_init=False)
    assert "shared_init" not in sweep.to_json()
    assert all("init_seed" not in trial.to_json() for trial in sweep.plan())
    with pytest.raises(UsageError, match="shared_init"):
        Sweep.from_json(sweep.to_json() | {"shared_init": "yes"})


def test_evaluation_is_saved_only_if_it_is_not_the_default():
    assert "evaluation" not in SMALL.to_json()
    chosen = replace(SMALL, evaluation="selection")
    assert Sweep.from_json(chosen.to_json()) == chosen
    assert {one.evaluation for one in chosen.plan()} == {"selection"}
    assert not {one.id for one in chosen.plan()} & {one.id for one in SMALL.plan()}
    with pytest.raises(UsageError, match="evaluation"):
        replace(SMALL, evaluation="some").plan()
    with pytest.raises(UsageError, match=r"found --evaluation validation\. Choose all or selection"):
        replace(SMALL, evaluation="validation")


def test_methods_with_modifiers_are_paired_with_the_algorithm_alone():
    """They have its seeds and hyperparameters; modifiers of all algorithms come first, so that averages can share."""
    sweep = Sweep(("ERM", "ERM+SWAD"), datasets("RotatedDigits"), configurations=2, trials=1, modifiers=("Mixup",))
    assert sweep.algorithms == ("ERM", "ERM + SWAD")
    labels = ("ERM + Mixup", "ERM + Mixup + SWAD")
    plain, averaged = ([one for one in sweep.plan() if one.label == label] for label in labels)
    assert len(plain) == len(averaged) == 12
    assert [replace(one, modifiers=one.modifiers[:1]) for one in averaged] == plain
    assert [len(group) for group in share_training(sweep.plan())] == [2] * 12
    assert Sweep.from_json(sweep.to_json()) == sweep


def test_a_method_without_quotes_is_an_error_that_shows_them():
    with pytest.raises(UsageError, match=r"a method such as 'ERM \+ SWAD', in quotes; found '\+'"):
        Sweep(("ERM", "+", "SWAD"), datasets("RotatedDigits"))


def test_a_modifier_of_all_algorithms_is_not_given_again():
    sweep = Sweep(("ERM", "ERM + SWAD"), datasets("RotatedDigits"), modifiers=("SWAD",))
    with pytest.raises(UsageError, match=r"each modifier once; found ERM \+ SWAD \+ SWAD"):
        sweep.plan()
