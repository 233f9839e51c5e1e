"""Finished runs of sweeps of the evidence, with accuracies that a test chooses."""

from dataclasses import replace
from pathlib import Path

from run_folders import record

from pogm.benchmark.results.records import Run
from pogm.evidence.sweeps import SWEEPS, Sweep
from pogm.experiments.output import empty_run

HEART = Sweep("heart_disease", "small", "HeartDisease", "mlp", 5, 3)
PACS = next(sweep for sweep in SWEEPS if sweep.name == "pacs")
COLORED = next(sweep for sweep in SWEEPS if sweep.name == "colored_mnist")


def run_of(sweep: Sweep, row: str, domain: int, seed: int, accuracy: float) -> Run:
    """Return a finished run of a sweep with one record."""
    (trials,) = (trials for found, trials in sweep.plan.items() if found.name == row)
    (trial,) = (t for t in trials if t.test_domains == (domain,) and t.trial_seed == seed)
    empty = empty_run(trial, Path("."))
    domains = len(empty.domains)
    return replace(empty, records=(record(200, [accuracy] * domains, [0.5] * domains),), done=True)


def runs_of(sweep: Sweep, gains: dict[str, float], seeds: int = 5) -> list[Run]:
    """Return runs of some rows. A gain over ERM is the same on every domain, and varies a little between seeds."""
    return [
        run_of(sweep, row, domain, seed, 0.7 + 0.01 * seed + gain + 0.001 * seed * (row != "ERM"))
        for row, gain in gains.items()
        for domain in range(len(sweep.scale().dataset(sweep.dataset).domains))
        for seed in range(seeds)
    ]
