"""Random search: the draws are DomainBed's."""

from dataclasses import dataclass

import pytest

from pogm import POGM
from pogm.benchmark.plan.search import configuration, drawn
from pogm.core.hyperparameters import Choice, Large, Power, Uniform, hyper, suited
from pogm.data.datasets import dataset_class


@pytest.mark.parametrize(
    ("name", "space", "value"),
    [
        ("lr", Power(10, -5, -3.5), 2.7028930742148706e-05),  # PACS and VLCS; agrees with DomainBed's own records
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
    assert drawn(space, name, 1, 0) == pytest.approx(value, rel=1e-12)


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
    assert drawn(space, name, *seeds) == pytest.approx(value, rel=1e-12)


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
    """A method with other values for large images."""

    rate: float = hyper(1e-3, Power(10, -4.5, -2.5), large=Large(5e-5, Power(10, -5, -3.5)), draw_as="lr_g")
    decay: float = hyper(0.0, large=Large(0.0, Power(10, -6, -2)))


def test_a_method_may_have_other_defaults_and_spaces_for_large_images():
    assert configuration(Tuned(), 0, 0) == Tuned()
    assert configuration(Tuned(), 0, 0, large=True) == Tuned(rate=5e-5)
    small, large = configuration(Tuned(), 1, 0), configuration(Tuned(), 1, 0, large=True)
    assert small.rate == pytest.approx(0.0015950807441571075, rel=1e-12)
    assert small.decay == 0
    assert 1e-5 < large.rate < 10**-3.5
    assert 1e-6 < large.decay < 1e-2


def test_what_was_set_before_is_not_overwritten_by_a_default_for_large_images():
    assert suited(Tuned(rate=0.5), large=True).rate == 0.5
    assert suited(Tuned(), large=False) == Tuned()


def test_configuration_0_is_the_defaults():
    assert configuration(POGM(), 0, 5) == POGM()


def test_what_has_no_space_keeps_its_value():
    assert configuration(POGM(centre="mean"), 3, 0).centre == "mean"


def test_a_value_depends_on_its_own_name_alone():
    assert drawn(Uniform(0, 1), "a", 2, 1) != drawn(Uniform(0, 1), "b", 2, 1)
    assert drawn(Uniform(0, 1), "a", 2, 1) == drawn(Uniform(0, 1), "a", 2, 1)
