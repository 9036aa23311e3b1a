"""The page of a scene in a real browser, if one is installed."""

from __future__ import annotations

import base64
from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.sfm.scene_page import Provenance, SmallPhoto, write_scene_page
from logpolar.viewing.drawing import upright
from scene_facts import HOSTILE, make_facts


@pytest.fixture(scope="module")
def shown(opened, scene_page):
    with opened(scene_page) as page:
        yield page


@pytest.fixture
def page(shown):
    shown.evaluate("() => document.activeElement.blur()")
    shown.keyboard.press("Escape")
    shown.keyboard.press("0")
    return shown


def pixels(page) -> str:
    """At rest, drawn and read in one go: a browser clears the canvas afterwards."""
    return page.evaluate("() => { pace.rest(); render(); return element('view').toDataURL(); }")


def chosen(page) -> str | None:
    return page.inner_text("#chosen-name") if page.is_visible("#chosen") else None


def test_hostile_names_are_text(page):
    names = page.locator("#table tbody td:first-child").all_inner_texts()
    assert set(page.evaluate("() => photos.map(photo => photo.name)")) >= set(HOSTILE)
    assert len(names) == 10
    assert page.locator("#table script, #table img, h1 *, footer b").count() == 0
    assert page.inner_text("h1") == "</title><script>alert(1)</script>" == page.title()


def test_corners_of_cameras_show_those_of_upright_photos(page):
    """As the library turns pictures: each pixel of a stored 2 x 2 picture is found where the page looks for it."""
    stored = np.array([[1, 2], [3, 4]], np.uint8)
    for orientation in range(1, 9):
        turned, _ = upright(stored, np.zeros((0, 2)), orientation)
        for row, column in np.ndindex(2, 2):
            x, y = page.evaluate(f"() => uprightCorner([{column}, {row}], {orientation})")
            assert turned[y, x] == stored[row, column]


def test_the_canvas_shows_points_and_cameras(page):
    before = pixels(page)
    page.click("#frusta")
    without = pixels(page)
    page.click("#photos")
    bare = pixels(page)
    assert len({before, without, bare}) == 3
    page.click("#frusta")
    page.click("#photos")
    assert pixels(page) == before


COMPARE = """() => {
  const [width, height] = [element("view").clientWidth, element("view").clientHeight];
  const style = { paper: [0, 0, 0], accent: [1, 0, 0], size: 3, least: 2, faint: 0.5, most: Infinity };
  Object.assign(style, { sharpness: 1, frusta: true, photos: true });
  return [makeGpuRenderer, makeSoftwareRenderer].map((make) => {
    const canvas = document.createElement("canvas"), before = state.renderer;
    canvas.style.cssText = `width: ${width}px; height: ${height}px`;
    document.body.append(canvas);
    state.renderer = make(canvas, scene);
    paint(); choose(3); placePictures();
    state.renderer.draw(orbitMatrix(width, height), style);
    const picture = canvas.toDataURL();
    state.renderer = before;
    canvas.remove();
    return picture;
  });
}"""


def test_the_cpu_draws_what_webgl_draws(page):
    gpu, cpu = (decode(each).astype(np.float32) for each in page.evaluate(COMPARE))
    drawn = (gpu > 0).any(axis=2)  # by smooth lines, which the other does not have
    assert drawn.mean() > 0.01
    assert ((cpu > 0).any(axis=2) == drawn).mean() > 0.97
    assert np.corrcoef(cpu[drawn].ravel(), gpu[drawn].ravel())[0, 1] > 0.8


def decode(address: str) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(base64.b64decode(address.split(",")[1]), np.uint8), cv2.IMREAD_COLOR)


def test_the_first_view_encloses_points_and_cameras(page):
    inside = page.evaluate(
        """() => { const { clientWidth: w, clientHeight: h } = element("view"), matrix = orbitMatrix(w, h);
          const places = [...scene.photos].map((_, camera) => centre(camera));
          for (let n = 0; n < 200; n++) places.push(scene.points.subarray(3 * n, 3 * n + 3));
          const pixels = places.map((place) => toPixels(matrix, place, w, h)).filter((pixel) => pixel);
          return pixels.filter(([x, y]) => x > 0 && x < w && y > 0 && y < h).length; }"""
    )
    assert inside > 0.95 * 208


def test_less_is_drawn_while_the_view_moves_too_slowly(page):
    amounts = page.evaluate(
        """() => { const pace = makePace(1000, () => {}), times = [100, 200, 300, 316, 332];
          const still = pace.amount(400000, 50);
          pace.moved();
          const moving = times.map((now) => pace.amount(400000, now));
          pace.rest();
          return [still, ...moving, pace.amount(400000, 400)]; }"""
    )
    assert amounts[0] == amounts[1] == amounts[-1] == 400000
    assert amounts[1] > amounts[2] > amounts[3] < amounts[4] <= amounts[5] < 400000


