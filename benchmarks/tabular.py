"""Results on datasets that are not images, with the models that practitioners use as a baseline.

Every domain is held out once, for each of several seeds. All methods train on the *in* splits of the other domains and
are tested on the *in* split of the held-out domain. Networks use the defaults of their dataset; their step is chosen by
training-domain validation. Baselines of scikit-learn see the same inputs (of a spectrogram, mean and deviation over
time of each band); their regularisation is chosen in the same way. Finished runs are kept, so the script can be stopped
and started again.

Run: python benchmarks/tabular.py --data FOLDER [--datasets HeartDisease ...] [--seeds 5] [--out runs/tabular]
     [--page docs/tables.md]

Results of datasets that are not named stay as they are stored. PACSFeatures: `pogm data list` says how to make it.
"""

import argparse
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from pogm._system.files import write_atomic
from pogm.benchmark.executors.waiting_trials import executor, run_waiting_trials
from pogm.benchmark.plan.parsing import build_trial
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.runs.runner import RunOptions
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import split_domain

DATASETS = ("HeartDisease", "AmazonReviews", "SpokenDigits", "PACSFeatures")
METHODS = ("ERM", "GroupDRO", "CORAL", "Fish", "POGM")
LOGISTIC, TREES = "Logistic regression", "Gradient-boosted trees"
RESULTS = Path(__file__).parent / "results" / "tabular_cpu.json"
BEGIN, END = "<!-- results of benchmarks/tabular.py -->", "<!-- end of results -->"

Results = dict[str, dict[str, dict[str, list[float]]]]  # accuracy by dataset, method, domain and seed


def main() -> None:
    """Run what is missing, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder of the datasets.")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=DATASETS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/tabular"), help="Folder of the runs.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--page", type=Path, help="Page in which the table is replaced.")
    options = parser.parse_args()
    trials = list(plan(options.datasets, options.seeds))
    runs = run_waiting_trials(trials, options.out, RunOptions(data=options.data), executor("local", options.workers))
    for done, outcome in enumerate(runs, 1):
        if outcome.error:
            print(f"{outcome.trial.label} on {outcome.trial.dataset.title}: {outcome.error}")
        if done % 20 == 0:
            print(f"{done} of {len(trials)} runs", flush=True)
    results: Results = json.loads(RESULTS.read_text())["accuracy"] | collect(options.out)
    for name in options.datasets:
        results.setdefault(name, {}).update(baselines(name, options.data, options.seeds, options.out / f"{name}.json"))
    content = {"seeds": options.seeds, "accuracy": results}
    write_atomic(RESULTS, json.dumps(content, indent=1).encode() + b"\n")
    print(text := table(results))
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        write_atomic(options.page, f"{before}{BEGIN}\n\n{text}\n{END}{after}".encode())


def plan(datasets: Sequence[str], seeds: int) -> Iterator[Trial]:
    """Yield all trials: the first seed of everything first."""
    for seed in range(seeds):
        for name in datasets:
            for domain in dataset_class(name).domains:
                for method in METHODS:
                    yield build_trial(name, method, [domain], seed=seed)


def collect(folder: Path) -> Results:
    """Return the accuracies of finished runs."""
    results: Results = {}
    for choice in TRAINING_DOMAIN(read_runs(folder)):
        if choice.accuracy is not None:
            domains = results.setdefault(choice.dataset, {}).setdefault(choice.label, {})
            name = dataset_class(choice.dataset).domains[choice.domain]
            domains.setdefault(name, []).append(choice.accuracy)
    return results


def baselines(name: str, data: Path, seeds: int, path: Path) -> dict[str, dict[str, list[float]]]:
    """Return the accuracies of scikit-learn's models, computed once."""
    if path.exists():
        found: dict[str, dict[str, list[float]]] = json.loads(path.read_text())
        if all(len(values) == seeds for domains in found.values() for values in domains.values()):
            return found
    dataset = dataset_class(name)()
    domains = dataset.load(data, 0)
    found = {}
    for seed in range(seeds):
        for held_out, domain in enumerate(dataset.domains):
            splits = [split_domain(one, number, seed) for number, one in enumerate(domains)]
            trained = [number for number in range(len(domains)) if number != held_out]
            transform = dataset.transform(dataset.training)
            statistics = transform.fit([domains[n].inputs[splits[n][0]] for n in trained])

            def samples(numbers: list[int], part: int, scaled: bool = True) -> tuple[Any, Any]:
                stored = torch.cat([domains[n].inputs[splits[n][part]] for n in numbers])  # noqa: B023
                labels = torch.cat([domains[n].labels[splits[n][part]] for n in numbers])  # noqa: B023
                x = transform.prepare(stored, statistics) if scaled else stored  # noqa: B023
                if x.ndim == 3:  # mean and deviation over time of each band
                    x = torch.cat([x.mean(-1), x.std(-1)], 1)
                x = x.numpy()
                return csr_matrix(x) if name == "AmazonReviews" else x, labels.numpy()

            train, test = samples(trained, 0), samples([held_out], 0)
            parts = [samples([number], 1) for number in trained]
            models = [LogisticRegression(C=c, max_iter=100) for c in (1e-3, 1e-2, 1e-1)]
            with warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore", ConvergenceWarning)
                for model in models:
                    model.fit(*train)
            best = max(models, key=lambda model: np.mean([model.score(*part) for part in parts]))
            found.setdefault(LOGISTIC, {}).setdefault(domain, []).append(float(best.score(*test)))
            if name == "HeartDisease":  # trees use missing values as they are
                trees = HistGradientBoostingClassifier(random_state=seed).fit(*samples(trained, 0, scaled=False))
                accuracy = float(trees.score(*samples([held_out], 0, scaled=False)))
                found.setdefault(TREES, {}).setdefault(domain, []).append(accuracy)
    write_atomic(path, json.dumps(found).encode())
    return found


def table(results: Results) -> str:
    """Return Markdown: mean ± standard error over seeds by held-out domain, and their mean."""
    lines = []
    for dataset in DATASETS:
        methods = results.get(dataset, {})
        domains = dataset_class(dataset).domains
        lines += [
            f"**{dataset}**",
            "",
            f"| method | {' | '.join(domains)} | mean |",
            f"|---|{'---:|' * len(domains)}---:|",
        ]
        order = [name for name in (*METHODS, LOGISTIC, TREES) if name in methods]
        means = {
            name: fmean(fmean(methods[name][domain]) for domain in domains)
            for name in order
            if set(domains) <= methods[name].keys()
        }
        for name in order:
            cells = [_cell(methods[name].get(domain, [])) for domain in domains]
            mean = f"{100 * means[name]:.1f}" if name in means else "-"
            shown = f"**{mean}**" if name in means and means[name] == max(means.values()) else mean
            lines.append(f"| {name} | {' | '.join(cells)} | {shown} |")
        lines.append("")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    error = f" ± {100 * stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):.1f}{error}"


if __name__ == "__main__":
    main()
