"""Tables, figures and one self-contained page, from run folders only.

Example::

    write_report([Path("out")], Path("out"))         # out/report/index.html, table.*, figures/*
    print(terminal_table(analyse(read([Path("out")]))))
"""

from fedreach.report.analysis import baselines_of as baselines_of
from fedreach.report.concerns import concerns as concerns
from fedreach.report.figures.clients import partition_heatmap as partition_heatmap
from fedreach.report.figures.style import save as save
from fedreach.report.findings import find as find
from fedreach.report.formats import terminal_table as terminal_table
from fedreach.report.formats import terminal_tables as terminal_tables
from fedreach.report.overview import Analysis as Analysis
from fedreach.report.overview import analyse as analyse
from fedreach.report.read import read as read
from fedreach.report.read import read_run as read_run
from fedreach.report.records import as_document as as_document
from fedreach.report.records import as_records as as_records
from fedreach.report.write import ReportPaths as ReportPaths
from fedreach.report.write import write_report as write_report
