"""Published results as data: the tables of the paper and of DomainBed, and the results in the official repository."""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from pogm._system.errors import unknown_name_error
from pogm.benchmark.results.accuracy_tables import ALL_DATASETS, AVERAGE
from pogm.benchmark.results.ranking import SUMMARIES
from pogm.benchmark.results.selection import TEST_DOMAIN, oracle_early_stop

ABLATED = {"meta_lr_alpha": "meta_lr", "local_steps_E": "inner_steps", "kappa": "kappa"}  # our names by the paper's
LOGGED = {"meta_lr": "meta_lr", "cag_update": "inner_steps", "cagrad_c": "kappa"}  # our names by the authors'
RANKS = dict(zip(SUMMARIES, ("rank_arith_mean", "rank_geom_mean", "rank_median"), strict=True))  # columns by summary
STANDARD_RULES = "main_d77ad2d_2024-04-17"
EARLY_STOPPED = "lnk_nips_2024_76e4d5e_2024-05-19"


@dataclass(frozen=True)
class Result:
    """One published number, in percent."""

    dataset: str
    algorithm: str
    selection: str
    domain: str  # or `AVERAGE`
    mean: float
    stderr: float | None


@dataclass(frozen=True)
class Note:
    """A remark on some of the numbers."""

    text: str
    about: frozenset[str] = frozenset()  # algorithms and datasets that it is about; empty: all


@dataclass(frozen=True)
class Source:
    """A publication: its numbers and notes on them."""

    name: str
    title: str
    results: tuple[Result, ...]
    notes: tuple[Note, ...]
    settings: tuple[str, ...] = ()  # hyperparameters by which it splits results, as in "POGM, kappa = 0.5"


