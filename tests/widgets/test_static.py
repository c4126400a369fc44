# SPDX-License-Identifier: MIT
"""Each widget on a page without a kernel, in Chromium, over http and from disk."""

from __future__ import annotations

import functools
from collections.abc import Callable
from urllib.parse import quote

import ipywidgets
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page
from scenarios import SCENARIOS, Scenario, open_more, press, read_tables, show_table

from conftest import WIDGETS, Site

every = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)


@functools.cache
def made(name: str) -> object:
    """One instance of each widget: some take seconds to compute."""
    return next(s for s in SCENARIOS if s.name == name).make()


@pytest.fixture
def visit(site: Site, open_page: Callable[..., Page]) -> Callable[..., Page]:
    """`visit(scenario, scheme, theme, **context)` → the widget's page."""

    def go(
        scenario: Scenario,
        scheme: str = "http",
        theme: str = "light",
        **options: object,
    ) -> Page:
        file = f"{scenario.name}-{theme}"
        if not (site.folder / f"{file}.html").exists():
            site.write(file, [made(scenario.name)], theme=theme)
        page = open_page(site.url(f"{file}.html", scheme), **options)
        page.root = page.locator(".dd-widget").first
        return page

    return go


def tables_become(root: Locator, expected: dict, exact: float) -> None:
    """The table view shows these numbers, now or within two seconds."""
    for _ in range(20):
        try:
            return same_tables(read_tables(root), expected, exact)
        except AssertionError:
            root.page.wait_for_timeout(100)
    same_tables(read_tables(root), expected, exact)


def same_tables(found: dict, expected: dict, exact: float) -> None:
    """Every expected table is there, of the same shape and with the same numbers."""
    for name, rows in expected.items():
        assert name in found, f"no table {name!r}; there are {sorted(found)}"
        assert [len(r) for r in found[name]] == [len(r) for r in rows], (
            f"shape of {name}"
        )
        for i, (ours, theirs) in enumerate(zip(found[name], rows, strict=True)):
            assert ours == pytest.approx(theirs, abs=exact, rel=0), f"{name}, row {i}"


@every
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_keyboard_link_reload_and_reset(
    scenario: Scenario, scheme: str, visit, site: Site
) -> None:
    page = visit(scenario, scheme)
    requests = []
    page.on("request", lambda r: requests.append(r.url))
    show_table(page, page.root)
    start = read_tables(page.root)
    scenario.act(page, page.root)
    expected = scenario.expect()
    show_table(page, page.root)
    tables_become(page.root, expected, scenario.exact)
    assert not expected or read_tables(page.root) != start, (
        "the keyboard changed nothing"
    )

    page.wait_for_timeout(400)  # the address follows
    page.reload()  # the address, or for a quiz the browser's own store, remembers
    page.wait_for_selector(".dd-widget")
    show_table(page, page.root)
    tables_become(page.root, expected, scenario.exact)

    page.root.get_by_role("button", name="Reset").focus()
    press(page, "Enter")
    page.wait_for_timeout(400)
    tables_become(page.root, start, scenario.exact)
    assert f"{scenario.name}=" not in page.url
    home = site.url("", scheme)
    assert [u for u in requests if not u.startswith((home, "blob:", "data:"))] == []
    assert page.noise == []


@every
def test_summary_is_read_aloud_once_and_late(scenario: Scenario, visit) -> None:
    page = visit(scenario)
    if not page.root.locator(".dd-summary").count():
        pytest.skip("no summary line")
    live = page.root.locator(":scope > [aria-live=polite]")
    scenario.act(page, page.root)
    page.wait_for_timeout(700)
    assert (
        live.text_content().replace("_", "")
        == page.root.locator(".dd-summary").text_content()
    )
    assert live.text_content().strip()


@every
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe(scenario: Scenario, theme: str, visit) -> None:
    page = visit(scenario, theme=theme, reduced_motion="reduce")
    for step in ("first", "driven"):
        if step == "driven":
            scenario.act(page, page.root)
            open_more(page, page.root)
            show_table(page, page.root)
            for fold in page.root.locator("details:not([open]) > summary").all():
                fold.press("Enter")
        results = Axe().run(page)
        assert results.violations_count == 0, (step, results.generate_report())
    ground = page.root.evaluate("(el) => getComputedStyle(el).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 24, 29)")


@every
@pytest.mark.parametrize("width", [320, 683])  # 683: 1024 at 150 %
def test_narrow_page_does_not_overflow(scenario: Scenario, width: int, visit) -> None:
    page = visit(scenario, viewport={"width": width, "height": 768})
    scenario.act(page, page.root)
    open_more(page, page.root)
    show_table(page, page.root)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    clipped = page.root.evaluate(
        """(el) => [...el.querySelectorAll("svg text")].filter((t) => {
            const a = t.getBoundingClientRect(), b = el.getBoundingClientRect();
            return a.width && !t.closest(".dd-scroll, [tabindex='0']") &&
                (a.left < b.left - 1 || a.right > b.right + 1);
        }).map((t) => t.textContent)"""
    )
    assert clipped == []


