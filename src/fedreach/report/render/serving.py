"""How unseen clients are served, as tables: the rungs, log loss and calibration, and the gap taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedreach.evidence.judgement import Judgement
from fedreach.evidence.scores import HARM_POINTS
from fedreach.evidence.spread import Spread
from fedreach.report.analysis.analysis import Analysis
from fedreach.report.analysis.leaders import NOBODY, Leaders
from fedreach.report.analysis.serving import RUNGS, ServedSummary
from fedreach.report.numbers import (
    ABSENT,
    Unit,
    detectable,
    interval,
    nats,
    number,
    p_text,
    percent,
    plus_minus,
    points,
    unit_of,
    verdict,
)
from fedreach.report.render.captions import bold_said, intervals_said, join_sentences
from fedreach.report.render.tables import VERDICT_UNIT, Table, bold_cells, family_note

WORDS = {"unseen": "unseen clients", "id": "participants, each by what the others contributed"}
Cell = Callable[[ServedSummary], str]


def tabulate_serving(analysis: Analysis) -> list[Table]:
    """Return the tables of the rungs, of the probabilities and of the gap; none where no method has a serving rule."""
    rows = analysis.serving
    if not rows:
        return []
    return [_rungs(analysis), _probabilities(analysis), *_gap(rows)]


def _rungs(analysis: Analysis) -> Table:
    rows = analysis.serving
    several, labels = any(row.gain.count > 1 for row in rows), any(row.needs_labels for row in rows)
    share = "% ± sd" if several else "%"

    def score(rung: str, name: str) -> Cell:
        return lambda row: percent(row.at[rung, name])

    def gain_with(n: int) -> Cell:
        return lambda row: _points(row.gain_with.get(n))

    def spent(name: str, unit: Unit) -> Cell:
        return lambda row: _spent(row.spent[name], unit)

    columns: list[tuple[str, str, Cell, int]] = [("method", "", lambda row: row.method, 0)]
    columns.append(("rule", "", lambda row: row.rule.partition("(")[0], 150))
    columns.append(("needs", "", lambda row: "labels" if row.needs_labels else ABSENT, 0))
    columns += [(head, share, score(rung, "accuracy"), 0) for rung, head in RUNGS.items()]
    columns.append(("gain", "points [seeds]", lambda row: _points(row.gain), 0))
    columns.append(("expected gain", "points, by participants", _expected, 120))
    columns.append(("p", "corrected", lambda row: p_text(row.gain.p_corrected), 0))
    columns.append(("detectable", "points", lambda row: detectable(row.gain), 140))
    columns.append(("verdict", VERDICT_UNIT, lambda row: verdict(row.gain), 110))
    for n in sorted({n for row in rows for n in row.gain_with}):
        columns.append((f"gain with {n}", "inputs", gain_with(n), 120))
    columns += [
        ("worst decile, plain", share, score("plain", "accuracy_worst_decile"), 100),
        ("worst decile, served", share, score("served", "accuracy_worst_decile"), 100),
        (f"clients that lose > {HARM_POINTS} points", share, lambda row: percent(row.harmed), 130),
        ("worst client", "points (inputs)", _worst_client, 140),
        ("adapted", "clients", lambda row: _count(row.decided.get("adapted")), 160),
        ("repaired", "clients", lambda row: _count(row.decided.get("repaired")), 160),
        ("sent to fit", "kB a participant", lambda row: plus_minus(row.kilobytes["up"], 1), 170),
        ("handed out", "kB", lambda row: plus_minus(row.kilobytes["state"], 1), 170),
    ]
    for name, head in {"seconds": "time to fit", "joules": "energy to fit"}.items():
        unit = unit_of(name, [row.spent[name].mean for row in rows])
        columns.append((head, unit.name, spent(name, unit), 170))
    where = WORDS[rows[0].population]
    judged = family_note(analysis.comparison, [row.gain for row in rows])
    learns = ", as is every rule marked so; labelled examples that one learns from are not scored" if labels else ""
    return _table(
        f"How {where.split(',')[0]} are served",
        rows,
        columns,
        f"By the last model, on {where}: mean over clients{', ± sd over seeds' if several else ''}. Plain: the model "
        "as it is. Calibrated: corrected by participants' held-out data. Served: by the client's own inputs, without "
        f"labels. Gain: served minus plain{judged} With 5 inputs, say: scored on the "
        "client's other ones, a family of its own. The true prior is a reference that needs the client's labels"
        f"{learns}. Expected gain: what participants gained on their own held-out labels by what they decided, "
        f"and its 95% interval over them{', means over seeds' if several else ''}. "
        f"Clients that lose > {HARM_POINTS} points: share whose accuracy is lower served than plain by more than that. "
        "Worst client: change of the one that loses most, and in parentheses how many inputs it has"
        f"{', means over seeds' if several else ''}.",
        name="serving",
        stated=join_sentences(
            intervals_said(analysis.comparison, [row.gain for row in rows]),
            bold_said(analysis.comparison, analysis.served_leaders, "as clients are served, without labels"),
        ),
        leading=analysis.served_leaders,
    )


def _probabilities(analysis: Analysis) -> Table:
    rows = analysis.serving
    several = any(row.gain.count > 1 for row in rows)
    nat, share = ("nats ± sd", "% ± sd") if several else ("nats", "%")
    rungs = {rung: RUNGS[rung] for rung in ("plain", "calibrated", "served", "true_prior")}

    def loss(rung: str) -> Cell:
        return lambda row: plus_minus(row.at[rung, "loss"], 3)

    def error(rung: str) -> Cell:
        return lambda row: percent(row.at[rung, "calibration_error"])

    def p(score: str) -> Cell:
        return lambda row: p_text(row.change[score].p_corrected)

    width = {"plain": 100, "calibrated": 130, "served": 100, "true_prior": 170}
    columns: list[tuple[str, str, Cell, int]] = [("method", "", lambda row: row.method, 0)]
    columns.append(("needs", "", lambda row: "labels" if row.needs_labels else ABSENT, 0))
    columns += [(f"log loss, {head}", nat, loss(rung), width[rung]) for rung, head in rungs.items()]
    columns.append(("log loss, change", "nats [seeds]", lambda row: nats(row.change["loss"]), 0))
    columns.append(("p", "corrected", p("loss"), 0))
    columns += [
        (f"calibration error, {head}", share, error(rung), max(width[rung], 150)) for rung, head in rungs.items()
    ]
    columns.append(
        ("calibration error, change", "points [seeds]", lambda row: _points(row.change["calibration_error"]), 90)
    )
    columns.append(("p", "corrected", p("calibration_error"), 90))
    return _table(
        "Log loss and calibration, plain and served",
        rows,
        columns,
        "The same clients and inputs. Log loss: mean of −log p of the true class. Calibration error: how far "
        "confidence is from accuracy, over 15 bins of confidence; it does not reach 0 for a client with few examples. "
        "Change: served minus plain, below 0 is better, interval over seeds and p corrected for each score by itself. "
        "What the calibrated model changes is no merit of a client's inputs. "
        "With two classes a prior changes thresholds, log loss and calibration, and not the order of a client's "
        "examples.",
        name="probabilities",
        stated=intervals_said(analysis.comparison, [row.change["loss"] for row in rows], nats=True).replace(
            "detectable difference", "detectable change of log loss"
        ),
    )


def _gap(rows: Sequence[ServedSummary]) -> list[Table]:
    if not any(row.gap for row in rows):
        return []

    def part(name: str) -> Cell:
        return lambda row: _mean_points(row.gap.get(name))

    return [
        _table(
            "The participation gap taken apart",
            rows,
            [
                ("method", "", lambda row: row.method, 0),
                ("gap", "points", part("gap"), 0),
                ("priors", "points", part("priors"), 0),
                ("representation", "points", part("representation"), 0),
                ("estimation", "points", part("estimation"), 0),
                ("majority class", "%", lambda row: percent(row.majority), 0),
            ],
            "Gap: participants minus unseen clients, both plain = priors (what goes when both know their class shares) "
            "+ representation (what stays). Estimation: what unseen clients lose as they must estimate their class "
            "shares. Majority class: what a client would reach by always saying its most frequent class, a control "
            "that needs labels.",
            name="gap",
        )
    ]


def _table(
    caption: str,
    rows: Sequence[ServedSummary],
    columns: Sequence[tuple[str, str, Cell, int]],
    note: str,
    *,
    name: str,
    stated: str = "",
    leading: Leaders = NOBODY,
) -> Table:
    cells = [[text(row) for _, _, text, _ in columns] for row in rows]
    kept = [j for j in range(len(columns)) if j == 0 or any(row[j] != ABSENT for row in cells)]
    return Table(
        caption=caption,
        header=tuple(columns[j][0] for j in kept),
        units=tuple(columns[j][1] for j in kept),
        rows=tuple(tuple(row[j] for j in kept) for row in cells),
        from_width=tuple(columns[j][3] for j in kept),
        note=note,
        name=name,
        stated=stated,
        bold=bold_cells([row.method for row in rows], leading, [columns[j][0] for j in kept], RUNGS["served"]),
    )


def _points(found: Judgement | None) -> str:
    if found is None or found.mean is None:
        return ABSENT
    return points(found.mean, sign=True) + interval(found.low, found.high, sign=True)


def _mean_points(found: Spread | None) -> str:
    return ABSENT if found is None or found.mean is None else points(found.mean, sign=True)


def _expected(row: ServedSummary) -> str:
    """Return what participants expected of the rule, where it asks them."""
    mean, low, high = (spread.mean for spread in row.expected)
    if mean is None:
        return ABSENT
    return "off" if mean == low == high == 0 else points(mean, sign=True) + interval(low, high, sign=True)


def _worst_client(row: ServedSummary) -> str:
    """Return by how much the client that loses most changes, and how many inputs it has, where that was stored."""
    inputs = row.worst_inputs.mean
    return _mean_points(row.worst_change) + ("" if inputs is None else f" ({inputs:.0f})")


def _spent(found: Spread, unit: Unit) -> str:
    return ABSENT if found.mean is None else number(found.mean / unit.size)


def _count(found: Spread | None) -> str:
    return ABSENT if found is None or found.mean is None else f"{found.mean:.1f}"
