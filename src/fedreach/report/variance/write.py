"""Read the runs of a design and write what they say beside them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedreach.report.figures.saving import FORMATS, check_formats, save
from fedreach.report.figures.variance import components
from fedreach.report.variance.decomposition import Decomposition, decompose
from fedreach.report.variance.read import read_study
from fedreach.report.variance.words import as_record, to_markdown
from fedreach.report.write import into
from fedreach.runs.schema import DesignRecord


@dataclass(frozen=True)
class VariancePaths:
    """The files of what a design says, and what they show."""

    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    found: Decomposition


def write_variance(
    folder: Path, design: DesignRecord, *, formats: Sequence[str] | None = FORMATS, out: Path | None = None
) -> VariancePaths:
    """Write tables and the figure into ``report/``; the same runs give the same bytes.

    Args:
        folder: That the design's runs lie in.
        design: Its record.
        formats: Of the figure, any of ``"svg"``, ``"png"``, ``"pdf"``; None or empty draws none.
        out: Where ``report/`` is made; None: in `folder`.

    Raises:
        ConfigError: If a format is unknown.
        RunFolderError: If a run is missing, cannot be read, or is not the one that the design says.
    """
    check_formats(formats or ())
    found = decompose(read_study(folder, design))
    report = (out or folder) / "report"
    with into(report):
        (report / "figures").mkdir(parents=True, exist_ok=True)
        texts = {
            "variance.md": to_markdown(found),
            "variance.json": json.dumps(as_record(found), indent=1, ensure_ascii=False) + "\n",
        }
        for name, text in texts.items():
            (report / name).write_text(text, encoding="utf-8", newline="\n")
        figures = save(components(found), report / "figures" / "variance", formats) if formats else ()
    return VariancePaths(tuple(report / name for name in texts), figures, found)
