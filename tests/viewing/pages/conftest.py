from __future__ import annotations

import shutil
from contextlib import contextmanager

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from logpolar.cli import main
from logpolar.sfm.scene_page import Provenance, read_pictures, write_scene_page
from scene_facts import HOSTILE, make_facts

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

NAMES = 'first <script>alert(1)<\u2028script> & "quoted".png', "zw\u00f6lf'</title>.png"
"""Names that would break a page which takes them for markup."""


@pytest.fixture(scope="package")
def browser():
    """Chromium or Chrome, if one is installed; WebGL runs on the CPU."""
    if BROWSER is None:
        pytest.skip("no Chromium or Chrome is installed")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=BROWSER, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def opened(browser):
    """A context with a page from disk; whatever went wrong in it or left the machine fails the test."""

    @contextmanager
    def context(path, width=1440, height=900):
        page, troubles = browser.new_page(viewport={"width": width, "height": height}), []
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda each: troubles.append(each.url) if not each.url.startswith("data:") else None)
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready=true]")
        yield page
        page.close()
        assert troubles == [path.as_uri()]

    return context


CONTRASTS = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const over = (top, below) => { const a = top[3] ?? 1; return [0, 1, 2].map((n) => a * top[n] + (1 - a) * below[n]); };
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const own = (each) => parts(getComputedStyle(each).backgroundColor);
  const ground = (each) => (each ? over(own(each), ground(each.parentElement)) : [255, 255, 255]);
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !parent.checkVisibility() || parent.closest("script, :disabled")) continue;
    const behind = ground(parent), ink = over(parts(getComputedStyle(parent).color), behind);
    const [low, high] = [luminance(behind), luminance(ink)].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), texts.currentNode.data.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""
"""Of every visible text its contrast by WCAG 2 as the browser draws it, the lowest first."""


@pytest.fixture(scope="package")
def contrasts():
    """What ``CONTRASTS`` finds on a page, in light and in dark."""

    def measure(page):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            yield from page.evaluate(CONTRASTS)
        page.emulate_media(color_scheme="light")

    return measure


@pytest.fixture(scope="package")
def scene_page(tmp_path_factory):
    """The page of a scene whose photos have hostile names; those that a file system takes are there."""
    folder = tmp_path_factory.mktemp("scene")
    for number, name in enumerate(name for name in (*HOSTILE, "0.png", "1.png", "2.png") if "/" not in name):
        pixels = np.full((48, 64, 3), (40 * number, 200, 255 - 40 * number), np.uint8)
        (folder / name).write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    source = Provenance("</title><script>alert(1)</script>", "logpolar sfm '<b>'", {"features": 2.0, "mapping": 1.0})
    facts = make_facts(names=HOSTILE)
    write_scene_page(folder / "scene.html", facts, read_pictures(folder, facts), source)
    return folder / "scene.html"


@pytest.fixture(scope="package")
def photos(photo, tmp_path_factory):
    """Two photos with hostile names: a piece of the photo, and a smaller, rotated view of it."""
    folder = tmp_path_factory.mktemp("pair")
    piece = photo[20:220, 120:360]
    turned = cv2.warpAffine(piece, cv2.getRotationMatrix2D((120, 100), 30, 0.6), (240, 200))
    paths = [folder / name.replace("/", "\u2044") for name in NAMES]
    for path, image in zip(paths, (piece, turned), strict=True):
        path.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    return paths


@pytest.fixture(scope="package")
def pair_page(photos, tmp_path_factory):
    """The page of both photos, by the command line."""
    path = tmp_path_factory.mktemp("page") / "pair.html"
    command = [
        "view",
        "matches",
        *photos,
        "-o",
        path,
        "-m",
        "logpolar-96-small",
        "--geometry",
        "homography",
        "--ratio",
        0.99,
        "--second-look",
        "none",  # all matches fit on the page, so that they can be counted
    ]
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.exit_code == 0, result.output
    return path
