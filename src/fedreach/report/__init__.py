"""Tables, figures and one self-contained page, from run folders only.

Example::

    write_report([Path("out")], Path("out"))         # out/report/index.html, table.*, figures/*
    print(terminal_table(analyse(read([Path("out")]))))
"""

from fedreach.report.analysis import baselines_of as baselines_of
from fedreach.report.analysis import has_named_metrics as has_named_metrics
from fedreach.report.concerns import concerns as concerns
from fedreach.report.figures.clients import partition_heatmap as partition_heatmap
from fedreach.report.figures.style import save as save
from fedreach.report.findings import find as find
from fedreach.report.formats import terminal_adaptation as terminal_adaptation
from fedreach.report.formats import terminal_contrasts as terminal_contrasts
from fedreach.report.formats import terminal_metrics as terminal_metrics
from fedreach.report.formats import terminal_table as terminal_table
from fedreach.report.formats import terminal_theory as terminal_theory
from fedreach.report.formats import terminal_tuning as terminal_tuning
from fedreach.report.overview import Analysis as Analysis
from fedreach.report.overview import analyse as analyse
from fedreach.report.read import read as read
from fedreach.report.read import read_run as read_run
from fedreach.report.records import as_document as as_document
from fedreach.report.records import as_records as as_records
from fedreach.report.write import ReportPaths as ReportPaths
from fedreach.report.write import write_report as write_report
