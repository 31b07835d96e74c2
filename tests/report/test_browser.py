"""The page in a real browser: on a desk and a phone, by light and by dark, by keyboard, without scripts, on paper."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedreach.report.write import write_report

from .made_up import fail, write_comparison

pytest.importorskip("playwright", reason="needs the extra `browser`: pip install 'fedreach[browser]'")
pytest.importorskip("axe_playwright_python", reason="needs the extra `browser`: pip install 'fedreach[browser]'")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DESK, PHONE = (1280, 800), (390, 844)
PAGES = ("demo", "radio", "many", "one", "days")
OPENED = "for (const each of document.querySelectorAll('details')) each.open = true"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The study of `make demo` and one that predicts a number; made-up ones with radio, many methods, one run."""
    folder = tmp_path_factory.mktemp("pages")

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, cwd=folder, capture_output=True)

    run("-m", "fedreach", "compare", "--set", "method.adaptation=label_shift", "--out", "demo", "--formats", "svg")
    run(str(ROOT / "examples/deeper/15_days_in_hospital.py"))
    radio = write_comparison(
        folder / "radio", ["fedavg", "ours", "theirs"], [0, 1, 2], rounds=24, radios=("best", "equal")
    )
    fail(radio / "runs/theirs/seed-2", "client 17, round 24: loss is nan")
    many = [f"method_{j}" for j in range(23)] + ["my_experiments.policies:SelectionByDistance"]
    made = {
        "radio": [radio],
        "many": [write_comparison(folder / "many", many, [0, 1], rounds=6)],
        "one": [write_comparison(folder / "one", ["fedavg"], [0], rounds=6)],
        "days": [folder / "runs/days"],
    }
    written = {
        name: write_report(runs, folder / "reports" / name, formats=("svg",)).page for name, runs in made.items()
    }
    return written | {"demo": folder / "demo/report/index.html"}


class Opener:
    """Opens pages, each in a profile of its own."""

    def __init__(self, browser: Browser, pages: dict[str, Path]) -> None:
        self.browser, self.pages, self.contexts = browser, pages, []  # type: ignore[var-annotated]

    def __call__(self, name: str, size: tuple[int, int] = DESK, scheme: Any = "light", scripts: bool = True) -> Page:
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, java_script_enabled=scripts
        )
        self.contexts.append(context)
        page = context.new_page()
        page.goto(self.pages[name].as_uri())
        return page


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Iterator[Opener]:
    opener = Opener(browser, pages)
    yield opener
    for context in opener.contexts:
        context.close()


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("demo", DESK, "dark"), ("demo", PHONE, "light")]
    + [(name, size, scheme) for name in PAGES for size, scheme in ((DESK, "light"), (PHONE, "dark"))],
)
def test_axe_finds_nothing_that_keeps_anybody_out(
    opened: Opener, name: str, size: tuple[int, int], scheme: str
) -> None:
    page = opened(name, size, scheme)
    page.evaluate(OPENED)
    # What lies on a gradient axe leaves undecided, and so the shadows at the edges of tables go. Letters in figures
    # have a test of their own.
    page.add_style_tag(content=".scroll { background-image: none !important }")
    asked = {"resultTypes": ["violations", "incomplete"]}
    found = Axe().run(page, context={"exclude": ["svg > g"]}, options=asked)
    assert found.violations_count == 0, found.generate_report()
    undecided = [node for each in found.response["incomplete"] for node in each["nodes"]]
    # A caption that another part lies over while axe scrolls is undecided as well, and has the colours of all others.
    assert [node for node in undecided if node["any"][0]["data"]["messageKey"] != "bgOverlap"] == []


