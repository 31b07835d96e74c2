"""Pages of records: one per table or figure of a paper, and an overview of all conclusions.

A folder of pages holds ``PAPER-ITEM.json`` (the record, with the numbers of each seed), ``.md`` and ``.svg`` of each
recipe; the overview is ``index.md``. All but the records are made from the records alone: the same records give the
same bytes.
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
from papers.figures import figure_of
from papers.measured import format_difference, unit_of
from papers.record import body, claim_cells, control_experiments, describe_setting, shown_titles

OUTCOMES = ("reproduced", "not reproduced", "contradicted", "not testable")
ANSWERS = {"reproduced": "yes", "contradicted": "no", "not reproduced": "inconclusive"}
"""Outcomes of the questions of control experiments."""
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


LEGEND = (
    "*Reproduced*: each difference that the claim says is above 0 is, by its paired 95% confidence interval (CI) over "
    "seeds. *Contradicted*: a difference is below 0 by its Holm-adjusted interval. *Not reproduced*: neither. The "
    "table shows the deciding difference, or the weakest. MDE: smallest true difference detected with 80% power. *See* "
    "names control experiments that ask when the claim holds."
)


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
    texts = {folder / f"{file_stem(record)}.md": page_text(record, draw(record, folder), recipes) for record in records}
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


def page_text(record: Mapping[str, Any], figure: str, recipes: Container[str] = ()) -> str:
    """Return the page of a record, with links to the recipes that have a page."""
    lines = [f"# {record['recipe']}: {record['title']}", "", f"{record['reference']}. {describe_setting(record)}", ""]
    command = f"python -m papers {record['recipe']} --scale {record['scale']}"
    lines += ["```text", command, "```", "", describe_run(record), ""]
    if figure:
        lines += [f"![{record['title']}]({figure})", ""]
    lines += [LEGEND, ""] if record["claims"] else []
    return "\n".join([*lines, *body(record, partial(link_recipe, recipes))]).rstrip() + "\n"


def link_recipe(recipes: Container[str], recipe: str) -> str:
    """Return the name of a recipe, with a link if its page is there.

    Example:
        >>> link_recipe(["csra/fig5"], "csra/fig5"), link_recipe([], "csra/fig5")
        ('[csra/fig5](csra-fig5.md)', 'csra/fig5')
    """
    return f"[{recipe}]({file_stem({'recipe': recipe})}.md)" if recipe in recipes else recipe


def describe_run(record: Mapping[str, Any]) -> str:
    """Return a sentence about the version and the time, and a link to the numbers of each seed."""
    hash_, _, changed = (record["commit"] or "").partition(" ")
    commit = f"{hash_[:12]} {changed}".rstrip() or "an unknown revision"
    hours = "" if record["hours"] is None else f", {record['hours']:.2g} hours of training and evaluation on one core"
    rows = f"{file_stem(record)}.json"
    return f"FedReach {record['version']} at {commit}{hours}. The numbers of each seed: [{rows}]({rows})."


def overview_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of all conclusions."""
    link = partial(link_recipe, {str(record["recipe"]) for record in records})
    counts = Counter(claim["outcome"] for record in records for claim in _of_paper(record))
    total = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    hours = sum(record["hours"] or 0 for record in records)
    papers = [record for record in records if _of_paper(record) or not record["claims"]]
    controls = [record for record in records if record not in papers]
    more = f" and {len(controls)} control experiment{'s' * (len(controls) != 1)}" if controls else ""
    untested = ["not testable"] * bool(counts["not testable"])
    tables = f"{len(papers)} tables and figures" if len(papers) != 1 else "1 table or figure"
    header = ["table or figure", "scale, seeds", *OUTCOMES[:3], *untested, "MDE"]
    lines = [
        "# Five papers, table by table",
        "",
        f"{tables}{more}; {sum(counts.values())} claims of the papers: {total}. "
        f"Training and evaluation took {hours:.2g} hours on one core. "
        "`python -m papers PAPER/ITEM --scale SCALE --pages FOLDER` makes these pages.",
        "",
        LEGEND,
        "",
        *markdown_lines(header, [_row(record, link, [*OUTCOMES[:3], *untested]) for record in papers]),
        "",
    ]
    for outcome in ("contradicted", "not reproduced"):
        if counts[outcome]:
            lines += [f"## {outcome.capitalize()}", ""]
        for record in records:
            for claim in (claim for claim in _of_paper(record) if claim["outcome"] == outcome):
                with_ = f", with {claim['instead']}" if claim["instead"] else ""
                decided = f"*{claim['says']}*{with_}: {claim_cells(claim)[2]}"
                see = ", ".join(map(link, control_experiments(claim)))
                lines.append(f"- {link(record['recipe'])}: {decided}{f'. See {see}' if see else ''}")
        lines.append("")
    if any(claim["control"] for record in records for claim in record["claims"]):
        lines += ["## Control experiments", "", "Questions that the papers leave out, judged in the same way.", ""]
    if controls:
        header = ["control experiment", "scale, seeds"]
        lines += [*markdown_lines(header, [_row(record, link) for record in controls]), ""]
    for record in records:
        for claim in (claim for claim in record["claims"] if claim["control"]):
            answer = ANSWERS.get(claim["outcome"], claim["outcome"])
            decided = f" {claim_cells(claim)[2]}" if claim["mean"] is not None else ""
            lines.append(f"- {link(record['recipe'])}: *{claim['says']}*: **{answer}**.{decided}")
    return "\n".join(lines).rstrip() + "\n"


def _of_paper(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the claims of the paper, without the questions of control experiments."""
    return [claim for claim in record["claims"] if not claim["control"]]


def _row(record: Mapping[str, Any], link: Callable[[str], str], outcomes: Sequence[str] = ()) -> list[str]:
    """Return the cells of a record; without outcomes those of a control experiment."""
    claims = _of_paper(record)
    counts = Counter(claim["outcome"] for claim in claims)
    by_unit: dict[str, list[Mapping[str, Any]]] = {}
    for claim in claims:
        if claim["mde"] is not None and claim["test"] not in UNITLESS:
            by_unit.setdefault(unit_of(claim["quantity"]), []).append(claim)
    return [
        f"{link(record['recipe'])}: {record['title']}".replace("|", "\\|"),
        f"{record['scale']}, {len(record['seeds'])}",
        *(str(counts[outcome]) if counts[outcome] else "" for outcome in outcomes),
        *(["; ".join(_range(of_unit) for of_unit in by_unit.values())] if outcomes else []),
    ]


def _range(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the smallest and the largest MDE of claims in the same unit."""
    ends = [min(claims, key=lambda claim: claim["mde"]), max(claims, key=lambda claim: claim["mde"])]
    numbers = dict.fromkeys(format_difference(end["quantity"], end["mde"]).removeprefix("+") for end in ends)
    return f"{' to '.join(numbers)} {unit_of(claims[0]['quantity'])}".rstrip()
