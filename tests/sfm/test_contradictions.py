"""COLMAP's own synthetic scene, in whose model one photo is turned away."""

from __future__ import annotations

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap

from logpolar.sfm.contradictions import agreement


def test_only_pairs_of_a_misplaced_photo_contradict(tmp_path):
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 4
    options.num_points3D = 60
    database = tmp_path / "database.db"
    with pycolmap.Database.open(str(database)) as file:
        model = pycolmap.synthesize_dataset(options, file)
    names = sorted(image.name for image in model.images.values())
    pairs = [(names[0], names[1]), (names[3], names[1]), (names[3], names[2])]
    assert agreement(model, database, pairs) == [1, 1, 1]
    frame = model.find_image_with_name(names[3]).frame
    away = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([0.0, 0.6, 0.0, 0.8])), np.zeros(3))
    frame.rig_from_world = away * frame.rig_from_world
    found = agreement(model, database, pairs)
    assert found[0] == 1
    assert max(found[1:]) < 0.3
    for number in list(model.point3D_ids()):
        model.delete_point3D(number)
    assert np.isnan(agreement(model, database, pairs)).all()
