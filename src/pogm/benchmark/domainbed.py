"""Import and export of DomainBed's sweep folders: read job folders as `Run`s, and write `Run`s as job folders.

A job folder contains `results.jsonl` (one record per evaluation, each with all arguments of the job) and, when it has
finished, `done`. DomainBed's collector does not check `done`: it counts the records of killed jobs.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError
from pogm._system.files import canonical_json, digest, is_empty, write_atomic
from pogm._system.moved import rename_metrics
from pogm.benchmark.results.record_file import Record, RecordWarning, accuracy, read_records
from pogm.benchmark.results.records import Run

RESULTS = "results.jsonl"
LAYOUT = "DomainBed"  # marks a run that was read from a job folder, in its provenance
SUFFIX = f" ({LAYOUT})"

JOB = (  # arguments that the name of a job folder depends on
    "dataset",
    "algorithm",
    "test_envs",
    "holdout_fraction",
    "hparams_seed",
    "data_dir",
    "task",
    "trial_seed",
    "seed",
)
JOB_IF_GIVEN = ("steps", "hparams")  # the same, if they are not null
NOT_METRICS = {"args", "domains", "epoch", "hparams", "mem_gb", "nonfinite", "step", "step_time"}
KNOWN = (  # datasets of which its collector prints a table; it ignores others without a message
    *("Debug28", "Debug224", "ColoredMNIST", "RotatedMNIST", "VLCS", "PACS", "OfficeHome", "TerraIncognita"),
    *("DomainNet", "SVIRO", "WILDSCamelyon", "WILDSFMoW"),
)


def job_name(args: Mapping[str, Any]) -> str:
    """Return the name of a job folder: the MD5 hash of the arguments as JSON."""
    hashed = {key: args[key] for key in JOB if key in args}
    hashed |= {key: args[key] for key in JOB_IF_GIVEN if args.get(key) is not None}
    return hashlib.md5(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def read_job(folder: Path) -> Run:
    """Read a job folder as a run.

    Raises:
        ValueError: If its records do not contain the arguments of the job.
    """
    lines = read_records(folder / RESULTS)
    if not lines:
        raise ValueError("no complete record")
    args, hparams = lines[-1].get("args"), lines[-1].get("hparams")
    if not isinstance(args, dict):
        raise ValueError("expected DomainBed's records, with args in each")
    environments = len(list(takewhile(lambda i: f"env{i}_out_acc" in lines[-1], count())))
    _check_arguments(args, environments)
    finished = (folder / "done").exists()
    settings = {key: args[key] for key in ("seed", "steps") if args.get(key) is not None}
    return Run(
        folder=folder,
        id=digest(canonical_json({key: value for key, value in args.items() if key != "output_dir"}).encode())[:16],
        trial={
            "dataset": {"name": args["dataset"]},
            "algorithm": {"name": args["algorithm"], **(hparams if isinstance(hparams, dict) else {})},
            "test_domains": args["test_envs"],
            "hparams_seed": args["hparams_seed"],
            "trial_seed": args["trial_seed"],
            **settings,
        },
        label=args["algorithm"],
        domains=_domain_names(args["dataset"], environments, lines[-1].get("domains")),
        records=tuple(_from_job_record(line, environments) for line in lines),
        done=True,
        failure=None if finished else f"no `done`; its records are used anyway, as {LAYOUT} does",
        provenance={"layout": LAYOUT},
    )


def _check_arguments(args: Mapping[str, Any], environments: int) -> None:
    for key, kind in {
        "dataset": str,
        "algorithm": str,
        "hparams_seed": int,
        "trial_seed": int,
        "test_envs": list,
    }.items():
        if not isinstance(args.get(key), kind):
            raise ValueError(f"expected {key} of type {kind.__name__} in args, found {args.get(key)!r}")
    held_out = args["test_envs"]
    if not held_out or not all(type(i) is int for i in held_out) or not set(held_out) < set(range(environments)):
        raise ValueError(f"expected test_envs to be some of {environments} environments, found {held_out}")


def _domain_names(dataset: str, environments: int, written: object) -> tuple[str, ...]:
    """Return the names of the domains: those of our export, those of our dataset of that name, or "env0", "env1", …."""
    if isinstance(written, list) and len(written) == environments and all(isinstance(name, str) for name in written):
        return tuple(written)
    from pogm.data.datasets import all_datasets  # here, because it imports torch

    known = all_datasets().get(dataset)
    if known is not None and len(known.domains) == environments:
        return known.domains
    return tuple(f"env{i}" for i in range(environments))


def _from_job_record(line: Record, environments: int) -> Record:
    accuracies = {split: [line.get(f"env{i}_{split}_acc") for i in range(environments)] for split in ("in", "out")}
    measured = {
        key: value
        for key, value in line.items()
        if key not in NOT_METRICS and not (key.startswith("env") and key.endswith("_acc"))
    }
    return {
        "step": line["step"],
        "epoch": line.get("epoch"),
        "accuracy": accuracies,
        "metrics": rename_metrics(measured),
        "seconds_per_step": line.get("step_time"),
        "memory_gb": line.get("mem_gb"),
        "status": "ok",
    }


def label_domainbed_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the runs with distinct labels: a job of DomainBed with a label of ours gets the suffix " (DomainBed)".

    Warn about jobs without `done`. Their records are used, as in DomainBed.
    """
    runs = list(runs)
    jobs = [run for run in runs if _is_domainbed(run)]
    unfinished = [run for run in jobs if run.failure is not None]
    if unfinished:
        warnings.warn(
            f"{unfinished[0].folder.parent}: {len(unfinished)} of {len(jobs)} {LAYOUT} jobs have no `done`; "
            f"their records are used, as {LAYOUT}'s collector does",
            RecordWarning,
            stacklevel=3,
        )
    ours = {run.label for run in runs if not _is_domainbed(run)}
    return [replace(run, label=run.label + SUFFIX) if _is_domainbed(run) and run.label in ours else run for run in runs]


