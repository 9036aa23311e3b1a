from __future__ import annotations

import json
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image as PillowImage

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.features.files import FeatureFile
from logpolar.matching.files import MatchFile

GREEN = (80, 200, 60)


@pytest.fixture
def photos(tmp_path, photo):
    """A piece of the photo, and the same turned by a quarter."""
    piece = photo[20:220, 120:360]
    cv2.imwrite(str(tmp_path / "first.png"), piece)
    cv2.imwrite(str(tmp_path / "second.png"), cv2.rotate(piece, cv2.ROTATE_90_CLOCKWISE))
    return tmp_path / "first.png", tmp_path / "second.png"


def run_match(*arguments: object):
    """With the small model and one look, which is faster, unless others are named."""
    faster = ["--model", "logpolar-96-small", "--second-look", "none"]
    return CliRunner().invoke(main, ["match", *faster, *map(str, arguments)])


class TestResult:
    def test_says_what_was_found(self, photos):
        result = run_match(*photos)
        assert result.exit_code == 0
        assert result.stderr == ""
        first, second, matches, agreeing = result.stdout.splitlines()
        assert first.startswith(f"{photos[0]}: 240 x 200, ")
        assert second.startswith(f"{photos[1]}: 200 x 240, ")
        assert int(matches.split()[0]) > 100
        assert int(agreeing.split()[0]) > 0.9 * int(matches.split()[0])
        assert "fundamental" in agreeing

    def test_learned_matcher_is_for_its_own_descriptors(self, photos):
        assert_one_error(run_match(*photos, "--matcher", "learned"), "is for descriptors of 'logpolar-96-upright'")
        assert_one_error(run_match(*photos, "--matcher", "consensus"), "no matcher 'consensus'")

    def test_picture_has_both_images_and_green_lines(self, photos, tmp_path):
        assert run_match(*photos, "-o", tmp_path / "matches.png").exit_code == 0
        picture = cv2.imread(str(tmp_path / "matches.png"))
        assert picture.shape == (36 + 240, 240 + 8 + 200, 3)  # caption above
        assert (picture == GREEN).all(axis=2).sum() > 2000
        left = cv2.imread(str(photos[0]))
        untouched = (picture[36:236, :240] == left).all(axis=2)
        assert 0.05 < untouched.mean() < 0.95

    def test_file_holds_features_and_matches(self, photos, tmp_path):
        path = tmp_path / "matches.h5"
        result = run_match(*photos, "--h5", path)
        with FeatureFile(path) as file:
            assert file.names() == ["first.png", "second.png"]
            first, second = file.read("first.png"), file.read("second.png")
        with MatchFile(path) as file:
            matches = file.read("first.png", "second.png")
        assert f"{len(matches)} matches" in result.stdout
        here, there = first.keypoints.xy[matches.indices[:, 0]], second.keypoints.xy[matches.indices[:, 1]]
        turned = np.stack([199 - here[:, 1], here[:, 0]], axis=1)
        assert (np.linalg.norm(turned - there, axis=1) < 2).mean() > 0.9

    def test_file_is_read_by_other_commands(self, photos, tmp_path):
        path = tmp_path / "both.h5"
        run_match(*photos, "--h5", path, "--max-keypoints", 100)
        (tmp_path / "photos").mkdir()
        for photo in photos:
            photo.rename(tmp_path / "photos" / photo.name)
        for command in (
            ("match-features", path, "-o", tmp_path / "matches.h5", "--jobs", 1),
            ("colmap", "export", path, path, "--images", tmp_path / "photos", "-o", tmp_path / "database.db"),
            ("imc", "export", path, path, "-o", tmp_path / "submission", "--scene", "reichstag"),
        ):
            result = CliRunner().invoke(main, [str(each) for each in command])
            assert result.exit_code == 0, result.output

    def test_homography(self, photos):
        result = run_match(*photos, "--geometry", "homography")
        matches, agreeing = (int(line.split()[0]) for line in result.stdout.splitlines()[2:])
        assert 0.9 * matches < agreeing <= matches

    def test_geometry_can_be_left_out(self, photos, tmp_path):
        result = run_match(*photos, "--geometry", "none", "-o", tmp_path / "all.png")
        assert "agree" not in result.stdout
        assert (cv2.imread(str(tmp_path / "all.png")) == GREEN).all(axis=2).any()

    def test_ratio_makes_matches_fewer(self, photos):
        counts = [int(run_match(*photos, "--ratio", ratio).stdout.splitlines()[2].split()[0]) for ratio in (0.4, 1)]
        assert 0 < counts[0] < counts[1]

    def test_max_keypoints(self, photos):
        result = run_match(*photos, "--max-keypoints", 20)
        assert [line.split()[-2] for line in result.stdout.splitlines()[:2]] == ["20", "20"]

    def test_max_size_keeps_the_coordinates_of_the_original(self, photos, tmp_path):
        result = run_match(*photos, "--max-size", 150, "--h5", tmp_path / "small.h5")
        assert "240 x 200" in result.stdout
        with FeatureFile(tmp_path / "small.h5") as file:
            assert file.read("first.png").keypoints.xy[:, 0].max() > 160

    def test_two_files_of_one_name_get_their_folders_name(self, photos, tmp_path):
        (tmp_path / "other").mkdir()
        other = photos[1].rename(tmp_path / "other" / "first.png")
        assert run_match(photos[0], other, "--h5", tmp_path / "matches.h5").exit_code == 0
        with FeatureFile(tmp_path / "matches.h5") as file:
            assert file.names() == ["other/first.png", f"{tmp_path.name}/first.png"]
        with MatchFile(tmp_path / "matches.h5") as file:
            assert len(file.read(f"{tmp_path.name}/first.png", "other/first.png")) > 100

    def test_image_with_itself(self, photos, tmp_path):
        assert run_match(photos[0], photos[0], "--h5", tmp_path / "same.h5").exit_code == 0
        with MatchFile(tmp_path / "same.h5") as file:
            matches = file.read("first.png", "first.png")
        assert (matches.indices[:, 0] == matches.indices[:, 1]).mean() > 0.95


