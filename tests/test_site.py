"""Tests of the pages as a site: it builds without a warning, needs no network, and breaks no table or formula."""

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))
PHONE, DESKTOP = 390, 1280
pytestmark = pytest.mark.slow

# What a reader of a page sees of its tables: where they lie, whether they scroll, and what shows that they do.
TABLES = """() => [...document.querySelectorAll(".rst-content table")].map(table => {
    const box = table.getBoundingClientRect(), style = getComputedStyle(table);
    return {left: box.left, right: box.right, hidden: table.scrollWidth - table.clientWidth,
            scrolls: style.overflowX, shadow: style.backgroundAttachment};
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built site; the build fails on links to missing pages, files and headings."""
    for tool in ("mkdocs", "latex2mathml"):
        pytest.importorskip(tool, reason="pip install -e '.[test]' has it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=DOCS.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def html_of(site: Path, page: str) -> Path:
    return site / "index.html" if page == "index" else site / page / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def test_pages_and_pictures_are_there(site: Path) -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", "".join(p.read_text(encoding="utf-8") for p in DOCS.glob("*.md")))
    assert pictures
    for name in [*pictures, "tutorial.ipynb"]:
        assert (site / name).exists(), name
    assert all(html_of(site, page).exists() for page in PAGES)
    assert not list(site.rglob("*.py"))


def test_every_page_is_in_the_navigation() -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in PAGES if f": {page}.md" not in nav] == []


def test_formulas_are_mathml_and_not_source(site: Path) -> None:
    formulas = 0
    for page in PAGES:
        source, html = (
            (DOCS / f"{page}.md").read_text(encoding="utf-8"),
            html_of(site, page).read_text(encoding="utf-8"),
        )
        count = source.count("```math\n") + source.count("$`")
        assert html.count("<math ") == count, page
        assert "$<code>" not in html
        assert not re.search(r"\$`[^`]*\n[^`]*`\$", source), (
            f"{page}: GitHub reads no formula that is broken over two lines"
        )
        assert "language-math" not in html
        formulas += count
    assert formulas > 10


def test_no_flag_is_broken_over_two_lines(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": PHONE, "height": 900})
    page.goto(html_of(site, "guide").as_uri())
    lines = page.evaluate('[...document.querySelectorAll("code .flag")].map(flag => flag.getClientRects().length)')
    assert len(lines) > 20
    assert set(lines) == {1}
    page.close()


def test_types_of_columns_are_not_taken_for_tags(site: Path) -> None:
    assert "list&lt;int32&gt;" in html_of(site, "tables").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_no_table_is_cut_without_a_cue(site: Path, browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    tables = 0
    for name in PAGES:
        page.goto(html_of(site, name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        for table in page.evaluate(TABLES):
            tables += 1
            assert table["left"] >= 0, name
            assert table["right"] <= width + 1, name
            if table["hidden"] > 1:
                assert width == PHONE, f"{name}: a table is wider than a desktop's screen"
                assert table["scrolls"] == "auto", name
                assert table["shadow"].split(", ")[:4] == ["local", "local", "scroll", "scroll"], name
    assert tables > 50
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == [], "the site needs no network"
    page.close()


def test_the_shadow_of_a_wide_table_is_seen(site: Path, browser: Any) -> None:
    """The right edge is darker while there is more to the right than after scrolling to the end."""
    image = pytest.importorskip("matplotlib.image")
    page = browser.new_page(viewport={"width": PHONE, "height": 900})
    page.goto(html_of(site, "learning").as_uri())
    table = page.locator(".rst-content table").first
    table.scroll_into_view_if_needed()

    def edge() -> float:
        box = table.bounding_box()
        clip = {"x": box["x"] + box["width"] - 12, "y": box["y"] + 5, "width": 12, "height": 60}
        pixels = image.imread(io.BytesIO(page.screenshot(clip=clip)))[..., :3].mean(-1)
        return float(pixels[:, -6:-2].mean())  # without the line at the end of the last column

    dark = edge()
    table.evaluate("table => table.scrollTo(table.scrollWidth, 0)")
    assert dark < edge() - 0.1
    page.close()
