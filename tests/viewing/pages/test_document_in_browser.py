"""A page of tables and pictures in a real browser, if one is installed."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.viewing.pages.document import PageFigure, PageSection, PageTable, write_document

HOSTILE = "</script><script>alert(1)</script> \"'\n<img src=x onerror=alert(1)>"
ROWS = [["a", "10.5 %"], [HOSTILE, "9 (2)"], ["c", "\u2013"], ["d", "\u22123"]]


@pytest.fixture(scope="module")
def page(opened, tmp_path_factory):
    path = tmp_path_factory.mktemp("document") / "page.html"
    table = PageTable(HOSTILE, ["name", "score"], ROWS, ["N = 12; 95 % interval 9 - 12; logpolar eval", "", "", ""])
    picture = cv2.imencode(".png", np.zeros((8, 8), np.uint8))[1].tobytes()
    sections = [
        PageSection(HOSTILE, [HOSTILE], [table], [PageFigure("A plot", picture)]),
        PageSection("Empty", (), [PageTable("None.", ["name"], [])]),
    ]
    write_document(path, HOSTILE, HOSTILE, sections, HOSTILE, {"numpy": HOSTILE})
    with opened(path) as page:
        yield page


def test_hostile_text_is_text(page):
    assert page.evaluate("() => element('title').textContent") == HOSTILE
    assert page.evaluate("() => document.querySelectorAll('body script').length") == 2
    assert page.locator("img").count() == 1


def test_numbers_sort_as_numbers_and_missing_values_come_last(page):
    column = page.locator("#section-0 tbody td:nth-child(2)")
    page.click("#section-0 th:nth-child(2) button")
    assert column.all_inner_texts() == ["10.5 %", "9 (2)", "\u22123", "\u2013"]
    page.click("#section-0 th:nth-child(2) button")
    assert column.all_inner_texts() == ["\u22123", "9 (2)", "10.5 %", "\u2013"]


def test_the_source_of_a_row_shows_on_hover_and_on_focus(page):
    row = page.locator("#section-0 tbody tr", has_text="10.5")
    row.hover()
    assert page.inner_text("#hint") == "N = 12; 95 % interval 9 - 12; logpolar eval"
    page.mouse.move(0, 0)
    assert not page.is_visible("#hint")
    row.focus()
    assert page.is_visible("#hint")


def test_pictures_have_alternative_texts_and_sections_links(page):
    assert page.get_attribute("img", "alt") == "A plot"
    assert page.locator("#contents a").count() == 2


def test_text_has_the_contrast_that_wcag_asks_for(page, contrasts):
    page.locator("#section-0 tbody tr", has_text="10.5").focus()
    found = list(contrasts(page))
    assert len(found) > 30
    assert [each for each in found if each[0] < 4.5] == []


def test_links_lead_to_headings_that_can_be_seen(page):
    page.evaluate(
        """() => { const links = element("contents");
                   for (let n = 0; n < 30; n++) links.append(links.lastChild.cloneNode(true));
                   element("section-1").style.height = "3000px";
                   dispatchEvent(new Event("resize")); }"""
    )
    page.locator("#contents a").nth(1).click()
    bar, heading = (page.locator(name).bounding_box() for name in ("#contents", "#section-1 h2"))
    assert bar["y"] == 0
    assert bar["height"] > 80, "several rows of links"
    assert bar["height"] <= heading["y"] < bar["height"] + 60
    page.evaluate("() => { while (element('contents').children.length > 2) element('contents').lastChild.remove(); }")


def test_on_a_phone_nothing_is_cut_off(page):
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
