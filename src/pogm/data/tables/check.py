"""Check of a dataset that is not images: missing values, constant columns, classes, and samples that occur twice."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pogm._system.errors import DataError
from pogm._system.terminal import printable
from pogm.data.datasets.array_dataset import ArrayDataset, find_constant_columns
from pogm.data.datasets.base import Domain, split_domain

LISTED = 10  # findings of one kind that the text names


@dataclass(frozen=True)
class SampleFindings:
    """Everything that `check_samples` found."""

    dataset: ArrayDataset
    domains: Sequence[Domain]

    @property
    def clean(self) -> bool:
        """True if there is nothing to correct. Missing values are imputed, so they need no correction."""
        found = (self.small, self.spellings, self.constant, self.single_class, self.single_target, self.single_domain)
        return not any((*found, self.repeated, self.contradictory))

    @property
    def is_table(self) -> bool:
        """True if samples are columns of numbers: no series, audio or counts."""
        return self.domains[0].inputs.ndim == 2 and self.domains[0].inputs.is_floating_point()

    @cached_property
    def missing(self) -> dict[str, dict[str, float]]:
        """Share of missing values by column and domain, for columns that have some."""
        found: dict[str, dict[str, float]] = {}
        for name, domain in zip(self.dataset.domains, self.domains, strict=True):
            if self.is_table:
                for column, share in zip(self._names, domain.inputs.isnan().double().mean(0).tolist(), strict=True):
                    found.setdefault(column, {})[name] = share
        return {column: shares for column, shares in found.items() if any(shares.values())}

    @cached_property
    def constant(self) -> list[str]:
        """Columns with one value, or almost, or none, in all domains together; a network does not see them."""
        if not self.is_table:
            return []
        is_constant = find_constant_columns([domain.inputs for domain in self.domains])
        return [name for name, constant in zip(self._names, is_constant.tolist(), strict=True) if constant]

    @cached_property
    def constant_in_domain(self) -> dict[str, dict[str, float]]:
        """Value of each column that is constant in some domains but not in all, by column and domain.

        A value such as 0 or -9 that fills a column of numbers in one domain is often a code for a missing value.
        Columns of categories are left out.
        """
        if not self.is_table:
            return {}
        encoding = getattr(self.dataset, "encoding", None)
        names = encoding.numbers if encoding is not None and encoding.names else self._names
        found: dict[str, dict[str, float]] = {}
        for number, column in enumerate(names):
            if column in self.constant:
                continue
            for name, domain in zip(self.dataset.domains, self.domains, strict=True):
                values = domain.inputs[:, number]
                known = values[~values.isnan()]
                if len(known) > 1 and bool((known == known[0]).all()):
                    found.setdefault(column, {})[name] = float(known[0])
        return found

    @cached_property
    def classes(self) -> dict[str, dict[str, int]]:
        """Number of samples by domain and class; empty for a regression."""
        if self.dataset.task == "regression":
            return {}
        names = self.dataset.label_names
        counts = [torch.bincount(domain.labels, minlength=len(names)).tolist() for domain in self.domains]
        return {
            domain: dict(zip(names, found, strict=True))
            for domain, found in zip(self.dataset.domains, counts, strict=True)
        }

    @cached_property
    def single_class(self) -> list[str]:
        """Domains with samples of one class only."""
        return [name for name, found in self.classes.items() if sum(count > 0 for count in found.values()) == 1]

    @cached_property
    def single_target(self) -> dict[str, float]:
        """Domains of a regression whose targets are all equal, and that target: R² is undefined there."""
        if self.dataset.task != "regression":
            return {}
        targets = {name: domain.labels for name, domain in zip(self.dataset.domains, self.domains, strict=True)}
        return {name: float(found[0]) for name, found in targets.items() if bool((found == found[0]).all())}

    @cached_property
    def single_domain(self) -> dict[str, str]:
        """Classes with samples in one domain only, and that domain: it cannot be held out."""
        found: dict[str, list[str]] = defaultdict(list)
        for domain, counts in self.classes.items():
            for name, count in counts.items():
                found[name] += [domain] if count else []
        return {name: domains[0] for name, domains in found.items() if len(domains) == 1}

    @cached_property
    def small(self) -> list[str]:
        """Domains with too few samples, or groups, for a training and a validation part; training refuses them."""
        found = []
        for number, (name, domain) in enumerate(zip(self.dataset.domains, self.domains, strict=True)):
            try:
                split_domain(domain, number, trial_seed=0)
            except DataError:
                found.append(name)
        return found

    @cached_property
    def groups(self) -> dict[str, int] | None:
        """Number of groups, and of those that have samples in several domains; None without groups."""
        found = [set(domain.groups.tolist()) for domain in self.domains if domain.groups is not None]
        domains = Counter(group for groups in found for group in groups)
        return {"all": len(domains), "in_several_domains": sum(n > 1 for n in domains.values())} if found else None

    @cached_property
    def spellings(self) -> list[list[str]]:
        """Names of domains, or of classes, that differ in upper and lower case only."""
        found: dict[tuple[int, str], list[str]] = defaultdict(list)
        for kind, names in enumerate((self.dataset.domains, next(iter(self.classes.values()), {}))):
            for name in names:
                found[kind, name.casefold()].append(name)
        return [names for names in found.values() if len(names) > 1]

    @cached_property
    def repeated(self) -> list[list[str]]:
        """Samples with equal inputs in several domains, as domain:row from 1 within the domain."""
        return [places for places, _ in self._equal if len({place.rpartition(":")[0] for place in places}) > 1]

    @cached_property
    def contradictory(self) -> list[list[str]]:
        """Samples with equal inputs and different classes; in a regression, targets may differ."""
        if self.dataset.task == "regression":
            return []
        return [places for places, labels in self._equal if len(labels) > 1]

    @cached_property
    def _equal(self) -> list[tuple[list[str], set[float]]]:
        """Return the places and labels of samples with equal inputs."""
        found: dict[bytes, tuple[list[str], set[float]]] = defaultdict(lambda: ([], set()))
        for name, domain in zip(self.dataset.domains, self.domains, strict=True):
            rows = domain.inputs.flatten(1).numpy()
            rows = np.where(np.isnan(rows), np.float32(np.inf), rows) if rows.dtype.kind == "f" else rows
            for number, (row, label) in enumerate(zip(rows, domain.labels.tolist(), strict=True)):
                places, labels = found[np.ascontiguousarray(row).tobytes()]
                places.append(f"{name}:{number + 1}")
                labels.add(label)
        return [group for group in found.values() if len(group[0]) > 1]

    @property
    def _names(self) -> tuple[str, ...]:
        encoding = getattr(self.dataset, "encoding", None)
        if encoding is not None and encoding.names:
            return (*encoding.numbers, *(f"{column}={value}" for column, value in encoding.pairs))
        return tuple(f"column {number + 1}" for number in range(self.domains[0].inputs.shape[1]))

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object."""
        samples = dict(zip(self.dataset.domains, (len(domain.labels) for domain in self.domains), strict=True))
        names = (
            "missing",
            "constant",
            "constant_in_domain",
            "classes",
            "single_class",
            "single_target",
            "single_domain",
            "small",
            "groups",
            "spellings",
            "repeated",
            "contradictory",
            "clean",
        )
        return {"samples": samples, "task": self.dataset.task, **{name: getattr(self, name) for name in names}}

    def text(self) -> str:
        """Return the findings in words."""
        counts = ", ".join(f"{name} {count}" for name, count in self.to_json()["samples"].items())
        shape = " × ".join(map(str, self.domains[0].inputs.shape[1:]))
        lines = [f"{self.dataset.title}: {self.dataset.task}; samples of {shape} numbers by domain: {counts}"]
        for domain, found in self.classes.items():
            lines.append(f"  {domain}: " + ", ".join(f"{name} {count}" for name, count in found.items()))
        if self.missing:
            lines.append("Missing values, imputed by the median of the training domains:")
            for column, shares in self.missing.items():
                lines.append(f"  {column}: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
        if self.constant_in_domain:
            lines.append(
                "Columns with one value in some domains; leave it empty there if it stands for a missing value:"
            )
            for column, values in list(self.constant_in_domain.items())[:LISTED]:
                lines.append(f"  {column}: " + ", ".join(f"{value:g} in {name}" for name, value in values.items()))
            if len(self.constant_in_domain) > LISTED:
                lines.append(f"  and {len(self.constant_in_domain) - LISTED} more; --json lists all")
        if self.groups:
            shared = self.groups["in_several_domains"]
            unseen = "; their samples in a held-out domain are not really unseen" if shared else ""
            lines.append(f"{self.groups['all']} groups, {shared} of them in several domains{unseen}.")
        lists: dict[str, list[str]] = {
            "Columns with one value, or almost": self.constant,
            "Domains with one class": self.single_class,
            "Domains with one target, where R² is undefined; leave them out if it stands for a missing value": [
                f"{name} ({value:g})" for name, value in self.single_target.items()
            ],
            "Classes of one domain, which cannot be held out": [
                f"{name} ({domain})" for name, domain in self.single_domain.items()
            ],
            "Domains too small for a training and a validation part": self.small,
            "Names that differ in upper and lower case only": [" = ".join(names) for names in self.spellings],
            "Equal samples in several domains": list(map(_join, self.repeated)),
            "Equal samples with different labels": list(map(_join, self.contradictory)),
        }
        for title, entries in lists.items():
            if entries:
                more = f" and {len(entries) - LISTED} more" if len(entries) > LISTED else ""
                lines.append(f"{title} ({len(entries)}): {', '.join(entries[:LISTED])}{more}")
        lines.append("Nothing to correct." if self.clean else "Correct or leave out what is listed, or accept it.")
        return "\n".join(map(printable, lines)) + "\n"


def _join(places: Sequence[str]) -> str:
    """Return equal samples as text; of many, the first ones."""
    more = f" = {len(places) - LISTED} more" if len(places) > LISTED else ""
    return " = ".join(places[:LISTED]) + more


def check_samples(dataset: ArrayDataset, root: Path | None) -> SampleFindings:
    """Load a dataset and look for values and samples that should be corrected.

    Raises:
        DataError: The data cannot be read.
    """
    return SampleFindings(dataset, dataset.load(root, seed=0))