def test_at_rest_nothing_is_drawn(page):
    counted = """async () => {
      const frames = (count) => new Promise((done) => {
        const next = () => (count-- ? requestAnimationFrame(next) : done());
        next(); });
      pace.rest();
      await frames(3);
      const { draw } = state.renderer, counts = [];
      let drawn = 0;
      state.renderer.draw = (...values) => { drawn++; draw(...values); };
      for (const change of [() => {}, () => { move(turn, 0.1, 0); move(turn, 0.1, 0); }]) {
        drawn = 0;
        change();
        await frames(10);
        counts.push(drawn);
      }
      Object.assign(state.renderer, { draw });
      return counts; }"""
    still, moved = page.evaluate(counted)
    assert still == 0
    assert 1 <= moved <= 2, "once for both changes, and once more if the view has come to rest"


def test_drag_wheel_and_right_button_move_the_view(page):
    box, seen = page.locator("#view").bounding_box(), [pixels(page)]
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for button in ("left", "right"):
        page.mouse.move(x, y)
        page.mouse.down(button=button)
        page.mouse.move(x + 60, y + 25)
        page.mouse.up(button=button)
        seen.append(pixels(page))
    page.mouse.wheel(0, -200)
    seen.append(pixels(page))
    assert len(set(seen)) == 4
    page.click("#reset")
    assert pixels(page) == seen[0]


def test_two_fingers_zoom(page):
    before = page.evaluate("() => orbit.distance")
    page.evaluate(
        """() => { const canvas = element("view"); canvas.setPointerCapture = () => {};
        const send = (kind, pointerId, clientX) => canvas.dispatchEvent(new PointerEvent(kind, { pointerId, clientX }));
        send("pointerdown", 7, 300); send("pointerdown", 8, 400); send("pointermove", 8, 500);
        send("pointerup", 7, 300); send("pointerup", 8, 500); }"""
    )
    assert page.evaluate("() => orbit.distance") == pytest.approx(before / 2)


def test_keys_turn_move_and_zoom_in_the_view_only(page):
    before = pixels(page)
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    assert pixels(page) == before
    page.focus("#view")
    seen = {before}
    for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "+", "-"):
        page.keyboard.press(key)
        seen.add(pixels(page))
    assert len(seen) >= 5


def test_a_click_on_a_camera_selects_its_photo_points_and_neighbours(page):
    assert chosen(page) is None
    before = pixels(page)
    x, y = page.evaluate(
        """() => { const { clientWidth: w, clientHeight: h } = element("view");
                   return toPixels(orbitMatrix(w, h), centre(3), w, h).slice(0, 2); }"""
    )
    box = page.locator("#view").bounding_box()
    page.mouse.click(box["x"] + x, box["y"] + y)
    assert page.evaluate("() => state.chosen") == 3
    assert page.locator("#neighbours tbody tr").count() == 7
    assert page.evaluate("() => observedBy(3).length") == page.evaluate("() => photos[3].points")
    assert pixels(page) != before
    page.click("#fly")
    assert (
        page.evaluate("() => Math.hypot(...along(along(orbit.target, orbitAxes()[2], orbit.distance), centre(3), -1))")
        < 1e-3
    )


def test_a_photo_that_is_not_registered_says_why(page):
    page.locator("#table button.link", has_text="lost.png").click()
    assert "no verified pair; 40 matches" in page.inner_text("#facts")
    assert page.is_visible("#chosen-missing")
    assert not page.is_visible("#fly")


def test_n_and_p_step_and_escape_closes(page):
    seen = []
    for key in ("n", "n", "p"):
        page.keyboard.press(key)
        seen.append(chosen(page))
    assert seen[0] == seen[2] != seen[1]
    page.keyboard.press("Escape")
    assert chosen(page) is None


def test_table_sorts_and_filters(page):
    heading = page.locator("#table th", has_text="error")
    column = page.locator("#table tbody td:nth-child(4)")
    heading.locator("button").click()
    values = column.all_inner_texts()
    assert values[:8] == sorted(values[:8], reverse=True)
    assert values[8:] == ["\u2013", "\u2013"]
    assert heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").click()
    assert column.all_inner_texts()[:8] == values[:8][::-1]
    page.check("#only-missing")
    assert page.inner_text("#rows") == "2 of 10"
    page.uncheck("#only-missing")
    page.fill("#search", "LOST")
    assert page.inner_text("#rows") == "1 of 10"
    page.fill("#search", "")


