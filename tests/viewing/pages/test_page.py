from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest

from logpolar.viewing.pages import page
from logpolar.viewing.pages.page import pack_array, pack_picture, render_page, write_page

HOSTILE = "</script><script>alert(1)</script><!-- ]]> \u2028 & \"'"


class Elements(HTMLParser):
    """Tags with their attributes, and the text of each element, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        self.found.append(("", {}, ""))

    def handle_data(self, data):
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def of(self, tag):
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


@pytest.fixture(scope="module")
def rendered():
    return Elements(render_page("pair", HOSTILE, {"name": HOSTILE, HOSTILE: [1.5, None]}))


def test_hostile_text_comes_back_and_is_nothing_else(rendered):
    (title,), scripts = rendered.of("title"), rendered.of("script")
    assert title[1].startswith("</script><script>alert(1)</script>")
    assert len(scripts) == 2
    assert json.loads(scripts[0][1]) == {"name": HOSTILE, HOSTILE: [1.5, None]}


def test_the_policy_allows_this_style_and_this_script_only(rendered):
    policy = rendered.of("meta")[1][0]["content"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for rule, (_, text) in (("style-src", rendered.of("style")[0]), ("script-src", rendered.of("script")[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_no_address_and_no_handler_inside_the_markup():
    names = [each.name for each in (resources.files("logpolar.viewing.pages") / "assets").iterdir()]
    assert {"page.css", "page.js", "pair.html", "scene.html", "document.html"} <= set(names)
    for name in names:
        assert not re.search(r"https?:|//cdn|url\(|\bon\w+=\"|innerHTML|eval\(", page._asset(name)), name


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rrggbb."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_text_has_the_contrast_that_wcag_asks_for():
    palettes = re.findall(r":root \{(.*?)\}", page._asset("page.css"), re.DOTALL)
    assert len(palettes) == 2, "light and dark"
    for palette in palettes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", palette))
        for text in ("ink", "soft", "accent", "good", "bad", "weak"):
            for ground in ("paper", "panel"):
                low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)
        low, high = sorted((luminance(colours["edge"]), luminance(colours["paper"])))
        assert (high + 0.05) / (low + 0.05) >= 3, "edges of controls"


@pytest.mark.parametrize("kind", ["f4", "i4", "i2", "i1", "u1"])
def test_arrays_are_little_endian_bytes(kind):
    values = np.arange(6).reshape(2, 3).astype(f">{kind}" if kind[1] != "1" else kind)
    packed = pack_array(values)
    assert (packed["type"], tuple(packed["shape"])) == (kind, (2, 3))
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed["data"]), f"<{kind}"), values.ravel())


def test_pictures_are_addresses():
    assert pack_picture(b"abc", "png") == "data:image/png;base64,YWJj"


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        render_page("pair", "", {"x": float("nan")})


def test_written_as_utf8(tmp_path):
    write_page(tmp_path / "p.html", "pair", "zw\u00f6lf", {})
    assert "<title>zw\u00f6lf</title>" in (tmp_path / "p.html").read_text(encoding="utf-8")
