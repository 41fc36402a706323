"""A real browser for tests: chromium through playwright, pages that say what went wrong in them, and axe-core."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_INSTALLED = Path(__file__).resolve().parent.parent / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
AXE = Path(os.environ.get("BERTKIT_AXE", _INSTALLED))


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Debian's chromium, or the one that playwright installs. Skips the test where it or axe-core is missing."""
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = shutil.which("chromium") or (own if Path(own).exists() else None)
        if found is None:
            pytest.skip("no browser: make browser")
        if not AXE.is_file():
            pytest.skip("no axe-core: make browser")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, url: str, *, errors: tuple[str, ...] = (), **context: Any) -> Iterator[Page]:
    """A page, where in the end nothing has come from another host and the console has no error but `errors`.

    context: of playwright's browser.new_context, such as viewport and color_scheme.
    """
    with browser.new_context(**context) as made:
        page = made.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        yield page
        assert [line for line in said if not line.startswith(errors or ("no error",))] == []
        assert asked[0] == f"{url}/"
        assert [each for each in asked if not each.startswith((f"{url}/", "data:,"))] == []


def faults_of(page: Page) -> list[str]:
    """What axe-core finds serious or critical in a page."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    assert len(found["passes"]) > 10, "axe-core has looked at nothing"
    return [
        f"{each['id']}: {node['html']}: {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
        if each["impact"] in ("serious", "critical")
    ]
