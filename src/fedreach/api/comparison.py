"""A finished comparison: tables, HTML report, rows, models and bibliography."""

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
from fedreach._util.files import below
from fedreach._util.tables import visible, visible_lines
from fedreach.data.sets.download import sources
from fedreach.evaluation.statistics import MIN_RANKED
from fedreach.experiment.components import OPTIMIZERS, relative_to_base
from fedreach.experiment.schema import PARTS, Experiment
from fedreach.report.concerns import concerns
from fedreach.report.figures import draw_figures, figure_specs
from fedreach.report.formats import summary_text
from fedreach.report.numbers import RunSet
from fedreach.report.overview import Analysis, analyse
from fedreach.report.read import read
from fedreach.report.records import as_records, contrast_records
from fedreach.report.tables import Table, tabulate
from fedreach.report.write import write_report
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import AdaptedLine, ClientLine, ComparisonRecord, RoundRow, RunRecord, SweepRecord

if TYPE_CHECKING:
    import pandas as pd

    from fedreach.deploy.fitted_rule import Which
    from fedreach.deploy.model import TrainedModel


# ---- Rows of run folders as a DataFrame

SECONDS = ("train_seconds", "evaluate_seconds")
ROUND_COLUMNS = (
    *("method", "seed", "round"),
    *(column.name for column in fields(RoundRow) if column.name not in ("round", RoundRow.REST)),
    *SECONDS,
)
"""First columns of every DataFrame of rounds; the columns of evaluations follow (see `Evaluator`)."""
CLIENT_COLUMNS = ("method", "seed", "round", "client", "population", "id", "examples")
"""First columns of every DataFrame of clients; the columns of metrics follow."""
COUNTS = {"seed", "round", "id", "examples", "bytes_down", "bytes_up", "bytes_total", "probe_bytes"}
LISTS = {"cohort", "weights", "lost", "metrics", "allocation", "refused", "clusters"}
OBJECTS = LISTS | {"method", "client", "population", "remark"}
DEFAULT_VALUES = {"by_server": False}  # value of a column that a row leaves out; of other columns None
SCORES = ("accuracy", "loss", "calibration_error")  # scores of an adapted client


class RunAt(NamedTuple):
    """Method, seed and folder of a run."""

    method: str
    seed: int
    folder: Path


def rounds_of(runs: Iterable[RunAt]) -> pd.DataFrame:
    """Return a row for each round of each run, round 0 first, with `ROUND_COLUMNS` and the columns of evaluations.

    Rounds without an evaluation have missing values: nan in numeric columns.

    Raises:
        ConfigError: If pandas is not installed.
    """
    rows: list[dict[str, Any]] = []
    for method, seed, path in runs:
        folder = RunFolder(path)
        round_rows = folder.kept_rows(RoundRow.FILE)
        timings = folder.timing(len(round_rows) - 1) if round_rows else []
        for row, timing in zip(round_rows, timings, strict=True):
            seconds = {name: getattr(timing, name) for name in SECONDS}
            rows.append({"method": method, "seed": seed, **row, **seconds})
    return _frame(rows, ROUND_COLUMNS)


def clients_of(runs: Iterable[RunAt]) -> pd.DataFrame:
    """Return a row for each client of each evaluation of each run, with `CLIENT_COLUMNS` and a column for each metric.

    The population is "participants" (scored on held-out data), "unseen", or "local" (clients of the cohort, scored with
    their local models before aggregation). With an adaptation rule, rows of the last round also contain the columns
    ``adapted_MODE_SCORE``.

    Raises:
        ConfigError: If pandas is not installed.
    """
    rows: list[dict[str, Any]] = []
    for method, seed, path in runs:
        folder = RunFolder(path)
        adapted = _adapted_scores(folder)
        for line in folder.records(ClientLine):
            for row in _rows_of(line):
                more = adapted.get((line.round, line.population, row["id"]), {})
                rows.append({"method": method, "seed": seed, "round": line.round, **row, **more})
    return _frame(rows, CLIENT_COLUMNS)


