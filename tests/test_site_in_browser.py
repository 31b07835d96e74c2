"""The site in a real browser: nothing of it keeps anybody out, on a desk and a phone, by light and by dark."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .test_site import build

pytest.importorskip("playwright", reason="needs the extra `browser`: pip install 'fedreach[browser]'")
pytest.importorskip("axe_playwright_python", reason="needs the extra `browser`: pip install 'fedreach[browser]'")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
GENERATOR = Path(sys.executable).with_name("zensical")
DESK, PHONE = (1280, 800), (390, 844)
PAGES = (
    "index",
    "tutorial",
    "adaptation",
    "results",
    "results/index",
    "gallery",
    "reference/keys",
    "reference/components/selection",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path: apt-get install chromium"),
    pytest.mark.skipif(not GENERATOR.exists(), reason="the generator is not installed: pip install 'fedreach[docs]'"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--allow-file-access-from-files"]
        )
        yield launched
        launched.close()


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_that_keeps_anybody_out(
    site: Path, browser: Browser, name: str, size: tuple[int, int], scheme: Any
) -> None:
    path = next(each for each in (site / f"{name}.html", site / name / "index.html") if each.exists())
    with browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_timeout(300)
        found = Axe().run(page, options={"resultTypes": ["violations"]})
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], "the page scrolls sideways"
