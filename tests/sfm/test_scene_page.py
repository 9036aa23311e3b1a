from __future__ import annotations

import base64
import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image

from logpolar.sfm import scene_page
from logpolar.sfm.facts import Facts, PairFacts
from logpolar.sfm.scene_page import (
    Provenance,
    SmallPhoto,
    graph_layout,
    model_data,
    pack_gaps,
    page_frame,
    read_pictures,
    scene_data,
    upright_axes,
)
from logpolar.viewing.drawing import upright
from scene_facts import HOSTILE, make_facts

SOURCE = Provenance("A scene", "logpolar sfm photos model", {"mapping": 1.5})
TYPES = {"f4": "<f4", "i4": "<i4", "u1": "u1"}


def unpack(packed):
    return np.frombuffer(base64.b64decode(packed["data"]), TYPES[packed["type"]]).reshape(packed["shape"])


def rows_of(packed: np.ndarray) -> list[int]:
    """What ``pack_gaps`` packed, read byte by byte."""
    rows, gap, shift, row = [], 0, 0, -1
    for byte in packed.tolist():
        gap, shift = gap + ((byte & 127) << shift), shift + 7
        if byte < 128:
            row += gap + 1
            rows.append(row)
            gap = shift = 0
    return rows


@pytest.mark.parametrize(
    "rows", [[], [0], [5], [0, 1, 2], [127, 128, 129], [128, 300, 20000, 3_000_000, 400_000_000]], ids=str
)
def test_gaps_come_back(rows):
    assert rows_of(pack_gaps(np.array(rows, np.intp))) == rows


class TestModel:
    facts = make_facts()
    shown = model_data(facts, facts.models[0], {})

    def test_points_keep_their_shape_and_colours(self):
        """Random order, rotated and scaled: matched by colour, distances are all in one ratio."""
        model = self.facts.models[0]
        points, colours = unpack(self.shown["points"]).astype(np.float64), unpack(self.shown["colours"])
        order = {tuple(colour): row for row, colour in enumerate(colours.tolist())}
        rows = [order[tuple(colour)] for colour in model.colours.tolist()]
        before, after = (np.linalg.norm(p - p[0], axis=1)[1:] for p in (model.points, points[rows]))
        np.testing.assert_allclose(after / before, after[0] / before[0], rtol=1e-4)

    def test_cameras_observe_the_same_points_in_the_same_direction(self):
        """A camera's points, in its own axes, are those of the model up to the scale."""
        model = self.facts.models[0]
        _, _, scale = page_frame(model, [1] * len(model.poses))
        cameras, points = unpack(self.shown["cameras"]), unpack(self.shown["points"])
        observed, starts = unpack(self.shown["observed"]), np.cumsum([0, *self.shown["lengths"]])
        for number in range(len(model.photos)):
            rows = rows_of(observed[starts[number] : starts[number + 1]])
            axes, centre = cameras[number, :9].reshape(3, 3), cameras[number, 9:]
            here = (points[rows] - centre) @ axes.T / scale
            pose = model.poses[number]
            expected = model.points[model.observed[number]] @ pose[:, :3].T + pose[:, 3]
            np.testing.assert_allclose(here[np.argsort(here[:, 0])], expected[np.argsort(expected[:, 0])], atol=1e-4)

    def test_field_of_view(self):
        np.testing.assert_allclose(unpack(self.shown["field"])[0], [320 / 600, 240 / 600], rtol=1e-6)

    def test_most_points_and_cameras_are_within_reach(self):
        for name, columns in (("points", slice(0, 3)), ("cameras", slice(9, 12))):
            reach = np.linalg.norm(unpack(self.shown[name])[:, columns], axis=1)
            assert np.quantile(reach, 0.8) < 1.2

    def test_of_many_points_those_that_most_photos_see(self, monkeypatch):
        monkeypatch.setattr(scene_page, "MAX_POINTS", 50)
        model = replace(self.facts.models[0], track_lengths=np.arange(400))
        shown = model_data(self.facts, model, {})
        assert unpack(shown["tracks"]).min() == min(350, 255)
        assert (len(unpack(shown["points"])), shown["total"]) == (50, 400)


def test_upright_axes_see_cameras_from_behind():
    model = make_facts().models[0]
    axes = upright_axes(model.poses, [1] * len(model.poses))
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-9)
    assert np.linalg.det(axes) > 0
    np.testing.assert_allclose(axes[1], [0, -1, 0], atol=0.3)
    assert (axes @ model.centres.mean(axis=0))[2] > 3, "cameras are nearer to the viewer than what they look at"


@pytest.mark.parametrize("poses", [np.eye(3, 4)[None], np.array([np.eye(3, 4), np.diag([1, -1, -1]) @ np.eye(3, 4)])])
def test_upright_axes_of_any_cameras(poses):
    axes = upright_axes(poses, [1] * len(poses))
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-9)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_scenes_stand_upright_whichever_way_their_photos_are_stored(orientation):
    """Two pixels of a stored photo, one above the other once it is upright, are so on the page."""
    poses = make_facts().models[0].poses
    _, ((x, y),) = upright(np.zeros((3, 3)), np.array([[1.0, 2.0]]), orientation)
    _, ((there_x, there_y),) = upright(np.zeros((3, 3)), np.array([[2.0, 1.0]]), orientation)
    # Where the stored photo's axes point in the upright one tells how its camera lay.
    shown = np.array([[there_x - 1, x - 1], [there_y - 1, y - 1]])
    lying = poses.copy()
    lying[:, :2] = np.einsum("ij,cjk->cik", shown.T, poses[:, :2])
    straight, found = upright_axes(poses, [1] * len(poses)), upright_axes(lying, [orientation] * len(poses))
    np.testing.assert_allclose(found, straight, atol=1e-9)


