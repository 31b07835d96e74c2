"""What a caption in a paper says of a table beside its note: how many seeds, which intervals, what could be seen."""

from __future__ import annotations

from collections.abc import Sequence

from fedreach.evidence.corrections import LEVEL
from fedreach.evidence.judgement import Judgement
from fedreach.evidence.scores import ACCURACY, MainScore
from fedreach.report.analysis.leaders import Leaders
from fedreach.report.numbers import points
from fedreach.report.values import Comparison

CORRECTIONS = {"holm": "by Holm's steps", "max_t": "by the largest t of all"}


def join_sentences(*sentences: str) -> str:
    """Return those that say something, one behind the other."""
    return " ".join(filter(None, sentences))


def seeds_said(comparison: Comparison) -> str:
    """Return how many seeds the numbers are from."""
    counts = [len(runs) for method in comparison.methods if (runs := comparison.counted(method))]
    if not counts:
        return "No run has a result yet."
    low, high, planned = min(counts), max(counts), len(comparison.seeds)
    said = f"{low} to {high} seeds a method" if low < high else f"{high} seed{'s' * (high != 1)}"
    few = f", of {planned} planned" if low < planned else ""
    return f"{said[0].upper()}{said[1:]}{few}{': no run has finished' * comparison.provisional}."


def intervals_said(
    comparison: Comparison, family: Sequence[Judgement], *, by: MainScore = ACCURACY, nats: bool = False
) -> str:
    """Return which intervals a family of differences has, and the least difference that could be detected."""
    tests = [judged for judged in family if judged.p is not None]
    if not tests:
        return ""
    many, least = len(tests), [judged.detectable for judged in tests if judged.detectable is not None]
    level = f"{100 * (1 - LEVEL):g}"
    if many > 1 and comparison.plan.correction == "holm":
        level = f"{level} to {100 * (1 - LEVEL / many):.4g} %, the level at which Holm's step tests each of {many}"
    else:
        level = f"{level} %{f' for all {many} together' * (many > 1)}"
    said = f"Intervals of differences: over seeds, at {level}."
    if least:
        ends = dict.fromkeys(f"{end:.3f}" if nats else points(end, by=by) for end in (min(least), max(least)))
        said += f" Least detectable difference: {' to '.join(ends)}{' nats' if nats else by.points}."
    return said


def bold_said(comparison: Comparison, found: Leaders, where: str) -> str:
    """Return what bold means in a table, or why nothing is bold; nothing where there are no pairs to be tested."""
    if not found.tested:
        return ""
    corrected = f", corrected {CORRECTIONS[comparison.plan.correction]}" if found.tested > 1 else ""
    tests = f"paired t tests of {f'all {found.tested} pairs' if found.tested > 1 else 'the pair'}{corrected}"
    if not found.methods:
        return f"Nothing is bold: no method's lead over all others {where} is decided ({tests})."
    if len(found.methods) == 1:
        return f"Bold: better than every other method {where} ({tests})."
    return f"Bold: each better than all others {where}, and nothing is decided between those in bold ({tests})."


def refit_said(rounds: Sequence[int]) -> str:
    """Return that models were trained again on all rows, for so many rounds each; nothing of none.

    Example:
        >>> refit_said([12])
        'The model was trained again on all rows, 12 rounds; scores are of the model before.'
        >>> refit_said([12, 5, 9])
        'Models were trained again on all rows, 5 to 12 rounds; scores are of the models before.'
    """
    if not rounds:
        return ""
    least, most = min(rounds), max(rounds)
    said = f"{most} round{'s' * (most != 1)}" if least == most else f"{least} to {most} rounds"
    if len(rounds) == 1:
        return f"The model was trained again on all rows, {said}; scores are of the model before."
    return f"Models were trained again on all rows, {said}; scores are of the models before."


def made_by(comparison: Comparison) -> str:
    """Return the software and the commit that the runs are from.

    The commit is that of the checkout that the experiment lies in; "changed" says that the files there were others.
    """
    versions = {str(run.environment.get("fedreach", "")) for run in comparison.runs} - {""}
    commits = {
        f"{str(run.git['revision'])[:12]}{', changed' if run.git.get('changed') else ''}"
        for run in comparison.runs
        if run.git and run.git.get("revision")
    }
    at = f", commit {' and '.join(sorted(commits))}" if commits else ""
    return f"Made by fedreach report (FedReach {' and '.join(sorted(versions))}{at})."
