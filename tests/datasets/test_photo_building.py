from __future__ import annotations

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest

from helpers import assert_same_content
from logpolar.datasets import homographies
from logpolar.datasets.building import open_detector
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.homographies import build_photos, make_photo_pair, make_view_pair
from logpolar.datasets.options import CorrespondenceRules, PhotoOptions, SplitRules, ViewOptions, stored_settings
from logpolar.errors import ImageError, StorageError
from logpolar.geometry.homography import warp_points, warp_shape, wrap_degrees
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints

OPTIONS = ViewOptions(min_side=90, rules=CorrespondenceRules(max_count=40))
PHOTO_OPTIONS = PhotoOptions(views=2, view=OPTIONS, split=SplitRules(validation=0.4, seed=5))
NAMES = ["0.png", "deep/1.png", "ü 2.png"]
ROUNDING = 0.0051  # pixels and degrees, of the file


@pytest.fixture(scope="module")
def named(photos):
    return dict(zip(NAMES, photos, strict=True))


@pytest.fixture(scope="module")
def built(named, tmp_path_factory):
    """The report, and the file."""
    output = tmp_path_factory.mktemp("built") / "photos.h5"
    return build_photos(named, output, PHOTO_OPTIONS), output


@pytest.fixture(scope="module")
def made(photos):
    """The same pairs without a file."""
    return [make_photo_pair(photos, 5, OPTIONS, (photo, view)) for photo in range(3) for view in range(2)]


def same_set(one: Keypoints, other: Keypoints) -> bool:
    """Whether both hold the same keypoints but for the rounding, in any order."""
    difference = one.table[:, None] - other.table[None]
    difference[:, :, 3] = wrap_degrees(difference[:, :, 3])
    same = (np.abs(difference) <= ROUNDING).all(axis=2)
    return len(one) == len(other) and bool(same.any(axis=0).all() and same.any(axis=1).all())


