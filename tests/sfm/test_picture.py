from __future__ import annotations

import shutil

import numpy as np
import pycolmap

from logpolar.sfm.mapper import MODELS, RegisteredImage, SfmReport
from logpolar.sfm.picture import draw_from_above, draw_summary


def test_shows_points_cameras_and_photos(scene, tmp_path):
    model = pycolmap.synthesize_dataset(pycolmap.SyntheticDatasetOptions())
    (tmp_path / MODELS / "0").mkdir(parents=True)
    model.write(str(tmp_path / MODELS / "0"))
    shutil.copyfile(scene / "features.h5", tmp_path / "features.h5")
    registered = [RegisteredImage(f"{number}.png", 1, (0, 0, 0)) for number in range(4)]
    picture = draw_summary(scene / "photos", tmp_path, SfmReport(6, {}, 15, 15, 1, 0, registered, 1, 1, 1))
    assert picture.shape[0] == 720
    assert (picture == (60, 60, 230)).all(axis=2).sum() > 6 * 30, "cameras, and frames of photos without a pose"
    assert (picture == (80, 200, 60)).all(axis=2).sum() > 4 * 200, "frames"


def test_is_seen_from_above():
    """Two cameras side by side look along z, y down: in the picture below the points, left and right."""
    points = np.array([[x, y, 10.0] for x in (-3, 0, 3) for y in (-5, 5)])
    poses = np.array([np.concatenate([np.eye(3), [[-x], [0], [0]]], axis=1) for x in (-2.0, 2.0)])
    picture = draw_from_above(points, poses)
    rows, columns = np.nonzero((picture == (60, 60, 230)).all(axis=2))
    ink = np.nonzero((picture == (90, 90, 90)).all(axis=2))[0]
    assert rows.min() > ink.max()
    assert columns.min() < 360 < columns.max()
    assert not ((columns > 300) & (columns < 420)).any()
