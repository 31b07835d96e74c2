"""A finished comparison."""

from __future__ import annotations

import html
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple

from fedreach._util import registry
from fedreach._util.errors import ConfigError, RunFolderError, nearest
from fedreach.data.sets import names as known_sets
from fedreach.experiment.components import seen_from
from fedreach.experiment.schema import PARTS, Experiment
from fedreach.federation.local_sgd import Adam, AdamW
from fedreach.report.adaptation import tabulate_serving
from fedreach.report.figures import asked
from fedreach.report.figures.style import inline_svg
from fedreach.report.formats import to_text
from fedreach.report.numbers import Comparison
from fedreach.report.overview import Analysis, analyse
from fedreach.report.read import read
from fedreach.report.records import as_records, contrast_records
from fedreach.report.tables import Table, tabulate
from fedreach.report.write import write_report
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ClientLine, ComparisonRecord, RoundRow, RunRecord, ServedLine, SweepRecord

if TYPE_CHECKING:
    import pandas as pd

    from fedreach.deploy.adapter import Which
    from fedreach.deploy.model import TrainedModel


# -------------------- Rows of run folders as one DataFrame: methods x seeds x rounds, or also x clients

SECONDS = ("train_seconds", "evaluate_seconds")
ROUND_COLUMNS = (
    *("method", "seed", "round"),
    *(each.name for each in fields(RoundRow) if each.name not in ("round", RoundRow.REST)),
    *SECONDS,
)
"""What every frame of rounds begins with; the columns of evaluations follow, see `Evaluator`."""
CLIENT_COLUMNS = ("method", "seed", "round", "client", "population", "id", "examples")
"""What every frame of clients begins with; the metrics follow."""
COUNTS = {"seed", "round", "id", "examples", "bytes_down", "bytes_up", "bytes_total", "probe_bytes"}
LISTS = {"cohort", "weights", "lost", "metrics", "allocation", "refused", "clusters"}
OBJECTS = LISTS | {"method", "client", "population", "remark"}
MISSING = {"by_server": False}  # what a column holds that a row leaves out; of others None
SCORES = ("accuracy", "loss", "calibration_error")  # of a client that is adapted


class RunAt(NamedTuple):
    """A run, by its method and seed, and its folder."""

    method: str
    seed: int
    folder: Path


def rounds_of(runs: Iterable[RunAt]) -> pd.DataFrame:
    """Return a row for each round of each run, round 0 first, with `ROUND_COLUMNS` and those of evaluations.

    What a round lacks, as the columns of an evaluation that was not made, is missing: nan in a column of numbers.

    Raises:
        ConfigError: If pandas is not installed.
    """
    rows: list[dict[str, Any]] = []
    for method, seed, path in runs:
        folder = RunFolder(path)
        kept = folder.kept_rows(RoundRow.FILE)
        timings = folder.timing(len(kept) - 1) if kept else []
        for row, timing in zip(kept, timings, strict=True):
            seconds = {name: getattr(timing, name) for name in SECONDS}
            rows.append({"method": method, "seed": seed, **row, **seconds})
    return _frame(rows, ROUND_COLUMNS)


def clients_of(runs: Iterable[RunAt]) -> pd.DataFrame:
    """Return a row for each client of each evaluation of each run, with `CLIENT_COLUMNS` and a column for each metric.

    The population is "participants" on what they hold out, "unseen", or "local": a client of the cohort by its own
    model before aggregation. With an adaptation rule, rows of the last round have ``served_MODE_SCORE``, too.

    Raises:
        ConfigError: If pandas is not installed.
    """
    rows: list[dict[str, Any]] = []
    for method, seed, path in runs:
        folder = RunFolder(path)
        adapted = _adapted(folder)
        for line in folder.records(ClientLine):
            metrics = {key: value for key, value in line.to_json().items() if isinstance(value, list)}
            names = metrics.pop("names", None) or [str(client) for client in line.ids]
            for place, client in enumerate(metrics.pop("ids")):
                known = {"method": method, "seed": seed, "round": line.round, "client": names[place], "id": client}
                values = {key: numbers[place] for key, numbers in metrics.items()}
                more = adapted.get((line.round, line.population, client), {})
                rows.append({**known, "population": line.population, **values, **more})
    return _frame(rows, CLIENT_COLUMNS)