def make_image(kind: str, path: Path, photo: np.ndarray) -> Path:
    """A file of an unusual kind, made of the photo where it shows something."""
    piece = np.ascontiguousarray(photo[20:220, 120:360])
    if kind == "one pixel":
        image = np.full((1, 1, 3), 70, np.uint8)
    elif kind == "blank":
        image = np.full((90, 80, 3), 70, np.uint8)
    elif kind == "16 bit":
        image = piece.astype(np.uint16) * 257
    elif kind == "alpha":
        image = np.dstack([piece, piece[:, :, 0]])
    elif kind == "float":
        image = piece.astype(np.float32) * 3 - 100
    elif kind == "cmyk":
        PillowImage.fromarray(piece[:, :, ::-1]).convert("CMYK").save(path.with_suffix(".jpg"))
        return path.with_suffix(".jpg")
    path = path.with_suffix(".tif" if kind == "float" else ".png")
    assert cv2.imwrite(str(path), image)
    return path


def line_starting(result, start: str) -> str:
    return next(line for line in result.stdout.splitlines() if line.startswith(start))


class TestPose:
    CAMERA = "SIMPLE_PINHOLE,{},{},300,{},{}"

    def test_is_printed(self, photos):
        """A quarter turn in the image plane is one about the axis of the camera."""
        cameras = self.CAMERA.format(240, 200, 120, 100), self.CAMERA.format(200, 240, 100, 120)
        result = run_match(*photos, "--camera-a", cameras[0], "--camera-b", cameras[1])
        assert "agree with one relative pose" in result.stdout
        degrees, axis = line_starting(result, "rotation:").removeprefix("rotation: ").split(" degrees about ")
        assert float(degrees) == pytest.approx(90, abs=1)
        assert float(axis.strip("()").split(",")[2]) == pytest.approx(1, abs=0.01)
        assert "no baseline" in line_starting(result, "translation:")  # the camera turned where it stood

    def test_from_exif(self, photos, tmp_path):
        exif = PillowImage.Exif()
        exif.get_ifd(0x8769)[0xA405] = 28
        PillowImage.open(photos[0]).save(tmp_path / "exif.jpg", exif=exif)
        result = run_match(tmp_path / "exif.jpg", photos[1], "--camera-a", "exif", "--camera-b", "exif")
        assert_one_error(result, "second.png", "no focal length")
        result = run_match(*[tmp_path / "exif.jpg"] * 2, "--camera-a", "exif", "--camera-b", "exif", "--json")
        assert np.trace(json.loads(result.stdout)["rotation"]) == pytest.approx(3, abs=0.01)

    @pytest.mark.parametrize(
        ("cameras", "words"),
        [
            (("--camera-a", "nonsense", "--camera-b", "exif"), "not a camera"),
            (("--camera-a", "PINHOLE,2,2,0,0,1,1", "--camera-b", "exif"), "focal length"),
            (("--camera-b", "exif"), "--camera-a"),
            (("--geometry", "pose"), "--camera-a"),
        ],
    )
    def test_bad_cameras(self, photos, cameras, words):
        assert_one_error(run_match(*photos, *cameras), words)


