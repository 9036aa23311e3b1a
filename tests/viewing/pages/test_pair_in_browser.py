"""The page of a pair in a real browser, if one is installed."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.features.features import Features
from logpolar.geometry.two_view import Geometry
from logpolar.geometry.verification import VerifiedMatches
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import Matches
from logpolar.matching.options import MatchingOptions
from logpolar.sampling import LogPolar
from logpolar.viewing.pages.pair import Side, write_pair_page


@pytest.fixture(scope="module")
def shown(opened, pair_page):
    with opened(pair_page) as page:
        yield page


@pytest.fixture
def page(shown):
    shown.evaluate("() => document.activeElement.blur()")
    shown.keyboard.press("Escape")
    shown.keyboard.press("0")
    return shown


def lines(page) -> int:
    return int(page.inner_text("#count").split()[0])


def pixels(page, canvas: str = "#view") -> str:
    """At rest: while the view moves, a busy machine draws fewer lines."""
    page.evaluate("() => { pace.rest(); return new Promise(requestAnimationFrame); }")
    return page.evaluate("selector => document.querySelector(selector).toDataURL()", canvas)


def test_hostile_names_are_text(page, photos):
    shown = page.evaluate("() => element('title').textContent")
    assert all(photo.name in shown for photo in photos)
    assert page.get_attribute("h1", "title") == "\n".join(map(str, photos))
    assert page.locator("h1 *").count() == 0


def test_a_click_on_a_match_shows_its_patches(page):
    assert not page.is_visible("#chosen")
    box = page.locator("#view").bounding_box()
    middle = page.evaluate(
        """() => { const p = places(), a = keypoint(0, state.shown[0]), b = keypoint(1, state.shown[0]);
                   const [u, v] = toScreen(p[0], a[0], a[1]), [x, y] = toScreen(p[1], b[0], b[1]);
                   return [(u + x) / 2, (v + y) / 2]; }"""
    )
    page.mouse.click(box["x"] + middle[0], box["y"] + middle[1])
    assert page.is_visible("#chosen")
    assert "agrees with the geometry" in page.inner_text("#facts")
    assert page.locator("#candidates tr").count() == 4
    assert len({pixels(page, f"#{name}") for name in ("polar0", "polar1", "square0", "square1", "bars")}) == 5


def test_arrows_step_through_matches_and_escape_closes(page):
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        seen.append(page.inner_text("#number"))
    assert seen[0] == seen[2] != seen[1]
    page.keyboard.press("Escape")
    assert not page.is_visible("#chosen")


def test_alignment_moves_the_second_patch(page):
    page.evaluate("() => choose(state.shown.find(match => roll[match] || shift[match]))")
    before = pixels(page, "#polar1")
    page.uncheck("#align")
    assert pixels(page, "#polar1") != before
    page.check("#align")
    assert pixels(page, "#polar1") == before


def test_filters_change_the_number_of_lines(page):
    all_lines = lines(page)
    page.keyboard.press("i")
    inliers = lines(page)
    assert 0 < inliers < all_lines
    assert page.get_attribute("#inliers", "aria-pressed") == "true"
    page.keyboard.press("i")
    assert lines(page) == all_lines
    page.check("#stage0")
    assert lines(page) > all_lines
    page.uncheck("#stage0")
    page.fill("#ratio", "0.5")
    assert lines(page) < all_lines
    page.fill("#ratio", "1")


@pytest.mark.parametrize("key", ["s", "v", "e"])
def test_keys_change_the_picture_and_back(page, key):
    before = pixels(page)
    page.keyboard.press(key)
    assert pixels(page) != before
    page.keyboard.press(key)
    assert pixels(page) == before


def test_wheel_and_drag_move_the_view(page):
    before = pixels(page)
    box = page.locator("#view").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.wheel(0, -300)
    zoomed = pixels(page)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 240)
    page.mouse.up()
    assert len({before, zoomed, pixels(page)}) == 3
    page.click("#reset")
    assert pixels(page) == before


def test_every_control_is_reached_by_keyboard_and_has_a_name(page):
    page.evaluate("() => document.activeElement.blur()")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id"))
    assert {
        "layout",
        "swap",
        "inliers",
        "guide",
        "reset",
        "colouring",
        "view",
        "stage3",
        "ratio",
        "rotation",
    } <= reached
    unnamed = (
        "() => [...document.querySelectorAll('canvas, button')].filter(e => !e.ariaLabel && !e.textContent).length"
    )
    assert page.evaluate(unnamed) == 0


def test_a_colour_by_value_has_a_legend(page):
    assert not page.is_visible("#shades")
    page.keyboard.press("ArrowRight")
    before = pixels(page), pixels(page, "#square0")
    page.select_option("#colouring", "rotation")
    assert page.inner_text("#shades-low") == "-180°"
    assert page.get_attribute("#shades", "aria-label") == "Colours from -180° to 180°"
    assert "linear-gradient" in page.evaluate("() => getComputedStyle(element('shades-bar')).backgroundImage")
    assert pixels(page) != before[0]
    assert pixels(page, "#square0") != before[1], "its rings have the colour of the line"
    page.select_option("#colouring", "geometry")
    assert not page.is_visible("#shades")
    assert pixels(page, "#square0") == before[1]


def test_stages_are_counted(page):
    counts = [int(page.inner_text(f"#stage{n}-count")) for n in range(4)]
    assert counts[2] + counts[3] == lines(page)
    assert sum(counts) == page.evaluate("() => count")


def test_histograms_are_told_in_words(page):
    scales = sorted(page.evaluate("() => state.shown.map((m) => 2 ** octaves[m])"))
    words = f"median {scales[len(scales) // 2]:.2f}x"
    assert page.inner_text("#scale-summary") == words
    assert page.get_attribute("#scale-histogram", "aria-label").endswith(f"{lines(page)} lines, {words}")
    low, high = page.inner_text("#rotation-summary").removeprefix("most between ").split(" and ")
    inside = "([low, high]) => state.shown.filter((m) => rotation[m] >= low && rotation[m] < high).length"
    assert page.evaluate(inside, [int(low) - 1, int(high) + 1]) > lines(page) / 32
    page.fill("#ratio", "0")
    assert (lines(page), page.inner_text("#scale-summary")) == (0, "")
    page.fill("#ratio", "1")


def test_keys_zoom_and_move(page):
    seen = [pixels(page)]
    for key in ("+", "Shift+ArrowRight", "Shift+ArrowUp"):
        page.keyboard.press(key)
        seen.append(pixels(page))
    assert len(set(seen)) == 4
    assert not page.is_visible("#chosen")
    for key in ("Shift+ArrowDown", "Shift+ArrowLeft", "-"):
        page.keyboard.press(key)
    assert page.evaluate("() => Math.hypot(view.x, view.y)") == pytest.approx(
        page.evaluate("() => { resetView(); return Math.hypot(view.x, view.y); }"), abs=1e-3
    )


def test_a_match_has_its_support_on_the_photo(page):
    """Rings at the radius up to which the descriptor looks, here read where they are lowest."""
    page.keyboard.press("ArrowRight")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    lowest = """(side) => {
      const [x, y, size] = keypoint(side, state.chosen), place = places()[side], canvas = element("view");
      const [u, v] = toScreen(place, x, y + data.radius * size).map((value) => Math.round(value * devicePixelRatio));
      const copy = new OffscreenCanvas(1, 3).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, -u, 1 - v);
      return [...copy.getImageData(0, 0, 1, 3).data]; }"""
    for side in (0, 1):
        found = np.array(page.evaluate(lowest, side)).reshape(3, 4)
        assert (np.abs(found[:, :3] - (0x22, 0xC5, 0x5E)).max(axis=1) < 90).any(), found


def test_text_has_the_contrast_that_wcag_asks_for(page, contrasts):
    page.keyboard.press("ArrowRight")
    page.select_option("#colouring", "ratio")
    found = list(contrasts(page))
    page.select_option("#colouring", "geometry")
    assert len(found) > 100
    assert [each for each in found if each[0] < 4.5] == []


@pytest.mark.parametrize(("size", "stacked"), [((1440, 900), False), ((390, 844), True)])
def test_photos_are_placed_where_they_are_large(opened, pair_page, size, stacked):
    with opened(pair_page, *size) as page:
        assert page.evaluate("() => state.stacked") is stacked
        assert page.get_attribute("#layout", "aria-pressed") == str(stacked).lower()


def test_on_a_phone_nothing_is_cut_off(opened, pair_page):
    with opened(pair_page, 390, 844) as page:
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


@pytest.fixture
def network_page(photo, tmp_path):
    """Upright keypoints of one size, matched with a confidence; the second photo is rotated and half as large."""
    random, piece = np.random.default_rng(0), photo[20:220, 120:320]
    second = cv2.resize(cv2.rotate(piece, cv2.ROTATE_90_CLOCKWISE), None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    here = random.uniform(60, 140, (20, 2))
    there = (np.stack([199 - here[:, 1], here[:, 0]], axis=1) + 0.5) / 2 - 0.5
    descriptors = random.normal(size=(20, 8)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    sides = [
        Side(name, image, Features(Keypoints.from_points(xy, np.full(20, 6.0)), descriptors, image.shape[1::-1]))
        for name, image, xy in (("a.png", piece, here), ("b.png", second, there))
    ]
    confidence = np.linspace(0.1, 1, 20, dtype=np.float32)
    matches = Matches(np.tile(np.arange(20, dtype=np.int32)[:, None], 2), np.zeros(20, np.float32), confidence)
    found = VerifiedMatches("homography", matches, Geometry(np.eye(3), np.ones(20, np.bool_), 50.0), here, there)
    path = tmp_path / "network.html"
    write_pair_page(path, tuple(sides), found, LogPolar(16, 32, 32), MatchingOptions(matcher="learned"), 3.0)
    return path


def test_of_upright_keypoints_the_patches_say_rotation_and_scale(opened, network_page):
    with opened(network_page) as page:
        assert page.is_visible("#implied")
        angles, scales = page.evaluate("() => [[...rotation], [...octaves]]")
        assert np.median(angles) == pytest.approx(90, abs=12)
        assert np.median(scales) == pytest.approx(-1, abs=0.25)
        page.keyboard.press("ArrowRight")
        assert "both of size 6.0 px, upright" in page.inner_text("#facts")
        aligned = pixels(page, "#square1")
        page.uncheck("#align")
        assert pixels(page, "#square1") != aligned


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((0, 3), "No matches: no keypoints in a.png"),
        ((0, 0), "No matches: no keypoints in a.png and b.png"),
        ((3, 3), "No matches: no common scene found"),
    ],
)
@pytest.mark.parametrize("model", ["fundamental", "none"])
def test_without_matches_the_page_says_why(opened, tmp_path, counts, words, model):
    sides = []
    for name, count in zip(("a.png", "b.png"), counts, strict=True):
        points = Keypoints.from_points(np.full((count, 2), 20.0), np.full(count, 6.0))
        features = Features(points, np.eye(count, 8, dtype=np.float32), (64, 48))
        sides.append(Side(name, np.zeros((48, 64, 3), np.uint8), features))
    nothing = Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32), None)
    points = np.zeros((0, 2))
    found = VerifiedMatches(model, nothing, Geometry(None, np.zeros(0, np.bool_), 0.0), points, points)
    write_pair_page(tmp_path / "page.html", tuple(sides), found, LogPolar(16, 32, 32), MatchingOptions(), 3.0)
    with opened(tmp_path / "page.html") as page:
        assert page.inner_text("#verdict") == words
        assert page.get_attribute("#verdict", "class") == "bad"
        assert lines(page) == 0
        for key in ("ArrowRight", "i", "s", "v", "e", "Escape"):
            page.keyboard.press(key)
        assert not page.is_visible("#chosen")


def test_a_learned_matcher_has_confidence_and_no_ratio_test(opened, network_page, pair_page):
    with opened(network_page) as page:
        assert not page.is_visible("#stage0")
        assert lines(page) == 20
        page.fill("#confidence", "0.5")
        assert lines(page) == 11
        page.select_option("#colouring", "confidence")
    with opened(pair_page) as page:
        assert page.is_visible("#stage0")
        assert not page.is_visible("#confidence")
