"""The pictures of `bertkit serve` and `bertkit report` in docs/images, with models of the embedded help desk.

Run it by `make pictures`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from browser import open_browser, open_page
from playwright.sync_api import expect
from serving import listening, serving


class Picture(NamedTuple):
    """What is asked of the model of a recipe, in which colours, and how large the window is, in pixels."""

    recipe: str
    text: str
    scheme: Any
    width: int = 1280
    height: int = 640


CHARGED = "You took the money for the same lamp from my card two times."
PICTURES = {
    "serve": Picture("helpdesk", CHARGED, "light"),
    "serve-dark": Picture("helpdesk_mentions", "Grace paid $129 for the Quill e-reader on 12 March, order HD-5127.", "dark"),
    "serve-narrow": Picture("helpdesk", CHARGED, "light", width=360, height=1100),
}
ROOT = Path(__file__).resolve().parent.parent
RUNS, IMAGES = ROOT / "runs" / "pictures", ROOT / "docs" / "images"


def bertkit(*command: object) -> None:
    subprocess.run([sys.executable, "-m", "bertkit", *map(str, command)], cwd=ROOT, check=True)


def main() -> None:
    for recipe in {picture.recipe for picture in PICTURES.values()}:
        if not (RUNS / recipe / "model.safetensors").exists():
            bertkit("finetune", recipe, "--model", "minilm", "--output-dir", RUNS / recipe)
    IMAGES.mkdir(exist_ok=True)
    report = RUNS / "report.html"
    bertkit("report", (RUNS / "helpdesk").relative_to(ROOT), "--output", report, "--overwrite")  # by which name it is called
    with open_browser() as browser, browser.new_page(viewport={"width": 1280, "height": 1150}) as page:
        page.goto(report.as_uri())
        page.screenshot(path=IMAGES / "report.png")
    names = {picture.recipe: RUNS / picture.recipe for picture in PICTURES.values()}
    with serving(names) as served, listening(served.app) as url, open_browser() as browser:
        for name, (recipe, text, scheme, width, height) in PICTURES.items():
            size = {"width": width, "height": height}
            with open_page(browser, url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as page:
                page.locator("#choose select").select_option(recipe)
                page.locator("[name=text]").fill(text)
                page.locator("#send").click()
                expect(page.locator("#answer > *").first).to_be_visible()
                if page.locator("#why").is_visible():
                    page.get_by_role("button", name="Explain").click()
                    expect(page.locator("#why .text")).to_be_visible()
                page.locator("h1").click()  # the focus frames no button
                page.evaluate("scrollTo(0, 0)")
                page.screenshot(path=IMAGES / f"{name}.png", full_page=True)


if __name__ == "__main__":
    main()
