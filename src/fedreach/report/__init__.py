"""Tables, figures and one self-contained HTML report, from run folders only.

Example::

    write_report([Path("out")], Path("out"))         # out/report/index.html, table.*, figures/*
    print(summary_text(analyse(read([Path("out")])), width=100))
"""
