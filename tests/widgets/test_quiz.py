# SPDX-License-Identifier: MIT
"""A quiz answers back: every option explained, mistakes retried, predictions kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page
from scenarios import focus, press

from conftest import Site
from deepdive.widgets import Quiz


@pytest.fixture
def quiz(site: Site, open_page: Callable[..., Page]) -> Callable[..., Page]:
    """`quiz(name)` → the page of a stored quiz."""

    def go(name: str, **options: object) -> Page:
        made = Quiz.load(name)
        page = open_page(site.url(site.write(made.name, [made])), **options)
        page.made, page.root = made, page.locator(".dd-widget").first
        return page

    return go


def choose(page: Page, place: int, option: int) -> None:
    """Pick an option of a question by keyboard."""
    field = page.root.locator("fieldset").nth(place)
    field.get_by_role("radio").first.focus()
    press(page, "Space", *["ArrowDown"] * option)


def test_wrong_then_right(quiz: Callable[..., Page]) -> None:
    page = quiz("02_attention")
    item = page.made.data["items"][0]
    right = next(i for i, o in enumerate(item["options"]) if o["correct"])
    wrong = 0 if right else 1
    field = page.root.locator("fieldset").first
    said = field.locator("[aria-live=polite]")

    focus(field, "button", "Check")
    press(page, "Enter")
    assert said.inner_text() == "Choose an answer first."
    choose(page, 0, wrong)
    focus(field, "button", "Check")
    press(page, "Enter")
    words = said.inner_text()
    assert "✗ Not yet." in words and words.count("your answer") == 1
    for option in item["options"]:
        assert option["why"] in words, "every option is explained"
    assert page.root.locator(".dd-summary").inner_text().startswith("0 of 1 right")

    press(page, "Enter")  # the same button now says "Try again"
    assert said.inner_text() == ""
    assert page.evaluate("document.activeElement.type") == "radio"
    choose(page, 0, right)
    focus(field, "button", "Check")
    press(page, "Enter")
    assert "✓ Right." in said.inner_text()
    assert page.root.locator(".dd-summary").inner_text().startswith("1 of 1 right")
    assert page.noise == []


@pytest.mark.parametrize("written", ["{a}", "{comma}"])
def test_numbers_with_point_or_comma(written: str, quiz: Callable[..., Page]) -> None:
    page = quiz("02_attention")
    place, item = next(
        (i, x) for i, x in enumerate(page.made.data["items"]) if x["kind"] == "number"
    )
    answer = str(item["answer"])
    field = page.root.locator("fieldset").nth(place)
    field.get_by_role("textbox").focus()
    page.keyboard.type("nonsense")
    press(page, "Enter")
    assert "not a number" in field.locator("[aria-live]").inner_text()
    press(page, "ControlOrMeta+a")
    page.keyboard.type("12")
    press(page, "Enter")
    said = field.locator("[aria-live]").inner_text()
    assert item["hint"] in said and answer not in said, "a first miss gets a hint"
    focus(field, "button", "Try again")
    press(page, "Enter")
    press(page, "ControlOrMeta+a")
    page.keyboard.type(written.format(a=answer, comma=answer.replace(".", ",")))
    press(page, "Enter")
    assert field.locator("[aria-live]").inner_text().startswith("✓ Right.")
    assert page.evaluate("document.activeElement.tagName") == "INPUT", "focus is lost"
    page.keyboard.type("7")
    assert field.get_by_role("textbox").input_value() != answer + "7"


def test_prediction_is_kept_over_a_reload(quiz: Callable[..., Page]) -> None:
    page = quiz("02_predict")
    option = page.made.data["items"][0]["options"][1]["text"]
    choose(page, 0, 1)
    assert "kept" in page.root.locator("fieldset [aria-live]").inner_text()
    page.reload()
    page.wait_for_selector(".dd-widget")
    assert page.root.get_by_role("radio").nth(1).is_checked()
    focus(page.root, "button", "Open the answer")
    press(page, "Enter")
    words = page.root.locator("fieldset [aria-live]").inner_text()
    assert words.startswith("You predicted: " + option)
    assert page.root.locator(".dd-summary").count() == 0, "predictions aren't marked"
    row = focus(page.root, "button", "Reset").bounding_box()
    close = page.root.get_by_role("button", name="Close the answer").bounding_box()
    assert row["y"] == close["y"], "two rows of buttons"
    focus(page.root, "button", "Reset")
    press(page, "Enter")
    page.reload()
    page.wait_for_selector(".dd-widget")
    assert not page.root.locator(":checked").count()


def test_paper_has_questions_only(quiz: Callable[..., Page]) -> None:
    page = quiz("02_attention")
    choose(page, 0, 0)
    focus(page.root.locator("fieldset").first, "button", "Check")
    press(page, "Enter")
    page.emulate_media(media="print")
    assert page.root.locator("legend").first.is_visible()
    assert not page.root.locator("fieldset [aria-live]").first.is_visible()
    assert not page.root.get_by_role("button").first.is_visible()


def test_without_scripts_answers_are_folded(quiz, site: Site, open_page) -> None:
    made = quiz("02_attention").made
    page = open_page(
        site.url(f"{made.name}.html"), wait=False, java_script_enabled=False
    )
    items = made.data["items"]
    assert page.locator("figure ol > li").count() == len(items)
    assert page.locator("figure details:not([open])").count() == len(items)
    page.locator("figure summary").first.focus()
    press(page, "Enter")
    first = items[0].get("options", [{"why": items[0].get("why")}])[0]["why"]
    assert page.get_by_text(first).first.is_visible()


def test_python_keeps_the_score() -> None:
    made = Quiz.load("02_attention")
    first = made.data["items"][0]
    right = next(i for i, o in enumerate(first["options"]) if o["correct"])
    made.state = {"answers": {first["id"]: right}, "checked": {first["id"]: True}}
    assert made.score() == (1, 1)
    with pytest.raises(ValueError, match="must map ids"):
        made.state = {"answers": {"another": 0}, "checked": {}}
    with pytest.raises(ValueError, match=r"there are .*02_attention"):
        Quiz.load("99_none")
