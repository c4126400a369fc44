# SPDX-License-Identifier: MIT
"""Does each page work in a real browser: alone, for everybody, at every width?"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from page_actions import open_folds, wake_widgets
from serve import compressed_size

from deepdive.anatomy import as_html

pytestmark = pytest.mark.browser
BUDGET = 350_000
MOST_SHEETS = 15  # of paper; a chapter takes 12 to 15
LONGER = {  # half again as long, by design
    "book/06_transformer_2017.html": 22,
    "book/08_gpt.html": 22,
    "book/09_t5.html": 20,
}
# CSS pixels: 78, 102 and 130 mm of a sheet.
MOST_TALL = {"diagram": 300, "plot": 387, "widget": 492}
IMAGES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg"}


def url_of(scheme: str, site: Path, address: str, name: str) -> str:
    return (site / name).as_uri() if scheme == "file" else f"{address}/{name}"


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_page_needs_nobody_else_and_has_no_complaint(
    visit, site, address, page_name, scheme
):
    seen = visit(url_of(scheme, site, address, page_name))
    wake_widgets(seen.page)
    start = {"http": address, "file": "file:"}[scheme]
    foreign = [
        url for url in seen.asked if not url.startswith((start, "data:", "blob:"))
    ]
    assert not foreign
    assert not seen.failed
    assert not seen.said


def test_first_view_is_light(visit, site, address, page_name):
    seen = visit(f"{address}/{page_name}")
    wake_widgets(seen.page)
    sizes = {}
    for url in seen.asked:
        path = site / unquote(urlsplit(url).path).lstrip("/")
        if url.startswith(address) and path.suffix not in IMAGES:
            sizes[path.name] = compressed_size(path)
    assert page_name.rsplit("/", 1)[-1] in sizes
    total = sum(sizes.values())
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    assert total <= BUDGET, f"{total} bytes; largest: {largest}"


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(visit, address, page_name, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(f"{address}/{page_name}", width=width, theme=theme).page
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    wake_widgets(page)
    only = {"resultTypes": ["violations"]}
    reports = []
    if (theme, width) == ("light", 1280):
        reports.append(Axe().run(page, options=only))
    open_folds(page)
    reports.append(Axe().run(page, options=only))
    faults = [
        f"{v['impact']} {v['id']}: {node['html'][:120]} {node['failureSummary']}"
        for report in reports
        for v in report.response["violations"]
        for node in v["nodes"][:3]
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(("width", "folds"), [(320, False), (320, True), (640, False)])
def test_page_never_scrolls_sideways(visit, site, page_name, width, folds):
    page = visit((site / page_name).as_uri(), width=width, height=700).page
    wake_widgets(page)
    if folds:
        open_folds(page)
    wide = page.evaluate(
        """() => {
          const most = window.innerWidth;
          if (document.documentElement.scrollWidth <= most) return [];
          const clipped = (e) => {
            for (let up = e.parentElement; up; up = up.parentElement)
              if (getComputedStyle(up).overflowX !== "visible") return true;
            return false;
          };
          return [...document.querySelectorAll("body *")]
            .filter((e) => e.getBoundingClientRect().right > most + 1 && !clipped(e))
            .slice(0, 5)
            .map((e) => e.outerHTML.slice(0, 120));
        }"""
    )
    assert not wide
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_in_tables_stay_whole(visit, site, page_name):
    page = visit((site / page_name).as_uri(), width=360, height=700).page
    broken = page.evaluate(
        """() => {
          const found = [];
          for (const code of document.querySelectorAll(":is(td, th) code")) {
            const walk = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
            for (let node; (node = walk.nextNode()); )
              for (const word of node.data.matchAll(/\\w+/g)) {
                const range = document.createRange();
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                if (range.getClientRects().length > 1) found.push(word[0]);
              }
          }
          return found;
        }"""
    )
    assert not broken


def test_a_family_keeps_the_names_of_its_rows_in_view(visit, site):
    page = visit((site / "book/notation.html").as_uri(), width=360, height=700).page
    row = {"name": "GPT-2", **{f"heading {n}": "many words" for n in range(9)}}
    html = f'<div class="dd-scroll" id="family">{as_html([row], "One")}</div>'
    places = page.evaluate(
        """(html) => {
          document.querySelector("article").insertAdjacentHTML("afterbegin", html);
          const box = document.querySelector("#family");
          box.scrollLeft = 200;
          const at = (e) => e.getBoundingClientRect().left;
          const heads = box.querySelectorAll("tr > :first-child");
          return [box.scrollLeft, ...[...heads].map((e) => at(e) - at(box))];
        }""",
        html,
    )
    assert places == [200, 0, 0]


def test_boxes_that_scroll_can_be_reached_by_keyboard(visit, site, page_name):
    page = visit((site / page_name).as_uri(), width=320, height=700).page
    wake_widgets(page)
    open_folds(page)
    stuck = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((e) => {
          const style = getComputedStyle(e);
          if (!/auto|scroll/.test(style.overflowX)) return false;
          if (e.scrollWidth <= e.clientWidth + 1) return false;
          const inside = "a, button, input, select, [tabindex]";
          return e.tabIndex < 0 && !e.querySelector(inside);
        }).map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert not stuck


def test_skip_link_is_first_visible_and_works(visit, site, page_name):
    page = visit((site / page_name).as_uri()).page
    page.keyboard.press("Tab")
    focus = "document.activeElement"
    assert page.evaluate(f"{focus}.className") == "dd-skip"
    assert page.evaluate(f"{focus}.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate(f"{focus}.id") == "main"
    page.keyboard.press("Tab")
    inside = page.evaluate(f"document.getElementById('main').contains({focus})")
    assert inside or page.locator("main a:visible").count() == 0


def test_focus_is_never_under_the_bar(visit, site, page_name):
    page = visit((site / page_name).as_uri(), width=360, height=640).page
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.evaluate("document.querySelector('.dd-foot').setAttribute('tabindex', '-1')")
    page.evaluate("document.querySelector('.dd-foot').focus()")
    for _ in range(25):
        page.keyboard.press("Shift+Tab")
        covered = page.evaluate(
            """() => {
              const e = document.activeElement;
              if (!e || !e.closest("main")) return "";
              const box = e.getClientRects()[0];
              const bar = document.querySelector(".dd-top").getBoundingClientRect();
              return box.bottom <= bar.bottom ? e.outerHTML.slice(0, 120) : "";
            }"""
        )
        assert covered == ""


def test_contents_open_and_close_by_keyboard_on_a_phone(visit, site, page_name):
    page = visit((site / page_name).as_uri(), width=360, height=640).page
    side = page.locator("#dd-nav")
    assert not side.is_visible()
    page.locator(".dd-menu").focus()
    page.keyboard.press("Enter")
    assert side.is_visible()
    page.keyboard.press("Escape")
    assert not side.is_visible()
    assert page.evaluate("document.activeElement.className") == "dd-menu"


def test_folded_parts_open_by_keyboard(visit, site, page_name):
    page = visit((site / page_name).as_uri()).page
    # Handles, since opening one fold can make others visible.
    for fold in page.query_selector_all("article details")[:4]:
        summary = fold.query_selector("summary")
        if not summary.is_visible():
            continue
        before = fold.get_attribute("open")
        summary.focus()
        page.keyboard.press("Enter")
        assert fold.get_attribute("open") != before, summary.inner_text()


def test_paper_has_the_text_and_not_the_site(visit, site, page_name):
    page = visit((site / page_name).as_uri(), theme="dark").page
    page.emulate_media(media="print")
    for part in (".dd-top", ".dd-side", ".dd-turn", ".dd-copy"):
        for found in page.locator(part).all():
            assert not found.is_visible(), part
    assert page.locator("h1").is_visible()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert background == "rgba(0, 0, 0, 0)"
    assert ink == "rgb(31, 35, 40)", "dark ink on white paper, also from the dark page"
    for solution in page.locator("details.solution, .tag_solution > details").all():
        assert solution.get_attribute("open") is None


def test_headings_say_their_words_alone(visit, site, page_name):
    page = visit((site / page_name).as_uri()).page
    heard = page.locator("body").aria_snapshot()
    headings = re.findall(r'heading "(.*?)" \[level', heard)
    assert len(headings) >= page.locator("h1, article h2").count() > 0
    assert not [name for name in headings if "Link to" in name]
    assert "Link to this" not in heard
    stops = "[...document.querySelectorAll('.headerlink')].filter(e => e.tabIndex >= 0)"
    assert page.evaluate(f"{stops}.length") == 0


def test_buttons_and_searches_have_names_of_their_own(visit, site, page_name):
    page = visit((site / page_name).as_uri()).page
    copies = page.evaluate(
        """[...document.querySelectorAll("article div.highlight")]
             .filter((box) => box.querySelector(".dd-copy"))
             .map((box) => [box.querySelector(".dd-copy").getAttribute("aria-label"),
                            box.querySelector("pre").textContent.trim()])"""
    )
    assert bool(copies) == (page.locator(".cell_input").count() > 0)
    for name, code in copies:
        assert name == f"Copy code: {code.splitlines()[0]}"
    searches = page.locator("[role=search]")
    names = [found.get_attribute("aria-label") for found in searches.all()]
    assert all(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_from_disk_a_page_says_how_to_save_the_notebook(
    visit, site, address, page_name, scheme
):
    page = visit(url_of(scheme, site, address, page_name)).page
    hint = page.locator(".dd-from-disk")
    assert hint.count() == page.locator("a[download]").count()
    for found in hint.all():
        assert found.is_visible() == (scheme == "file")


@pytest.mark.parametrize("awake", [False, True])
def test_a_chapter_prints_to_a_handout(visit, site, page_name, awake):
    page = visit((site / page_name).as_uri()).page
    if awake:
        wake_widgets(page)
    paper = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) <= (
        LONGER.get(page_name, MOST_SHEETS)
    )
    page.emulate_media(media="print")
    for solution in page.locator("details.hide:not([open])").all():
        assert not solution.is_visible()
    tall = page.evaluate(
        """most => [...document.querySelectorAll("figure")].flatMap((figure) => {
          const waits = getComputedStyle(figure).minHeight;
          const kind = (e) => figure.dataset.widget ? "widget"
            : (e.getAttribute("height") ?? "").endsWith("pt") ? "plot" : "diagram";
          const drawn = [...figure.querySelectorAll("svg, img")]
            .filter((e) => e.getBoundingClientRect().height > most[kind(e)]);
          return drawn.length || !["0px", "auto"].includes(waits)
            ? [figure.outerHTML.slice(0, 120)] : [];
        })""",
        MOST_TALL,
    )
    assert not tall


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_search_finds_a_word_and_its_section(visit, site, address, scheme):
    seen = visit(url_of(scheme, site, address, "book/index.html"))
    page = seen.page
    page.locator("#dd-q").fill("softmaxes weight")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    results = page.locator("#dd-results > li")
    results.first.wait_for()
    assert re.match(r"\d+ sections? found", page.locator("#dd-found").inner_text())
    text = results.first.inner_text().lower()
    assert "softmax" in text
    assert "weight" in text
    assert results.first.locator("mark").count() > 0
    target = results.first.locator("a").get_attribute("href")
    results.first.locator("a").click()
    page.wait_for_url("**/" + target.removeprefix("./"))
    page.locator("h1").wait_for()
    assert not seen.failed
    assert not seen.said


def test_search_that_finds_nothing_says_so(visit, site):
    page = visit((site / "search.html").as_uri() + "?q=zyzzyva").page
    assert page.locator("#dd-found").inner_text() == "No section has this word."


def test_dark_page_is_remembered(visit, address):
    seen = visit(f"{address}/book/index.html")
    button = seen.page.locator("#dd-theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    seen.page.goto(f"{address}/search.html")
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "dark"
    paper = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(20, 24, 29)"


def test_page_reads_without_scripts(visit, site, page_name):
    seen = visit((site / page_name).as_uri(), java_script_enabled=False)
    assert seen.page.locator("h1").is_visible()
    assert seen.page.locator("#dd-nav nav").is_visible()
    assert not seen.page.locator("#dd-theme").is_visible()
    for frame in seen.page.locator("figure[data-model] .dd-frame").all():
        assert frame.is_visible()


def test_a_link_to_a_section_lands_on_it(visit, site, page_name):
    """Cells far away are not laid out yet; their reserved height must not mislead."""
    start = visit((site / page_name).as_uri()).page
    links = start.locator(".dd-sections a")
    anchors = [link.get_attribute("href") for link in links.all()]
    for anchor in anchors[-1:] + anchors[len(anchors) // 2 : len(anchors) // 2 + 1]:
        page = visit((site / page_name).as_uri() + anchor).page
        page.wait_for_timeout(400)
        heading = page.locator(f"{anchor} h2").first
        top = heading.evaluate("e => e.getBoundingClientRect().top")
        at_end = page.evaluate(
            "scrollY + innerHeight >= document.documentElement.scrollHeight - 2"
        )
        assert 0 <= top < 250 or (at_end and 0 <= top < 900), f"{anchor} at {top}"
