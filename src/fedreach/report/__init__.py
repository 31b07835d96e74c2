"""Tables, figures and one self-contained page, from run folders only.

Example::

    write_report([Path("out")], Path("out"))         # out/report/index.html, table.*, figures/*
    print(terminal_table(analyse(read([Path("out")]))))
"""
