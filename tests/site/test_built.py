# SPDX-License-Identifier: MIT
"""Is the built site whole, described, linked and free of anything foreign?"""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup, Tag
from deepdive_site import edition, maths

pytestmark = pytest.mark.browser  # runs after the stage that builds the site
ROOT = Path(__file__).resolve().parents[2]
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src"}


@cache
def soup_of(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@pytest.fixture
def soup(site: Path, page_name: str) -> BeautifulSoup:
    return soup_of(site / page_name)


def visible_text(soup: BeautifulSoup) -> str:
    """Return what a reader reads as prose: no code, formulas' sources or drawings."""
    article = BeautifulSoup(str(soup.article), "html.parser")
    hidden = "script, style, svg, pre, code, annotation, .katex-html, textarea"
    for tag in article.select(hidden):
        tag.decompose()
    return article.get_text(" ")


def test_every_page_has_its_own_title_and_description(site, soup, page_name):
    found = soup.select('meta[name="description"]')
    assert len(found) == 1, "needs one html_meta description"
    text = found[0]["content"]
    assert 40 <= len(text) <= 180, f"{len(text)} characters: {text}"
    others = [p for p in site.rglob("*.html") if p not in {site / page_name}]
    for path in others:
        other = soup_of(path)
        assert soup.title.string != other.title.string or path.name == "index.html"
        meta = other.select_one('meta[name="description"]')
        assert meta is None or meta["content"] != text, f"same as {path.name}"


def test_one_h1_and_no_level_skipped(soup):
    levels = [int(tag.name[1]) for tag in soup.main.find_all(re.compile(r"^h[1-6]$"))]
    assert levels.count(1) == 1
    assert levels[0] == 1
    for above, below in itertools.pairwise(levels):
        assert below <= above + 1, f"h{above} is followed by h{below}"


def test_every_picture_has_words(soup):
    for image in soup.find_all("img"):
        alt = image.get("alt", "")
        assert len(alt) > 10, f"alt {alt!r} of {image.get('src')}"
        assert "_images/" not in alt, "MyST's file name instead of an alt text"
        assert image.get("width"), "no width: the page jumps while it loads"
        assert image.get("height"), "no height: the page jumps while it loads"
    for figure in soup.select("article figure"):
        drawing = figure.find("svg")
        caption = figure.find("figcaption")
        if caption is None:
            assert figure.get("data-widget"), "a figure without a caption"
        else:
            assert caption.get_text(strip=True), "an empty caption"
        if drawing is not None and figure.find("img") is None:
            named = figure.select_one("[role=img][aria-label], svg > title")
            assert named is not None, f"no words for {str(drawing)[:90]}"


def test_rows_of_tables_have_headers(soup):
    for row in soup.select("article table.docutils tbody tr"):
        cells = row.find_all(["td", "th"])
        telling = [c for c in cells[:2] if re.search(r"\w", c.get_text())]
        for cell in telling[:1]:
            assert cell.name == "th" and cell.get("scope") == "row", str(row)[:120]


def test_printed_text_is_told_from_code(soup):
    for box in soup.select(".cell_output > .stream, .cell_output > .text_plain"):
        assert box.get("aria-label") == "Output", str(box)[:120]


def test_nothing_foreign_is_loaded(site, soup):
    for tag in soup.find_all(LOADING):
        source = tag.get(LOADING[tag.name], "")
        assert not re.match(r"(https?:)?//", source), source
    for tag in soup.find_all("link"):
        assert not re.match(r"(https?:)?//", tag["href"]), tag["href"]
    for sheet in (site / "_static").rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text("utf-8"))


def test_links_and_anchors_lead_somewhere(site, soup, page_name):
    page = site / page_name
    for tag in soup.find_all("a", href=True):
        address, anchor = urldefrag(unquote(tag["href"]))
        if re.match(r"[a-z]+:", address):
            assert address.startswith(("https://", "mailto:")), address
            continue
        target = (page.parent / address).resolve() if address else page
        assert target.is_file(), f"{tag['href']}: no such file"
        if anchor and target.suffix == ".html":
            ids = {t["id"] for t in soup_of(target).find_all(id=True)}
            assert anchor in ids, f"{tag['href']}: no such anchor"


def test_ids_are_unique(soup):
    ids = [tag["id"] for tag in soup.find_all(id=True)]
    assert len(ids) == len(set(ids)), sorted({i for i in ids if ids.count(i) > 1})


