"""Digests of short runs, stored in ``digests.json``: `test_digests.py` checks that no number has changed by a bit.

Each case is a run of ``pogm run`` on embedded data, with a fixed seed and one thread of a CPU. The name of a case says
what runs: an algorithm with its modifiers, values for ``--set``, other options, and a dataset. For example:

    POGM+Mixup kappa=0.1 --precision=fp64 on RotatedDigits

The digests cover the final weights and every field of the records except times and memory. They do not depend on the
names of fields: if a metric is renamed, add it to `FORMER_FIELDS`; if a hyperparameter or an option is renamed, rename
it in this file and in ``digests.json``. Then the test checks that its values are still the same. After a change that is
meant to change numbers, run

    python tests/digests.py --write

which prints the cases that changed. Digests are exact only on the machine that wrote them. To work on another machine,
first write them there at the last commit that passed the test.
"""

import argparse
import hashlib
import io
import json
import platform
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pogm.cli import main as pogm

STORE = Path(__file__).with_name("digests.json")
# Fields of a record that had another name when the digests were stored.
FORMER_FIELDS = {"metrics.cosine": "metrics.angle", "rounds.cosine": "rounds.angle"}
NOT_REPEATABLE = {"seconds_per_step", "memory_gb"}  # fields of a record
OPTIONS = {"--steps": "6", "--evaluate-every": "5", "--seed": "1", "--device": "cpu", "--threads": "1"}

DATASETS = ("RotatedDigits", "ColoredDigits")
ALGORITHMS = """
    ADRMX ANDMask ARM CAD CAGrad CDANN CORAL CausIRLCORAL CausIRLMMD CondCAD DANN EQRM ERM ERMPlusPlus Fish Fishr
    GroupDRO IBERM IBIRM IDGM IGA IRM MADG MGDA MLDG MMD MTL MeasurementPOGM OfficialPOGM PCGrad POGM PaperTextPOGM
    RDM RSC Reptile SAGM SAM SANDMask SD SagNet SelfReg TRM Transfer UPGrad URM VREx
    AlignedMTL ConFIG FAMO GGA IMTLG NashMTL PGrad
"""
MODIFIERS = (
    *("Augment", "CIRL", "EMA", "ITTA", "LPFT", "MIRO", "MixStyle", "Mixup"),
    *("SMA", "SWAD", "T3A", "TENT", "WiSEFT"),
)
# Released methods have stored digests and a row in docs/methods.md. A new method works and is tested without being
# listed here; CONTRIBUTING.md says how to release it.
RELEASED = (*ALGORITHMS.split(), *MODIFIERS)

# Defaults of all cases with an algorithm or modifier: schedules that change something within a short run, and a network
# with feature maps where the modifier needs one.
SHORT = {
    "EQRM": "burn_in_anneal_iters=2",
    "ERMPlusPlus": "linear_anneal_iters=2 average_anneal_iters=4",
    "Fishr": "penalty_anneal_iters=2",
    "GGA": "start_anneal_iters=2 end_anneal_iters=3 searches=3 radius=0.001",
    "IBERM": "penalty_anneal_iters=2",
    "IBIRM": "penalty_anneal_iters=2 bottleneck_anneal_iters=4",
    "IDGM": "warmup_anneal_iters=3",
    "IGA": "penalty=1.0",
    "IRM": "penalty_anneal_iters=2",
    "MADG": "lr=0.0003",
    "PaperTextPOGM": "--steps=11",
    "RDM": "penalty_anneal_iters=2",
    "TRM": "penalty_anneal_iters=2",
    "VREx": "penalty_anneal_iters=2",
    "CIRL": "network=small_cnn lr=0.001 warmup_steps=2 ramp_steps=3",
    "EMA": "decay=0.7",
    "ITTA": "network=small_cnn",
    "LPFT": "linear_anneal_iters=2",
    "MIRO": "network=small_cnn weight=0.1",
    "MixStyle": "network=small_cnn",
    "SMA": "start_step=2",
    "TENT": "network=small_cnn",
    "SWAD": "lr=0.03 converge=2 tolerate=2 tolerance=0.0 --steps=16 --evaluate-every=2",
}

