"""Defaults and search spaces of the released algorithms, stored here under the names that seed their random draws.

Most are from DomainBed. A new algorithm needs no entry: `test_contract.py` checks that its space gives valid
values.
"""

import pytest
from digests import RELEASED

from pogm.algorithms import all_algorithms
from pogm.core.hyperparameters import fields

ADVERSARIAL = {
    "lambda": "1.0 in 10^U(-2, 2)",
    "d_steps_per_g_step": "1 in int 2^U(0, 3)",
    "grad_penalty": "0.0 in 10^U(-2, 1)",
    "lr_g": "0.001 in 10^U(-4.5, -2.5), large 5e-05 in 10^U(-5, -3.5)",
    "lr_d": "0.001 in 10^U(-4.5, -2.5), large 5e-05 in 10^U(-5, -3.5)",
    "weight_decay_g": "0.0, large 0.0 in 10^U(-6, -2)",
    "weight_decay_d": "0.0 in 10^U(-6, -2)",
    "beta1": "0.5 in {0.0, 0.5}",
    "mlp_width": "256 in int 2^U(6, 10)",
    "mlp_depth": "3 in {3, 4, 5}",
    "mlp_dropout": "0.0 in {0.0, 0.1, 0.5}",
}
ROUNDS = {"meta_lr": "0.5 in {0.05, 0.1, 0.5}", "pogm_local_steps": "1 in {1, 5, 10}"}
BOTTLENECK = {"ib_lambda": "100.0 in 10^U(-1, 5)", "ib_penalty_anneal_iters": "500 in int 10^U(0, 4)"}
CONTRASTIVE = {
    "lmbda": "0.1 in {0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0}",
    "temperature": "0.1 in {0.05, 0.1}",
}
STORED = {
    "ADRMX": {
        "lr": "0.003 in {0.0005, 0.001, 0.002, 0.003}, large 3e-05 in {2e-05, 3e-05, 4e-05, 5e-05}",
        "mlp_depth": "9 in {8, 9, 10}",
    },
    "ANDMask": {"tau": "1.0 in U(0.5, 1)"},
    "AlignedMTL": ROUNDS,
    "ARM": {"support_size": "64, large 8"},
    "CAD": CONTRASTIVE,
    "CAGrad": ROUNDS | {"cagrad_c": "0.4 in {0.1, 0.2, 0.4, 0.8}"},
    "CDANN": ADVERSARIAL,
    "CORAL": {"mmd_gamma": "1.0 in 10^U(-1, 1)"},
    "CausIRLCORAL": {"mmd_gamma": "1.0 in 10^U(-1, 1)"},
    "CausIRLMMD": {"mmd_gamma": "1.0 in 10^U(-1, 1)"},
    "ConFIG": ROUNDS,
    "CondCAD": CONTRASTIVE,
    "DANN": ADVERSARIAL,
    "EQRM": {
        "eqrm_quantile": "0.75 in U(0.5, 0.99)",
        "eqrm_burnin_iters": "2500 in int 10^U(2.5, 3.5)",
        "eqrm_lr": "0.0, large 1e-06 in 10^U(-7, -5)",  # our default on small images: the learning rate of the run
    },
    "ERM": {},
    "ERMPlusPlus": {"linear_lr": "0.0, large 5e-05 in 10^U(-5, -3.5)"},  # our default on small images: that of the run
    "FAMO": ROUNDS | {"famo_lr": "0.025 in {0.005, 0.025, 0.1}", "famo_gamma": "0.001 in {1e-05, 0.001, 0.01}"},
    "Fish": {"meta_lr": "0.5 in {0.05, 0.1, 0.5}"},
    "Fishr": {
        "lambda": "1000.0 in 10^U(1, 4)",
        "penalty_anneal_iters": "1500 in int U(0, 5000)",
        "ema": "0.95 in U(0.9, 0.99)",
    },
    "GGA": {"gga_rho": "1e-06 in {1e-06, 1e-05, 0.0001}"},
    "GroupDRO": {"groupdro_eta": "0.01 in 10^U(-3, -1)"},
    "IBERM": BOTTLENECK,
    "IBIRM": {"irm_lambda": "100.0 in 10^U(-1, 5)", "irm_penalty_anneal_iters": "500 in int 10^U(0, 4)"} | BOTTLENECK,
    "IDGM": {"idgm_gamma": "0.01 in 10^U(-4, 0)"},
    "IGA": {"penalty": "1000.0 in 10^U(1, 5)"},
    "IMTLG": ROUNDS,
    "IRM": {"irm_lambda": "100.0 in 10^U(-1, 5)", "irm_penalty_anneal_iters": "500 in int 10^U(0, 4)"},
    "MADG": {
        "madg_margin": "2.0 in {1.0, 2.0, 3.0, 4.0}",
        "madg_beta_max": "0.1 in {0.05, 0.1, 0.2}",
        "madg_width": "128, large 1024",
    },
    "MGDA": ROUNDS,
    "MLDG": {"mldg_beta": "1.0 in 10^U(-1, 1)", "n_meta_test": "2 in {1, 2}"},
    "MMD": {"mmd_gamma": "1.0 in 10^U(-1, 1)"},
    "MTL": {"mtl_ema": "0.99 in {0.5, 0.9, 0.99, 1.0}"},
    "NashMTL": ROUNDS,
    "PCGrad": ROUNDS,
    "PGrad": {"pgrad_lr": "0.1 in {0.05, 0.1, 0.5}"},
    "MeasurementPOGM": ROUNDS | {"pogm_kappa": "0.5 in {0.05, 0.1, 0.5}"},
    "OfficialPOGM": ROUNDS | {"pogm_kappa": "0.5 in {0.05, 0.1, 0.5}"},
    "PaperTextPOGM": {
        "meta_lr": "0.01 in {0.01, 0.1, 0.5}",
        "pogm_local_steps": "5 in {1, 5, 10}",
        "pogm_kappa": "0.5 in {0.05, 0.1, 0.5}",
    },
    "POGM": ROUNDS | {"meta_lr": "1.0 in {0.1, 0.5, 1.0}", "pogm_kappa": "0.1 in {0.05, 0.1, 0.2, 0.5}"},
    "RDM": {
        "rdm_lambda": "5.0 in U(0.1, 10)",
        "rdm_penalty_anneal_iters": "1500 in int U(800, 2700)",
        "variance_weight": "0.004 in U(0.001, 0.007)",
        "rdm_lr": "0.0, large 1.5e-05 in U(8e-06, 2e-05)",  # our default on small images: the learning rate of the run
    },
    "RSC": {"rsc_f_drop_factor": f"{1 / 3} in U(0, 0.5)", "rsc_b_drop_factor": f"{1 / 3} in U(0, 0.5)"},
    "Reptile": ROUNDS,
    "SAGM": {"rho": "0.05 in {0.01, 0.02, 0.05, 0.1}", "alpha": "0.001 in {0.01, 0.02, 0.05, 0.1}"},
    "SAM": {"rho": "0.05 in {0.01, 0.02, 0.05, 0.1}"},
    "SANDMask": {"tau": "0.5 in U(0, 1)", "k": "10.0 in 10^U(-3, 5)"},  # our default: with tau = 1 no weight moves
    "SD": {"sd_reg": "0.1 in 10^U(-5, -1)"},
    "SagNet": {"sag_w_adv": "0.1 in 10^U(-2, 1)"},
    "SelfReg": {},
    "TRM": {
        "cos_lambda": "0.0001 in 10^U(-5, 0)",
        "iters": "200 in int 10^U(0, 4)",
        "groupdro_eta": "0.01 in 10^U(-3, -1)",
    },
    "Transfer": {  # its search of gda is left out: there, it switches off the training
        "t_lambda": "1.0 in 10^U(-2, 1)",
        "delta": "2.0 in U(0.1, 3)",
        "d_steps_per_g": "10 in {1, 2, 5}",
        "lr_d": "0.001 in 10^U(-4.5, -2.5)",
    },
    "UPGrad": ROUNDS,
    "URM": {
        "urm_adv_lambda": "0.1 in U(0, 0.2)",
        "urm_generator_output": "tanh in {tanh, relu}",
        "urm_discriminator_hidden_layers": "1 in {1, 2, 3}",
        "urm_discriminator_lr": "0.001 in 10^U(-5.5, -3.5), large 5e-05 in 10^U(-6, -4.5)",
    },
    "VREx": {"vrex_lambda": "10.0 in 10^U(-1, 5)", "vrex_penalty_anneal_iters": "500 in int 10^U(0, 4)"},
}


def describe(default, space):
    return f"{default} in {space}" if space else str(default)


@pytest.mark.parametrize("name", STORED)
def test_defaults_and_search_space_are_the_stored_ones(name):
    found = {}
    for field in fields(all_algorithms()[name]):
        space, large = field.metadata["space"], field.metadata["large"]
        texts = [describe(field.default, space)] + ([f"large {describe(large.default, large.space)}"] if large else [])
        if space or large:
            found[field.metadata["draw_as"] or field.name] = ", ".join(texts)
    assert found == STORED[name]


def test_every_released_algorithm_is_stored():
    assert STORED.keys() == set(RELEASED) & all_algorithms().keys()
