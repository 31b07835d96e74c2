"""Which papers the parts of a comparison are from: a bibliography for whoever writes about it.

A part's docstring names its source in a paragraph `Reference:`; ``references.bib`` has authors, title and place of it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedreach import registry
from fedreach.data.sets.catalogue import names as known_sets
from fedreach.federation.adam import Adam, AdamW
from fedreach.report.values import Comparison

OPTIMIZERS: Mapping[str, Any] = {"adam": Adam, "adamw": AdamW}  # that have a reference
ALWAYS = {"fedreach": "this software"}
CORRECTIONS = {"holm": "holm1979", "max_t": "westfall1993"}


@dataclass(frozen=True)
class Entry:
    """A paper."""

    key: str
    text: str  # as it stands in the file
    fields: Mapping[str, str]

    def is_named_in(self, text: str) -> bool:
        """Return whether a reference means this paper: by its arXiv number, its title, or an author and the year."""
        eprint, title = self.fields.get("eprint"), _letters(self.fields["title"])
        if (eprint and eprint in text) or title.replace(" ", "") in _letters(text).replace(" ", ""):
            return True
        author = _letters(self.fields["author"].partition(",")[0]).replace(" ", "")
        year = self.fields.get("year")
        return bool(year) and re.search(rf"\b{author}\b[^;]*\b{year}\b", _letters(text, keep=";")) is not None


@cache
def entries() -> tuple[Entry, ...]:
    """Return the papers that parts are from, in the order of the file."""
    text = (resources.files("fedreach.study") / "references.bib").read_text(encoding="utf-8")
    blocks = [f"@{block.strip()}" for block in re.split(r"^@", text, flags=re.MULTILINE) if block.strip()]
    return tuple(
        Entry(block[block.index("{") + 1 : block.index(",")], block, dict(re.findall(r"(\w+) = \{(.*)\},\n", block)))
        for block in blocks
    )


def bibliography(comparison: Comparison) -> str:
    """Return BibTeX entries of all that a comparison's methods, data and statistics are from.

    Above each stands what is from it. What has no reference, as a part of one's own, is named at the top.
    """
    used: dict[str, list[str]] = {key: [what] for key, what in ALWAYS.items()}
    if len(comparison.methods) > 1 and len(comparison.seeds) > 1:
        used[CORRECTIONS[comparison.plan.correction]] = ["the correction for several comparisons"]
    without = []
    for what, reference in sorted({pair for run in comparison.runs for pair in _named(run.config)}):
        found = [entry.key for entry in entries() if reference and entry.is_named_in(reference)]
        for key in found:
            used.setdefault(key, []).append(what)
        without += [] if found else [what]
    parts = [f"% For {'; '.join(used[entry.key])}\n{entry.text}\n" for entry in entries() if entry.key in used]
    head = "% What this comparison's parts, data and statistics are from; please check before you print it.\n"
    rest = f"% No reference is known for {', '.join(without)}.\n" if without else ""
    return f"{head}{rest}\n" + "\n".join(parts)


def write_bibliography(comparison: Comparison, folder: Path) -> Path:
    """Write `bibliography` into a folder and return the file."""
    path = folder / "references.bib"
    path.write_text(bibliography(comparison), encoding="utf-8", newline="\n")
    return path


def reference(kind: str, name: str) -> str:
    """Return where a built-in thing is from, in the words of its docstring; "" where that says nothing."""
    if kind == "data":
        return next((known.reference for known in known_sets() if known.name == name), "")
    found = registry.table(kind).get(name)
    return "" if found is None else registry.paragraph(found, "References?")


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each thing that an experiment names, and its reference."""
    for kind, row in registry.KINDS.items():
        if row.path is None:
            continue
        table: Any = config
        for key in row.path:
            table = (table or {}).get(key)
        if name := _name((table or {}).get(kind)):
            yield f"{kind} {name}", reference(kind, name)
    for metric in (config.get("evaluation") or {}).get("metrics") or ():
        if name := _name(metric):
            yield f"metric {name}", reference("metric", name)
    optimizer = _name((config.get("local") or {}).get("optimizer"))
    if optimizer in OPTIMIZERS:
        yield f"optimizer {optimizer}", registry.paragraph(OPTIMIZERS[optimizer], "Reference")


def _name(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("name")
    return value if isinstance(value, str) else ""


def _letters(text: str, keep: str = "") -> str:
    """Return a text in small letters without accents, braces or signs."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(rf"[^a-z0-9{keep}]+", " ", re.sub(r"\{\\.(\w)\}|[{}]", r"\1", plain))
