from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from function_describer import uncached
from logpolar.evaluation.cache import Uncached
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
from logpolar.evaluation.descriptors.whole_features import WholeFeature
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.phototourism import PoseResults, describe_images, prepare_scene
from logpolar.evaluation.poses import PoseScore, evaluate_stereo
from logpolar.features.sift import root_sift

OPTIONS = PhototourismOptions(bags_5=3, bags_10=0, bags_25=0)


class TestDetected:
    def test_real_keypoints(self, castle_scene):
        options = replace(OPTIONS, keypoints=300)
        ready = prepare_scene(castle_scene, options)
        assert ready.bags == {}
        assert set(ready.views) == {row for pair in ready.pairs for row in pair}
        assert all(0 < len(keypoints) <= 300 for keypoints in ready.keypoints.values())
        counted = []
        images = describe_images(ready, uncached(lambda view, points: counted.append(1) or root_sift(view, points)))
        assert len(counted) == len(ready.views)
        # Tiny images, some at 2.5 times the distance: far from right, and as far from chance, which is below 0.05.
        assert evaluate_stereo(ready, images, options).score.maa10 > 0.2

    def test_own_keypoints(self, castle_scene, prepared, true_images):
        """A whole feature that finds the points of the world: poses are right, whatever was prepared."""
        ready = prepare_scene(castle_scene, replace(OPTIONS, keypoints=5, pairs=4))
        by_view = {
            view.tobytes(): (prepared.keypoints[row], true_images[row].descriptors) for row, view in ready.views.items()
        }
        feature = WholeFeature(lambda view: by_view[view.tobytes()])
        images = describe_images(ready, Uncached(feature), KeypointSource(feature.detect, {"kind": "truth"}))
        result = evaluate_stereo(ready, images, OPTIONS)
        assert max(max(each.errors) for each in result.results) < 0.5

    def test_wrong_descriptors(self, castle_scene):
        ready = prepare_scene(castle_scene, replace(OPTIONS, pairs=1))
        with pytest.raises(ValueError, match="finite"):
            describe_images(ready, uncached(lambda view, points: np.full((len(points), 8), np.nan, np.float32)))


class TestResults:
    def test_records_and_means(self, prepared, true_images, wrong_images):
        """Two scenes that count the same: one that is all right, one of three pairs."""
        few = replace(prepared, pairs=prepared.pairs[:3])
        found = PoseResults(0.9, {0.8: 0.5, 0.9: float("nan")})
        found.stereo["right"] = evaluate_stereo(prepared, true_images, OPTIONS)
        found.stereo["wrong"] = evaluate_stereo(
            few, wrong_images, replace(OPTIONS, estimator="opencv")
        )  # gives up sooner
        wrong = found.stereo["wrong"].score
        assert found.means()["two"] == PoseScore(13, (1 + wrong.maa10) / 2, (1 + wrong.map15) / 2)
        assert found.fractions((10,)) == [(1 + found.stereo["wrong"].fractions((10,))[0]) / 2]
        assert [(record["scene"], record["pairs"]) for record in found.records()] == [
            *(("right", 10), ("wrong", 3), ("mean", 13)),
        ]
        assert found.to_dict()["maa10_by_tuned_ratio"] == {"0.8": 0.5, "0.9": None}
