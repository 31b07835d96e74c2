"""Draw the figures of the site: ``python docs/build/figures.py`` runs all commands of the gallery.

An image ``figures/A-B.svg`` of that page is the figure B of the run folder or folder A, and ``figures/A.svg`` a file of
that name. ``page.png`` is the top of the HTML report of ``runs/digits`` in a browser.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery.md"
FIGURES = ROOT / "docs" / "figures"
BLOCK = re.compile(r"^```(toml|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT = 1280, 1000


def main() -> None:
    """Run every command of the gallery in an empty folder, and copy the figures."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"figures/page.png needs a browser; {', '.join(BROWSERS)} not found. Install Chromium.")
    text = GALLERY.read_text(encoding="utf-8")
    shown = re.findall(r"\]\(figures/([\w-]+)\.svg\)", text)
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples")
        for language, block in BLOCK.findall(text):
            if language == "toml":
                (folder / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
                continue
            for line in block.splitlines():
                print(line, flush=True)
                words = shlex.split(line)
                words = words[2:] if words[:2] == ["python", "-m"] else words
                seen = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
                command = [sys.executable, "-m", *words]
                subprocess.run(command, cwd=folder, env=seen, check=True, stdout=subprocess.DEVNULL)
        for image in shown:
            shutil.copyfile(folder / drawn(folder, image), FIGURES / f"{image}.svg")
        page = folder / "runs" / "digits" / "report" / "index.html"
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
        command += [f"--screenshot={FIGURES / 'page.png'}", page.as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": name})


def drawn(folder: Path, image: str) -> Path:
    """Return the file of an image of the gallery."""
    where, _, figure = image.partition("-")
    places = [f"runs/{where}/report/figures/{figure}.svg", f"{where}/{figure}.svg", f"{image}.svg"]
    found = [Path(place) for place in places if (folder / place).is_file()]
    assert len(found) == 1, f"figures/{image}.svg is none of {places}"
    return found[0]


if __name__ == "__main__":
    main()