def test_no_markup_is_left_raw(soup):
    text = visible_text(soup)
    for pattern in (r"\$", r"\{[a-z:]+\}`", r"```", r":::", r"\\[a-z]{3,}", r"\*\*"):
        found = re.search(rf".{{0,40}}{pattern}.{{0,40}}", text)
        assert found is None, found[0]
    assert "@" not in soup.title.string


def test_every_widget_on_a_page_has_its_state(soup):
    state: dict[str, object] = {}
    for script in soup.find_all("script", type=edition.STATE_KEY):
        state |= json.loads(script.string)["state"]
    for figure in soup.select("figure[data-model]"):
        assert figure["data-model"] in state, (
            f"{figure.get('data-widget')} has no state"
        )
        assert (
            figure.find("svg") is not None
            or figure.find("fieldset") is not None
            or (len(figure.get_text(strip=True)) > 40)
        ), "nothing to see without a script"
    for view in soup.find_all("script", type=edition.VIEW_KEY):
        assert json.loads(view.string)["model_id"] in state


def test_host_script_only_where_a_widget_is(soup):
    hosts = [s for s in soup.find_all("script", src=True) if "widget-host" in s["src"]]
    assert bool(hosts) == bool(soup.find("script", type=edition.STATE_KEY))
    for script in soup.find_all("script", src=True):
        assert script.has_attr("defer"), f"{script['src']} holds up the page"


def test_solutions_are_folded(soup):
    for solution in soup.select(".solution, .tag_solution"):
        if solution.name == "details":
            assert not solution.has_attr("open")
            continue
        visible = [c for c in solution.find_all(recursive=False) if c.name != "details"]
        assert not visible, "a solution that is not folded"


def is_for_teachers(cell: dict) -> bool:
    return "instructor" in cell["metadata"].get("tags", [])


def spoken(text: str) -> str:
    """Return the words of Markdown, HTML or a script, without any mark between them."""
    text = re.sub(r"<[^>]*>|\\[nt]|\\u[0-9a-f]{4}|\]\([^)]*\)", " ", unescape(text))
    return " ".join(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize("chapter", sorted((ROOT / "book").glob("[0-9]*.ipynb")))
def test_instructor_cells_are_nowhere(site, chapter):
    """Neither in pages, nor in the data of the search, nor in what is downloaded."""
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    secret = [spoken("".join(c["source"])) for c in cells if is_for_teachers(c)]
    others = spoken(json.dumps(cells[:-1], ensure_ascii=False))
    assert is_for_teachers(cells[-1]), "the last cell is the teacher's"
    words = " ".join(secret).split()
    runs = {" ".join(words[i : i + 6]) for i in range(len(words) - 5)}
    runs = {run for run in runs if run not in others}  # a question quoted, say
    assert len(runs) > 20
    written = [p for p in site.rglob("*") if p.suffix in {".html", ".js", ".ipynb"}]
    assert site / "_sources" / "book" / chapter.name in written
    assert site / "_static" / "search-data.js" in written
    for path in written:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            published = json.loads(text)["cells"]
            assert not any(map(is_for_teachers, published)), path.name
            text = "\n".join("".join(cell["source"]) for cell in published)
        text = spoken(text)
        shown = [run for run in runs if run in text]
        assert not shown, f"{path.name} shows an instructor's cell: {shown[:3]}"


def test_each_chapter_offers_its_notebook(site, soup, page_name):
    is_chapter = (ROOT / page_name).with_suffix(".ipynb").is_file()
    links = soup.select("a[download]")
    assert len(links) == int(is_chapter)


def test_root_leads_to_the_first_page(site):
    root = soup_of(site / "index.html")
    refresh = root.select_one('meta[http-equiv="refresh"]')
    assert isinstance(refresh, Tag)
    assert (site / refresh["content"].split("url=")[1]).is_file()
    assert root.html["lang"] == "en-GB"


def test_style_and_fonts_are_of_the_renderer_that_drew_the_formulas():
    from sphinxcontrib import katex

    bundled = Path(katex.__file__).with_name("katex.min.js").read_text("utf-8")
    version = re.search(r'version:"([\d.]+)"', bundled)[1]
    assert version == katex.katex_version
    vendor = ROOT / "book" / "_vendor"
    assert f"| {version} |" in (vendor / "README.md").read_text("utf-8")
    sheet = (vendor / "katex" / "katex.min.css").read_text("utf-8")
    assert f'content:"{version}"' in sheet
    fonts = set(re.findall(r"url\(fonts/([^)]+\.woff2)\)", sheet))
    assert fonts == {path.name for path in (vendor / "katex" / "fonts").iterdir()}
    assert "MIT" in (vendor / "katex" / "LICENSE").read_text("utf-8")
    assert maths.find_node()
