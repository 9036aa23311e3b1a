from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.datasets import aligned
from logpolar.datasets.aligned import AlignedPair, build_aligned, link_aligned, read_pair_list
from logpolar.datasets.building import open_detector
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import AlignedOptions, CorrespondenceRules, KeypointRules, SplitRules
from logpolar.errors import ImageError, LogpolarError
from logpolar.geometry.homography import warp_points, warp_shape, wrap_degrees
from logpolar.images import to_bytes, to_gray

OPTIONS = AlignedOptions(
    carried=60,
    min_matches=0,
    keypoints=KeypointRules(max_keypoints=400, distractors=30),
    rules=CorrespondenceRules(max_count=100),
    split=SplitRules(validation=0.5),
)
UNLIMITED = replace(OPTIONS, rules=CorrespondenceRules())
CHECKED = replace(OPTIONS, min_matches=12, keypoints=KeypointRules(max_keypoints=150, distractors=30))
SHIFT = np.array([[1.1, 0.05, 4], [-0.05, 1.1, 6], [0, 0, 1.0]])


@pytest.fixture(scope="module", autouse=True)
def small_model():
    """In the place of the default, which takes five times as long."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(aligned, "DEFAULT_MODEL", "logpolar-96-small")
        aligned._describer.cache_clear()
        yield
    aligned._describer.cache_clear()


@pytest.fixture(scope="module")
def views(gray, tmp_path_factory):
    """The same view by day, dimmer and with half of it dark, and by day again after the camera moved by 9 px."""
    folder = tmp_path_factory.mktemp("views")
    day = to_bytes(gray)[40:300, 60:400]
    dusk = (day * np.linspace(0.5, 0.02, day.shape[1])).astype(np.uint8)
    images = {"day": day, "dusk": dusk, "moved": to_bytes(gray)[49:309, 60:400], "small": day[:-10]}
    images["through"] = cv2.warpPerspective(day, SHIFT, (380, 300), flags=cv2.INTER_LINEAR)
    for name, image in images.items():
        cv2.imwrite(str(folder / f"{name}.png"), image)
    return folder


def pair_of(views, first: str, second: str, homography=None) -> AlignedPair:
    return AlignedPair(views / f"{first}.png", views / f"{second}.png", homography)


def link(pair: AlignedPair, options: AlignedOptions = OPTIONS):
    return link_aligned(pair, options, np.random.default_rng(0))


@pytest.mark.parametrize(("second", "homography"), [("dusk", None), ("through", SHIFT)])
def test_partners_lie_where_the_warp_sends_them(views, second, homography):
    pair = link(pair_of(views, "day", second, homography))
    found, matrix = pair.correspondences, np.eye(3) if homography is None else homography
    warped, jacobian = warp_points(matrix, found.first.xy)
    assert len(found) > 30
    assert np.linalg.norm(warped - found.second.xy, axis=1).max() <= OPTIONS.rules.max_distance + 1e-3
    angle, size = warp_shape(jacobian, found.first)
    np.testing.assert_allclose(found.log_scale_ratio, np.log(found.second.size / size), atol=1e-4)
    np.testing.assert_allclose(found.angle_residual, wrap_degrees(found.second.angle - angle), atol=1e-2)
    np.testing.assert_allclose(found.warp, jacobian, atol=1e-5)


def test_indices_name_the_keypoints(views):
    pair = link(pair_of(views, "day", "dusk"))
    here, there = pair.correspondences.indices.T
    np.testing.assert_array_equal(pair.first_keypoints.table[here], pair.correspondences.first.table)
    np.testing.assert_array_equal(pair.second_keypoints.table[there], pair.correspondences.second.table)


class TestCarried:
    def test_size_and_angle_are_as_predicted(self, views):
        found = link(pair_of(views, "day", "through", SHIFT), UNLIMITED).correspondences
        carried = (found.log_scale_ratio == 0) & (found.angle_residual == 0)
        assert carried.sum() > 10
        warped, _ = warp_points(SHIFT, found.first.xy[carried])
        np.testing.assert_allclose(warped, found.second.xy[carried], atol=1e-3)

    def test_limit(self, views):
        pairs = [link(pair_of(views, "day", "dusk"), replace(UNLIMITED, carried=count)) for count in (0, 5)]
        counts = [len(pair.correspondences) for pair in pairs]
        assert counts[0] > 0
        assert counts[1] == counts[0] + 5

    def test_spacing(self, views):
        pair = link(pair_of(views, "day", "dusk"))
        for points in (pair.correspondences.first.xy, pair.correspondences.second.xy):
            distance = np.linalg.norm(points[:, None] - points[None], axis=2) + 99 * np.eye(len(points))
            assert distance.min() >= OPTIONS.rules.min_spacing - 1e-3

    def test_unused_ones_are_no_distractors(self, views):
        """Distractors are detected keypoints."""
        pair = link(pair_of(views, "day", "dusk"))
        detected = open_detector(OPTIONS.keypoints)(to_gray(pair.second)).table
        distractors = pair.second_keypoints.table[len(pair.correspondences) :]
        assert len(distractors) == OPTIONS.keypoints.distractors
        assert (distractors[:, None] == detected).all(axis=2).any(axis=1).all()


class TestRefusals:
    def test_a_pair_that_moved(self, views):
        with pytest.raises(LogpolarError, match=r"moved\.png: moved by (8|9)\.\d px"):
            link(pair_of(views, "day", "moved"), CHECKED)

    def test_an_incorrect_homography(self, views):
        with pytest.raises(LogpolarError, match="moved by"):
            link(pair_of(views, "day", "through", SHIFT + np.array([[0, 0, 5], [0, 0, 0], [0, 0, 0]])), CHECKED)

    def test_different_sizes(self, views):
        with pytest.raises(LogpolarError, match="340 x 260 and 340 x 250 pixels, but no homography"):
            link(pair_of(views, "day", "small"))

    def test_too_few_matches(self, views):
        with pytest.raises(LogpolarError, match="consistent matches, cannot be checked"):
            link(pair_of(views, "day", "dusk"), replace(CHECKED, min_matches=100000))

    def test_no_check(self, views):
        assert len(link(pair_of(views, "day", "moved")).correspondences) > 0


@pytest.fixture(scope="module")
def built(views, tmp_path_factory):
    pairs = [
        pair_of(views, "day", "dusk"),
        pair_of(views, "day", "moved"),
        pair_of(views, "through", "through"),
        pair_of(views, "dusk", "day"),
    ]
    output = tmp_path_factory.mktemp("aligned") / "views.h5"
    return build_aligned(pairs, output, CHECKED), output, pairs


class TestFile:
    def test_report(self, built):
        report, _, _ = built
        assert report.counts["pairs"] == 3
        [(name, reason)] = report.left_out.items()
        assert name.endswith("day.png#1a")
        assert "moved by" in reason

    def test_pairs_of_one_camera_have_one_group_and_one_split(self, built):
        with CorrespondenceFile(built[1]) as file:
            groups = file.groups()
            splits = [file.images[first].split for first, _ in file.pair_images.tolist()]
        assert groups[0] == groups[2] != groups[1]
        assert splits[0] == splits[2] != splits[1]

    def test_stored_images_are_those_keypoints_were_detected_in(self, built, views):
        with CorrespondenceFile(built[1]) as file:
            np.testing.assert_array_equal(file.read_image(0), link(pair_of(views, "day", "dusk")).first)

    def test_second_run_has_nothing_to_do(self, built):
        assert build_aligned(built[2], built[1], CHECKED).was_complete

    def test_nothing_usable(self, views, tmp_path):
        with pytest.raises(ImageError, match=r"none of the 1 pairs can be used; .*moved by"):
            build_aligned([pair_of(views, "day", "moved")], tmp_path / "out.h5", CHECKED)
        assert not (tmp_path / "out.h5").exists()

    def test_no_pairs(self, tmp_path):
        with pytest.raises(LogpolarError, match="there are no pairs"):
            build_aligned([], tmp_path / "out.h5")


class TestLists:
    def test_paths_are_relative_to_the_list(self, tmp_path):
        np.savetxt(tmp_path / "H", SHIFT)
        (tmp_path / "pairs.txt").write_text("# cameras\n\na.jpg b.jpg\nc.jpg sub/d.jpg H\n")
        plain, warped = read_pair_list(tmp_path / "pairs.txt")
        assert (plain.first, plain.second, plain.homography) == (tmp_path / "a.jpg", tmp_path / "b.jpg", None)
        assert warped.second == tmp_path / "sub/d.jpg"
        np.testing.assert_allclose(warped.homography, SHIFT)

    @pytest.mark.parametrize(
        ("text", "message"),
        [("", "no pairs"), ("# none\n", "no pairs"), ("a.jpg\n", "line 1: 'a.jpg' is not two images")],
    )
    def test_bad_lists(self, tmp_path, text, message):
        (tmp_path / "pairs.txt").write_text(text)
        with pytest.raises(LogpolarError, match=message):
            read_pair_list(tmp_path / "pairs.txt")

    def test_missing_list(self, tmp_path):
        with pytest.raises(LogpolarError, match=r"none\.txt"):
            read_pair_list(tmp_path / "none.txt")
