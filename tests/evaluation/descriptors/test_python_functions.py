"""Functions of the user's own file as descriptors."""

from __future__ import annotations

import numpy as np
import pytest

from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.registry import open_method
from logpolar.keypoints import Keypoints

GRAY = np.random.default_rng(0).random((20, 30), np.float32)
KEYPOINTS = Keypoints.from_points([[3, 4], [10, 11]])


def method(folder, body: str, name: str = "describe"):
    (folder / "mine.py").write_text(f"import numpy as np\ndef describe(gray, keypoints):\n    {body}\n")
    return open_method(f"python:{folder / 'mine.py'}:{name}")


def test_rows_of_unit_length_in_the_order_of_the_keypoints(tmp_path):
    found = method(tmp_path, "return np.stack([3 * keypoints.xy[:, 0], 4 * keypoints.xy[:, 0]], axis=1)")
    assert found.name == "mine.py:describe"
    np.testing.assert_allclose(found.describer.describe(GRAY, KEYPOINTS), [[0.6, 0.8], [0.6, 0.8]], rtol=1e-6)


def test_identity_follows_the_content_of_the_file(tmp_path):
    first, again, other = (method(tmp_path, f"return np.ones((len(keypoints), {n}))") for n in (3, 3, 4))
    assert first.identity == again.identity != other.identity


@pytest.mark.parametrize(
    ("body", "words"),
    {
        "fails": ("raise RuntimeError('of mine')", "mine.py:describe: failed: RuntimeError: of mine"),
        "too few": ("return np.ones((1, 3))", "a row for each of the 2 keypoints, not 1 x 3"),
        "no numbers": ("return np.full((2, 3), np.nan)", "finite"),
        "nothing": ("pass", "failed|not one number"),
    }.values(),
)
def test_what_it_returns_is_checked(tmp_path, body, words):
    with pytest.raises(LogpolarError, match=words) as caught:
        method(tmp_path, body).describer.describe(GRAY, KEYPOINTS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    {
        "no such file": ("python:none.py:describe", "No such file|no such file"),
        "no such function": ("python:FILE:other", "has no function 'other'"),
        "no function named": ("python:FILE", "FILE.py:NAME"),
        "no file": ("python:", "FILE.py:NAME"),
        "options": ("python:FILE:describe,lambda=3", "unknown option 'lambda'"),
        "broken file": ("python:BROKEN:describe", "broken.py: cannot be run: SyntaxError"),
    }.values(),
)
def test_refused(tmp_path, spec, words):
    (tmp_path / "mine.py").write_text("def describe(gray, keypoints): ...\n")
    (tmp_path / "broken.py").write_text("def (\n")
    spec = spec.replace("FILE", str(tmp_path / "mine.py")).replace("BROKEN", str(tmp_path / "broken.py"))
    with pytest.raises(LogpolarError, match=words) as caught:
        open_method(spec)
    assert "\n" not in str(caught.value)
