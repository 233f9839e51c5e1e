"""What each method costs beside ERM: time and memory of a minibatch, on a small and a large network, in one run.

python benchmarks/methods.py [--device cuda] [--networks mnist_cnn resnet50] [--methods POGM ...] [--out costs.json]

Random images, so no data are needed. MNIST CNN: 2 domains of 64 images of 2×28×28 (on a CPU 16). ResNet-50: 3 domains
of 32 images of 3×224×224, frozen batch norm, bf16 (on a CPU 2 domains of 2, fp32). On a CPU every method runs in a
process of its own. Measured are seconds per minibatch after a warm-up (the median of several), and the most memory that
the process (on a GPU: the device) used. ERM is measured before and after all others; a cost is a method's figure over
the mean of ERM's two.

python benchmarks/methods.py --page docs/methods.md COSTS.json ...

writes the page of all methods, and the costs for `pogm list algorithms`.
"""

import argparse
import gc
import json
import multiprocessing
import resource
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.benchmark import catalogue
from pogm.data.datasets.base import Domain, DomainDataset, Training
from pogm.engine.session import Engine, Session
from pogm.engine.task import Task
from pogm.modifiers import all_modifiers

COSTS = Path(catalogue.__file__).with_name("costs.json")
PAGE = """# Methods

Every method is one file in `src/pogm/algorithms` or `src/pogm/modifiers`; its docstring has the equation, and says what
differs from the reference code. "Overrides" is the rung of the ladder (loss, gradient, step) on which it is written.

Costs are measured: time · memory of a minibatch over ERM's, by `benchmarks/methods.py`, which says how, and before
steps were compiled ([speed](speed.md) has ERM and POGM since). `POGM` was measured with `centre="mean"`;
what its default adds is on the page about [the centre](centre.md#what-it-costs). ERM itself:
{units}.
A CPU's memory is that of the whole process, Python and torch included; a dash was not measured. Two cores are
noisy: take their times of ResNet-50, from a single round, for good to a third.
"""

REFUSED = """## Pairs that are refused

Every modifier runs on every algorithm but these; the error says why, before anything has moved.

| modifier | not with | because |
|---|---|---|
| `CIRL` | `ARM`, `CORAL`, `Fishr`, `IRM`, `MMD`, `MTL`, `RDM`, `RSC` | they need their logits, CIRL replaces risks |
| `CIRL` | `CDANN`, `DANN`, `MADG`, `SagNet` | none of their players owns CIRL's adversary |
| `ITTA` | `CDANN`, `DANN`, `MADG`, `SagNet` | it needs one learning rate, they have several |
| `ITTA` | `ARM`, `MTL` | their predictions depend on the images that come along |
| `SWAD` | `ARM`, `MADG` | the mean of the weights has no batch-norm statistics, and theirs are live |
| `Mixup` | `CDANN` | it needs the class of an image, not a mixture |
"""


class Digits(DomainDataset):
    """Noise in the shape of ColoredMNIST."""

    domains = ("a", "b", "held out")
    num_classes = 10
    input_shape = (2, 28, 28)


class Photographs(DomainDataset):
    """Noise in the shape of PACS."""

    domains = ("a", "b", "c", "held out")
    num_classes = 7
    input_shape = (3, 224, 224)


class FewPhotographs(Photographs):
    """The same with two training domains."""

    domains = ("a", "b", "held out")


def task(network: str, method: str, device: str) -> Task:
    """A method by its name, or ERM with a modifier, on noise."""
    dataset: DomainDataset = Digits() if network == "mnist_cnn" else Photographs()
    size = {"mnist_cnn": 64, "resnet50": 32}[network]
    if device == "cpu":
        dataset, size = (dataset, 16) if network == "mnist_cnn" else (FewPhotographs(), 2)
    shape, count = dataset.input_shape, 10 if network == "resnet50" and device == "cpu" else 100

    def load() -> list[Domain]:
        generator = torch.Generator().manual_seed(0)
        images = [
            torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator) for _ in dataset.domains
        ]
        return [Domain(noise, torch.arange(count) % dataset.num_classes) for noise in images]

    algorithms, modifiers = all_algorithms(), all_modifiers()
    algorithm = algorithms[method]() if method in algorithms else algorithms["ERM"]()
    return Task(
        algorithm=algorithm,
        dataset=dataset,
        load=load,
        training=replace(Training(), network=network, batch_size=size, lr=1e-5),
        test_domains=(len(dataset.domains) - 1,),
        modifiers=(modifiers[method](),) if method in modifiers else (),
        precision="bf16" if device == "cuda" and network == "resnet50" else "fp32",
    )