def _is_domainbed(run: Run) -> bool:
    return run.provenance.get("layout") == LAYOUT


def export_domainbed(runs: Iterable[Run], folder: Path) -> list[Path]:
    """Write finished runs as a sweep of DomainBed, which its collector can read.

    Args:
        runs: The runs. Unfinished ones are left out, because the collector would count them.
        folder: A new or empty folder.

    Returns:
        The job folders.

    Raises:
        UsageError: If no run is finished, if two runs would have the same job folder, or if the folder has files.
    """
    runs = list(runs)
    finished = {_identity(run): run for run in runs if run.status == "done"}
    left_out = sum(run.status != "done" for run in runs)
    if not finished:
        raise UsageError(f"Expected finished runs to export; found none of {len(runs)}. Resume them first.")
    if len(finished) + left_out < len(runs):
        raise UsageError(
            "Expected runs that differ in dataset, algorithm, test domains or seeds; found some that differ in other "
            f"settings only, which {LAYOUT}'s collector would take for one run. Export them into two folders."
        )
    if folder.exists() and not (folder.is_dir() and is_empty(folder)):
        raise UsageError(f"Expected {folder} to be new or empty; found other files in it. Choose another --out.")
    _warn_of_omissions(finished.values(), left_out)
    jobs = []
    for run in finished.values():
        args = _job_arguments(run)
        job = folder / job_name(args)
        args["output_dir"] = str(job)
        job.mkdir(parents=True)
        lines = [json.dumps(_to_job_record(run, record, args), sort_keys=True) for record in run.eligible]
        write_atomic(job / RESULTS, "".join(f"{line}\n" for line in lines).encode())
        write_atomic(job / "done", b"done")
        jobs.append(job)
    return jobs


def _identity(run: Run) -> tuple[object, ...]:
    return run.dataset, run.label, run.test_domains, run.hparams_seed, run.trial_seed


def _warn_of_omissions(runs: Iterable[Run], left_out: int) -> None:
    if left_out:
        text = f"Left out {left_out} unfinished run{'s' * (left_out > 1)}: {LAYOUT}'s collector would count them"
        warnings.warn(text, RecordWarning, stacklevel=3)
    unknown = sorted({run.dataset for run in runs} - set(KNOWN))
    if unknown:
        text = f"{LAYOUT}'s collector prints no table of {', '.join(unknown)}, which it does not know"
        warnings.warn(text, RecordWarning, stacklevel=3)


def _job_arguments(run: Run) -> dict[str, Any]:
    """Return the arguments of DomainBed's train script for a run; None is its default."""
    from pogm.data.datasets import all_datasets
    from pogm.data.datasets.base import HOLDOUT

    known, steps = all_datasets().get(run.dataset), run.trial.get("steps")
    return {
        "algorithm": run.label,
        "checkpoint_freq": run.trial.get("evaluate_every"),
        "data_dir": "data",  # part of the name of the job folder
        "dataset": run.dataset,
        "holdout_fraction": HOLDOUT,
        "hparams": None,
        "hparams_seed": run.hparams_seed,
        "save_model_every_checkpoint": False,
        "seed": run.trial.get("seed", 0),
        "skip_model_save": True,
        "steps": None if known is not None and known.steps == steps else steps,
        "task": "domain_generalization",
        "test_envs": sorted(run.test_domains),
        "trial_seed": run.trial_seed,
        "uda_holdout_fraction": 0,
    }


def _to_job_record(run: Run, record: Record, args: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {key: value for key, value in (record.get("metrics") or {}).items() if key not in NOT_METRICS}
    line = metrics | {
        "step": record["step"],
        "epoch": record.get("epoch"),
        "step_time": record.get("seconds_per_step"),
        "mem_gb": record.get("memory_gb"),
        "hparams": dict(_hparams(run.trial)),
        "args": args,
        "domains": run.domains,  # an addition of ours: records of DomainBed number the environments
    }
    # NaN, which is not JSON, instead of null: the collector computes with these values and fails at a null.
    line |= {
        f"env{i}_{split}_acc": accuracy(record, split, i) for i in range(len(run.domains)) for split in ("in", "out")
    }
    if any(value is None or (isinstance(value, float) and math.isnan(value)) for value in line.values()):
        line["nonfinite"] = True
    return line


def _hparams(trial: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all settings for one dictionary, as in DomainBed; those of modifiers with their name as a prefix."""
    yield from (trial.get("training") or {}).items()
    yield from ((key, value) for key, value in trial["algorithm"].items() if key != "name")
    for modifier in trial.get("modifiers") or ():
        yield from ((f"{modifier['name']}.{key}", value) for key, value in modifier.items() if key != "name")
