"""COLMAP's own synthetic scene: its true model explains every match."""

from __future__ import annotations

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import pycolmap

from logpolar.sfm.explanation import explained_matches


def test_a_model_explains_matches_whose_keypoints_share_a_point(tmp_path):
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 4
    options.num_points3D = 60
    with pycolmap.Database.open(str(tmp_path / "database.db")) as file:
        model = pycolmap.synthesize_dataset(options, file)
    explained, total = explained_matches([model], tmp_path / "database.db")
    assert explained == total > 0
    fewer = pycolmap.Reconstruction(model)
    for number in list(fewer.point3D_ids())[:30]:
        fewer.delete_point3D(number)
    less, same = explained_matches([fewer], tmp_path / "database.db")
    assert same == total
    assert 0.3 * total < less < 0.7 * total
    assert explained_matches([fewer, model], tmp_path / "database.db") == (total, total)
    assert explained_matches([], tmp_path / "database.db") == (0, 0)
