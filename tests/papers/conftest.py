"""The command of the papers, as a user of a checkout would call it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.conftest import Command

from papers.command import main


@pytest.fixture
def papers(home: Path) -> Command:
    """The command in this process: ``papers("csra/fig5", "--scale", "smoke")``."""

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return call