def _rows_of(line: ClientLine) -> Iterator[dict[str, Any]]:
    """Yield the name, id, population and metrics of each client of an evaluation."""
    metrics = {key: value for key, value in line.to_json().items() if isinstance(value, list)}
    names = metrics.pop("names", None) or [str(client) for client in line.ids]
    for place, client in enumerate(metrics.pop("ids")):
        values = {key: numbers[place] for key, numbers in metrics.items()}
        yield {"client": names[place], "id": client, "population": line.population, **values}


def _adapted_scores(folder: RunFolder) -> Mapping[tuple[int, str, int], dict[str, float]]:
    """Return the scores of adapted clients, by round of the last model, population and client."""
    scores: dict[tuple[int, str, int], dict[str, float]] = {}
    for line in folder.records(AdaptedLine):
        for score in SCORES if line.model == "last" else ():
            for client, value in zip(line.ids, getattr(line, score), strict=True):
                row = scores.setdefault((line.round, line.population, client), {})
                row[f"adapted_{line.mode}_{score}"] = value
    return scores


def _frame(rows: list[dict[str, Any]], first: tuple[str, ...]) -> pd.DataFrame:
    """Return rows as a DataFrame with these columns first, each of the same type in every frame."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            "rounds() and clients() need pandas, which is not installed. Run: pip install pandas"
        ) from error
    names = dict.fromkeys([*first, *(name for row in rows for name in row)])
    return pandas.DataFrame(
        {
            name: pandas.Series([row.get(name, DEFAULT_VALUES.get(name)) for row in rows], dtype=_type(name))
            for name in names
        }
    )


def _type(name: str) -> str:
    """Return the type of a column, whatever values it has."""
    return (
        "int64" if name in COUNTS else "bool" if name in DEFAULT_VALUES else "object" if name in OBJECTS else "float64"
    )


# ---- Bibliography of a comparison
# The docstring of a component names its source in a paragraph `Reference:`; ``references.bib`` has the full entry.

ALWAYS_CITED = {"fedreach": "this software"}
CORRECTIONS = {"holm": "holm1979", "max_t": "westfall1993"}


@dataclass(frozen=True)
class Entry:
    """A paper in `references.bib`."""

    key: str
    text: str  # BibTeX entry of the file
    fields: Mapping[str, str]

    def is_named_in(self, text: str) -> bool:
        """Return whether a reference names this paper by its arXiv number, its title, or first author and year."""
        eprint, title = self.fields.get("eprint"), _letters(self.fields["title"])
        if (eprint and eprint in text) or title.replace(" ", "") in _letters(text).replace(" ", ""):
            return True
        author = _letters(self.fields["author"].partition(",")[0]).replace(" ", "")
        year = self.fields.get("year")
        return bool(year) and re.search(rf"\b{author}\b[^;]*\b{year}\b", _letters(text, keep=";")) is not None


@cache
def entries() -> tuple[Entry, ...]:
    """Return the papers in `references.bib`, in the order of the file."""
    text = (resources.files("fedreach.api") / "references.bib").read_text(encoding="utf-8")
    blocks = [f"@{block.strip()}" for block in re.split(r"^@", text, flags=re.MULTILINE) if block.strip()]
    return tuple(
        Entry(block[block.index("{") + 1 : block.index(",")], block, dict(re.findall(r"(\w+) = \{(.*)\},\n", block)))
        for block in blocks
    )


def bibliography(comparison: RunSet) -> str:
    """Return BibTeX entries for the sources of a comparison's methods, data and statistics.

    A comment above each entry lists the components, data or statistics for which it is cited. The first comment lists
    components without a known reference, such as custom components.
    """
    used: dict[str, list[str]] = {key: [what] for key, what in ALWAYS_CITED.items()}
    if len(comparison.methods) > 1 and len(comparison.seeds) > 1:
        used[CORRECTIONS[comparison.plan.correction]] = ["the correction for several comparisons"]
        if comparison.plan.test == "ranks" and len(comparison.seeds) >= MIN_RANKED:
            used["wilcoxon1945"] = ["the test over seeds"]
    without = []
    for what, reference in sorted({pair for run in comparison.runs for pair in _references_of(run.config)}):
        keys = [entry.key for entry in entries() if reference and entry.is_named_in(reference)]
        for key in keys:
            used.setdefault(key, []).append(what)
        without += [] if keys else [what]
    parts = [f"% For {'; '.join(used[entry.key])}\n{entry.text}\n" for entry in entries() if entry.key in used]
    head = "% Sources of this comparison's components, data and statistics. Check them before you publish.\n"
    # A name of custom code may contain any character. In BibTeX, @ begins an entry, also in a comment.
    unknown = visible(", ".join(without)).replace("@", "\\x40")
    note = f"% No reference is known for {unknown}.\n" if without else ""
    return f"{head}{note}\n" + "\n".join(parts)


def write_bibliography(comparison: RunSet, folder: Path) -> Path:
    """Write `bibliography` into a folder and return the path of the file."""
    path = folder / "references.bib"
    path.write_text(bibliography(comparison), encoding="utf-8", newline="\n")
    return path


def reference(kind: str, name: str) -> str:
    """Return the reference in the docstring of a built-in component or data set; "" if it contains no reference."""
    if kind == "data":
        return sources()[name].reference if name in sources() else ""
    component = registry.table(kind).get(name)
    return "" if component is None else registry.paragraph(component, "References?")


def _references_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each component that an experiment names, and its reference."""
    for kind, row in registry.COMPONENT_TYPES.items():
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
    if paper := registry.paragraph(OPTIMIZERS.get(optimizer), "Reference"):
        yield f"optimizer {optimizer}", paper


