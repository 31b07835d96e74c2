"""Pages of records: one per recipe, and an overview of all conclusions.

A folder of pages holds ``PAPER-ITEM.json`` (the record, with the numbers of each seed), ``.md`` and ``.svg`` of each
recipe; the overview is ``index.md``. The same records give the same pages, byte for byte.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedreach._util.errors import RunFolderError
from fedreach._util.tables import markdown_lines
from papers.claims import UNITLESS, correct_outcomes
from papers.curves import figures_of
from papers.figures import figure_of
from papers.measured import format_difference, unit_of
from papers.recipe import load
from papers.record import body, chance, describe_setting, judged_again, shown_titles

OUTCOMES = ("reproduced", "equivalent", "inconclusive", "contradicted")
INDEX = "index.md"
KEYS = (
    *("recipe", "title", "reference", "scale", "data", "stand_in", "rounds", "seeds", "hours", "version", "commit"),
    *("choices", "cut", "axis", "x", "methods", "numbers", "paper", "claims", "failed"),
)
"""Keys of a record that pages are made from."""
OF_CLAIM = (
    *("says", "control", "instead", "quantity", "test", "outcome", "what", "mean", "low", "high"),
    *("mde", "reason", "see", "p", "without", "again", "repeats"),
)
"""Keys of each of its claims."""


CONCLUSIONS = {
    "reproduced": "All differences of the claim are above 0, by their paired 95% confidence intervals (CI) over seeds.",
    "contradicted": "A difference is below 0, by its interval, Holm-adjusted within the claim.",
    "equivalent": "Neither, and the 90% CI of each difference that is not shown to be above 0 is within ± 2 points of "
    "accuracy, or within ± 5% of the largest value of another quantity.",
    "inconclusive": "None of these. The page has the MDE, the smallest true difference detected with 80% power.",
    "not testable": "One seed, scale `smoke`, or a failed run.",
}
"""What the outcomes mean; stated on the overview only."""


def file_stem(record: Mapping[str, Any]) -> str:
    """Return the name of the files of a record, without ending.

    Example:
        >>> file_stem({"recipe": "csra/fig5"})
        'csra-fig5'
    """
    return str(record["recipe"]).replace("/", "-")


def add_record(record: Mapping[str, Any], folder: Path) -> None:
    """Write a record into a folder of pages, replacing an earlier one of the same recipe; numbers to five digits."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = shown_titles(record)
    rounded = {
        quantity: {line: [[_short(number) for number in seed] for seed in rows] for line, rows in by_line.items()}
        for quantity, by_line in record["numbers"].items()
        if quantity in titles
    }
    (folder / f"{file_stem(record)}.json").write_text(
        _text({**record, "numbers": rounded}), encoding="utf-8", newline="\n"
    )


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.5g}")