class TestCompare:
    QUICK = ("--compare", "rootsift", "--min-size", 0, "--ratio", 0.8)

    def test_prints_a_line_and_draws_a_panel_for_each(self, photos, tmp_path):
        cv2.imwrite(str(photos[1]), cv2.GaussianBlur(cv2.imread(str(photos[1])), (0, 0), 1.5))
        result = run_match(*photos, *self.QUICK, "-o", tmp_path / "both.png")
        assert result.exit_code == 0
        rows = [line.split() for line in result.stdout.splitlines()[2:5]]
        assert [row[0] for row in rows] == ["descriptor", "logpolar-96-small", "RootSIFT"]
        matches, inliers = zip(*((int(row[1]), int(row[2])) for row in rows[1:]), strict=True)
        assert all(8 < each <= most for each, most in zip(inliers, matches, strict=True))
        assert len(set(matches)) == 2  # the ratio test decides differently on other descriptors
        assert cv2.imread(str(tmp_path / "both.png")).shape[0] > 2 * 240  # the taller photo, twice

    def test_json_has_both(self, photos):
        found = json.loads(run_match(*photos, *self.QUICK, "--json").stdout)
        assert found["compare"]["RootSIFT"]["inliers"] > 50

    def test_with_itself_is_refused(self, photos):
        assert_one_error(run_match(*photos, "--compare", "logpolar-96-small"), "another descriptor")