def _name(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("name")
    return value if isinstance(value, str) else ""


def _letters(text: str, keep: str = "") -> str:
    """Return a text in lowercase letters without accents, braces or signs."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(rf"[^a-z0-9{keep}]+", " ", re.sub(r"\{\\.(\w)\}|[{}]", r"\1", plain))


# ---- A finished comparison


class Comparison:
    """A comparison of methods over seeds, read from its run folders.

    ``comparison["ours"]`` is one method. Numbers are read from the folder on first use.
    """

    def __init__(self, path: Path | str, parts_folder: Path | None = None) -> None:
        self.path = Path(path)
        self.kept = parts_folder or self.path  # folder with components without names and data from Python
        record = RunFolder(self.path).read(ComparisonRecord)
        if record is None and (self.path / SweepRecord.FILE).exists():
            raise RunFolderError(f"{self.path} is a sweep. Open it with fedreach.Sweep({str(path)!r}).")
        if record is None:
            raise RunFolderError(
                f"{self.path} is not a comparison: {ComparisonRecord.FILE} not found. Pass the folder that you set as "
                "`out` or --out."
            )
        self.record = record
        self.shows_concerns = True  # in `print`, unless `fedreach.compare` has shown these warnings

    @property
    def name(self) -> str:
        """Name of the comparison."""
        return self.record.name

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the experiment."""
        return tuple(self.record.methods)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the comparison."""
        return tuple(self.record.seeds)

    @cached_property
    def analysis(self) -> Analysis:
        """All numbers of the HTML report."""
        return analyse(read([self.path]))

    def table(self) -> pd.DataFrame | list[dict[str, Any]]:
        """Return a row of numbers for each method, with the keys of ``fedreach report --json``.

        The result is a DataFrame indexed by method if pandas is installed, else a list of dictionaries. Accuracies and
        differences are fractions.
        """
        return to_frame(as_records(self.analysis), "method")

    def contrasts(self) -> pd.DataFrame | list[dict[str, Any]]:
        """Return a row for each planned comparison: difference, confidence interval, p-value and conclusion."""
        return to_frame(contrast_records(self.analysis))

    def rounds(self) -> pd.DataFrame:
        """Return a row for each method, seed and round, round 0 first: cohort, costs and scores.

        The first columns are `fedreach.api.comparison.ROUND_COLUMNS`. The columns of evaluations follow (see
        `fedreach.evaluation.evaluator.Evaluator`). The columns do not depend on the number of runs. This method
        requires pandas.

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

        The columns are method, seed, round, client, population, id and examples, then one column per metric (see
        `fedreach.api.comparison.clients_of`). This method requires pandas.
        """
        return clients_of(self._runs())

    def _runs(self) -> list[RunAt]:
        """Return the runs that have started."""
        runs = [
            RunAt(method, int(seed), below(self.path, folder))
            for method, folders in self.record.runs.items()
            for seed, folder in folders.items()
        ]
        return [run for run in runs if (run.folder / RunRecord.FILE).exists()]

    def page(self, *formats: str) -> Path:
        """Write the HTML report and its tables, and return the path of the report.

        Args:
            *formats: Additional file formats of figures: "svg", "png", "pdf".
        """
        return write_report([self.path], self.path, formats=formats).page

    def paper(self, width: str | float = "single", *formats: str) -> Path:
        """Write the HTML report and figures for a paper with captions and references; return the folder of the figures.

        ``paper.tex`` includes all figures and ``table.tex``, which is in the parent folder; ``references.bib`` contains
        the bibliography.

        Args:
            width: Width of the figures: "single" or "double" column, or inches.
            *formats: Additional file formats of figures, besides PDF.
        """
        written = write_report([self.path], self.path, formats=formats, paper=width)
        return write_bibliography(written.analysis.comparison, written.paper[0].parent).parent

    def to_toml(self, path: Path | str | None = None) -> str:
        """Return the text of a TOML file with which ``fedreach compare`` computes the same numbers on another machine.

        The text refers to components without names and to data from Python as files of this comparison. If `path` is
        given, this method also writes the text to `path`, and paths in the text are relative to the folder of `path`.
        Otherwise, paths are relative to the current folder.
        """
        return toml_of({**self.record.config, "seeds": list(self.record.pilot or self.seeds)}, self.kept, path)

    def __getitem__(self, method: str) -> ComparedMethod:
        if method not in self.methods:
            raise ConfigError(f"Unknown method {method!r} in this comparison." + nearest(str(method), self.methods))
        return ComparedMethod(self, method)

    def __iter__(self) -> Iterator[str]:
        return iter(self.methods)

    def __len__(self) -> int:
        return len(self.methods)

    def __repr__(self) -> str:
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
        return f"Comparison({self.name}: {', '.join(self.methods)}; {seeds})"

    def __str__(self) -> str:
        """Return what ``fedreach compare`` prints: the main table, its note, and the first findings.

        The text omits warnings that `fedreach.compare` printed on stderr.
        """
        hidden = () if self.shows_concerns else concerns(self.analysis.comparison)
        return summary_text(self.analysis, get_terminal_size((120, 0)).columns, hidden)

    def _repr_html_(self) -> str:
        """Return the table and the figure over rounds, for notebooks."""
        figures = [spec for spec in figure_specs(self.analysis) if spec.name == "accuracy"]
        svgs = [picture.svg for picture in draw_figures(figures, processes=1)]
        return _as_html(tabulate(self.analysis, "last")) + "".join(svgs)


class ComparedMethod:
    """One method of a comparison, run by run."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        self.comparison, self.name = comparison, name

    def folder(self, seed: int = 0) -> Path:
        """Return the run folder of a seed.

        Raises:
            ConfigError: If the comparison has no such seed.
        """
        runs = self.comparison.record.runs[self.name]
        if str(seed) not in runs:
            raise ConfigError(f"Unknown seed {seed} in this comparison; its seeds are {', '.join(runs)}.")
        return below(self.comparison.path, runs[str(seed)])

    def rounds(self, seed: int = 0) -> pd.DataFrame | list[dict[str, Any]]:
        """Return the rows of ``rounds.jsonl``."""
        return to_frame(RunFolder(self.folder(seed)).kept_rows(RoundRow.FILE), "round")

    def clients(self, seed: int = 0) -> pd.DataFrame | list[dict[str, Any]]:
        """Return a row for each client, scored with the last model: name, population, examples, and each metric.

        With an adaptation rule, the columns ``adapted_MODE_SCORE`` contain the scores of each prediction mode (see
        `fedreach.evaluation.modes`). A score is None if the client has too few inputs for the mode.
        """
        folder = RunFolder(self.folder(seed))
        last = {line.population: line for line in folder.records(ClientLine) if line.population != "local"}
        rows = {row["id"]: row for line in last.values() for row in _rows_of(line)}
        adapted = _adapted_scores(folder)
        empty = dict.fromkeys(key for scores in adapted.values() for key in scores)
        scores_by_client = {client: scores for (_, _, client), scores in adapted.items()}
        rows = {client: row | empty | scores_by_client.get(client, {}) for client, row in rows.items()}
        return to_frame(list(rows.values()), "client")

    def model(
        self,
        seed: int = 0,
        which: Which | None = None,
        *,
        cluster: int | None = None,
        base: Path | str | None = None,
        trust_code: bool = False,
    ) -> TrainedModel:
        """Return the complete model of a seed, a torch module that accepts raw inputs (see `fedreach.deploy.load`).

        Args:
            seed: Seed of the run.
            which: As for `fedreach.deploy.load`. Default: the refitted model of a comparison with `population.refit`,
                else the last model.
            cluster: Number of the cluster, if the method trains one model per cluster.
            base: Folder of the comparison's TOML file, if that file refers to custom code by a path. Default: the
                current folder.
            trust_code: Run the custom code that the run names. Default: False; code of this process always runs.
        """
        return model_of(self.folder(seed), which, cluster, self.comparison.kept, base, trust_code=trust_code)

    def __repr__(self) -> str:
        return f"ComparedMethod({self.name} of {self.comparison.name})"


def toml_of(config: Mapping[str, Any], parts_folder: Path, path: Path | str | None) -> str:
    """Return the text of a TOML file for an experiment; `parts_folder` contains components and data from Python."""
    import tomli_w

    experiment = Experiment.model_validate(config)
    raw = _short(experiment.model_dump(mode="json", exclude_defaults=True))
    raw["method"] = {key: value for key, value in raw.get("method", {}).items() if PARTS.get(key) != value}
    if isinstance(raw.get("engine"), str):  # must be a table, unlike components
        raw["engine"] = {"name": raw["engine"]}
    raw = {"name": experiment.name, **raw}
    folder = Path.cwd() if path is None else Path(path).resolve().parent
    text = tomli_w.dumps(relative_to_base(folder, (), _localize(parts_folder, raw)))
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def model_of(
    folder: Path,
    which: Which | None,
    cluster: int | None,
    parts_folder: Path,
    base: Path | str | None = None,
    *,
    trust_code: bool = False,
) -> TrainedModel:
    """Return the model of a run; modules from Python without a name are stored in ``parts/`` of `parts_folder`."""
    from fedreach.deploy.saved import load  # imported late: it loads torch

    record = RunFolder(folder).read(RunRecord)
    name = (record.config.get("model") or {}).get("name", "") if record is not None else ""
    stored = registry.BY_CONTENT.search(name) is not None
    with registry.code_of(folder, trust_code=trust_code):
        module = registry.find("model", _localize(parts_folder, name), Path.cwd()) if stored else None
    return load(folder, which, cluster=cluster, base=base, model=module, trust_code=trust_code)


def to_frame(rows: list[dict[str, Any]], index: str | None = None) -> pd.DataFrame | list[dict[str, Any]]:
    """Return rows as a DataFrame if pandas is installed, else unchanged."""
    try:
        import pandas
    except ImportError:
        return rows
    frame = pandas.DataFrame(rows)
    return frame if index is None or frame.empty else frame.set_index(index)


def _short(value: Any) -> Any:
    """Return a table without None, which TOML does not have, and with plain names for components without options."""
    if isinstance(value, Mapping):
        table = {key: _short(inner) for key, inner in value.items() if inner is not None}
        return {
            key: inner["name"] if isinstance(inner, dict) and list(inner) == ["name"] else inner
            for key, inner in table.items()
        }
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _localize(folder: Path, value: Any) -> Any:
    """Return a table whose paths of components and data from Python lead to the folder of this comparison."""
    if isinstance(value, Mapping):
        return {key: _localize(folder, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_localize(folder, inner) for inner in value]
    match = registry.BY_CONTENT.search(value) if isinstance(value, str) else None
    if match is None:
        return value
    kind = "data" if match[1].startswith("/") else "parts"
    return Path(os.path.relpath(folder / kind / match[0])).as_posix()


def _as_html(table: Table) -> str:
    def row(cells: Any, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(visible_lines(str(cell)))}</{tag}>" for cell in cells) + "</tr>"

    heads = [" ".join(filter(None, (table.header[j], table.units[j]))) for j in table.main]
    body = "".join(row([cells[j] for j in table.main], "td") for cells in table.rows)
    note = f"<caption>{html.escape(visible_lines(table.caption))}. {html.escape(visible_lines(table.note))}</caption>"
    return f"<table>{note}<thead>{row(heads, 'th')}</thead><tbody>{body}</tbody></table>"