class TestBuilding:
    def test_the_file_holds_the_pairs(self, built, made):
        with CorrespondenceFile(built[1]) as file:
            assert len(file) == len(made) == 6
            for number, expected in enumerate(made):
                pair = file.read(number)
                np.testing.assert_array_equal(pair.first, expected.first)
                np.testing.assert_array_equal(pair.second, expected.second)
                assert same_set(pair.first_keypoints, expected.first_keypoints)
                assert same_set(pair.second_keypoints, expected.second_keypoints)
                found, truth = pair.correspondences, expected.correspondences
                np.testing.assert_allclose(found.first.table, truth.first.table, rtol=0, atol=ROUNDING)
                np.testing.assert_allclose(found.second.table, truth.second.table, rtol=0, atol=ROUNDING)
                np.testing.assert_allclose(found.warp, truth.warp, rtol=0, atol=6e-4)
                np.testing.assert_allclose(found.log_scale_ratio, truth.log_scale_ratio, rtol=0, atol=6e-4)
                np.testing.assert_allclose(found.angle_residual, truth.angle_residual, rtol=0, atol=ROUNDING)

    def test_report_counts_what_is_in_the_file(self, built, made):
        report, _ = built
        assert report.left_out == {}
        assert report.counts == {
            "images": 12,
            "keypoints": sum(len(pair.first_keypoints) + len(pair.second_keypoints) for pair in made),
            "pairs": 6,
            "pairs_with_correspondences": sum(len(pair.correspondences) > 0 for pair in made),
            "correspondences": sum(len(pair.correspondences) for pair in made),
        }

    def test_rejects_are_those_of_all_pairs(self, built, made):
        with CorrespondenceFile(built[1]) as file:
            rejects = file.rejects()
        for cause, count in rejects.items():
            assert count == sum(pair.rejects[cause] for pair in made)
        keypoints = sum(len(pair.first_keypoints) for pair in made)
        assert sum(rejects.values()) == keypoints - sum(len(pair.correspondences) for pair in made)

    def test_views_are_named_by_photo_and_number(self, built):
        with CorrespondenceFile(built[1]) as file:
            assert [entry.name for entry in file.images] == [
                f"{name}#{view}{side}" for name in NAMES for view in range(2) for side in "ab"
            ]
            assert file.pair_images.tolist() == [[2 * pair, 2 * pair + 1] for pair in range(6)]

    def test_sizes_are_those_of_the_views(self, built):
        with CorrespondenceFile(built[1]) as file:
            for number, entry in enumerate(file.images):
                assert entry.size == file.read_image(number).shape[::-1]

    def test_all_views_of_a_photo_are_of_one_split(self, built):
        with CorrespondenceFile(built[1]) as file:
            parts = {name: {entry.split for entry in file.images if entry.name.startswith(name)} for name in NAMES}
            assert sorted(parts.values(), key=str) == [{"train"}, {"train"}, {"validation"}]
            assert len(file.pairs("train")) == 4
            assert len(file.pairs("validation")) == 2

    def test_settings_and_summary_say_how_it_was_made(self, built):
        with CorrespondenceFile(built[1]) as file:
            assert file.complete
            assert file.settings["source"] == "homographies"
            assert file.settings["views"] == 2
            assert file.settings.items() >= json.loads(json.dumps(stored_settings(PHOTO_OPTIONS))).items()
            assert file.summary["left_out"] == {}
            assert "opencv" in file.summary["versions"]

    def test_keypoints_are_those_of_the_very_images_inside(self, built):
        """Light is changed and the JPEG made before SIFT looks."""
        with CorrespondenceFile(built[1]) as file:
            for number in range(12):
                assert same_set(
                    file.read_keypoints(number), open_detector(OPTIONS.keypoints)(to_gray(file.read_image(number)))
                )

    def test_of_keypoints_without_a_partner_the_strongest_are_kept(self, named, made, tmp_path):
        view = replace(OPTIONS, keypoints=replace(OPTIONS.keypoints, distractors=9))
        build_photos(named, tmp_path / "few.h5", replace(PHOTO_OPTIONS, view=view))
        with CorrespondenceFile(tmp_path / "few.h5") as file:
            for number, expected in enumerate(made):
                pair = file.read(number)
                np.testing.assert_allclose(
                    pair.correspondences.second.table, expected.correspondences.second.table, rtol=0, atol=ROUNDING
                )
                alone = np.delete(expected.second_keypoints.response, expected.correspondences.indices[:, 1])
                kept = np.delete(pair.second_keypoints.response, pair.correspondences.indices[:, 1])
                np.testing.assert_allclose(np.sort(kept), np.sort(alone)[-9:], rtol=0, atol=1e-4)

    def test_warps_ratios_and_residuals_agree_with_the_homography(self, built, made):
        with CorrespondenceFile(built[1]) as file:
            for number, pair in enumerate(made):
                found = file.read_correspondences(number)
                warped, jacobian = warp_points(pair.homography, found.first.xy.astype(float))
                assert np.linalg.norm(warped - found.second.xy, axis=1).max() <= 1.5 + 0.05
                np.testing.assert_allclose(found.warp, jacobian, rtol=0, atol=2e-3)
                angle, size = warp_shape(found.warp.astype(float), found.first)
                np.testing.assert_allclose(np.log(found.second.size / size), found.log_scale_ratio, rtol=0, atol=0.01)
                assert np.abs(wrap_degrees(found.second.angle - angle - found.angle_residual)).max() < 0.5

    def test_warps_carry_neighbours_along(self, built):
        """Known from the file alone: a neighbour's place in the second image follows from the warp, nearly."""
        with CorrespondenceFile(built[1]) as file:
            errors = []
            for number in file.pairs():
                found = file.read_correspondences(number)
                steps, there = (points.xy[:, None] - points.xy[None] for points in (found.first, found.second))
                length = np.linalg.norm(steps, axis=2)
                near = (length > 0) & (length < 25)
                predicted = np.einsum("iab,jib->jia", found.warp, steps)
                errors.append(np.linalg.norm(predicted - there, axis=2)[near])
            errors = np.concatenate(errors)
        assert len(errors) > 40
        assert np.median(errors) < 1

    def test_jobs_do_not_matter(self, built, named, tmp_path):
        assert build_photos(named, tmp_path / "two.h5", PHOTO_OPTIONS, jobs=2) == built[0]
        assert_same_content(tmp_path / "two.h5", built[1])

    def test_a_finished_file_is_left_alone(self, built, named, monkeypatch):
        before = built[1].read_bytes()
        monkeypatch.setattr(homographies, "make_view_pair", None)
        assert not built[0].was_complete
        assert build_photos(named, built[1], PHOTO_OPTIONS) == replace(built[0], was_complete=True)
        assert built[1].read_bytes() == before

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_continues_where_it_stopped(self, built, named, tmp_path, monkeypatch, error):
        output, calls = tmp_path / "stopped.h5", []

        def stop_at_fourth(*arguments):
            calls.append(arguments)
            if len(calls) == 4:
                raise error
            return make_view_pair(*arguments)

        monkeypatch.setattr(homographies, "make_view_pair", stop_at_fourth)
        with pytest.raises(error):
            build_photos(named, output, PHOTO_OPTIONS)
        with CorrespondenceFile(output) as file:
            assert (len(file), len(file.images), file.complete) == (3, 6, False)
        assert build_photos(named, output, PHOTO_OPTIONS) == built[0]
        assert len(calls) == 4 + 3
        assert_same_content(output, built[1])
        assert [path.name for path in tmp_path.iterdir()] == ["stopped.h5"]

    def test_other_options_are_refused(self, built, named):
        options = replace(PHOTO_OPTIONS, view=replace(OPTIONS, max_zoom=3.0))
        with pytest.raises(StorageError, match=r"view\.max_zoom = 4\.0, not 3\.0"):
            build_photos(named, built[1], options)

    def test_other_photos_are_refused(self, built, named):
        with pytest.raises(StorageError):
            build_photos({f"other {name}": path for name, path in named.items()}, built[1], PHOTO_OPTIONS)

    def test_overwriting_starts_anew(self, built, named, tmp_path):
        output = tmp_path / "again.h5"
        output.write_bytes(built[1].read_bytes())
        report = build_photos(named, output, replace(PHOTO_OPTIONS, views=1), overwrite=True)
        assert report.counts["pairs"] == 3

    def test_all_of_it_may_be_for_testing(self, named, tmp_path):
        options = replace(PHOTO_OPTIONS, views=1, split=SplitRules(test=True))
        build_photos(named, tmp_path / "test.h5", options)
        with CorrespondenceFile(tmp_path / "test.h5") as file:
            assert {entry.split for entry in file.images} == {"test"}
            assert file.pairs("test") == [0, 1, 2]

    def test_a_photo_without_keypoints_is_in_the_file(self, tmp_path):
        cv2.imwrite(str(tmp_path / "flat.png"), np.full((1, 1), 90, np.uint8))
        report = build_photos({"flat": tmp_path / "flat.png"}, tmp_path / "f.h5", PHOTO_OPTIONS)
        assert (report.counts["images"], report.counts["keypoints"], report.counts["correspondences"]) == (4, 0, 0)


