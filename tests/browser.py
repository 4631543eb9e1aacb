"""Headless Chromium, and a wrapper that records what opdkit's pages must not do (errors, dialogs, requests, ...)."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the system's Chromium under Playwright; skip the test if either is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """Page that records in `wrong`: errors and warnings, dialogs, popups, and requests for anything but `allowed`."""

    def __init__(self, browser: Any, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.allowed: tuple[str, ...] = ()
        self.wrong: list[str] = []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self._request(request.url))
        self.page.on("popup", lambda other: self.wrong.append(f"popup {other.url}"))

    def open(self, target: Path | str) -> "Watched":
        """Open a file or an address, and wait until the page is complete."""
        url = target.absolute().as_uri() if isinstance(target, Path) else target
        self.allowed = (url,) if isinstance(target, Path) else (url.split("?")[0],)
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", timeout=120_000)
        self.page.evaluate("document.getElementById('accounts')?.setAttribute('open', '')")
        return self

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).first.inner_text()
        return found

    def accessibility_findings(self) -> list[str]:
        """Return what axe-core finds, as "RULE: ELEMENT"; skip the test if it is not installed."""
        if not self.page.evaluate("'axe' in window"):
            package = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
            self.page.evaluate((Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
        violations = self.page.evaluate("axe.run().then((found) => found.violations)")
        return [f"{rule['id']}: {node['html'][:200]}" for rule in violations for node in rule["nodes"]]

    def says(self, selector: str, words: str) -> None:
        """Wait until the element shows the words: a page builds what a click unfolds a moment after the click."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector).first).to_contain_text(words, use_inner_text=True, timeout=120_000)

    def close(self) -> None:
        self.context.close()

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _request(self, url: str) -> None:
        if not url.startswith(("data:", "about:", *self.allowed)):
            self.wrong.append(f"request {url}")