@every
def test_targets_and_focus(scenario: Scenario, visit) -> None:
    page = visit(scenario, viewport={"width": 360, "height": 740})
    open_more(page, page.root)
    small = page.root.evaluate(
        """(el) => [...el.querySelectorAll("button, input, select, summary, a")]
            .map((c) => [c, (c.closest("label") ?? c).getBoundingClientRect()])
            .filter(([c, r]) => r.width && (r.width < 24 || r.height < 24))
            .map(([c, r]) => `${c.outerHTML.slice(0, 80)} ${r.width}×${r.height}`)"""
    )
    assert small == []
    visible = page.root.locator(".dd-controls").first.locator(":scope > :visible")
    assert visible.count() <= 2 or page.root.locator("details .dd-controls").count()
    page.locator("h1").evaluate("(el) => { el.tabIndex = -1; el.focus(); }")
    seen = 0
    for _ in range(60):
        press(page, "Tab")
        held = page.evaluate(
            """() => {
                const a = document.activeElement, s = getComputedStyle(a);
                return a.closest(".dd-widget") &&
                    [a.outerHTML, s.outlineStyle, parseFloat(s.outlineWidth)];
            }"""
        )
        if held is None:
            break
        seen += 1
        assert held[1] != "none" and held[2] >= 2, held
    assert seen >= 3, "Tab reaches too little"


@every
def test_frame_stays_without_scripts(
    scenario: Scenario, visit, site: Site, open_page
) -> None:
    visit(scenario)
    page = open_page(
        site.url(f"{scenario.name}-light.html"), wait=False, java_script_enabled=False
    )
    widget = made(scenario.name)
    figure = page.locator("figure[data-model]")
    assert page.locator(".dd-widget").count() == 0
    assert figure.locator("svg, ol").first.is_visible()
    assert len(widget.alt) > 30 and widget.alt.count(". ") <= 2
    bundle = widget._repr_mimebundle_()[0]
    assert (
        bundle["image/svg+xml"].startswith("<svg")
        and widget.alt in bundle["text/plain"]
    )
    assert set(bundle) >= {"text/html", "application/vnd.jupyter.widget-view+json"}


@every
def test_controls_and_picture_share_the_screen(scenario: Scenario, visit) -> None:
    """At 1024 × 768 and 150 % the main controls stand above the picture."""
    if scenario.name == "quiz-test":
        pytest.skip("no picture")
    page = visit(scenario, viewport={"width": 683, "height": 512})
    page.root.evaluate("(el) => el.scrollIntoView()")
    picture = page.root.locator(".dd-picture").bounding_box()
    first = page.root.locator("button, input, select").first.bounding_box()
    assert first["y"] + first["height"] <= picture["y"] + 1
    assert 512 - picture["y"] >= 300, "too little of the picture is on screen"


@every
def test_prints_the_state_shown(scenario: Scenario, visit) -> None:
    page = visit(scenario, theme="dark")
    scenario.act(page, page.root)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert not page.root.locator(".dd-buttons").last.is_visible()
    assert page.root.locator(".dd-picture").is_visible()
    assert page.root.locator("button.dd-button:visible, input:visible").count() <= (
        10 * (scenario.name == "quiz-test")
    )
    printed = page.root.locator("[data-table]:visible")
    assert 1 <= printed.count() <= 2 or scenario.name == "quiz-test"
    numbers = read_tables(page.root)
    names = printed.evaluate_all("(all) => all.map((t) => t.dataset.table)")
    same_tables(
        {name: numbers[name] for name in names},
        {name: scenario.expect()[name] for name in names}, scenario.exact,
    )  # fmt: skip
    tall = page.root.evaluate("(el) => el.getBoundingClientRect().height")
    assert tall < 1000 or scenario.name == "quiz-test", "more than an A4 page"
    ground = page.root.evaluate("(el) => getComputedStyle(el).backgroundColor")
    assert ground == "rgb(255, 255, 255)", "dark ground on paper"


@every
def test_reduced_motion_and_no_autoplay(scenario: Scenario, visit) -> None:
    page = visit(scenario, reduced_motion="reduce")
    moving = page.root.evaluate(
        """(el) => [...el.querySelectorAll("*")].filter((n) => {
            const s = getComputedStyle(n);
            const times = s.transitionDuration.split(",").map(parseFloat);
            return (Math.max(...times) > 0 && s.transitionProperty !== "none") ||
                s.animationName !== "none";
        }).map((n) => n.outerHTML.slice(0, 60))"""
    )
    assert moving == []
    before = page.root.inner_html()
    page.wait_for_timeout(1200)
    assert page.root.inner_html() == before, "something moved by itself"


@every
@pytest.mark.parametrize("width", [1024, 683, 360])
def test_room_was_kept(scenario: Scenario, width: int, visit) -> None:
    page = visit(scenario, viewport={"width": width, "height": 768})
    page.wait_for_timeout(300)
    kept, tall = page.locator("figure.dd-figure").evaluate(
        """(f) => {
            const live = [...f.children].filter((c) => c.tagName !== "STYLE");
            const end = Math.max(...live.map((c) => c.getBoundingClientRect().bottom));
            const kept = parseFloat(getComputedStyle(f).minHeight);
            return [kept, end - f.getBoundingClientRect().top];
        }"""
    )
    assert 0.8 * kept <= tall <= 1.06 * kept, (
        f"reserved {kept}, needed {tall} at {width}"
    )


