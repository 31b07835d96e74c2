"""The declared differences between methods, seed by seed, judged as one family."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedreach.evidence.judgement import Judgement, judge
from fedreach.report.analysis.rows import When, mean_of
from fedreach.report.values import Comparison

LOOKED = "seeds were added after results could be seen, which no correction makes good"


@dataclass(frozen=True)
class Difference:
    """One method minus another, on what methods are judged by."""

    first: str
    second: str
    judged: Judgement


def contrasts(comparison: Comparison, when: When) -> tuple[Difference, ...]:
    """Return every difference of the comparison's plan, at the last rounds or the best one."""
    pairs = comparison.plan.pairs(comparison.methods, comparison.baseline)
    found = [differences(comparison, first, second, when) for first, second in pairs]
    formed = [{} if isinstance(each, str) else each for each in found]
    judged = judge_all(comparison, formed, lower_is_better=comparison.score.lower_is_better)
    return tuple(
        Difference(*pair, Judgement(0, None, note=each) if isinstance(each, str) else judgement)
        for pair, each, judgement in zip(pairs, found, judged, strict=True)
    )


def differences(
    comparison: Comparison, first: str, second: str, when: When, *, of: Collection[int] | None = None
) -> dict[int, float] | str:
    """Return first minus second by seed, of the seeds `of` or all; or why no pair can be formed."""
    name, last = comparison.primary, comparison.plan.last_rounds
    others = {run.seed: run for run in comparison.counted(second)}
    runs = [run for run in comparison.counted(first) if of is None or run.seed in of]
    pairs = [(run, others[run.seed]) for run in runs if run.seed in others]
    # Only runs on the same clients are a pair.
    same = [(a, b) for a, b in pairs if a.partition.hash == b.partition.hash]
    if not same:
        other = "the baseline" if second == comparison.baseline else second
        return f"other clients than {other}'s" if pairs else f"no seed in common with {other}"
    return {a.seed: mean_of(a, name, when, last) - mean_of(b, name, when, last) for a, b in same}


def judge_all(
    comparison: Comparison,
    found: Sequence[Mapping[int, float]],
    *,
    within_margin: bool = True,
    lower_is_better: bool = False,
) -> tuple[Judgement, ...]:
    """Judge a family of differences as the comparison's plan says.

    Where seeds were added after results could be seen there is no verdict: who goes on until a difference is
    significant will find one.
    """
    plan = comparison.plan
    judged = judge(
        found,
        correction=plan.correction,
        margin=comparison.margin if within_margin else None,
        pilot=comparison.pilot,
        lower_is_better=lower_is_better,
    )
    if not comparison.looks:
        return judged
    return tuple(
        replace(each, verdict="not decided", seeds_needed=None, note=LOOKED) if each.verdict else each
        for each in judged
    )


def looked(comparison: Comparison) -> str:
    """Return why there is no verdict."""
    return f"{LOOKED} ({', then '.join(map(str, (*comparison.looks, len(comparison.seeds))))})"


PINNED = {  # option -> what all seeds share where it is set
    ("population", "seed"): "clients",
    ("partition", "seed"): "partition",
    ("model", "seed"): "initial model",
}


def what_seeds_draw(config: Mapping[str, Any]) -> str:
    """Return what an interval over seeds is over, from the experiment's options.

    Example:
        >>> what_seeds_draw({"population": {"seed": 3}})
        'All seeds share the same clients (population.seed = 3): intervals say nothing of others.'
        >>> what_seeds_draw({"partition": {"name": "natural", "seed": 0}, "population": {"participants": ["north"]}})
        'All seeds share the same partition and participants (partition.seed = 0, they are named): intervals say ...'
    """
    shared = {}
    for path, words in PINNED.items():
        table = config.get(path[0])
        if isinstance(table, Mapping) and table.get("seed") is not None:
            shared[words] = f"{'.'.join(path)} = {table['seed']}"
    population, partition, model = (config.get(key) or {} for key in ("population", "partition", "model"))
    if "clients" not in shared and isinstance(partition, Mapping) and partition.get("name") == "natural":
        shared = {"partition": "natural", **shared}
    if "clients" not in shared and isinstance(population, Mapping) and isinstance(population.get("participants"), list):
        shared = {**shared, "participants": "they are named"}
    if isinstance(model, Mapping) and model.get("keep_weights"):
        shared["initial model"] = "its weights are kept"
    if not shared:
        return "Every seed draws partition, participants, initial model and batches anew."
    said = f"{_joined([*shared])} ({', '.join(shared.values())})"
    return f"All seeds share the same {said}: intervals say nothing of others."


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