def _text(value: Any, depth: int = 0) -> str:
    """Return JSON with a line for each key, and for each line of numbers."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = ",\n".join(f"{' ' * (depth + 1)}{json.dumps(key)}: {_text(item, depth + 1)}" for key, item in value.items())
    return f"{{\n{inner}\n{' ' * depth}}}" + "\n" * (depth == 0)


def write_pages(folder: Path) -> list[Path]:
    """Make the pages of all records in a folder, and the overview; return the paths of the pages.

    Raises:
        RunFolderError: If a record cannot be read, or the folder holds none.
    """
    records = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not records:
        raise RunFolderError(f"{folder} has no records: run `python -m papers PAPER/ITEM --pages {folder}`.")
    recipes = {str(record["recipe"]) for record in records}
    texts = {
        folder / f"{file_stem(record)}.md": page_text(
            record, draw(record, folder), recipes, draw_curves(record, folder)
        )
        for record in records
    }
    texts[folder / INDEX] = overview_text(records)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(texts)


def judge_again(folder: Path) -> None:
    """Judge the claims of all records in a folder again, by their stored numbers and the recipes as they are now."""
    for path in sorted(folder.glob("*.json")):
        record = _read(path, of_claim=())
        add_record(judged_again(record, load(record["recipe"], record["scale"])), folder)


def _read(path: Path, of_claim: Sequence[str] = OF_CLAIM) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for table, keys in ((record, KEYS), *((claim, of_claim) for claim in record["claims"])):
            for key in keys:
                table[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} is not a record of a recipe ({error!r}). Remove it, or rerun its recipe."
        ) from error
    return record


def draw(record: Mapping[str, Any], folder: Path) -> str:
    """Draw the figure of a record; return its name, empty where there is none."""
    from fedreach.report.figures.style import save

    figure = figure_of(record)
    if figure is None:
        return ""
    save(figure, folder / file_stem(record), ("svg",))
    return f"{file_stem(record)}.svg"


def draw_curves(record: Mapping[str, Any], folder: Path) -> list[str]:
    """Draw the curves and bounds of a record; return the names of the figures, none for a record without curves."""
    from fedreach.report.figures.style import save

    drawn = figures_of(record)
    for name, figure in drawn.items():
        save(figure, folder / f"{file_stem(record)}-{name}", ("svg",))
    return [f"{file_stem(record)}-{name}.svg" for name in drawn]


def page_text(record: Mapping[str, Any], figure: str, recipes: Container[str] = (), curves: Sequence[str] = ()) -> str:
    """Return the page of a record with its figures, and with links to the recipes that have a page."""
    lines = [f"# {record['recipe']}: {record['title']}", "", f"{record['reference']}. {describe_setting(record)}", ""]
    command = f"python -m papers {record['recipe']} --scale {record['scale']}"
    lines += ["```text", command, "```", "", describe_run(record), ""]
    if figure:
        lines += [f"![{record['title']}]({figure})", ""]
    for name in curves:
        lines += [f"![{name.removesuffix('.svg').rpartition('-')[2].capitalize()}: {record['title']}]({name})", ""]
    return "\n".join([*lines, *body(record, partial(link_recipe, recipes))]).rstrip() + "\n"


def link_recipe(recipes: Container[str], recipe: str) -> str:
    """Return the name of a recipe, with a link if its page is there.

    Example:
        >>> link_recipe(["csra/fig5"], "csra/fig5"), link_recipe([], "csra/fig5")
        ('[csra/fig5](csra-fig5.md)', 'csra/fig5')
    """
    return f"[{recipe}]({file_stem({'recipe': recipe})}.md)" if recipe in recipes else recipe


def describe_run(record: Mapping[str, Any]) -> str:
    """Return sentences about the version and the time, with links to each seed's numbers and to the definitions."""
    hash_, _, changed = (record["commit"] or "").partition(" ")
    commit = f"{hash_[:12]} {changed}".rstrip() or "an unknown revision"
    hours = "" if record["hours"] is None else f", {record['hours']:.2g} hours of training and evaluation on one core"
    rows = f"{file_stem(record)}.json"
    claims = f" [What the conclusions mean]({INDEX}#conclusions)." if record["claims"] else ""
    return f"FedReach {record['version']} at {commit}{hours}. The numbers of each seed: [{rows}]({rows}).{claims}"