def test_filter_of_points(page):
    before = pixels(page)
    page.fill("#least", "5")
    assert page.inner_text("#count") == "0 points"
    assert pixels(page) != before
    page.fill("#least", "2")
    assert page.inner_text("#count") == "400 points"


def test_matrix_and_graph_tell_and_select(page):
    page.locator("#matrix").scroll_into_view_if_needed()
    box = page.locator("#matrix").bounding_box()
    page.mouse.move(box["x"] + 1.5 * box["width"] / 10, box["y"] + 0.5 * box["height"] / 10)
    shared = page.evaluate("() => common[0]")
    assert f"{shared} inliers, {shared} common points" in page.inner_text("#matrix-text")
    page.mouse.down()
    page.mouse.up()
    assert page.evaluate("() => state.chosen") == 0
    page.keyboard.press("Escape")
    place = page.evaluate("() => [4, 5].map(n => 12 + state.places[n] * (element('graph').clientWidth - 24))")
    box = page.locator("#graph").bounding_box()
    page.mouse.click(box["x"] + place[0] + 1, box["y"] + place[1] + 1)
    assert page.evaluate("() => state.chosen") == 2


def test_the_graph_names_photos_and_the_matrix_its_darkest_cell(page):
    place = page.evaluate("() => [16, 17].map(n => 12 + state.places[n] * (element('graph').clientWidth - 24))")
    page.locator("#graph").scroll_into_view_if_needed()
    box = page.locator("#graph").bounding_box()
    page.mouse.move(box["x"] + place[0] + 1, box["y"] + place[1] + 1)
    assert page.evaluate("() => element('graph-text').textContent") == page.evaluate("() => photoText(8)")
    assert "bad.png: not in the model, cannot be read, 0 verified pairs" in page.inner_text("#graph-text")
    assert page.evaluate("matrixText").endswith(f"more inliers: at most {page.evaluate('() => Math.max(...common)')}.")


def test_numbers_of_a_column_have_the_same_digits(page):
    focal = page.locator("#table tbody td:nth-child(8)").all_inner_texts()
    assert set(focal) == {"600.0", "\u2013"}
    assert "640\u00a0x\u00a0480" in page.evaluate("() => element('lenses').textContent")


def test_text_has_the_contrast_that_wcag_asks_for(page, contrasts):
    page.keyboard.press("n")
    found = list(contrasts(page))
    assert len(found) > 200
    assert [each for each in found if each[0] < 4.5] == []


def test_findings_time_and_command_are_there(page):
    assert page.locator(".finding.problem").count() == 1
    assert "1 photo cannot be read" in page.inner_text("#findings")
    assert "2.0 s" in page.inner_text("#seconds")
    assert "logpolar sfm '<b>'" in page.inner_text("footer")


def test_every_control_is_reached_by_keyboard_and_has_a_name(page):
    page.evaluate("() => document.activeElement.blur()")
    reached = set()
    for _ in range(45):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id || document.activeElement.tagName"))
    assert reached >= {
        "frusta",
        "photos",
        "colouring",
        "size",
        "least",
        "reset",
        "view",
        "search",
        "only-missing",
        "BUTTON",
    }
    unnamed = (
        "() => [...document.querySelectorAll('canvas, button')].filter(e => !e.ariaLabel && !e.textContent).length"
    )
    assert page.evaluate(unnamed) == 0


@pytest.mark.parametrize("pictures", [0, 9])
def test_without_a_model_the_page_shows_photos_and_why(opened, tmp_path, pictures):
    facts = replace(make_facts(names=HOSTILE), models=[])
    facts = replace(facts, photos=[replace(photo, model=None) for photo in facts.photos])
    picture = cv2.imencode(".jpg", np.full((6, 8, 3), 99, np.uint8))[1].tobytes()
    shown = {photo.name: SmallPhoto(picture, 1) for photo in facts.photos[:pictures]}
    write_scene_page(tmp_path / "page.html", facts, shown, Provenance("failed"))
    with opened(tmp_path / "page.html") as page:
        assert page.inner_text("#no-view-text").startswith("No model")
        assert "No model" in page.inner_text("#findings")
        assert not page.is_visible("#view")
        assert not page.is_visible("#bar")
        assert page.locator("#sheet button").count() == pictures
        for key in ("n", "0", "c", "l", "ArrowLeft", "Escape"):
            page.keyboard.press(key)
        if pictures:
            page.locator("#sheet button").nth(3).click()
            assert page.text_content("#chosen-name") == facts.photos[3].name


def test_on_a_phone_nothing_is_cut_off(opened, scene_page):
    with opened(scene_page, 390, 844) as page:
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
