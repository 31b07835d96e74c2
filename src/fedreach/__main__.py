"""``python -m fedreach``: the command, for launchers such as torchrun that start a module."""

from __future__ import annotations

from fedreach.cli import main

if __name__ == "__main__":
    main()
