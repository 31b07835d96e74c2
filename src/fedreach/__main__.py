"""Run the command as ``python -m fedreach``, for launchers such as torchrun that start a module."""

from fedreach.cli import main

if __name__ == "__main__":
    main()
