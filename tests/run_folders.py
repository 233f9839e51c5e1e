"""Synthetic run folders, in the format of the runner."""

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pogm.benchmark.results.classification import classification_metrics, scale_temperature, softmax
from pogm.benchmark.results.record_file import append_record
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.table import Column, Row, Table

MakeRun = Callable[..., Path]
DOMAINS = ("A", "B", "C")


def record(step: int, inside: Sequence[float | None], outside: Sequence[float | None], **more: Any) -> dict[str, Any]:
    return {
        "accuracy": {"in": list(inside), "out": list(outside)},
        "epoch": step / 100,
        "memory_gb": 0.0,
        "metrics": {"loss": 0.7},
        "seconds_per_step": 0.001,
        "status": "ok",
        "step": step,
    } | more


def write_run(
    root: Path,
    records: Sequence[dict[str, Any]] = (),
    *,
    label: str = "ERM",
    dataset: str = "Toy",
    domains: Sequence[str] = DOMAINS,
    test_domains: Sequence[int] = (0,),
    hparams_seed: int = 0,
    trial_seed: int = 0,
    done: bool = True,
    failure: str | None = None,
    metrics: dict[str, Any] | None = None,
    samples: int | None = None,
    **settings: Any,
) -> Path:
    name, *modifiers = label.split(" + ")
    trial = {
        "dataset": {"name": dataset},
        "algorithm": {"name": name, "kappa": 0.5} | settings,
        "modifiers": [{"name": modifier, "alpha": 0.2} for modifier in modifiers],
        "test_domains": list(test_domains),
        "hparams_seed": hparams_seed,
        "trial_seed": trial_seed,
        "seed": 123,
        "steps": 300,
        "evaluate_every": 30,
        "training": {"lr": 0.001, "batch_size": 32, "network": "mlp"},
        "precision": "fp32",
    } | ({} if samples is None else {"samples": samples})
    run_id = hashlib.md5(json.dumps([trial, label]).encode()).hexdigest()
    folder = root / run_id
    folder.mkdir(parents=True)
    saved = {
        "schema": 1,
        "id": run_id,
        "trial": trial,
        "label": label,
        "domains": list(domains),
        "num_classes": 10,
    }
    saved["provenance"] = {"pogm": "0.1.0", "torch": "2.15.0", "device": "cpu"}
    (folder / "trial.json").write_text(json.dumps(saved))
    for line in records:
        append_record(folder / "records.jsonl", line)
    if metrics is not None:
        (folder / "metrics.json").write_text(json.dumps(metrics))
    if done:
        (folder / "done").write_text("done")
    if failure is not None:
        (folder / "failed.json").write_text(json.dumps({"error": failure}))
    return folder


def metrics_of(domain: str, answers: Sequence[tuple[int, int]], classes: int = 2, step: int = 0) -> dict[str, Any]:
    """Return the content of metrics.json for a model that is sure of its answers: pairs of true and predicted class."""
    true, predicted = np.array(answers).T
    logits = 50.0 * np.eye(classes)[predicted]
    found = classification_metrics(softmax(logits), true, [f"class {number}" for number in range(classes)])
    scaling = scale_temperature(logits, true, 20.0)
    domains = {domain: {"in": found.to_json() | {"temperature_scaling": scaling.to_json()}}}
    selection = {"rule": "training-domain validation", "step": step, "validation": 0.5}
    return {"format": 1, "task": "classification", "selection": selection, "held_out": [domain], "domains": domains}


def write_sweep(
    root: Path,
    labels: Sequence[str] = ("ERM", "Fish", "Fishr", "POGM"),
    *,
    dataset: str = "RotatedDigits",
    domains: Sequence[str] = ("0", "15", "30", "45", "60", "75"),
    seeds: int = 3,
    pairs: bool = False,
) -> None:
    """Write runs with plausible learning curves; later labels are better."""
    draw = random.Random(0)
    held_out = [(i,) for i in range(len(domains))]
    held_out += [(i, j) for j in range(len(domains)) for i in range(j)] if pairs else []
    for strength, label in enumerate(labels):
        for test_domains in held_out:
            for seed in range(seeds):
                lines = []
                for step in [*range(0, 300, 30), 299]:
                    learnt = 1 - math.exp(-step / (70 - 6 * strength))
                    hard = [
                        0.22 if i in test_domains and i in (0, len(domains) - 1) else 0.05 for i in range(len(domains))
                    ]
                    values = [
                        min(1.0, max(0.0, 0.1 + learnt * (0.86 - h + 0.02 * strength) + draw.gauss(0, 0.012)))
                        for h in hard
                    ]
                    count = len(domains) - len(test_domains)
                    angle = [
                        0.55 + 0.06 * strength - 0.25 * learnt + 0.03 * i + draw.gauss(0, 0.02) for i in range(count)
                    ]
                    lines.append(record(step, values, values, metrics={"loss": 2.3 - 2 * learnt, "cosine": angle}))
                write_run(
                    root,
                    lines,
                    label=label,
                    dataset=dataset,
                    domains=domains,
                    test_domains=test_domains,
                    trial_seed=seed,
                )


def text_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]], notes: Sequence[str] = ()) -> Table:
    """Return a table of texts without row labels."""
    columns = tuple(Column(heading, kind="text") for heading in headings)
    return Table(title, columns, tuple(Row(tuple(map(str, row))) for row in rows), footnotes=tuple(notes))


@pytest.fixture
def make_record() -> Callable[..., dict[str, Any]]:
    return record


@pytest.fixture
def make_sweep(tmp_path: Path) -> Callable[..., list[Run]]:
    """Write a whole sweep below `tmp_path` and read everything there."""

    def make(*args: Any, **kwargs: Any) -> list[Run]:
        write_sweep(tmp_path, *args, **kwargs)
        return read_runs(tmp_path)

    return make


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write one run folder below `tmp_path`."""
    return lambda *args, **kwargs: write_run(tmp_path, *args, **kwargs)


@pytest.fixture
def section_16(tmp_path: Path) -> list[Run]:
    """The model-selection fixture of the protocol's section 16; its seeds a and b are 0 and 1."""
    a = [record(0, [0.50, 0, 0], [0.90, 0.60, 0.60]), record(100, [0.55, 0, 0], [0.40, 0.80, 0.70])]
    b = [record(0, [0.65, 0, 0], [0.30, 0.70, 0.70]), record(100, [0.60, 0, 0], [0.45, 0.65, 0.75])]
    write_run(tmp_path, a, hparams_seed=0)
    write_run(tmp_path, b, hparams_seed=1)
    return read_runs(tmp_path)


@pytest.fixture
def write(make_run, make_record, tmp_path):
    """Write runs of a label: {domain: [accuracy of trial 0, 1, ...]}, None for a run that failed."""

    def make(label, by_domain, dataset="Toy", domains=("A", "B")):
        for domain, accuracies in by_domain.items():
            for seed, value in enumerate(accuracies):
                make_run(
                    [make_record(0, [value] * len(domains), [value] * len(domains))],
                    label=label,
                    dataset=dataset,
                    domains=domains,
                    test_domains=[domain],
                    trial_seed=seed,
                    done=value is not None,
                    failure="no memory" if value is None else None,
                )
        return read_runs(tmp_path)

    return make