def _adapted(folder: RunFolder) -> Mapping[tuple[int, str, int], dict[str, float]]:
    """Return the scores of adapted clients, by round of the last model, population and client."""
    found: dict[tuple[int, str, int], dict[str, float]] = {}
    for line in folder.records(ServedLine):
        for score in SCORES if line.model == "last" else ():
            for client, value in zip(line.ids, getattr(line, score), strict=True):
                row = found.setdefault((line.round, line.population, client), {})
                row[f"served_{line.rung}_{score}"] = value
    return found


def _frame(rows: list[dict[str, Any]], first: tuple[str, ...]) -> pd.DataFrame:
    """Return rows as a DataFrame with these columns first, each of the same type in every frame."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            "rounds() and clients() return a DataFrame of pandas, which is not installed. Run: pip install pandas"
        ) from error
    names = dict.fromkeys([*first, *(name for row in rows for name in row)])
    return pandas.DataFrame(
        {name: pandas.Series([row.get(name, MISSING.get(name)) for row in rows], dtype=_type(name)) for name in names}
    )


def _type(name: str) -> str:
    """Return the type of a column, whatever stands in it."""
    return "int64" if name in COUNTS else "bool" if name in MISSING else "object" if name in OBJECTS else "float64"


# -------------------- Which papers the parts of a comparison are from: a bibliography for whoever writes about it
# A part's docstring names its source in a paragraph `Reference:`; ``references.bib`` has authors, title and place of
# it.

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
    text = (resources.files("fedreach.api") / "references.bib").read_text(encoding="utf-8")
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


# -------------------- A finished comparison, to be asked: tables, page, rounds, clients, models


class Study:
    """Methods and seeds that were compared, from their run folders.

    ``study["ours"]`` is one method. All numbers are read from the folder when they are first asked for.
    """

    def __init__(self, path: Path | str, kept: Path | None = None) -> None:
        self.path = Path(path)
        self.kept = kept or self.path  # where parts without names and data of Python lie
        record = RunFolder(self.path).read(ComparisonRecord)
        if record is None and (self.path / SweepRecord.FILE).exists():
            raise RunFolderError(f"{self.path} holds a sweep: fedreach.Sweep({str(path)!r}) has its studies.")
        if record is None:
            raise RunFolderError(
                f"There is no study in {self.path}: no {ComparisonRecord.FILE}. Name the folder that compare() was "
                "given as `out`, or --out."
            )
        self.record = record

    @property
    def name(self) -> str:
        """What it is called."""
        return self.record.name

    @property
    def methods(self) -> tuple[str, ...]:
        """What was compared, in the order in which it was said."""
        return tuple(self.record.methods)

    @property
    def seeds(self) -> tuple[int, ...]:
        """With which seeds."""
        return tuple(self.record.seeds)

    @cached_property
    def analysis(self) -> Analysis:
        """All numbers of the page."""
        return analyse(read([self.path]))

    def table(self) -> pd.DataFrame | list[dict[str, Any]]:
        """Return a row of numbers for each method: those of the page, and more; keys as of ``fedreach report --json``.

        A DataFrame by method where pandas is installed, else a list of dictionaries. Accuracies and differences are
        fractions.
        """
        return framed(as_records(self.analysis), "method")

    def contrasts(self) -> pd.DataFrame | list[dict[str, Any]]:
        """Return the differences that were asked for, with interval, p-value and verdict, likewise."""
        return framed(contrast_records(self.analysis))

    def rounds(self) -> pd.DataFrame:
        """Return a row for each method, seed and round, round 0 first: what it did, cost and scored.

        The columns are those of `fedreach.api.comparison.ROUND_COLUMNS`, then those of the evaluations, see
        `fedreach.evaluation.evaluator.Evaluator`. One run has the same columns as many. Needs pandas.

        Example:
            >>> import tempfile
            >>> import fedreach as fr
            >>> data = fr.load("digits").partition("iid", clients=5, participants=4)
            >>> found = fr.compare(data, {"fedavg": {}}, model="linear", rounds=2, seeds=1, progress=False,
            ...     out=tempfile.mkdtemp() + "/frames", evaluation={"every": 1})
            >>> found.rounds()[["method", "seed", "round"]].values.tolist()
            [['fedavg', 0, 0], ['fedavg', 0, 1], ['fedavg', 0, 2]]
        """
        return rounds_of(self._runs())

    def clients(self) -> pd.DataFrame:
        """Return a row for each client at each evaluation of each method and seed.

        The columns are method, seed, round, client, population, id and examples, then a column for each metric, see
        `fedreach.api.comparison.clients_of`. Needs pandas.
        """
        return clients_of(self._runs())

    def _runs(self) -> list[RunAt]:
        """Return the runs that have begun."""
        runs = [
            RunAt(method, int(seed), self.path / folder)
            for method, folders in self.record.runs.items()
            for seed, folder in folders.items()
        ]
        return [run for run in runs if (run.folder / RunRecord.FILE).exists()]

    def page(self, *formats: str) -> Path:
        """Write the page, with tables beside it, and return its path.

        Args:
            *formats: Of figures that are also written as files: "svg", "png", "pdf".
        """
        return write_report([self.path], self.path, formats=formats).page

    def paper(self, width: str | float = "single", *formats: str) -> Path:
        """Write the page, and figures for a paper with captions and references, and return the folder of these.

        ``table.tex`` lies in the folder above; ``paper.tex`` shows all of it, ``references.bib`` says what it is from.

        Args:
            width: Of the figures: "single" or "double" column, or inches.
            *formats: Of figures beside PDF.
        """
        written = write_report([self.path], self.path, formats=formats, paper=width)
        return write_bibliography(written.analysis.comparison, written.paper[0].parent).parent

    def to_toml(self, path: Path | str | None = None) -> str:
        """Return the study as a TOML file; ``fedreach compare`` with it makes the same numbers in another folder.

        Parts without names and data of Python stand there as files of this study. Paths are relative to the folder of
        `path`, where the text is then written, too; without one, to the current folder.
        """
        return toml_of({**self.record.config, "seeds": list(self.record.pilot or self.seeds)}, self.kept, path)

    def __getitem__(self, method: str) -> StudiedMethod:
        if method not in self.methods:
            raise ConfigError(f"There is no method {method!r} in this study." + nearest(str(method), self.methods))
        return StudiedMethod(self, method)

    def __iter__(self) -> Iterator[str]:
        return iter(self.methods)

    def __len__(self) -> int:
        return len(self.methods)

    def __repr__(self) -> str:
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
        return f"Study({self.name}: {', '.join(self.methods)}; {seeds})"

    def __str__(self) -> str:
        """Return the table, and how unseen clients are served where a method says so, as wide as the terminal."""
        width = get_terminal_size((120, 0)).columns
        return "\n\n".join(to_text(table, width) for table in self._tables())

    def _repr_html_(self) -> str:
        """Return the same tables and the main figure, for notebooks."""
        figures = [each for each in asked(self.analysis) if each.name == "accuracy"]
        drawn = [(each, figure) for each in figures if (figure := each.draw()) is not None]
        svgs = [inline_svg(figure, each.name, each.title, each.description) for each, figure in drawn]
        return "".join(map(_as_html, self._tables())) + "".join(svgs)

    def _tables(self) -> list[Table]:
        return [tabulate(self.analysis, "last"), *tabulate_serving(self.analysis)[:1]]


class StudiedMethod:
    """One method of a study, run by run."""

    def __init__(self, study: Study, name: str) -> None:
        self.study, self.name = study, name

    def folder(self, seed: int = 0) -> Path:
        """Return the run folder of a seed.

        Raises:
            ConfigError: If the study has no such seed.
        """
        runs = self.study.record.runs[self.name]
        if str(seed) not in runs:
            raise ConfigError(f"There is no seed {seed} in this study: it has {', '.join(runs)}.")
        return self.study.path / runs[str(seed)]

    def rounds(self, seed: int = 0) -> pd.DataFrame | list[dict[str, Any]]:
        """Return what each round did, as ``rounds.jsonl`` has it."""
        return framed(RunFolder(self.folder(seed)).kept_rows(RoundRow.FILE), "round")

    def clients(self, seed: int = 0) -> pd.DataFrame | list[dict[str, Any]]:
        """Return the scores of single clients by the last model: their name, population, examples, and each metric.

        With a serving rule, ``served_RUNG_SCORE`` says how each is served, see `fedreach.evaluation.modes`; None where
        a client has too few inputs for a rung.
        """
        folder = RunFolder(self.folder(seed))
        last = {line.population: line for line in folder.records(ClientLine) if line.population != "local"}
        rows: dict[int, dict[str, Any]] = {}
        for population, line in last.items():
            told = {key: value for key, value in line.to_json().items() if isinstance(value, list)}
            names = told.pop("names", None) or [str(client) for client in told["ids"]]
            for place, client in enumerate(told.pop("ids")):
                row = {"client": names[place], "id": client, "population": population}
                rows[client] = row | {key: values[place] for key, values in told.items()}
        for served in folder.records(ServedLine):
            for score in ("accuracy", "loss", "calibration_error") if served.model == "last" else ():
                key = f"served_{served.rung}_{score}"
                for row in rows.values():
                    row.setdefault(key, None)
                for client, value in zip(served.ids, getattr(served, score), strict=True):
                    rows[client][key] = value
        return framed(list(rows.values()), "client")

    def model(
        self, seed: int = 0, which: Which | None = None, *, cluster: int | None = None, base: Path | str | None = None
    ) -> TrainedModel:
        """Return the model of a seed, whole: a torch module that takes raw inputs, see `fedreach.deploy.saved.load`.

        Args:
            seed: Of the run.
            which: As for `fedreach.deploy.saved.load`. Default: the one that was trained once more, of a study with
                `population.refit`, else the last.
            cluster: Number of the model, where the method has one a cluster.
            base: Folder of the TOML file that the study is from, where that names code of one's own by a path; default:
                the current one.
        """
        return model_of(self.folder(seed), which, cluster, self.study.kept, base)

    def __repr__(self) -> str:
        return f"StudiedMethod({self.name} of {self.study.name})"


def toml_of(config: Mapping[str, Any], kept: Path, path: Path | str | None) -> str:
    """Return an experiment as a TOML file, see `Study.to_toml`; what Python handed over lies in `kept`."""
    import tomli_w

    experiment = Experiment.model_validate(config)
    raw = _short(experiment.model_dump(mode="json", exclude_defaults=True))
    raw["method"] = {key: value for key, value in raw.get("method", {}).items() if PARTS.get(key) != value}
    if isinstance(raw.get("engine"), str):  # a table with a name, and no choice that its name alone stands for
        raw["engine"] = {"name": raw["engine"]}
    raw = {"name": experiment.name, **raw}
    here = Path.cwd() if path is None else Path(path).resolve().parent
    text = tomli_w.dumps(seen_from(here, (), _kept_in(kept, raw)))
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def model_of(
    folder: Path, which: Which | None, cluster: int | None, kept: Path, base: Path | str | None = None
) -> TrainedModel:
    """Return the model of a run; a module that Python handed over without a name lies in ``parts/`` of `kept`."""
    from fedreach.deploy.saved import load  # here, as nothing else that a study tells needs torch

    record = RunFolder(folder).read(RunRecord)
    name = (record.config.get("model") or {}).get("name", "") if record is not None else ""
    stored = registry.BY_CONTENT.search(name) is not None
    made = registry.find("model", _kept_in(kept, name), Path.cwd()) if stored else None
    return load(folder, which, cluster=cluster, base=base, model=made)


def framed(rows: list[dict[str, Any]], index: str | None = None) -> pd.DataFrame | list[dict[str, Any]]:
    """Return rows as a DataFrame where pandas is installed, else as they are."""
    try:
        import pandas
    except ImportError:
        return rows
    frame = pandas.DataFrame(rows)
    return frame if index is None or frame.empty else frame.set_index(index)


def _short(value: Any) -> Any:
    """Return a table without what is None, which TOML cannot say, and with a bare name for what has no options."""
    if isinstance(value, Mapping):
        table = {key: _short(inner) for key, inner in value.items() if inner is not None}
        return {
            key: inner["name"] if isinstance(inner, dict) and list(inner) == ["name"] else inner
            for key, inner in table.items()
        }
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _kept_in(folder: Path, value: Any) -> Any:
    """Return a table whose files that Python handed over are those in the folder of this study."""
    if isinstance(value, Mapping):
        return {key: _kept_in(folder, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_kept_in(folder, inner) for inner in value]
    found = registry.BY_CONTENT.search(value) if isinstance(value, str) else None
    if found is None:
        return value
    kind = "data" if found[1].startswith("/") else "parts"
    return Path(os.path.relpath(folder / kind / found[0])).as_posix()


def _as_html(table: Table) -> str:
    def row(cells: Any, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    heads = [f"{head} ({unit})" if unit else head for head, unit in zip(table.header, table.units, strict=True)]
    body = "".join(row(cells, "td") for cells in table.rows)
    note = f"<caption>{html.escape(table.caption)}. {html.escape(table.note)}</caption>"
    return f"<table>{note}<thead>{row(heads, 'th')}</thead><tbody>{body}</tbody></table>"