LEAST_CONTRAST = """([selector, property]) => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = (colour) => {
    const [r, g, b] = numbers(colour).slice(0, 3).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return Math.min(...[...document.querySelectorAll(selector)].flatMap((each) => {
    const colour = getComputedStyle(each)[property];
    if (colour === "none" || numbers(colour)[3] === 0) return [];
    const paper = getComputedStyle(each.closest("figure")).backgroundColor;
    const [dark, bright] = [luminance(colour), luminance(paper)].sort((x, y) => x - y);
    return [(bright + 0.05) / (dark + 0.05)];
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_figures_can_be_read_on_light_and_on_dark_paper(opened: Opener, name: str, scheme: str) -> None:
    page = opened(name, DESK, scheme)
    letters = page.evaluate(LEAST_CONTRAST, ["figure svg text", "fill"])
    lines = page.evaluate(LEAST_CONTRAST, [".method path", "stroke"])
    # WCAG 2.2, 1.4.3 and 1.4.11: 4.5 to 1 for letters, 3 to 1 for graphics.
    assert 4.5 <= letters < 21
    assert 3 <= lines < 21


@pytest.mark.parametrize("size", [DESK, PHONE])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_its_screen(opened: Opener, name: str, size: tuple[int, int]) -> None:
    page = opened(name, size)
    page.evaluate(OPENED)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]


@pytest.mark.parametrize("name", PAGES)
def test_no_table_is_wider_than_a_desk(opened: Opener, name: str) -> None:
    page = opened(name)
    page.evaluate(OPENED)
    wide = (
        "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.ariaLabel)"
    )
    assert page.evaluate(wide) == []
    assert page.locator(".scroll").count() > 3


def test_the_first_screen_says_who_is_best_by_how_much_and_how_sure_that_is(opened: Opener) -> None:
    page = opened("demo")
    for part in ("h1", ".lead", "#figure-differences svg", "table >> nth=0 >> tr >> nth=1"):  # the table begins there
        box = page.locator(part).bounding_box()
        assert box
        assert box["y"] + box["height"] <= DESK[1], part
    head = page.locator("table >> nth=0").locator("thead").inner_text()
    assert all(column in head for column in ("unseen clients", "vs. uniform, points", "unseen, adapted", "MB"))


def test_the_names_of_methods_stay_while_a_table_is_scrolled(opened: Opener) -> None:
    page = opened("demo", PHONE)
    box = page.locator(".scroll >> nth=0")
    name, number = box.locator("tbody th >> nth=0"), box.locator("tbody td >> nth=0")
    before = name.bounding_box(), number.bounding_box()
    box.evaluate("(e) => { e.scrollLeft = 200 }")
    after = name.bounding_box(), number.bounding_box()
    assert all(before + after)
    assert after[0]["x"] == pytest.approx(box.bounding_box()["x"], abs=1)  # type: ignore[index]  # the frame's line
    assert before[1]["x"] - after[1]["x"] == pytest.approx(200)  # type: ignore[index]


def test_folded_columns_open_by_the_keyboard_and_without_scripts(opened: Opener) -> None:
    page = opened("demo", scripts=False)
    folded, summary = page.locator("details.more td >> nth=0"), page.locator("details.more summary >> nth=0")
    assert not folded.is_visible()
    for _ in range(20):
        page.keyboard.press("Tab")
        if summary.evaluate("(e) => e === document.activeElement"):
            break
    page.keyboard.press("Enter")
    assert folded.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_stop_of_the_tab_key_is_seen(opened: Opener, scheme: str) -> None:
    page = opened("demo", DESK, scheme)
    stops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]")
        )
    stops = [stop for stop in stops if stop[0] != "BODY"]
    assert {"A", "DIV", "SUMMARY", "BUTTON"} <= {tag for tag, _ in stops}
    assert {outline for _, outline in stops} == {"solid"}


def test_a_method_is_brought_out_in_all_figures(opened: Opener) -> None:
    page = opened("demo")
    page.get_by_role("button", name="entropy", exact=True).click()
    dim = "(m) => [...document.querySelectorAll(`svg .method.${m}`)].map((e) => e.style.opacity)"
    assert set(page.evaluate(dim, "m2")) == {""}
    assert set(page.evaluate(dim, "m1")) == {"0.12"}


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_demo_is_printed_on_six_pages(opened: Opener, paper: str) -> None:
    page = opened("demo", scheme="dark")
    printed = page.pdf(format=paper, prefer_css_page_size=True)
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 6


def test_on_paper_no_column_is_folded_and_all_is_light(opened: Opener) -> None:
    page = opened("demo", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    # The height of the element itself: boxes inside one that is closed have theirs though they are not drawn.
    heights = page.locator("main > details.more").evaluate_all("(all) => all.map((each) => each.offsetHeight)")
    assert len(heights) >= 2  # of the two main tables
    assert min(heights) > 60
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(32, 38, 45)"


def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    for name in PAGES:
        page = browser.new_page()
        asked, said = [], []  # type: ignore[var-annotated]
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.goto(pages[name].as_uri())
        page.close()
        assert [url for url in asked if not url.startswith("data:")] == [pages[name].as_uri()]
        assert said == []