class TestUnreadablePhotos:
    @pytest.fixture
    def with_bad(self, named, tmp_path):
        (tmp_path / "bad.png").write_text("no photo")
        return {**named, "bad.png": tmp_path / "bad.png"}

    def test_are_left_out_with_the_reason(self, with_bad, tmp_path):
        report = build_photos(with_bad, tmp_path / "f.h5", PHOTO_OPTIONS)
        assert report.left_out["bad.png"] == f"{tmp_path / 'bad.png'}: not an image, or a damaged one"
        with CorrespondenceFile(tmp_path / "f.h5") as file:
            assert file.complete
            assert not [entry.name for entry in file.images if entry.name.startswith("bad.png")]

    def test_cost_the_others_nothing(self, with_bad, tmp_path):
        report = build_photos(with_bad, tmp_path / "f.h5", PHOTO_OPTIONS)
        assert list(report.left_out) == ["bad.png"]
        assert report.counts["pairs"] == 6

    def test_are_still_reported_when_the_finished_file_is_asked_for_again(self, with_bad, tmp_path):
        first, second = (build_photos(with_bad, tmp_path / "f.h5", PHOTO_OPTIONS) for _ in range(2))
        assert first.left_out == second.left_out
        assert "bad.png" in second.left_out

    def test_alone_are_an_error_that_leaves_nothing(self, tmp_path):
        photos = {name: tmp_path / name for name in ("one.png", "two.png")}
        for path in photos.values():
            path.write_text("no photo")
        with pytest.raises(ImageError, match=r"none of the 2 photos can be used; .*\.png: not an image"):
            build_photos(photos, tmp_path / "f.h5", PHOTO_OPTIONS)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.png"]

    def test_no_photos_at_all(self, tmp_path):
        with pytest.raises(ImageError):
            build_photos({}, tmp_path / "f.h5", PHOTO_OPTIONS)

    def test_of_a_name_that_is_not_utf8_are_left_out(self, named, photos, tmp_path):
        report = build_photos({**named, "latin\udce9.png": photos[0]}, tmp_path / "f.h5", PHOTO_OPTIONS)
        assert list(report.left_out) == ["latin\udce9.png"]
        assert report.counts["pairs"] == 6
