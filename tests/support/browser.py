"""Debian's Chromium, driven by Playwright; tests that need it skip with a reason where it is not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".work" / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
)
needs_frontend = pytest.mark.skipif(
    not AXE.is_file(), reason="the frontend's packages are not installed (make ui; it needs Node 20)"
)


@dataclass
class Opened:
    """A page of the browser, with what it complained of."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """Return what axe finds wrong with the Lake's part of the page, one line for each kind."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        result = self.page.evaluate("axe.run('.lake', {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:160]}; {one['nodes'][0].get('failureSummary', '')})"
            for one in result["violations"]
        ]


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start the browser for a module's tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Any, *, width: int = 1440, height: int = 1000, **options: Any) -> Iterator[Opened]:
    """Open an empty page in a context of its own: no cookie of another test."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    opened = Opened(context.new_page())
    opened.page.on(
        "console",
        lambda message: opened.complaints.append(message.text) if message.type in {"error", "warning"} else None,
    )
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    try:
        yield opened
    finally:
        context.close()
