"""Reproductions as pages: one an item, with its figure, and an overview of all verdicts.

A folder of pages holds, for each item, ``PAPER-ITEM.json`` (its record, with the numbers of each seed), ``.md`` and
``.svg``; the overview is ``index.md``. All but the records are made from these alone, so that the same records give the
same bytes, and a sentence of the overview cannot say what no row carries.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedreach.errors import RunFolderError
from fedreach.tables import markdown_lines
from papers.claims import UNITLESS
from papers.figures import figure_of
from papers.measured import difference, unit
from papers.record import body, claim_cells, see, setting, told

OUTCOMES = ("reproduced", "not reproduced", "contradicted", "not testable")
ANSWERS = {"reproduced": "yes", "contradicted": "no", "not reproduced": "not decided"}
"""What an outcome is called where nobody claimed anything: to questions that papers leave out."""
INDEX = "index.md"
KEYS = (
    *("recipe", "title", "reference", "scale", "data", "stand_in", "rounds", "seeds", "hours", "version", "commit"),
    *("choices", "cut", "axis", "x", "methods", "numbers", "paper", "claims", "failed"),
)
"""Of a record, which pages are made from."""
OF_CLAIM = (
    *("says", "control", "instead", "quantity", "test", "outcome", "what", "mean", "low", "high"),
    *("detectable", "reason", "see"),
)
"""Of each of its claims."""


def slug(record: Mapping[str, Any]) -> str:
    """Return what an item's files are called.

    Example:
        >>> slug({"recipe": "csra/fig5"})
        'csra-fig5'
    """
    return str(record["recipe"]).replace("/", "-")


def add(record: Mapping[str, Any], folder: Path) -> None:
    """Put a record among the pages, in place of an earlier one of the same item: what pages show, to five digits."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = told(record)
    kept = {
        quantity: {line: [[_short(number) for number in seed] for seed in rows] for line, rows in by_line.items()}
        for quantity, by_line in record["numbers"].items()
        if quantity in shown
    }
    (folder / f"{slug(record)}.json").write_text(_text({**record, "numbers": kept}), encoding="utf-8", newline="\n")


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.5g}")


def _text(value: Any, depth: int = 0) -> str:
    """Return JSON with a line for each key, and for each line of numbers."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = ",\n".join(f"{' ' * (depth + 1)}{json.dumps(key)}: {_text(own, depth + 1)}" for key, own in value.items())
    return f"{{\n{inner}\n{' ' * depth}}}" + "\n" * (depth == 0)


def write(folder: Path) -> list[Path]:
    """Make the pages of all records in a folder, and the overview; return the paths of the pages.

    Raises:
        RunFolderError: If a record cannot be read, or the folder holds none.
    """
    records = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not records:
        raise RunFolderError(
            f"{folder} holds no record of a reproduction: run `python -m papers PAPER/ITEM --pages {folder}`."
        )
    known = {str(record["recipe"]) for record in records}
    texts = {folder / f"{slug(record)}.md": page(record, draw(record, folder), known) for record in records}
    texts[folder / INDEX] = overview(records)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(texts)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for whole, keys in ((found, KEYS), *((claim, OF_CLAIM) for claim in found["claims"])):
            for key in keys:
                whole[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} is no record of a reproduction ({error!r}). Remove it, or run its item again."
        ) from error
    return found


def draw(record: Mapping[str, Any], folder: Path) -> str:
    """Draw the figure of a record; return its name, empty where there is none."""
    from fedreach.report.figures.saving import save

    figure = figure_of(record)
    if figure is None:
        return ""
    save(figure, folder / slug(record), ("svg",))
    return f"{slug(record)}.svg"


def page(record: Mapping[str, Any], figure: str, known: Container[str] = ()) -> str:
    """Return the page of an item, with links to those recipes that are known."""
    lines = [f"# {record['recipe']}: {record['title']}", "", f"{record['reference']}. {setting(record)}", ""]
    command = f"python -m papers {record['recipe']} --scale {record['scale']}"
    lines += ["```text", command, "```", "", said_of_run(record), ""]
    if figure:
        lines += [f"![{record['title']}]({figure})", ""]
    lines += [said_of_claims(), ""] if record["claims"] else []
    return "\n".join([*lines, *body(record, partial(linked, known))]).rstrip() + "\n"


def linked(known: Container[str], recipe: str) -> str:
    """Return the name of a recipe, with a link if its page is there.

    Example:
        >>> linked(["csra/fig5"], "csra/fig5"), linked([], "csra/fig5")
        ('[csra/fig5](csra-fig5.md)', 'csra/fig5')
    """
    return f"[{recipe}]({slug({'recipe': recipe})}.md)" if recipe in known else recipe


def said_of_run(record: Mapping[str, Any]) -> str:
    """Return what made the numbers, and where each seed's are."""
    hash_, _, changed = (record["commit"] or "").partition(" ")
    commit = f"{hash_[:12]} {changed}".rstrip() or "an unknown revision"
    took = "" if record["hours"] is None else f", {record['hours']:.2g} hours of training and evaluation on one core"
    rows = f"{slug(record)}.json"
    return f"FedReach {record['version']} at {commit}{took}. The numbers of each seed: [{rows}]({rows})."