class TestSecondLook:
    @pytest.fixture
    def close_up(self, tmp_path, photo):
        """The photo, and a rotated part of it, enlarged."""
        cv2.imwrite(str(tmp_path / "whole.png"), photo)
        part = cv2.resize(photo[60:260, 130:330], (500, 500), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(tmp_path / "part.png"), cv2.rotate(part, cv2.ROTATE_90_CLOCKWISE))
        return tmp_path / "whole.png", tmp_path / "part.png", "--max-keypoints", 300

    def found(self, *arguments: object) -> dict[str, int]:
        return json.loads(run_match(*arguments, "--json").stdout)

    @pytest.mark.parametrize("look", ["auto", "same", "logpolar-96-small"])
    def test_adds_matches(self, close_up, look):
        once, twice = self.found(*close_up), self.found(*close_up, "--second-look", look)
        assert once["second_look"] == 0
        assert twice["second_look"] > once["matches"]
        assert twice["inliers"] > 2 * once["inliers"]
        assert twice["a"]["keypoints"] > once["a"]["keypoints"]

    def test_is_the_default_and_in_the_text(self, close_up):
        result = CliRunner().invoke(main, ["match", "--model", "logpolar-96-small", *map(str, close_up)])
        assert result.stdout.splitlines()[2].endswith(" of them by a second look")

    def test_all_that_is_written_shows_both_looks(self, close_up, tmp_path):
        output = "-o", tmp_path / "m.png", "--h5", tmp_path / "m.h5", "--html", tmp_path / "m.html"
        assert run_match(*close_up, "--second-look", "auto", *output).exit_code == 0
        with MatchFile(tmp_path / "m.h5") as file:
            matches = file.read("whole.png", "part.png")
        with FeatureFile(tmp_path / "m.h5") as file:
            settings, features = file.settings, file.read("whole.png")
        assert settings["model"] == "logpolar-96-small"
        assert settings["second_look"]["model"] == "logpolar-96-upright"
        assert (matches.indices[:, 0] >= 300).sum() > 100
        assert len(features) > 400
        assert "keypoints of all looks" in (tmp_path / "m.html").read_text()
        assert (cv2.imread(str(tmp_path / "m.png")) == GREEN).all(axis=2).sum() > 2000

    def test_compared_descriptors_look_alike(self, close_up):
        compare = *close_up, "--compare", "rootsift"
        once, twice = self.found(*compare), self.found(*compare, "--second-look", "same")
        assert once["second_look"] == once["compare"]["RootSIFT"]["second_look"] == 0
        assert min(twice["second_look"], twice["compare"]["RootSIFT"]["second_look"]) > 50
        assert self.found(*compare, "--second-look", "auto")["second_look"] == 0
        assert_one_error(run_match(*compare, "--second-look", "logpolar-sf"), "--compare needs --second-look same")

    def test_features_of_the_first_look_are_not_matched_twice(self, close_up, tmp_path, photo):
        """Named again, they are the same: only the region is looked at."""
        cv2.imwrite(str(tmp_path / "part.png"), photo[60:400, 60:400])
        found = [
            self.found(*close_up, "--model", "logpolar-sf", "--second-look", look)
            for look in ("none", "same", "auto", "logpolar-sf")
        ]
        assert found[1]["second_look"] > 0
        assert found[1] == found[2] == found[3]
        assert found[1]["a"]["keypoints"] <= 600

    def test_stands_upright_whatever_the_orientation_of_the_first(self, close_up):
        turned = "--detector", "logpolar", "--orientation", "gradient"
        assert self.found(*close_up, *turned, "--second-look", "logpolar-96-small")["common_scene"]

    def test_model_that_does_not_exist(self, photos):
        assert_one_error(run_match(*photos, "--second-look", "nothing"), "nothing")


class TestVerdict:
    @pytest.fixture
    def unrelated(self, photos, tmp_path, photo):
        """The first photo and noise with a structure of its own."""
        noise = np.random.default_rng(0).uniform(0, 255, (40, 50)).astype(np.uint8)
        cv2.imwrite(str(tmp_path / "noise.png"), cv2.resize(noise, (250, 200), interpolation=cv2.INTER_CUBIC))
        return photos[0], tmp_path / "noise.png"

    def test_no_common_scene(self, unrelated, tmp_path):
        result = run_match(*unrelated, "--ratio", 1, "-o", tmp_path / "m.png", "--h5", tmp_path / "m.h5")
        assert result.exit_code == 0
        assert line_starting(result, "no common scene found: ")
        assert not (cv2.imread(str(tmp_path / "m.png")) == GREEN).all(axis=2).any()
        with h5py.File(tmp_path / "m.h5") as file:
            assert not file["first.png/noise.png"].attrs["common_scene"]
        plain = json.loads(run_match(*unrelated, "--ratio", 1, "--json").stdout)
        assert plain["common_scene"] is False

    def test_common_scene(self, photos, tmp_path):
        result = run_match(*photos, "--json", "--h5", tmp_path / "m.h5")
        plain = json.loads(result.stdout)
        assert plain["common_scene"] is True
        assert plain["significance"] > 100
        assert plain["a"]["width"], plain["b"]["height"] == (240, 240)
        assert np.shape(plain["matrix"]) == (3, 3)
        assert plain["inliers"] <= plain["matches"] < plain["a"]["keypoints"]
        assert "m.h5" in result.stderr
        with h5py.File(tmp_path / "m.h5") as file:
            assert file["first.png/second.png"].attrs["common_scene"]