VARIANTS = """
    ADRMX as_released=true discriminator_steps=1
    ANDMask tau=0.5
    AlignedMTL scale=rmse
    ARM train_context=false support_size=16
    CAGrad radius=0.8
    CAD flipped=false normalized=true
    CDANN gradient_penalty=1.0 discriminator_steps=2
    CDANN mlp_dropout=0.5 weight_decay_d=0.01 beta1=0.0
    DANN gradient_penalty=1.0 discriminator_steps=2
    DANN mlp_dropout=0.5 weight_decay_g=0.01 mlp_depth=4
    EQRM --preset=domainbed
    EQRM later_lr=0.0001
    ERMPlusPlus average=false
    ERMPlusPlus warm_up=false
    FAMO inner_steps=5 logit_lr=0.1 --steps=11
    Fish permute=false
    MADG as_released=true
    MLDG --preset=cyclic
    MLDG n_meta_test=1
    MTL ema=0.5 compat_noise=true
    MeasurementPOGM kappa=0.1
    OfficialPOGM kappa=0.1
    PaperTextPOGM inner_optimizer=adam
    PaperTextPOGM inner_optimizer=adam inner_state=reset
    PaperTextPOGM inner_steps=1
    PaperTextPOGM kappa=0.1 meta_lr=0.5
    PGrad directions=1 splits=2
    RDM later_lr=0.0001 variance_weight=0.0
    SANDMask --preset=published
    SANDMask steepness=0.01
    SelfReg train_projection=false
    Transfer gda=true radius=0.1 ascent_steps=2
    URM output=relu label_smoothing=0.1 hidden_layers=2
"""
# Options of methods on trajectories. Newer methods have the same code for them.
TRAJECTORY_METHODS = ("CAGrad", "MGDA", "MeasurementPOGM", "OfficialPOGM", "PCGrad", "Reptile", "UPGrad")
TRAJECTORY_OPTIONS = """
    inner_optimizer=sgd
    inner_state=reset
    inner_steps=5 --steps=11
"""
# Options of POGM, each with both centres.
POGM_OPTIONS = """
    kappa=0.0
    kappa=0.5
    kappa=1.5
    meta_lr=0.1
    rescale=norm
    partition=classifier
    partition=layer
    partition=block network=small_cnn
    partition=layer network=small_cnn rescale=norm
    inner_optimizer=sgd
    inner_state=reset
    inner_steps=5 --steps=11
    inner_steps=5 --steps=11 inner_optimizer=sgd rescale=norm
    inner_steps=5 --steps=11 inner_state=reset
    inner_steps=5 --steps=11 partition=layer
    --trajectories=bf16
    --trajectories=host
"""
# Options of all algorithms, with ERM and both centres of POGM.
COMMON_OPTIONS = """
    network=small_cnn
    network=mnist_cnn lr=0.0003
    network=timm/test_resnet freeze_bn=false lr=0.0003
    nonlinear_classifier=true dropout=0.5
    weight_decay=0.1
    class_balanced=true
    --precision=fp64
    --precision=bf16
    --data-seed=2 --trial-seed=3
    --test-domain=1
    --probe-every=2
"""
COMBINATIONS = """
    DANN+Augment on RotatedDigits
    ERM+Augment+Mixup+SWAD on ColoredDigits
    ERM+ITTA adapts=false on RotatedDigits
    ERM+T3A supports=0 on RotatedDigits
    ERM+TENT network=timm/test_resnet freeze_bn=false lr=0.0003 on ColoredDigits
    ERM+MixStyle probability=1.0 network=mnist_cnn lr=0.0003 on RotatedDigits
    ERM+MIRO network=mlp on RotatedDigits
    ERM+SWAD compat=true on ColoredDigits
    ERM+SWAD compat=true on RotatedDigits
    ERM+WiSEFT+LPFT start_step=2 on RotatedDigits
    Fish+Mixup on RotatedDigits
    Fishr+MixStyle on RotatedDigits
    OfficialPOGM+Mixup on RotatedDigits
    POGM+Augment+Mixup+MixStyle+SWAD centre=mean on RotatedDigits
    POGM+Mixup+SWAD inner_steps=2 on ColoredDigits
"""


def cases() -> Iterator[str]:
    """Name every case."""
    yield from (f"{algorithm} on {dataset}" for dataset, algorithm in product(DATASETS, ALGORITHMS.split()))
    yield from (f"{variant} on RotatedDigits" for variant in lines(VARIANTS))
    for method, options in product(TRAJECTORY_METHODS, lines(TRAJECTORY_OPTIONS)):
        yield f"{method} {options} on RotatedDigits"
    for centre, options in product(("erm", "mean"), lines(POGM_OPTIONS)):
        yield f"POGM centre={centre} {options} on RotatedDigits"
    yield from (f"POGM centre=mean on {dataset}" for dataset in DATASETS)
    for method, options in product(("ERM", "POGM centre=erm", "POGM centre=mean"), lines(COMMON_OPTIONS)):
        yield f"{method} {options} on ColoredDigits"
    for dataset, method, modifier in product(DATASETS, ("ERM", "POGM"), MODIFIERS):
        yield f"{method}+{modifier} on {dataset}"
    yield from (f"POGM+{modifier} centre=mean on RotatedDigits" for modifier in MODIFIERS)
    yield from lines(COMBINATIONS)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def parts(case: str) -> tuple[str, tuple[str, ...], str]:
    """Return the algorithm, the modifiers and the dataset of a case."""
    words = case.split()
    algorithm, *modifiers = words[0].split("+")
    return algorithm, tuple(modifiers), words[-1]