def measured(network: str, method: str, device: str, rounds: int) -> dict[str, float]:
    """Seconds per minibatch and GiB."""
    torch.set_num_threads(2 if device == "cpu" else 16)
    session = Session([task(network, method, device)], Engine(device))
    minibatches = session.tasks[0].algorithm.minibatches
    for _ in range(2):
        session.step()
    session.diverged()  # waits for the device
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(5 if device == "cuda" else 1):
            session.step()
        session.diverged()
        times.append((time.perf_counter() - began) / (5 if device == "cuda" else 1) / minibatches)
    if device == "cuda":
        memory = torch.cuda.max_memory_allocated() / 2**30
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": statistics.median(times), "gib": memory}


def apart(network: str, method: str, device: str, rounds: int) -> dict[str, Any]:
    """The same in a process of its own; on a GPU, whose memory is counted by itself, in this one."""
    try:
        if device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            return measured(network, method, device, rounds)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(measured, (network, method, device, rounds))
    except (UsageError, torch.OutOfMemoryError) as error:
        return {"why": str(error).splitlines()[0]}


def write_page(page: Path, measurements: list[dict[str, Any]]) -> None:
    """The page, and the costs that the package ships."""
    columns = [(found, network) for found in measurements for network in sorted(found["networks"])]
    titles = [f"{'H200' if 'H200' in found['device'] else 'CPU'}, {network}" for found, network in columns]
    costs: dict[str, dict[str, str]] = {}
    for (found, network), title in zip(columns, titles, strict=True):
        results = found["networks"][network]
        unit = results["ERM"]
        for method, result in results.items():
            known = "seconds" in result
            cell = f"{result['seconds'] / unit['seconds']:.2f} · {result['gib'] / unit['gib']:.2f}" if known else "–"
            costs.setdefault(method, {})[title] = cell
    COSTS.write_text(json.dumps(costs, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    catalogue.costs.cache_clear()

    units = [
        f"{title}: {1e3 * found['networks'][network]['ERM']['seconds']:,.1f} ms and "
        f"{found['networks'][network]['ERM']['gib']:.2g} GiB"
        for (found, network), title in zip(columns, titles, strict=True)
    ]
    head = ["method", "what it is", "overrides", "needs", *titles]
    lines = [PAGE.format(units="; ".join(units))]
    for kind, methods in (("Algorithms", all_algorithms()), ("Modifiers, on nearly every algorithm", all_modifiers())):
        lines += [f"## {kind}\n", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for name, method in methods.items():
            idea = catalogue.first_line(method).rstrip(".")
            cells = [costs.get(name, {}).get(title, "–") for title in titles]
            row = [f"`{name}`", idea, catalogue.overridden(method), catalogue.needs(method), *cells]
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    lines.append(REFUSED)
    page.write_text("\n".join(lines).rstrip() + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="+", default=["mnist_cnn", "resnet50"])
    parser.add_argument("--methods", nargs="+", default=[*all_algorithms(), *all_modifiers()])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path, help="write the page out of the files of costs, and measure nothing")
    parser.add_argument("costs", type=Path, nargs="*")
    options = parser.parse_args()
    if options.page:
        write_page(options.page, [json.loads(path.read_text()) for path in options.costs])
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, 2 threads"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "networks": {}}
    for network in options.networks:
        results = found["networks"].setdefault(network, {})
        before = results["ERM"] = apart(network, "ERM", options.device, options.rounds)
        for method in [*(m for m in options.methods if m != "ERM"), "ERM"]:
            result = apart(network, method, options.device, options.rounds)
            if method == "ERM":
                result = {key: (before[key] + result[key]) / 2 for key in before}
            results[method] = result
            print(network, method, result, flush=True)
            if options.out:  # what was measured so far
                options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
