"""Tables, figures and one self-contained HTML report, created only from run folders.

Example::

    write_report([Path("out")], Path("out"))         # out/report/index.html, table.*, figures/*
    print(summary_text(analyse(read([Path("out")])), width=100))
"""