def said_of_claims() -> str:
    """Return how to read the table of claims."""
    return (
        "*Reproduced*: all that the statement claims lies above 0 by paired 95 % intervals over seeds; *contradicted*: "
        "something lies below, after Holm's correction; *not reproduced*: neither. The difference shown is that which "
        "decides, or the weakest; the last column is the least that these seeds find in four of five studies. *See* "
        "names items whose controls ask where it holds."
    )


def overview(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of all verdicts."""
    link = partial(linked, {str(record["recipe"]) for record in records})
    counts = Counter(claim["outcome"] for record in records for claim in _of_paper(record))
    total = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    hours = sum(record["hours"] or 0 for record in records)
    papers = [record for record in records if _of_paper(record) or not record["claims"]]
    controls = [record for record in records if record not in papers]
    beside = f" and {len(controls)} control{'s' * (len(controls) != 1)}" if controls else ""
    untested = ["not testable"] * bool(counts["not testable"])
    header = ["item", "scale, seeds", *OUTCOMES[:3], *untested, "least difference seen"]
    lines = [
        "# Five papers, item by item",
        "",
        f"{len(papers)} item{'s' * (len(papers) != 1)}{beside}, {sum(counts.values())} statements of the papers: "
        f"{total}. "
        f"Training and evaluation took {hours:.2g} hours on one core. "
        "`python -m papers PAPER/ITEM --scale SCALE --pages FOLDER` makes these pages.",
        "",
        said_of_claims(),
        "",
        *markdown_lines(header, [_row(record, link, [*OUTCOMES[:3], *untested]) for record in papers]),
        "",
    ]
    for outcome in ("contradicted", "not reproduced"):
        if counts[outcome]:
            lines += [f"## {outcome.capitalize()}", ""]
        for record in records:
            for claim in (each for each in _of_paper(record) if each["outcome"] == outcome):
                with_ = f", with {claim['instead']}" if claim["instead"] else ""
                found = f"*{claim['says']}*{with_}: {claim_cells(claim)[2]}"
                asked = f". See {', '.join(map(link, see(claim)))}" if see(claim) else ""
                lines.append(f"- {link(record['recipe'])}: {found}{asked}")
        lines.append("")
    if any(claim["control"] for record in records for claim in record["claims"]):
        lines += ["## What the papers leave out", "", "Asked and judged in the same way.", ""]
    if controls:
        header = ["item", "scale, seeds"]
        lines += [*markdown_lines(header, [_row(record, link) for record in controls]), ""]
    for record in records:
        for claim in (each for each in record["claims"] if each["control"]):
            answer = ANSWERS.get(claim["outcome"], claim["outcome"])
            found = f" {claim_cells(claim)[2]}" if claim["mean"] is not None else ""
            lines.append(f"- {link(record['recipe'])}: *{claim['says']}*: **{answer}**.{found}")
    return "\n".join(lines).rstrip() + "\n"


def _of_paper(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what the paper says, without questions that it leaves out."""
    return [claim for claim in record["claims"] if not claim["control"]]


def _row(record: Mapping[str, Any], link: Callable[[str], str], outcomes: Sequence[str] = ()) -> list[str]:
    """Return the cells of an item; without outcomes those of an item that asks what papers leave out."""
    claims = _of_paper(record)
    counts = Counter(claim["outcome"] for claim in claims)
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for claim in claims:
        if claim["detectable"] is not None and claim["test"] not in UNITLESS:
            seen.setdefault(unit(claim["quantity"]), []).append(claim)
    return [
        f"{link(record['recipe'])}: {record['title']}".replace("|", "\\|"),
        f"{record['scale']}, {len(record['seeds'])}",
        *(str(counts[outcome]) if counts[outcome] else "" for outcome in outcomes),
        *(["; ".join(_range(found) for found in seen.values())] if outcomes else []),
    ]


def _range(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the least and the most that could have been seen, in one unit."""
    ends = [min(claims, key=lambda claim: claim["detectable"]), max(claims, key=lambda claim: claim["detectable"])]
    said = dict.fromkeys(difference(each["quantity"], each["detectable"]).removeprefix("+") for each in ends)
    return f"{' to '.join(said)} {unit(claims[0]['quantity'])}".rstrip()
