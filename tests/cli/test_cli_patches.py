from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image as PillowImage

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.sampling import Cartesian, LogPolar
from logpolar.viewing import plotting


@pytest.fixture
def image(tmp_path, photo):
    cv2.imwrite(str(tmp_path / "photo.jpg"), photo)
    return tmp_path / "photo.jpg"


def run_patches(*arguments: object):
    return CliRunner().invoke(main, ["patches", *map(str, arguments)])


def share_of(picture: np.ndarray, colour: str) -> float:
    """Share of the pixels that have nearly this colour."""
    wanted = np.array(to_rgb(colour))[::-1] * 255
    return float((np.abs(picture - wanted).max(axis=2) < 20).mean())


@pytest.fixture
def drawn(monkeypatch):
    """The arguments of all drawings, in whose places are empty figures, which take no time."""
    drawn = []
    monkeypatch.setattr(plotting, "plot_patches", lambda *arguments: drawn.append(arguments) or Figure((1, 1)))
    return drawn


@pytest.fixture(scope="module")
def pictures(photo, tmp_path_factory):
    """Of one keypoint and of two."""
    folder, found = tmp_path_factory.mktemp("patches"), []
    cv2.imwrite(str(folder / "photo.png"), photo)
    for count in (1, 2):
        result = run_patches(folder / "photo.png", "-o", folder / "patches.png", "--count", count)
        assert result.exit_code == 0
        assert result.stderr == ""
        assert f", {count} keypoints" in result.stdout
        found.append(cv2.imread(str(folder / "patches.png")))
    return found


def test_picture_has_a_row_for_each_keypoint(pictures):
    (one_high, one_wide, _), (two_high, two_wide, _) = (picture.shape for picture in pictures)
    assert one_wide == two_wide > 1500
    assert two_high - one_high == pytest.approx(2.3 * 130, abs=2)


def test_picture_shows_photo_and_coloured_samples(pictures):
    picture = pictures[1].astype(float)
    assert share_of(picture, "tab:blue") > 5e-4
    assert share_of(picture, "tab:orange") > 5e-4
    assert share_of(picture, "tab:green") < 1e-4, "a third keypoint was not asked for"
    assert len(np.unique(picture[:, :, 0])) > 200, "the photo and its patches in many grays"


@pytest.mark.parametrize(
    ("options", "log_polar", "cartesian"),
    [
        ((), LogPolar(96, inner_radius=0.5), Cartesian(12)),
        (("--lambda", 24), LogPolar(24, inner_radius=0.5), Cartesian(12)),
        (("--cartesian-lambda", 5), LogPolar(96, inner_radius=0.5), Cartesian(5)),
        (("--inner-radius", "paper"), LogPolar(96, inner_radius="paper"), Cartesian(12)),
        (("--no-antialias",), LogPolar(96, inner_radius=0.5, antialias=False), Cartesian(12, antialias=False)),
    ],
)
def test_options_decide_what_is_drawn(image, tmp_path, drawn, options, log_polar, cartesian):
    assert run_patches(image, "-o", tmp_path / "out.png", "--count", 1, *options).exit_code == 0
    ((gray, keypoints, *patterns),) = drawn
    assert gray.shape == (512, 512)
    assert len(keypoints) == 1
    assert patterns == [log_polar, cartesian]


@pytest.mark.parametrize(
    ("name", "start"), [("figure.pdf", b"%PDF"), ("figure.svg", b"<?xml"), ("figure.jpg", b"\xff\xd8")]
)
def test_other_formats(image, tmp_path, drawn, name, start):
    assert run_patches(image, "-o", tmp_path / name, "--count", 1).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("kind", ["16 bit", "alpha", "cmyk"])
def test_kinds_of_image(tmp_path, photo, drawn, kind):
    piece = np.ascontiguousarray(photo[:200, 100:300])
    path = tmp_path / "kind.png"
    if kind == "cmyk":
        path = tmp_path / "kind.jpg"
        PillowImage.fromarray(piece[:, :, ::-1]).convert("CMYK").save(path)
    else:
        cv2.imwrite(
            str(path), piece.astype(np.uint16) * 257 if kind == "16 bit" else np.dstack([piece, piece[:, :, 0]])
        )
    result = run_patches(path, "-o", tmp_path / "patches.png", "--count", 1)
    assert result.exit_code == 0
    assert (tmp_path / "patches.png").exists()


class TestBadInput:
    @pytest.mark.parametrize("shape", [(1, 1), (60, 80)])
    def test_no_keypoints(self, tmp_path, shape):
        cv2.imwrite(str(tmp_path / "plain.png"), np.full(shape, 90, np.uint8))
        assert_one_error(run_patches(tmp_path / "plain.png", "-o", tmp_path / "out.png"), "plain.png", "no keypoints")
        assert not (tmp_path / "out.png").exists()

    def test_missing_file(self, tmp_path):
        assert_one_error(run_patches(tmp_path / "none.jpg", "-o", tmp_path / "out.png"), "none.jpg", "no such file")

    def test_text(self, tmp_path, capfd):
        (tmp_path / "text.jpg").write_text("no photo")
        assert_one_error(run_patches(tmp_path / "text.jpg", "-o", tmp_path / "out.png"), "text.jpg", "not an image")
        assert capfd.readouterr().err == ""

    def test_truncated_jpeg(self, image, tmp_path, capfd):
        data = image.read_bytes()
        image.write_bytes(data[: len(data) // 2])
        assert_one_error(run_patches(image, "-o", tmp_path / "out.png"), "photo.jpg", "damaged")
        assert capfd.readouterr().err == ""

    def test_nan(self, tmp_path):
        PillowImage.fromarray(np.full((9, 9), np.nan, np.float32)).save(tmp_path / "hole.tif")
        assert_one_error(run_patches(tmp_path / "hole.tif", "-o", tmp_path / "out.png"), "hole.tif", "81 of 81")


class TestOutput:
    def test_folder_that_does_not_exist(self, image, tmp_path):
        assert_one_error(run_patches(image, "-o", tmp_path / "none" / "out.png"), "none", "does not exist")

    @pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where nobody may write")
    def test_where_nobody_may_write(self, image):
        assert_one_error(run_patches(image, "-o", "/proc/out.png"), "/proc/out.png")

    def test_ending_that_is_no_figure(self, image, tmp_path):
        assert_one_error(run_patches(image, "-o", tmp_path / "out.txt"), "out.txt", ".png")

    def test_the_image_itself_is_never_overwritten(self, image):
        before = image.read_bytes()
        assert_one_error(run_patches(image, "-o", image), "photo.jpg")
        assert image.read_bytes() == before

    def test_output_is_required(self, image):
        result = run_patches(image)
        assert result.exit_code == 2
        assert "--output" in result.stderr


def test_without_matplotlib_the_extra_is_named(image, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "logpolar.viewing.plotting", raising=False)
    assert_one_error(run_patches(image, "-o", tmp_path / "out.png"), "logpolar[viz]")


@pytest.mark.parametrize("option", [("--count", "0"), ("--count", "11"), ("--lambda", "0"), ("--inner-radius", "wide")])
def test_values_out_of_range_are_refused(image, tmp_path, option):
    result = run_patches(image, "-o", tmp_path / "out.png", *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
