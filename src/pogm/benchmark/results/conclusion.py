"""A conclusion in words from the measurements of some runs: does gradient matching suit these data?

The words follow from fixed thresholds, which are the constants of this module. They describe training steps. They do
not predict an accuracy: no theorem that we rely on does (docs/theory.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence

from pogm.benchmark.results.measurements import (
    Measured,
    agreements,
    conflicts,
    divergences,
    hull,
    mean,
    opposed,
    relative_alignment_variances,
    worst,
)

RARE, FREQUENT = 0.1, 0.5  # share of rounds: below, rarely; from there on, often; between them, sometimes
POSITIVE = 1e-6  # p* relative to mean ‖h_i‖²; a smaller value is rounding error
NEAR = 0.5  # hull distance relative to ‖h_T‖: below, a mixture of the h_i explains over 75 % of ‖h_T‖²
FAR = 1.0  # from there on, no mixture of the h_i is closer to h_T than the zero vector is
UNRELATED = 0.3  # cosine of h_T and its nearest mixture: below, they share less than 9 % of ‖h_T‖²
ALIKE, APART = 0.01, 0.1  # divergence in nats: below, small; from there on, large
CHANGED = 1.25  # a ratio between 1/1.25 and 1.25 counts as no change

ByLabel = Mapping[str, Sequence[Measured]]  # the measured runs of each algorithm, by its label


def conclusion(found: ByLabel) -> list[str]:
    """Conclude from measured runs on one dataset whether gradient matching suits the data.

    Conflicts, p*, the hull and the divergence are taken from ERM where it was measured, because ERM is what POGM would
    replace; otherwise they are means over all runs.

    Args:
        found: The measured runs of each algorithm, by the label of the algorithm. They differ in seed, algorithm or
            held-out domain only.

    Returns:
        Sentences in plain English. The last one is the recommendation.

    Example:
        >>> conclusion({})
        ['Nothing was measured, so there is no conclusion. Run `pogm measure` with more steps or a smaller --every.']
    """
    by_label = {label: [m for m in runs if m.round] for label, runs in found.items()}
    by_label = {label: runs for label, runs in by_label.items() if runs}
    if not by_label:
        return [
            "Nothing was measured, so there is no conclusion. Run `pogm measure` with more steps or a smaller --every."
        ]
    all_runs = [m for runs in by_label.values() for m in runs]
    if max(len(m.sources) for m in all_runs) < 2:
        return [
            "There is only one training domain, so no two domains can conflict.",
            "Recommendation: use ERM. Gradient matching needs at least two training domains.",
        ]
    erm = next((label for label in by_label if _name(label) == "ERM"), None)
    runs = all_runs if erm is None else by_label[erm]
    erm_opposed = math.nan if erm is None else _average(runs, opposed)
    conflict, help_all = _average(runs, conflicts), _average(runs, _helped)
    positions = _positions(runs)
    if math.isnan(conflict) or math.isnan(help_all):
        return ["No measured round has finite trajectories, so there is no conclusion. Check why the runs diverged."]
    return [
        *_conflict_sentences(conflict, runs, [*by_label] if erm is None else [erm]),
        _help_sentence(help_all, runs),
        *_hull_sentences(positions),
        *_divergence_sentences(runs),
        *_variance_sentences(by_label),
        *_sampling_sentences(all_runs),
        f"Recommendation: {_recommendation(conflict, help_all, erm_opposed, positions)}",
    ]


def _name(label: str) -> str:
    """Return the name of the algorithm, without its modifiers."""
    return label.partition(" + ")[0]


def _average(runs: Sequence[Measured], of: Callable[[Measured], float]) -> float:
    return mean(of(m) for m in runs)


def _helped(m: Measured) -> float:
    """Return the share of rounds with p* > 0."""
    return mean(float(value > POSITIVE) for value in worst(m) if not math.isnan(value))


# Conflicts between training domains, and steps that help all of them.


def _conflict_sentences(share: float, runs: Sequence[Measured], labels: Sequence[str]) -> list[str]:
    basis = f"In training with {labels[0]}" if len(labels) == 1 else f"On average over {', '.join(labels)}"
    often = "rarely" if share < RARE else "sometimes" if share < FREQUENT else "often"
    cosine, against = _average(runs, lambda m: mean(agreements(m))), _average(runs, opposed)
    step = (
        "The step went against no training domain in any measured round (h_i·h ≥ 0)."
        if against == 0
        else f"The step went against at least one training domain in {_percent(against)} of rounds (h_i·h < 0)."
    )
    return [
        f"{basis}, domains conflict {often}: in {_percent(share)} of rounds at least two training domains point "
        f"against each other (mean cosine of two domains: {cosine:.2f}).",
        step,
    ]


def _help_sentence(share: float, runs: Sequence[Measured]) -> str:
    value = _average(runs, lambda m: mean(worst(m)))
    if share >= 1:
        exists = "exists in every measured round"
    elif share >= 1 - RARE:
        exists = f"exists in nearly all rounds ({_percent(share)})"
    elif share >= FREQUENT:
        exists = f"exists in most rounds ({_percent(share)})"
    elif share >= RARE:
        exists = f"exists only in some rounds ({_percent(share)})"
    else:
        exists = f"almost never exists ({_percent(share)} of rounds)"
    return f"A step near the mean step that helps every training domain {exists} (p* > 0; mean p* = {_number(value)})."


# The held-out domains, seen from the convex hull of the training domains.


def _positions(runs: Sequence[Measured]) -> dict[str, tuple[float, float]]:
    """Return distance and cosine of each held-out domain, by its name: means over rounds, then over runs."""
    by_target: dict[str, list[tuple[float, float]]] = {}
    for m in runs:
        rounds = hull(m)
        for i, name in enumerate(m.targets):
            of_target = [of_round[i] for of_round in rounds]
            pair = mean(found.distance for found in of_target), mean(found.cosine for found in of_target)
            by_target.setdefault(name, []).append(pair)
    means = {
        name: (mean(distance for distance, _ in pairs), mean(cosine for _, cosine in pairs))
        for name, pairs in by_target.items()
    }
    return {name: pair for name, pair in means.items() if not math.isnan(pair[0])}


def position(distance: float, cosine: float) -> str:
    """Classify a held-out domain by its distance from the hull (relative to ‖h_T‖) and its cosine with it.

    Returns:
        ``near`` (distance below 0.5), ``far`` (distance of at least 1, or cosine below 0.3), or ``between``. The test
        inside/outside is not used: in high dimension nearly every domain is outside.
    """
    if distance < NEAR:
        return "near"
    return "far" if distance >= FAR or cosine < UNRELATED else "between"


WORDS = {
    "near": "is close to the convex hull of the others, so a step that helps the training domains tends to help it",
    "between": "is outside the convex hull of the others but shares a part of their direction",
    "far": "is far from the convex hull of the others, so a step that helps the training domains need not help it",
}


def _hull_sentences(positions: Mapping[str, tuple[float, float]]) -> list[str]:
    if not positions:
        return [
            "The held-out domain was not measured; pass --target to `pogm measure` to see how far it is from the "
            "convex hull of the others."
        ]
    return [
        f"The held-out domain {name} {WORDS[position(distance, cosine)]} (distance {distance:.2f} times the "
        f"length of its own step, cosine {cosine:.2f})."
        for name, (distance, cosine) in positions.items()
    ]


# The divergence between training domains, and the variance of their alignments.


def _divergence_sentences(runs: Sequence[Measured]) -> list[str]:
    known = ([value for value in divergences(m) if not math.isnan(value)] for m in runs)
    series = [values for values in known if values]
    value = mean(mean(values) for values in series)
    if math.isnan(value):
        return [
            "The divergence between training domains was not measured; --divergence measures it, if there are classes."
        ]
    size = "small" if value < ALIKE else "moderate" if value < APART else "large"
    thirds = [(values[: len(values) // 3], values[-(len(values) // 3) :]) for values in series if len(values) >= 6]
    first, last = mean(mean(part) for part, _ in thirds), mean(mean(part) for _, part in thirds)
    change = ""
    if not math.isnan(first) and not math.isnan(last) and first > 0:
        change = f"; it {_change(last / first, 'grows', 'falls', 'stays about the same')} during training"
    return [
        f"If copies of the model take one more round on one domain each, their predictions differ by {_number(value)} "
        f"nats (KL divergence, {size}){change}."
    ]


def _variance_sentences(by_label: Mapping[str, Sequence[Measured]]) -> list[str]:
    """Compare the variance of U_i of POGM with that of ERM with the same modifiers."""
    sentences = []
    for label, runs in by_label.items():
        name, rest = _name(label), label[len(_name(label)) :]
        reference = by_label.get(f"ERM{rest}")
        if not name.endswith("POGM") or reference is None:
            continue
        ours, theirs = (_average(m, lambda one: mean(relative_alignment_variances(one))) for m in (runs, reference))
        if math.isnan(ours) or math.isnan(theirs) or theirs == 0:
            continue
        words = _change(ours / theirs, "higher than", "lower than", "about the same as")
        sentences.append(
            f"With {label}, the variance over domains of h_i·h (relative to the lengths) is {words} with ERM{rest}: "
            f"{_number(ours)} and {_number(theirs)}. A lower value means that the step helps the domains "
            "more evenly. POGM is expected to have one, because its step contains a mixture of the h_i."
        )
    names = {_name(label) for label in by_label}
    if "ERM" in names and any(name.endswith("POGM") for name in names):
        return sentences
    return ["Measure ERM and POGM together to compare the variance over domains of h_i·h."]


def _sampling_sentences(runs: Sequence[Measured]) -> list[str]:
    every = max((b - a for m in runs for a, b in zip(m.round, m.round[1:], strict=False)), default=1)
    if every < 2:
        return []
    return [
        f"Only one round in {every} was measured. For algorithms other than POGM the cosines are then too small and "
        "the conflicts too many. Use --every 1 for reliable values."
    ]


# Recommendation.


def _recommendation(
    conflict: float, help_all: float, erm_opposed: float, positions: Mapping[str, tuple[float, float]]
) -> str:
    """Recommend a method; ``erm_opposed`` is NaN if ERM was not measured."""
    if conflict < RARE:
        return "domains rarely conflict, so gradient matching has little to repair. Expect no clear gain over ERM."
    if help_all < FREQUENT:
        return (
            "in most rounds no step near the mean helps every training domain, so gradient matching is unlikely to "
            "help. Compare with ERM before you use it."
        )
    check = "Compare the accuracy with ERM over several seeds: these measurements do not predict it."
    if not positions and not erm_opposed < RARE:
        return f"POGM may help the training domains. Whether the held-out domain gains is unknown. {check}"
    kinds = [position(*pair) for pair in positions.values()]
    far = [name for name, kind in zip(positions, kinds, strict=True) if kind == "far"]
    held_out = "held-out domain is" if len(positions) == 1 else "held-out domains are"
    if positions and len(far) == len(positions):
        return (
            "gradient matching is unlikely to help. It improves the step for the training domains, but the "
            f"{held_out} far from their convex hull."
        )
    if erm_opposed < RARE:
        return (
            "ERM's step goes against no training domain in nearly all rounds, so gradient matching has little to "
            f"repair. Expect no clear gain over ERM. {check}"
        )
    if far:
        return f"POGM may help, but it is unlikely to help on {', '.join(far)}. {check}"
    if "between" in kinds:
        return f"POGM may help. The {held_out} only partly covered by the others. {check}"
    return f"try POGM. It has conflicts to repair, and the {held_out} close to the others. {check}"


def _change(ratio: float, more: str, less: str, same: str) -> str:
    return more if ratio > CHANGED else less if ratio < 1 / CHANGED else same


def _percent(share: float) -> str:
    """Return a share in whole percent; 0 % and 100 % only for a share of exactly 0 and 1."""
    if 0 < share < 0.01:
        return "less than 1 %"
    if 0.99 < share < 1:
        return "more than 99 %"
    return f"{100 * share:.0f} %"


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2g}"
