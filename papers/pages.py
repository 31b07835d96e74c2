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
from typing import Any

from fedreach._util.errors import RunFolderError
from fedreach._util.tables import markdown_lines
from papers.claims import UNITLESS
from papers.curves import figures_of
from papers.figures import figure_of
from papers.measured import format_difference, unit_of
from papers.record import body, describe_setting, shown_titles

OUTCOMES = ("reproduced", "not reproduced", "contradicted", "not testable")
INDEX = "index.md"
KEYS = (
    *("recipe", "title", "reference", "scale", "data", "stand_in", "rounds", "seeds", "hours", "version", "commit"),
    *("choices", "cut", "axis", "x", "methods", "numbers", "paper", "claims", "failed"),
)
"""Keys of a record that pages are made from."""
OF_CLAIM = (
    *("says", "control", "instead", "quantity", "test", "outcome", "what", "mean", "low", "high"),
    *("mde", "reason", "see"),
)
"""Keys of each of its claims."""


CONCLUSIONS = {
    "reproduced": "All differences of the claim are above 0, by their paired 95% confidence intervals (CI) over seeds.",
    "contradicted": "A difference is below 0, by its Holm-adjusted interval.",
    "not reproduced": "Neither. The page has the MDE, the smallest true difference detected with 80% power.",
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


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for table, keys in ((record, KEYS), *((claim, OF_CLAIM) for claim in record["claims"])):
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
    """Return the overview: what the conclusions mean, the counts of each paper, and a table of its recipes."""
    link = partial(link_recipe, {str(record["recipe"]) for record in records})
    by_paper: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_paper.setdefault(str(record["recipe"]).partition("/")[0], []).append(record)
    counts = {paper: _counts(own) for paper, own in by_paper.items()}
    total = {name: sum(own[name] for own in counts.values()) for name in COUNTED}
    hours = sum(record["hours"] or 0 for record in records)
    lines = [
        "# Five papers, table by table",
        "",
        f"Recipes of tables and figures: {total['recipes']}; control experiments: {total['control experiments']}. "
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
        "Control experiments ask questions that the paper leaves out. They are judged in the same way: "
        "yes (reproduced), inconclusive (not reproduced) or no (contradicted).",
        "",
    ]
    header = (
        "recipe",
        "scale, seeds",
        "claims: " + " / ".join(OUTCOMES[:3]),
        "questions: yes / inconclusive / no",
        "MDE",
    )
    for paper, own in by_paper.items():
        lines += [f"## {paper}", "", f"{own[0]['reference']}.", ""]
        lines += [*markdown_lines(header, [_row(record, link) for record in own]), ""]
    return "\n".join(lines).rstrip() + "\n"


QUESTIONS = "questions: yes / inconclusive / no"
COUNTED = ("recipes", "claims", *OUTCOMES[:3], "control experiments")
"""Columns of the table of counts."""


def _counts(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the counts of a paper, in the order of `COUNTED`."""
    controls = sum(bool(record["claims"]) and not _of_paper(record) for record in records)
    claims = [claim["outcome"] for record in records for claim in _of_paper(record)]
    by_outcome = [claims.count(outcome) for outcome in OUTCOMES[:3]]
    return dict(zip(COUNTED, (len(records) - controls, len(claims), *by_outcome, controls), strict=True))


def _count_row(paper: str, counts: Mapping[str, int]) -> list[str]:
    return [paper, *(str(counts[name]) for name in COUNTED)]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _of_paper(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the claims of the paper, without the questions of control experiments."""
    return [claim for claim in record["claims"] if not claim["control"]]


def _row(record: Mapping[str, Any], link: Callable[[str], str]) -> list[str]:
    """Return the cells of a record: its name, its counts of outcomes, and the range of its MDE."""
    claims = _of_paper(record)
    questions = [claim for claim in record["claims"] if claim["control"]]
    by_unit: dict[str, list[Mapping[str, Any]]] = {}
    for claim in claims or questions:
        if claim["mde"] is not None and claim["test"] not in UNITLESS:
            by_unit.setdefault(unit_of(claim["quantity"]), []).append(claim)
    return [
        f"{link(record['recipe'])}: {record['title']}".replace("|", "\\|"),
        f"{record['scale']}, {len(record['seeds'])}",
        _outcomes(claims),
        _outcomes(questions),
        "; ".join(_range(of_unit) for of_unit in by_unit.values()),
    ]


def _outcomes(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return how many claims have each outcome; *not testable* only if there are any.

    Example:
        >>> _outcomes([{"outcome": "reproduced"}, {"outcome": "contradicted"}, {"outcome": "not testable"}])
        '1 / 0 / 1, 1 not testable'
    """
    counts = Counter(claim["outcome"] for claim in claims)
    text = " / ".join(str(counts[outcome]) for outcome in OUTCOMES[:3]) if claims else ""
    return f"{text}, {counts['not testable']} not testable" if counts["not testable"] else text


def _range(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the smallest and the largest MDE of claims in the same unit."""
    ends = [min(claims, key=lambda claim: claim["mde"]), max(claims, key=lambda claim: claim["mde"])]
    numbers = dict.fromkeys(format_difference(end["quantity"], end["mde"]).removeprefix("+") for end in ends)
    return f"{' to '.join(numbers)} {unit_of(claims[0]['quantity'])}".rstrip()