class TestGraph:
    def test_islands_lie_apart(self):
        links = np.array([[0, 1], [1, 2], [0, 2], [3, 4], [4, 5], [3, 5]])
        places = graph_layout(6, links, np.ones(6))
        assert places.min() == 0
        assert places.max() == 1
        groups = places[:3], places[3:]
        spread = max(np.linalg.norm(group - group.mean(axis=0), axis=1).max() for group in groups)
        assert np.linalg.norm(groups[0].mean(axis=0) - groups[1].mean(axis=0)) > 2 * spread

    @pytest.mark.parametrize("alone", [1, 20, 300])
    def test_photos_without_pairs_leave_the_room_to_the_others(self, alone):
        links = np.array([[0, 1], [1, 2], [0, 2]])
        places = graph_layout(3 + alone, links, np.ones(3))
        assert places.min() >= 0
        assert places.max() == 1
        assert np.ptp(places[:3, 0]) == 1
        assert np.ptp(places[:3, 1]) > 0.55
        assert places[3:, 1].min() > places[:3, 1].max()
        assert len(np.unique(places[3:], axis=0)) == alone

    @pytest.mark.parametrize("count", [1, 2])
    def test_few_photos(self, count):
        assert np.isfinite(graph_layout(count, np.zeros((0, 2), int), np.zeros(0))).all()

    def test_none_for_too_many(self, monkeypatch):
        monkeypatch.setattr(scene_page, "MAX_GRAPH", 3)
        assert scene_data(make_facts(), {}, SOURCE)["graph"] is None


class TestPage:
    def test_photos_cameras_and_findings(self):
        data = scene_data(make_facts(), {}, SOURCE)
        assert data["verdict"].startswith("8 of 10 photos registered; 400 points")
        assert data["verdict"].endswith(
            "the 10 photos are not in this page: none was found where it looked, see --photos"
        )
        some = scene_data(make_facts(), {"1.png": SmallPhoto(b"", 1)}, SOURCE)["verdict"]
        assert some.endswith("9 photos are not in this page: not found, or not readable")
        reasons = [photo["reason"] for photo in data["photos"] if photo["reason"]]
        assert reasons == ["cannot be read", "no verified pair; 40 matches in the best of 1"]
        assert data["photos"][0]["pairs"] == 7
        assert (data["lenses"][0]["view"], data["lenses"][0]["photos"]) == (56.1, 9)
        assert [finding["level"] for finding in data["findings"]] == ["problem", "warning"]
        json.dumps(data, allow_nan=False)

    def test_the_error_is_that_of_the_model_which_other_models_do_not_change(self):
        facts = make_facts()
        facts = replace(facts, models=[replace(facts.models[0], error=0.4)])
        assert "mean reprojection error 0.40 px" in scene_data(facts, {}, SOURCE)["verdict"]
        assert "error" not in scene_data(make_facts(), {}, SOURCE)["verdict"]

    def test_without_a_model_without_points_and_without_anything(self):
        facts = make_facts(points=0)
        assert scene_data(facts, {}, SOURCE)["findings"][0]["title"] == "Model 0 has no points"
        empty = PairFacts(np.zeros((0, 2), np.intp), *(np.zeros(0, np.intp) for _ in range(3)))
        for facts in (replace(make_facts(), models=[]), Facts([], {}, empty)):
            data = scene_data(facts, {}, SOURCE)
            assert data["model"] is None
            json.dumps(data, allow_nan=False)

    def test_photos_that_moved_or_lead_outside_are_left_out(self, tmp_path):
        cv2.imwrite(str(tmp_path / "a.png"), np.zeros((600, 900), np.uint8))
        (tmp_path / "b.png").write_text("no photo")
        facts = make_facts(names=["a.png", "b.png", "gone.png", "../a.png", *HOSTILE[:4]])
        found = read_pictures(tmp_path, facts)
        assert list(found) == ["a.png"]
        assert read_pictures(None, facts) == {}
        assert cv2.imdecode(np.frombuffer(found["a.png"].jpeg, np.uint8), cv2.IMREAD_UNCHANGED).shape[:2] == (320, 480)

    def test_photos_are_upright_by_their_exif_data(self, tmp_path):
        pixels = np.zeros((60, 90, 3), np.uint8)
        pixels[:20] = 255  # above, in the file; a camera held on its side, so that this is at the right
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif)
        found = read_pictures(tmp_path, make_facts(names=["a.jpg"]))["a.jpg"]
        shown = cv2.imdecode(np.frombuffer(found.jpeg, np.uint8), cv2.IMREAD_GRAYSCALE)
        assert (shown.shape, found.orientation) == ((90, 60), 6)
        assert shown[:, -15:].min() > 200
        assert shown[:, :35].max() < 50