def rows(name: str) -> list[dict[str, str]]:
    """Read a shipped table, with the columns and names of its publication."""
    text = resources.files("pogm.benchmark.results").joinpath("published", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def paper_table1() -> tuple[Result, ...]:
    """Return Table 1: 18 algorithms on 7 datasets, under test-domain validation, as the paper says."""
    found = []
    for row in rows("paper_table1"):
        errors = {column.removesuffix("_stderr"): text for column, text in row.items() if column.endswith("_stderr")}
        for dataset, stderr in errors.items():
            found.append(_result(dataset, row["algorithm"], TEST_DOMAIN.name, AVERAGE, row[dataset], stderr))
        found.append(_result(ALL_DATASETS, row["algorithm"], TEST_DOMAIN.name, AVERAGE, row["avg"], ""))
    return tuple(found)


@cache
def paper_ranks() -> dict[str, dict[str, float]]:
    """Return the ranks that Table 1 prints, by algorithm and by the names of `ranking.SUMMARIES`."""
    return {
        row["algorithm"]: {name: float(row[column]) for name, column in RANKS.items()} for row in rows("paper_table1")
    }


@cache
def paper_table2() -> tuple[Result, ...]:
    """Return Table 2: POGM with modifiers. Its column VLCS is OfficeHome, as its first row shows."""
    return tuple(
        _result(
            row["dataset_as_printed"].replace("VLCS", "OfficeHome"),
            row["variant"].replace("Data Aug.", "Augment"),
            TEST_DOMAIN.name,
            AVERAGE,
            row["value"],
            row["stderr"],
        )
        for row in rows("paper_table2")
        if row["variant"] != "POGM"  # this row is in Table 1
    )


@cache
def paper_ablations() -> tuple[Result, ...]:
    """Return Tables 3 to 5: the search over POGM's hyperparameters, split by the value of one of them."""
    return tuple(
        _result(
            row["dataset"].replace(AVERAGE, ALL_DATASETS),
            f"POGM, {ABLATED[row['param']]} = {float(row['param_value']):g}",
            row["model_selection"],
            AVERAGE,
            row["value"],
            row["stderr"],
        )
        for table in ("paper_table3", "paper_table4", "paper_table5")
        for row in rows(table)
    )


@cache
def domainbed_2020() -> tuple[Result, ...]:
    """Return DomainBed's tables of October 2020: 14 algorithms, every domain of 7 datasets, three selections."""
    return tuple(_tables(rows("domainbed_2020"), lambda row: row["model_selection"]))


@cache
def official_repository() -> tuple[Result, ...]:
    """Return the results per domain in the authors' repository, where POGM is called CAG1.

    There are results under the standard rules and under the early-stopped oracle, which has its own name. The
    training-domain results in the commit of the early-stopped oracle are left out: they equal one ablation (Table 4,
    E = 1).
    """

    def selection(row: dict[str, str]) -> str | None:
        if row["source_commit"] == STANDARD_RULES:
            return row["model_selection"]
        stopped_early = row["source_commit"] == EARLY_STOPPED and row["model_selection"] == TEST_DOMAIN.name
        return oracle_early_stop(3000).name if stopped_early else None

    return tuple(_tables(rows("official_repository"), selection))


@cache
def official_log() -> tuple[Result, ...]:
    """Return the authors' log of POGM by the value of one hyperparameter, under the standard rules.

    Tables 3 to 5 of the paper split another sweep in the same way. The row that Table 3 prints as 0.01 is 0.05 here.
    """
    return tuple(
        _result(
            row["dataset"],
            f"POGM, {LOGGED[row['hparam']]} = {float(row['hparam_value']):g}",
            row["model_selection"],
            AVERAGE,
            row["value"],
            row["stderr"],
        )
        for row in rows("official_repository_log")
    )


def _tables(found: Iterable[dict[str, str]], selection: Callable[[dict[str, str]], str | None]) -> Iterator[Result]:
    """Read tables per dataset and a table of averages. Averages are read from the latter, which has standard errors."""
    for row in found:
        dataset, domain, rule = row["dataset"], row["column"], selection(row)
        if rule is None or (domain == AVERAGE and dataset != ALL_DATASETS):
            continue
        if dataset == ALL_DATASETS and domain != AVERAGE:
            dataset, domain = domain, AVERAGE
        yield _result(dataset, row["algorithm"].replace("CAG1", "POGM"), rule, domain, row["value"], row["stderr"])


def _result(dataset: str, algorithm: str, selection: str, domain: str, mean: str, stderr: str) -> Result:
    return Result(dataset, algorithm, selection, domain, float(mean), float(stderr) if stderr else None)


PAPER_NOTES = (
    Note("Tables 1 and 2 use test-domain validation, as the paper says; their numbers are means over domains."),
    Note(
        "For POGM, training was most likely stopped early by the test domain, but not for the baselines. Under the "
        "standard rule the results of its authors have an average of 70.0, not 71.7 (--against official).",
        frozenset({"POGM", "POGM + Mixup", "POGM + Augment", "POGM + CIRL", "POGM + SWAD"}),
    ),
    Note(
        "The row of SAGM is not a target: on VLCS, PACS, OfficeHome, TerraIncognita and DomainNet it equals CDANN of "
        "DomainBed, including the standard errors.",
        frozenset({"SAGM"}),
    ),
    Note(
        "As far as we know, the numbers of EQRM, Mixstyle, ITTA and RDM on datasets of large images equal results that "
        "were published under training-domain validation.",
        frozenset({"EQRM", "Mixstyle", "ITTA", "RDM"}),
    ),
    Note(
        "The column that Table 2 calls VLCS holds OfficeHome's numbers, and is compared with OfficeHome.",
        frozenset({"POGM + Mixup", "POGM + Augment", "POGM + CIRL", "POGM + SWAD"}),
    ),
    Note(
        "The rows meta_lr = 0.01 of Table 3 equal the rows of 0.05 in the authors' logs.",
        frozenset({"POGM, meta_lr = 0.01"}),
    ),
)

DOMAINBED_NOTES = (
    Note("The configurations of 2020 were drawn with another random generator and cannot be drawn again."),
    Note("TerraIncognita had 24788 images then; 24330 are available now.", frozenset({"TerraIncognita"})),
)

OFFICIAL_NOTES = (
    Note("POGM is called CAG1 there. Committed in April 2024 (d77ad2d), before the early-stopped oracle was added."),
)

LOG_NOTES = (
    Note(
        "There, POGM is called CAG1, kappa is cagrad_c and inner_steps is cag_update. The log splits one search by the "
        "value of one hyperparameter; models are selected under the standard rules."
    ),
)

SOURCES: dict[str, Callable[[], Source]] = {
    "paper": lambda: Source(
        "paper",
        "the paper's tables",
        paper_table1() + paper_table2() + paper_ablations(),
        PAPER_NOTES,
        tuple(ABLATED.values()),
    ),
    "domainbed": lambda: Source("domainbed", "DomainBed's tables of October 2020", domainbed_2020(), DOMAINBED_NOTES),
    "official": lambda: Source(
        "official", "the results in POGM's official repository", official_repository(), OFFICIAL_NOTES
    ),
    "official-log": lambda: Source(
        "official-log",
        "the log by hyperparameter in POGM's official repository",
        official_log(),
        LOG_NOTES,
        tuple(LOGGED.values()),
    ),
}


def find_publication(source: str) -> Source:
    """Return a publication by its name: paper, domainbed, official or official-log.

    The publications used the authors' code, so their results for POGM are also listed under OfficialPOGM.

    Raises:
        UsageError: If the name is unknown.
    """
    if source not in SOURCES:
        raise unknown_name_error("published results", source, SOURCES)
    found = SOURCES[source]()
    again = (replace(one, algorithm=f"Official{one.algorithm}") for one in found.results if _is_pogm(one.algorithm))
    notes = (
        replace(note, about=note.about | {f"Official{n}" for n in note.about if _is_pogm(n)}) for note in found.notes
    )
    return replace(found, results=(*found.results, *again), notes=tuple(notes))


def _is_pogm(name: str) -> bool:
    return name.partition(",")[0] == "POGM"
