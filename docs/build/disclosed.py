"""The tables of ``docs/privacy.md``: ``python docs/build/disclosed.py`` checks them, ``--write`` renews them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreach._util.errors import ConfigError
from fedreach._util.registry import table
from fedreach._util.tables import markdown_lines
from fedreach.federation.disclosure import Disclosed, what_the_server_learns, when_learned
from fedreach.federation.federation import Federation
from fedreach.federation.labels import SecureAggregation
from fedreach.federation.local_sgd import LocalSGD
from fedreach.wireless.radio import Radio

PAGE = Path(__file__).parents[1] / "privacy.md"
TYPES = ("selection", "weighting", "solver", "loss", "server", "aggregation", "adaptation")
OPTIONS: dict[str, dict[str, Any]] = {
    "discrete_laplace": {"epsilon": 1.0},
    "discrete_gaussian": {"epsilon": 1.0, "delta": 1e-3},
    **{name: {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0} for name in ("dp_fedavg", "dp_ftrl")},
    "least_often": {"max_participations": 1},
}
NEEDED = {"dp_fedavg": {"selection": "poisson"}, "dp_ftrl": {"selection": "least_often"}}
"""Name -> other components that it needs, besides equal weights."""
OF_PARTS = ("product", "mix", "clip")  # weightings that add what their parts add
NOTHING = "-"


def component(kind: str, name: str) -> Any:
    return table(kind)[name](**OPTIONS.get(name, {}))


def federation(**names: str) -> Federation:
    """Return the default federation with these components, by type."""
    defaults = {"selection": "uniform", "weighting": "by_examples", "solver": "fedavg", "server": "average"}
    made = {kind: component(kind, name) for kind, name in (defaults | names).items()}
    return Federation(**made, local=LocalSGD(), cohort_size=10, seed=0, radio=Radio())


def hidden(plain: Federation) -> Federation | None:
    """Return the federation with secure aggregation; None if FedReach rejects it on Flower."""
    if plain.has_memory or plain.selection.makes_clusters:
        return None
    try:
        return replace(plain, label_statistics=SecureAggregation())
    except ConfigError:
        return None


def of_defaults() -> list[str]:
    """Return the table of the default components, without and with secure aggregation."""
    plain = federation()
    secure = hidden(plain)
    assert secure is not None
    both = [{(d.what, d.whose, d.when): d for d in what_the_server_learns(one)} for one in (plain, secure)]
    every = both[1] | both[0]
    rows = []
    for key in sorted(dict.fromkeys([*both[0], *both[1]]), key=lambda key: when_learned(every[key])):
        forms = [one[key].form if key in one else NOTHING for one in both]
        rows.append([*key, *forms, every[key].limit or NOTHING])
    header = ["data", "of", "when", "default", "secure aggregation", "limited by"]
    return markdown_lines(header, rows)


def of_components() -> list[str]:
    """Return the table of what each component adds to the default components; equal rows are one row."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    base = federation()
    for kind in TYPES:
        for name in table(kind):
            if name not in OF_PARTS:
                needed = {**NEEDED[name], "weighting": "equal"} if name in NEEDED else {}
                rows.setdefault((kind, *cells(base, federation(**{kind: name}, **needed))), []).append(f"`{name}`")
    for name in table("label_statistics"):
        if name not in ("exact", "secure_aggregation"):
            plain, _ = cells(base, federation(weighting="entropy", label_statistics=name))
            rows.setdefault(("label_statistics, with `entropy`", plain, NOTHING), []).append(f"`{name}`")
    rows["data", *cells(base, base, tables=True)] = ["a table per client"]
    header = ["type", "components", "the server also learns", "with secure aggregation"]
    return markdown_lines(header, [[kind, ", ".join(names), *both] for (kind, *both), names in rows.items()])


def cells(base: Federation, other: Federation, *, tables: bool = False) -> tuple[str, str]:
    """Return what the server also learns of the other federation, without and with secure aggregation."""
    plain, hidden_base, secure = changes(base, other, tables=tables), hidden(base), hidden(other)
    if secure is None or hidden_base is None:
        return "; ".join(plain) or NOTHING, "rejected"
    hides = changes(hidden_base, secure, tables=tables)
    new = [item for item in hides if item not in plain]
    same = ["otherwise the same" if new else "the same"] if set(hides) & set(plain) else []
    return "; ".join(plain) or NOTHING, "; ".join(new + same) or NOTHING


def changes(base: Federation, other: Federation, *, tables: bool = False) -> list[str]:
    """Return what the server of the other federation learns in addition to the base, and what it does not learn."""
    before, after = what_the_server_learns(base), what_the_server_learns(other, tables=tables)
    known = {(data.what, data.whose, data.summed) for data in before}
    still = {(data.what, data.whose, data.summed) for data in after}
    gone = [data for data in before if (data.what, data.whose, data.summed) not in still]
    items = []
    for data in after:
        if (data.what, data.whose, data.summed) not in known:
            longer = [old for old in gone if data.what.startswith(f"{old.what}, ")]  # one more number in a reply
            gone = [old for old in gone if old not in longer]
            items.append(described(data, data.what.removeprefix(f"{longer[0].what}, ") if longer else data.what))
    return items + [f"not: {data.what}" for data in gone]


def described(data: Disclosed, what: str) -> str:
    form = "" if data.form == "each client" else f", {data.form}"
    return f"{what} ({data.whose}, {data.when}{form})"


def renewed(text: str) -> str:
    """Return the page with new tables."""
    for name, lines in {"defaults": of_defaults(), "components": of_components()}.items():
        block = "\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->"])
        text, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, b=block: b, text, flags=re.DOTALL)
        assert count == 1, name
    return text


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    new = renewed(old)
    if "--write" in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        sys.exit("The tables of docs/privacy.md are out of date. Run: python docs/build/disclosed.py --write")
