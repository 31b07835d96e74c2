"""Tables, figures and one self-contained page, made from run folders only.

Example::

    write_report([Path("out")], Path("out"))         # out/report/index.html, table.*, figures/*
    rich.print(terminal_table(analyse(read([Path("out")]))))
"""

from __future__ import annotations

from fedreach.report.analysis.analysis import Analysis, analyse
from fedreach.report.analysis.findings import find
from fedreach.report.figures.partition import partition_heatmap
from fedreach.report.figures.saving import save
from fedreach.report.load import read, read_run
from fedreach.report.render.formats import terminal_table, terminal_theory
from fedreach.report.render.records import as_records
from fedreach.report.write import ReportPaths, write_report

__all__ = [
    "Analysis",
    "ReportPaths",
    "analyse",
    "as_records",
    "find",
    "partition_heatmap",
    "read",
    "read_run",
    "save",
    "terminal_table",
    "terminal_theory",
    "write_report",
]