def command(case: str) -> list[str]:
    """Translate the name of a case into arguments of ``pogm``, without ``--out``."""
    algorithm, modifiers, dataset = parts(case)
    words = " ".join(SHORT.get(part, "") for part in (algorithm, *modifiers)).split() + case.split()[1:-2]
    pairs = [word.split("=", 1) for word in words]
    settings = {"batch_size": "8"} | {name: value for name, value in pairs if not name.startswith("--")}
    options = OPTIONS | {name: value for name, value in pairs if name.startswith("--")}
    held_out = {"0", options.pop("--test-domain", "0")}
    return [
        *("run", "--dataset", dataset, "--algorithm", algorithm),
        *(word for modifier in modifiers for word in ("--with", modifier)),
        *(word for domain in sorted(held_out) for word in ("--test-domain", domain)),
        *(word for option in options.items() for word in option),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    ]


def run(case: str, folder: Path) -> dict[str, Any]:
    """Run a case and return what `digests.json` stores of it: digests, and some numbers to compare with a tolerance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = pogm([*command(case), "--out", str(folder)])
        except SystemExit as end:
            code = end.code
    assert not code, f"exit code {code} of: pogm {' '.join(command(case))}"
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    weights = final_weights(folder)
    columns = by_field(records)
    last = records[-1]["accuracy"]
    return {
        "numbers": {
            "loss": next(value for value in reversed(columns["metrics.loss"]) if value is not None),
            "accuracy": fmean(last["in"] + last["out"]),
            "weights": torch.cat([tensor.double().flatten() for tensor in weights]).norm().item(),
        },
        "weights": digest(b"".join(tensor.contiguous().numpy().tobytes() for tensor in weights)),
        **{field: digest(json.dumps(column).encode()) for field, column in sorted(columns.items())},
    }


def by_field(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return one list for each field of the records, such as ``metrics.loss``, with null where a record has none."""
    rows = [{FORMER_FIELDS.get(name, name): value for name, value in leaves(record)} for record in records]
    fields = {field for row in rows for field in row} - NOT_REPEATABLE
    return {field: [row.get(field) for row in rows] for field in fields}


def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def digest(content: bytes) -> str:
    """Return the first 64 bits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def environment() -> dict[str, str]:
    """Return everything besides our code that selects kernels, and thus rounding: torch, the CPU and the C library."""
    cpu = Path("/proc/cpuinfo")
    first = cpu.read_text().split("\n\n")[0].splitlines() if cpu.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first)}
    known = [facts[name] for name in ("vendor_id", "cpu family", "model", "model name") if name in facts]
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "cpu": " ".join(known) or platform.processor(),
        "libc": " ".join(platform.libc_ver()),
    }


# The two functions below are the only ones that depend on modules and on the checkpoint format of pogm.


def registered() -> tuple[set[str], set[str], set[str]]:
    """Return the names of all algorithms, modifiers and embedded datasets."""
    from pogm.algorithms import all_algorithms
    from pogm.data.datasets import all_datasets
    from pogm.modifiers import all_modifiers

    embedded = {name for name, dataset in all_datasets().items() if dataset.embedded}
    return set(all_algorithms()), set(all_modifiers()), embedded


def final_weights(folder: Path) -> list[Tensor]:
    """Return parameters and buffers after a run, ordered by name, without counters, random keys and other scalars."""
    tensors = load_file(max(folder.glob("checkpoints/*.safetensors")))
    names = sorted(name for name in tensors if name.startswith(("state/params/", "state/buffers/")))
    return [tensors[name] for name in names if tensors[name].is_floating_point() and tensors[name].ndim > 0]


def write() -> None:
    """Run all cases and write `digests.json`."""
    before = json.loads(STORE.read_text())["cases"] if STORE.exists() else {}
    found = {}
    for case in cases():
        output = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(output), redirect_stderr(output):
            found[case] = run(case, Path(folder, "run"))
        if found[case] != before.get(case):
            print(("changed: " if case in before else "new: ") + case)
    for case in before.keys() - found:
        print(f"removed: {case}")
    each = ",\n".join(f"{json.dumps(case)}: {json.dumps(content)}" for case, content in found.items())
    STORE.write_text(f'{{"environment": {json.dumps(environment())},\n"cases": {{\n{each}\n}}}}\n')
    print(f"{len(found)} cases written to {STORE}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the digests of short runs.")
    parser.add_argument("--write", action="store_true", required=True, help=f"run all cases and write {STORE.name}")
    parser.parse_args()
    torch.set_num_threads(1)
    write()