def overview_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the overview: counts, what the conclusions mean, and the claims and recipes of each paper."""
    link = partial(link_recipe, {str(record["recipe"]) for record in records})
    counted = counted_claims(records)
    by_paper: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_paper.setdefault(paper_of(record), []).append(record)
    counts = {
        paper: _counts(own, [c for c in counted if paper_of(c.record) == paper]) for paper, own in by_paper.items()
    }
    total = {name: sum(own[name] for own in counts.values()) for name in COUNTED}
    controls, hours = sum(map(_is_control, records)), sum(record["hours"] or 0 for record in records)
    scales = " and ".join(f"`{scale}`" for scale in dict.fromkeys(record["scale"] for record in records))
    alone = Counter(claim.claim["outcome"] for claim in counted)
    lines = [
        "# Five papers, table by table",
        "",
        f"**At scale {scales}, which is smaller than in the papers, {total['reproduced']} of {total['claims']} claims "
        f"are reproduced, {total['equivalent']} equivalent, {total['inconclusive']} inconclusive and "
        f"{total['contradicted']} contradicted.** These conclusions are Holm-corrected across all claims. Each claim "
        f"by itself would give {alone['reproduced']} reproduced and {alone['contradicted']} contradicted.",
        "",
        f"Recipes of tables and figures: {total['recipes']}; control experiments: {controls}. "
        f"Training and evaluation took {hours:.2g} hours on one core. "
        "`python -m papers PAPER/ITEM --scale SCALE --pages FOLDER` makes these pages.",
        "",
        *markdown_lines(("paper", *COUNTED), [_count_row(paper, own) for paper, own in counts.items()]),
        *([_markdown_row(_count_row("all", total))] if len(counts) > 1 else []),
        "",
        "## Conclusions",
        "",
        "A claim is a list of differences that should be above 0, seed by seed.",
        "",
        *markdown_lines(("conclusion", "when"), [(f"*{outcome}*", when) for outcome, when in CONCLUSIONS.items()]),
        "",
        "A claim counts once. Not counted: claims about another method in the place of the paper's, claims whose "
        "differences are all among those of another claim, and claims that the same difference decides. "
        "This page corrects across all counted claims; the page of a recipe judges each claim by itself. "
        "*Chance again* is the share of 2,000 bootstrap samples of the seeds in which a claim is reproduced by itself.",
        "",
        "Control experiments ask questions that the paper leaves out. They are judged in the same way, each by itself: "
        "yes (reproduced), equivalent, inconclusive or no (contradicted).",
        "",
    ]
    header = ("recipe", "scale, seeds", "questions: yes / equivalent / inconclusive / no", "MDE")
    for paper, own in by_paper.items():
        claims = [_claim_row(claim, link) for claim in counted if paper_of(claim.record) == paper]
        lines += [f"## {paper}", "", f"{own[0]['reference']}.", ""]
        if claims:
            lines += [*markdown_lines(("recipe", "the paper claims", "conclusion", "chance again"), claims), ""]
        lines += [*markdown_lines(header, [_row(record, link) for record in own]), ""]
    return "\n".join(lines).rstrip() + "\n"


COUNTED = ("recipes", "claims", *OUTCOMES)
"""Columns of the table of counts."""


class CountedClaim(NamedTuple):
    """A claim of the overview, and its outcome after the correction across claims."""

    record: Mapping[str, Any]
    claim: Mapping[str, Any]
    outcome: str


def counted_claims(records: Sequence[Mapping[str, Any]]) -> list[CountedClaim]:
    """Return the claims of the papers that can be tested, each once, with corrected outcomes."""
    found = [
        (record, claim)
        for record in records
        for claim in record["claims"]
        if not (claim["control"] or claim["repeats"] or claim["reason"])
    ]
    names = ("outcome", "p", "without")
    outcomes = correct_outcomes(*([claim[name] for _, claim in found] for name in names))
    return [CountedClaim(*pair, outcome) for pair, outcome in zip(found, outcomes, strict=True)]


def paper_of(record: Mapping[str, Any]) -> str:
    """Return the name of the paper of a record."""
    return str(record["recipe"]).partition("/")[0]


def _is_control(record: Mapping[str, Any]) -> bool:
    """Return whether a record has only questions that the paper leaves out."""
    return bool(record["claims"]) and all(claim["control"] for claim in record["claims"])


def _counts(records: Sequence[Mapping[str, Any]], counted: Sequence[CountedClaim]) -> dict[str, int]:
    """Return the counts of a paper, in the order of `COUNTED`."""
    outcomes = Counter(claim.outcome for claim in counted)
    recipes = len(records) - sum(map(_is_control, records))
    return {"recipes": recipes, "claims": len(counted), **{outcome: outcomes[outcome] for outcome in OUTCOMES}}


def _count_row(paper: str, counts: Mapping[str, int]) -> list[str]:
    return [paper, *(str(counts[name]) for name in COUNTED)]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _claim_row(counted: CountedClaim, link: Callable[[str], str]) -> list[str]:
    record, claim, outcome = counted
    alone = "" if outcome == claim["outcome"] else f" ({claim['outcome']} by itself)"
    return [link(record["recipe"]), claim["says"].replace("|", "\\|"), outcome + alone, chance(claim)]


def _row(record: Mapping[str, Any], link: Callable[[str], str]) -> list[str]:
    """Return the cells of a record: its name, its counts of answers, and the range of its MDE."""
    questions = [claim for claim in record["claims"] if claim["control"]]
    by_unit: dict[str, list[Mapping[str, Any]]] = {}
    for claim in [claim for claim in record["claims"] if not claim["control"]] or questions:
        if claim["mde"] is not None and claim["test"] not in UNITLESS:
            by_unit.setdefault(unit_of(claim["quantity"]), []).append(claim)
    return [
        f"{link(record['recipe'])}: {record['title']}".replace("|", "\\|"),
        f"{record['scale']}, {len(record['seeds'])}",
        _outcomes(questions),
        "; ".join(_range(of_unit) for of_unit in by_unit.values()),
    ]


def _outcomes(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return how many claims have each outcome; *not testable* only if there are any.

    Example:
        >>> _outcomes([{"outcome": "reproduced"}, {"outcome": "contradicted"}, {"outcome": "not testable"}])
        '1 / 0 / 0 / 1, 1 not testable'
    """
    counts = Counter(claim["outcome"] for claim in claims)
    text = " / ".join(str(counts[outcome]) for outcome in OUTCOMES) if claims else ""
    return f"{text}, {counts['not testable']} not testable" if counts["not testable"] else text


def _range(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the smallest and the largest MDE of claims in the same unit."""
    ends = [min(claims, key=lambda claim: claim["mde"]), max(claims, key=lambda claim: claim["mde"])]
    numbers = dict.fromkeys(format_difference(end["quantity"], end["mde"]).removeprefix("+") for end in ends)
    return f"{' to '.join(numbers)} {unit_of(claims[0]['quantity'])}".rstrip()