# ---------------------------------------------------------------------------- the host
GRID = next(s for s in SCENARIOS if s.name == "mask-grid")


def test_host_is_small() -> None:
    assert (
        WIDGETS.parents[2] / "book/_static/widget-host.js"
    ).stat().st_size <= 3 * 1024


def test_tab_enters_every_widget_of_a_long_page(site: Site, open_page) -> None:
    """Figures far below still sleep; the first Tab wakes them all."""
    names = ("mask-grid", "softmax-scale", "head-split", "attention-trace")
    file = site.write("long", [made(name) for name in names])
    path = site.folder / file
    figure = '<figure class="dd-figure"'
    gap = f'<p style="height: 3000px"><a href="#x">a link</a></p>{figure}'
    path.write_text(path.read_text("utf-8").replace(figure, gap), "utf-8")
    page = open_page(site.url(file), wait=False)
    page.wait_for_timeout(300)
    assert page.locator(".dd-widget").count() < len(names), "all awake: a short page"
    page.evaluate("scrollTo(0, 2800)")  # asked for twice at once: one is enough
    entered = set()
    for _ in range(150):
        press(page, "Tab")
        page.wait_for_timeout(20)
        entered.add(
            page.evaluate(
                "document.activeElement.closest('.dd-widget')?.dataset.name ?? ''"
            )
        )
    assert entered >= set(names)
    assert page.noise == []


def test_a_broken_module_keeps_the_frame(site: Site, open_page) -> None:
    good, bad = made("mask-grid"), made("softmax-scale")
    name = site.write("broken", [bad, good])
    path = site.folder / name
    page_text = path.read_text(encoding="utf-8")
    path.write_text(
        page_text.replace("export function divisor(", "export function (", 1), "utf-8"
    )
    page = open_page(site.url(name))
    page.wait_for_timeout(500)
    assert page.locator(".dd-widget").count() == 1, "the other widget must live"
    assert page.locator("figure").first.locator("svg[role=img]").is_visible()
    assert len(page.noise) == 1 and "still figure stays" in page.noise[0]


def test_boxes_are_laid_out(site: Site, open_page) -> None:
    row = ipywidgets.HBox([made("mask-grid"), ipywidgets.VBox([made("quiz-test")])])
    page = open_page(site.url(site.write("boxes", [row])))
    page.wait_for_selector(".dd-hbox .dd-vbox .dd-widget")
    assert page.locator(".dd-hbox .dd-widget").count() == 2
    assert page.noise == []


def test_links_in_the_page_drive_the_figure(visit) -> None:
    asked = quote('{"n":3,"rule":"bidirectional"}')
    page = visit(GRID)
    page.evaluate(f"location.hash = '#mask-grid={asked}'")
    page.wait_for_timeout(200)
    show_table(page, page.root)
    assert read_tables(page.root)["counts"] == [[9], [9], [0], [2], [2]]
    page.evaluate("location.hash = '#mask-grid=%7Bbroken'")
    page.wait_for_timeout(200)
    assert page.noise == []


@pytest.mark.parametrize(
    "junk", ['{"n":"many"}', '{"n":1e9,"rule":7}', "[1]", "null", "%%%"]
)
def test_a_link_of_nonsense_is_harmless(
    junk: str, site: Site, visit, open_page
) -> None:
    visit(GRID)
    page = open_page(site.url("mask-grid-light.html") + "#mask-grid=" + junk)
    page.root = page.locator(".dd-widget").first
    show_table(page, page.root)
    assert len(read_tables(page.root)["mask"]) in (7, 8)
    assert page.noise == []


def test_copy_link_opens_the_same_state(visit, open_page) -> None:
    page = visit(GRID, permissions=["clipboard-read", "clipboard-write"])
    GRID.act(page, page.root)
    page.root.get_by_role("button", name="Copy link").focus()
    press(page, "Enter")
    page.wait_for_timeout(200)
    link = page.evaluate("navigator.clipboard.readText()")
    other = open_page(link)
    other.root = other.locator(".dd-widget").first
    show_table(other, other.root)
    tables_become(other.root, GRID.expect(), 0)
    said = page.root.get_by_role("status").filter(has_text="copied")
    assert said.count() == 1


def test_no_style_leaks_between_widgets() -> None:
    """All styles share one page, so a selector belongs to one file."""
    owners: dict[str, str] = {}
    for path in sorted(WIDGETS.glob("*.css")):
        text = path.read_text(encoding="utf-8")
        flat = text.split("@media")[0]
        for rule in flat.split("}"):
            for selector in rule.split("{")[0].split("*/")[-1].split(","):
                key = " ".join(selector.split())
                if key:
                    assert owners.setdefault(key, path.name) == path.name, key