class TestKindsOfImage:
    @pytest.mark.parametrize("kind", ["16 bit", "alpha", "float", "cmyk"])
    def test_are_matched_like_the_plain_one(self, photos, tmp_path, photo, kind, capfd):
        result = run_match(photos[0], make_image(kind, tmp_path / "kind", photo), "-o", tmp_path / "matches.png")
        assert result.exit_code == 0
        assert result.stderr == capfd.readouterr().err == ""
        assert int(result.stdout.splitlines()[3].split()[0]) > 80
        assert cv2.imread(str(tmp_path / "matches.png")).shape == (36 + 200, 488, 3)

    @pytest.mark.parametrize("kind", ["one pixel", "blank"])
    def test_without_keypoints_there_are_no_matches_and_all_is_written(self, photos, tmp_path, photo, kind, capfd):
        image = make_image(kind, tmp_path / "empty", photo)
        result = run_match(photos[0], image, "-o", tmp_path / "matches.png", "--h5", tmp_path / "matches.h5")
        assert result.exit_code == 0
        assert result.stderr == capfd.readouterr().err == ""
        assert "0 keypoints" in result.stdout
        assert "\n0 matches\n" in result.stdout
        picture = cv2.imread(str(tmp_path / "matches.png"))
        assert not (picture == GREEN).all(axis=2).any()
        with FeatureFile(tmp_path / "matches.h5") as file:
            assert len(file.read("empty.png")) == 0
        with MatchFile(tmp_path / "matches.h5") as file:
            assert len(file.read("first.png", "empty.png")) == 0


