from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.sfm.picture import draw_model, draw_summary
from logpolar.sfm.scene_page import PageModel, SmallPhoto
from scene_facts import HOSTILE, make_facts

GREEN, OCHRE, RED, BLUE = (80, 200, 60), (0, 140, 200), (60, 60, 230), (196, 98, 11)


def page_model(**changes):
    """Red points left, green ones above, and a camera that looks away from the viewer."""
    shown = PageModel(
        points=np.array([[-0.5, 0.0, 0.0], [0.0, 0.5, -0.2]]),
        colours=np.array([[255, 0, 0], [0, 255, 0]], np.uint8),
        centres=np.array([[0.0, 0.0, 0.8]]),
        axes=np.diag([1.0, -1.0, -1.0])[None],
        field=np.array([[0.5, 0.4]]),
    )
    return replace(shown, **changes)


def middle(picture, colour):
    rows, columns = np.nonzero((picture == colour).all(axis=2))
    return columns.mean() - 320, rows.mean() - 320


def test_from_above_the_viewer_is_below():
    picture = draw_model(page_model(), "from above")
    x, y = middle(picture, (0, 0, 255))
    assert x < -100
    assert abs(y) < 2
    x, y = middle(picture, (0, 255, 0))
    assert abs(x) < 2
    assert y < -30
    assert middle(picture, BLUE)[1] > 150, "the camera"


def test_from_the_front_up_is_up_and_near_points_hide_distant_ones():
    picture = draw_model(page_model(), "from the front")
    assert middle(picture, (0, 255, 0))[1] < -100
    places = np.array([[0.3, 0.3, 0.1], [0.3, 0.3, 0.0]])
    hidden = draw_model(page_model(points=places), "from the front")
    assert (hidden == (0, 0, 255)).all(axis=2).any()
    assert not (hidden == (0, 255, 0)).all(axis=2).any()


def test_corners_are_where_the_camera_looks():
    (corners,) = page_model().corners()
    size = page_model().frustum
    np.testing.assert_allclose(corners[0], [-0.5 * size, 0.4 * size, 0.8 - size])
    np.testing.assert_allclose(corners[2], [0.5 * size, -0.4 * size, 0.8 - size])


def test_summary_has_panels_and_frames():
    facts = make_facts(names=HOSTILE)
    photo = cv2.imencode(".jpg", np.full((40, 60, 3), 99, np.uint8))[1].tobytes()
    picture = draw_summary(facts, {facts.photos[1].name: SmallPhoto(photo, 1)}, "Title")
    assert picture.shape[1] == 1288
    assert (picture == RED).all(axis=2).sum() > 2 * 4 * 3 * 72, "photos that are not in the model, and findings"
    assert (picture == GREEN).all(axis=2).sum() > 8 * 4 * 3 * 60
    assert (picture == 99).all(axis=2).sum() > 70**2


def test_frames_have_a_legend_of_the_colours_that_occur():
    def colours(facts):
        legend = draw_summary(facts, {}, "Title")[-32:]
        return [(legend == colour).all(axis=2).any() for colour in (GREEN, OCHRE, RED)]

    assert colours(make_facts(cameras=9)) == [True, True, True]
    assert colours(make_facts(cameras=8)) == [True, False, True]
    many = replace(make_facts(), photos=[replace(make_facts().photos[-1], name=f"{n}.png") for n in range(60)])
    words = [(draw_summary(each, {}, "Title")[-32:] < 100).all(axis=2).sum() for each in (make_facts(), many)]
    assert words[1] > 1.3 * words[0], "and of how many more there are"


def test_few_points_are_larger():
    one = draw_model(
        page_model(centres=np.zeros((0, 3)), axes=np.zeros((0, 3, 3)), field=np.zeros((0, 2))), "from above"
    )
    assert (one == (0, 0, 255)).all(axis=2).sum() == 16
    many = page_model(points=np.tile([[-0.5, 0, 0]], (6000, 1)), colours=np.tile(np.uint8([[255, 0, 0]]), (6000, 1)))
    assert (draw_model(many, "from above") == (0, 0, 255)).all(axis=2).sum() == 4


@pytest.mark.parametrize("points", [0, 400])
def test_without_a_model_and_without_points(points):
    facts = make_facts(points=points)
    assert draw_summary(facts, {}, "Title").shape[0] > 640
    assert draw_summary(replace(facts, models=[]), {}, "Title").shape[0] < 400
