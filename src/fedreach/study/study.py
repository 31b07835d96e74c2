"""A finished comparison, to be asked: tables, page, rounds, clients, models."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from fedreach import registry
from fedreach.config.paths import seen_from
from fedreach.config.sections import PARTS, Experiment
from fedreach.errors import ConfigError, RunFolderError, nearest
from fedreach.report.analysis.analysis import Analysis, analyse
from fedreach.report.figures import asked
from fedreach.report.figures.saving import inline_svg
from fedreach.report.load import read
from fedreach.report.render.formats import to_text
from fedreach.report.render.records import as_records, contrast_records
from fedreach.report.render.serving import tabulate_serving
from fedreach.report.render.tables import Table, tabulate
from fedreach.report.write import write_report
from fedreach.runs.folder import RunFolder
from fedreach.runs.schema import ClientLine, ComparisonRecord, RoundRow, RunRecord, ServedLine, SweepRecord
from fedreach.study.citing import write_bibliography
from fedreach.study.frames import RunAt, clients_of, rounds_of

if TYPE_CHECKING:
    import pandas as pd

    from fedreach.serving.saved import Which
    from fedreach.trained.model import TrainedModel


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

        The columns are those of `fedreach.study.frames.ROUND_COLUMNS`, then those of the evaluations, see
        `fedreach.evaluation.Evaluator`. One run has the same columns as many. Needs pandas.

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
        `fedreach.study.frames.clients_of`. Needs pandas.
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

        With a serving rule, ``served_RUNG_SCORE`` says how each is served, see `fedreach.evaluation.rungs`; None where
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
        """Return the model of a seed, whole: a torch module that takes raw inputs, see `fedreach.trained.load`.

        Args:
            seed: Of the run.
            which: As for `fedreach.trained.load`. Default: the one that was trained once more, of a study with
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
    from fedreach.trained.saved import load  # here, as nothing else that a study tells needs torch

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