class TestBadInput:
    @pytest.mark.parametrize("second", [False, True])
    def test_missing_file(self, photos, tmp_path, second, capfd):
        pair = (photos[0], tmp_path / "none.jpg") if second else (tmp_path / "none.jpg", photos[0])
        assert_one_error(run_match(*pair), "none.jpg", "no such file")
        assert capfd.readouterr().err == ""

    def test_text_in_place_of_an_image(self, photos, tmp_path, capfd):
        (tmp_path / "text.jpg").write_text("I am not a photo")
        assert_one_error(run_match(photos[0], tmp_path / "text.jpg"), "text.jpg", "not an image")
        assert capfd.readouterr().err == ""

    def test_truncated_jpeg(self, photos, tmp_path, photo, capfd):
        data = cv2.imencode(".jpg", photo)[1].tobytes()
        (tmp_path / "cut.jpg").write_bytes(data[: len(data) // 2])
        assert_one_error(run_match(photos[0], tmp_path / "cut.jpg"), "cut.jpg", "damaged")
        assert capfd.readouterr().err == ""

    def test_nan(self, photos, tmp_path):
        values = np.zeros((20, 20), np.float32)
        values[3, 3:5] = np.nan
        PillowImage.fromarray(values).save(tmp_path / "hole.tif")
        assert_one_error(run_match(photos[0], tmp_path / "hole.tif"), "hole.tif", "2 of 400 values")

    def test_folder(self, photos, tmp_path):
        assert_one_error(run_match(photos[0], tmp_path), str(tmp_path), "is a folder")

    def test_bad_image_leaves_no_output_behind(self, photos, tmp_path):
        run_match(photos[0], tmp_path / "none.jpg", "-o", tmp_path / "matches.png", "--h5", tmp_path / "matches.h5")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["first.png", "second.png"]

    def test_unknown_model(self, photos):
        assert_one_error(run_match(*photos, "--model", "nonsense"), "nonsense", "logpolar-96")

    def test_model_that_is_no_model(self, photos):
        assert_one_error(run_match(*photos, "--model", photos[0]), "first.png", "safetensors")


class TestOutput:
    @pytest.mark.parametrize("option", ["-o", "--h5"])
    def test_folder_that_does_not_exist(self, photos, tmp_path, option):
        result = run_match(*photos, option, tmp_path / "none" / "matches.png")
        assert_one_error(result, "the folder", "none", "does not exist")

    @pytest.mark.parametrize("option", ["-o", "--h5"])
    def test_folder_that_is_a_file(self, photos, tmp_path, option):
        (tmp_path / "file").write_text("")
        assert_one_error(run_match(*photos, option, tmp_path / "file" / "matches.png"), "file")

    @pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where nobody may write")
    @pytest.mark.parametrize("option", ["-o", "--h5"])
    def test_folder_where_nobody_may_write(self, photos, option):
        assert_one_error(run_match(*photos, option, "/proc/matches.png"), "/proc/matches.png")

    def test_folder_in_place_of_a_file(self, photos, tmp_path):
        (tmp_path / "matches.png").mkdir()
        assert_one_error(run_match(*photos, "-o", tmp_path / "matches.png"), "matches.png", "folder")

    def test_ending_that_is_no_picture(self, photos, tmp_path):
        assert_one_error(run_match(*photos, "-o", tmp_path / "matches.txt"), "matches.txt", ".png")

    @pytest.mark.parametrize("option", ["-o", "--h5"])
    def test_input_is_never_overwritten(self, photos, option):
        before = photos[1].read_bytes()
        assert_one_error(run_match(*photos, option, photos[1]), "second.png", "input")
        assert photos[1].read_bytes() == before

    def test_an_earlier_file_is_replaced(self, photos, tmp_path):
        path = tmp_path / "matches.h5"
        run_match(*photos, "--h5", path, "--model", "paper-cartesian-12")
        assert run_match(*photos, "--h5", path).exit_code == 0
        with FeatureFile(path) as file:
            assert file.names() == ["first.png", "second.png"]
            assert file.settings["model"] == "logpolar-96-small"

    def test_a_file_of_other_images_is_left_alone(self, photos, tmp_path):
        path = tmp_path / "features.h5"
        run_match(*photos, "--h5", path)
        assert_one_error(run_match(photos[0], photos[0], "--h5", path), "features.h5", "other images")
        with FeatureFile(path) as file:
            assert file.names() == ["first.png", "second.png"]

    def test_a_file_of_somebody_else_is_left_alone(self, photos, tmp_path):
        with h5py.File(tmp_path / "theirs.h5", "w") as file:
            file["precious"] = [1, 2, 3]
        assert_one_error(run_match(*photos, "--h5", tmp_path / "theirs.h5"), "theirs.h5")
        with h5py.File(tmp_path / "theirs.h5") as file:
            assert file["precious"][()].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "option",
    [("--ratio", "0"), ("--ratio", "1.5"), ("--threshold", "0"), ("--max-keypoints", "0"), ("--runtime", "tpu")],
)
def test_values_out_of_range_are_refused(photos, option):
    result = run_match(*photos, *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr


def test_picture_and_file_of_one_name_are_refused(tmp_path):
    Path(tmp_path / "a.jpg").touch()
    both = str(tmp_path / "x.png")
    result = CliRunner().invoke(
        main, ["match", str(tmp_path / "a.jpg"), str(tmp_path / "a.jpg"), "-o", both, "--h5", both]
    )
    assert result.exit_code == 2
    assert "different names" in result.output
