from __future__ import annotations

import cv2
import pytest
from click.testing import CliRunner

from logpolar.cli import main

NAMES = 'first <script>alert(1)<\u2028script> & "quoted".png', "zw\u00f6lf'</title>.png"
"""Names that would break a page which takes them for markup."""


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
    ]
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.exit_code == 0, result.output
    return path
