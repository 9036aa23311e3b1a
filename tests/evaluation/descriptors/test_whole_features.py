"""Features that come whole: distances as their own, capped, described at their own keypoints only."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.keypoint_sources import open_source, sift_source
from logpolar.evaluation.descriptors.opencv_features import open_opencv_feature, unit_vectors
from logpolar.evaluation.descriptors.registry import open_method
from logpolar.evaluation.descriptors.specs import parse_spec
from logpolar.evaluation.descriptors.whole_features import WholeFeature
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import match_descriptors
from logpolar.matching.options import MatchingOptions


@pytest.fixture(scope="module")
def view(gray):
    return np.ascontiguousarray(to_bytes(gray)[60:260, 100:400])


@pytest.fixture(scope="module")
def shifted(gray):
    return np.ascontiguousarray(to_bytes(gray)[67:267, 95:395])


def refused(spec: str, **more) -> str:
    with pytest.raises(LogpolarError) as error:
        open_method(spec, keypoints=50, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestUnitVectors:
    @pytest.mark.parametrize("width", [1, 32, 61, 64])
    def test_hamming(self, width):
        """61 bytes are AKAZE's: no power of 4, and yet equal Hamming distances are equal to the last bit."""
        raw = np.random.default_rng(width).integers(0, 256, (40, width), np.uint8)
        vectors = unit_vectors(raw, cv2.NORM_HAMMING)
        bits = np.unpackbits(raw, axis=1).astype(int)
        hamming = np.abs(bits[:, None] - bits[None]).sum(axis=2)
        np.testing.assert_array_equal(np.sum(vectors**2, axis=1), 1)
        similarity = vectors @ vectors.T
        np.testing.assert_array_equal(similarity, 1 - 2 * hamming / vectors.shape[1])

    def test_cells_of_two_bits(self):
        raw = np.random.default_rng(0).integers(0, 256, (30, 32), np.uint8)
        vectors = unit_vectors(raw, cv2.NORM_HAMMING2)
        cells = np.stack([raw >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(30, -1)
        differ = (cells[:, None] != cells[None]).sum(axis=2)
        one, other = raw[0], raw[1]
        assert differ[0, 1] == cv2.norm(one, other, cv2.NORM_HAMMING2)
        np.testing.assert_array_equal(vectors @ vectors.T, 1 - differ / (vectors.shape[1] / 4))

    def test_ratio_is_the_root_of_that_of_hamming(self):
        """Distances 4 and 16 of 256 bits."""
        raw = np.zeros((3, 32), np.uint8)
        raw[1, 0], raw[2, :2] = 0b1111, 255
        first, second = (np.linalg.norm(v) for v in np.diff(unit_vectors(raw, cv2.NORM_HAMMING)[[1, 0, 2]], axis=0))
        assert first / second == pytest.approx((4 / 16) ** 0.5)

    def test_floats(self):
        vectors = unit_vectors(np.array([[3, 4], [0, 0]], np.float32), cv2.NORM_L2)
        np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0]])

    def test_nothing(self):
        assert unit_vectors(np.zeros((0, 32), np.uint8), cv2.NORM_HAMMING).shape == (0, 256)


class TestMatches:
    @pytest.mark.parametrize(("options", "norm"), [("", cv2.NORM_HAMMING), (",WTA_K=3", cv2.NORM_HAMMING2)])
    def test_as_brute_force_of_opencv(self, view, shifted, options, norm):
        """Mutual nearest neighbours, where they are unique: of equally near ones OpenCV takes another."""
        orb = cv2.ORB.create(nfeatures=300, **({"WTA_K": 3} if options else {}))
        assert orb.defaultNorm() == norm
        (_, first), (_, second) = (orb.detectAndCompute(image, None) for image in (view, shifted))
        brute = cv2.BFMatcher(norm, crossCheck=True).match(first, second)
        vectors = unit_vectors(first, norm), unit_vectors(second, norm)
        ours = match_descriptors(*vectors, MatchingOptions(ratio=None)).indices.tolist()
        similarity = vectors[0] @ vectors[1].T
        unique = {
            (i, j)
            for i, j in {(match.queryIdx, match.trainIdx) for match in brute} | {tuple(pair) for pair in ours}
            if (similarity[i] == similarity[i, j]).sum() == 1 == (similarity[:, j] == similarity[i, j]).sum()
        }
        assert len(unique) > 100
        assert unique <= {(match.queryIdx, match.trainIdx) for match in brute}
        assert unique <= {tuple(pair) for pair in ours}


class TestOpenCV:
    def test_orb_is_opencvs(self, view):
        method = open_method("opencv:ORB,fastThreshold=10", keypoints=80)
        points, raw = cv2.ORB.create(nfeatures=80, fastThreshold=10).detectAndCompute(view, None)
        keypoints = method.source(view)
        expected = Keypoints.from_opencv(points)
        order = np.argsort(-expected.response, kind="stable")
        np.testing.assert_array_equal(keypoints.table, expected[order].table)
        found = method.describer.describe(to_gray(view), keypoints)
        np.testing.assert_array_equal(found, unit_vectors(raw[order], cv2.NORM_HAMMING))
        assert method.name == "OpenCV ORB (fastThreshold=10)"
        assert method.identity["keypoints"] == 80
        assert method.source.settings["detector"] == method.identity

    def test_no_more_than_there_should_be(self, view):
        """Even if the spec lets the class find more."""
        keypoints = open_method("opencv:SIFT,nfeatures=500", keypoints=20).source(view)
        assert len(keypoints) == 20
        assert np.all(np.diff(keypoints.response) <= 0)

    def test_nothing_to_find(self):
        blank = np.full((60, 80), 90, np.uint8)
        for spec, width in (("opencv:ORB", 256), ("opencv:SIFT", 128)):
            method = open_method(spec, keypoints=20)
            keypoints = method.source(blank)
            assert method.describer.describe(to_gray(blank), keypoints).shape[0] == len(keypoints) == 0
            assert method.describer.describe(to_gray(blank), keypoints).shape[1] == width

    def test_refusals(self):
        words = refused("opencv:Nothing")
        assert f"OpenCV {cv2.__version__} has no feature 'Nothing'" in words
        assert "ORB, SIFT" in words
        assert "unknown option 'foo' (known: nfeatures, " in refused("opencv:ORB,foo=1")
        assert "is a detector only; use it as --detector" in refused("opencv:GFTTDetector")
        assert "OpenCV's ORB fails" in refused("opencv:ORB,WTA_K=9")
        assert "refuses these options" in refused("opencv:ORB,nfeatures=many")
        with pytest.raises(LogpolarError, match="its own keypoints"):
            open_method("opencv:ORB")

    def test_weights_of_networks(self, tmp_path):
        if not hasattr(cv2, "DISK"):
            pytest.skip("this OpenCV has no networks")
        assert "no such file" in refused(f"opencv:DISK,modelPath={tmp_path / 'none.onnx'}")
        (tmp_path / "text.onnx").write_text("no network")
        assert "refuses these options" in refused(f"opencv:DISK,modelPath={tmp_path / 'text.onnx'}")


class TestOwnKeypoints:
    def test_others_are_refused(self, view, shifted):
        method = open_method("opencv:ORB", keypoints=30)
        keypoints = method.source(view)
        for image, points in ((view, keypoints[:-1]), (shifted, keypoints), (view, sift_source(30, 0.04)(view))):
            with pytest.raises(ValueError, match="only its own keypoints"):
                method.describer.describe(to_gray(image), points)

    def test_a_view_is_extracted_once(self, view, shifted):
        extract, calls = open_opencv_feature(parse_spec("opencv:ORB"), 30)[0], []
        feature = WholeFeature(lambda image: calls.append(1) or extract(image))
        found = [feature.detect(image.astype(np.float32) / 255) for image in (view, shifted)]
        for image, keypoints in zip((view, shifted), found, strict=True):
            assert len(feature.describe(to_gray(image), keypoints)) == len(keypoints)
        assert len(calls) == 2


class TestDetectors:
    def test_opencv(self, view):
        source = open_source("opencv:ORB", 40, 0.04, "median")
        expected = Keypoints.from_opencv(cv2.ORB.create(nfeatures=40).detect(view, None)).strongest(40)
        np.testing.assert_array_equal(source.detect(view).table, expected.table)
        assert set(source(view).size.tolist()) == {float(np.median(expected.size))}
        assert source.identity["class"] == "ORB"
        assert len(open_source("opencv:GFTTDetector", 40, 0.04)(view)) == 40

    def test_sift(self, view):
        np.testing.assert_array_equal(open_source("sift", 40, 0.03)(view).table, sift_source(40, 0.03)(view).table)

    @pytest.mark.parametrize("name", ["CornerGFTT", "CornerHarris", "BlobHessian"])
    def test_kornia(self, view, shifted, name):
        """They are found again where the image moved to: 5 px left, 7 px up."""
        pytest.importorskip("kornia")
        view, shifted = view[:130, :160], shifted[:130, :160]
        source = open_source(f"kornia:{name}", 60, 0.04)
        first, second = source(view), source(shifted)
        assert 30 < len(first) <= 60
        first.check()
        moved = first.xy + np.array([5, -7], np.float32)
        nearest = np.linalg.norm(moved[:, None] - second.xy[None], axis=2).min(axis=1)
        assert np.mean(nearest < 1) > 0.5
        assert len(set(first.angle.tolist())) > 10
        assert set(open_source(f"kornia:{name},upright=true", 60, 0.04)(view).angle.tolist()) == {0.0}

    def test_key_net(self, view, tmp_path):
        feature = pytest.importorskip("kornia").feature
        torch.manual_seed(0)
        torch.save({"state_dict": feature.KeyNet(pretrained=False).state_dict()}, tmp_path / "key.pth")
        source = open_source(f"kornia:KeyNet,weights={tmp_path / 'key.pth'}", 20, 0.04)
        assert len(source.identity["sha256"]) == 64
        assert len(source(view[:100, :120])) <= 20

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("orb", "known: sift, logpolar, logpolar:FILE, opencv:NAME, kornia:NAME"),
            ("sift,lambda=3", "unknown option 'lambda'"),
            ("opencv:Nothing", "has no feature"),
            ("kornia:Nothing", "known: CornerGFTT"),
            ("kornia:CornerGFTT,weights=a.pth", "takes no weights"),
            ("kornia:CornerGFTT,size=3", "known: weights, upright"),
            ("kornia:KeyNet", "weights=FILE"),
        ],
    )
    def test_refusals(self, spec, words):
        pytest.importorskip("kornia")
        with pytest.raises(LogpolarError, match=f"^detector '{spec}'") as error:
            open_source(spec, 20, 0.04)
        assert words in str(error.value)


class TestKornia:
    def test_local_feature(self, view):
        """Places that kornia fills up with zeros are left out."""
        feature = pytest.importorskip("kornia").feature
        view = np.ascontiguousarray(view[:100, :120])
        method = open_method("kornia:SIFTFeature,rootsift=false", keypoints=600)
        keypoints = method.source(view)
        found = method.describer.describe(to_gray(view), keypoints)
        assert 30 < len(found) == len(keypoints) < 600
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        with torch.inference_mode():
            image = torch.from_numpy(view.astype(np.float32) / 255)[None, None]
            lafs, responses, raw = feature.SIFTFeature(600, rootsift=False)(image)
        best = int(responses[0].argmax())
        np.testing.assert_allclose(keypoints.xy[0], lafs[0, best, :, 2], atol=1e-4)
        expected = raw[0, best] / raw[0, best].norm()
        np.testing.assert_allclose(found[0], expected, atol=1e-4)

    @pytest.mark.parametrize("name", ["DISK", "ALIKED", "XFeat"])
    def test_networks(self, view, tmp_path, name):
        """With weights that were never trained, bare or in a checkpoint as they are published."""
        feature = pytest.importorskip("kornia").feature
        if not hasattr(feature, name):
            pytest.skip(f"this kornia has no {name}")
        torch.manual_seed(0)
        module = getattr(feature, name)()
        state = (module.net if name == "XFeat" else module).state_dict()
        state.pop("dkd.hw_grid", None)  # a constant that published weights lack
        path = tmp_path / "weights.pth"
        torch.save({"extractor": state} if name == "DISK" else state, path)
        options = {"DISK": "", "ALIKED": ",detection_threshold=0", "XFeat": ",detection_threshold=0"}[name]
        method = open_method(f"kornia:{name},weights={path}{options}", keypoints=30)
        keypoints = method.source(view)
        found = method.describer.describe(to_gray(view), keypoints)
        assert 0 < len(found) == len(keypoints) <= 30
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-4)
        assert (keypoints.xy <= [300, 200]).all()
        assert method.identity["class"] == name
        source = open_source(f"kornia:{name},weights={path}{options}", 30, 0.04)
        alone = source.detect(view)
        np.testing.assert_array_equal(alone.xy, keypoints.xy)
        assert set(alone.size.tolist()) == {6.0}
        assert source.identity["sha256"] == method.identity["sha256"]

    def test_refusals(self, tmp_path):
        pytest.importorskip("kornia")
        assert "known: SIFTFeature" in refused("kornia:Nothing")
        assert "weights=FILE" in refused("kornia:DISK")
        assert "takes no weights" in refused("kornia:SIFTFeature,weights=a.pth")
        assert "unknown option 'foo'" in refused("kornia:SIFTFeature,foo=1")
        (tmp_path / "text.pth").write_text("no weights")
        assert "text.pth: not plain weights" in refused(f"kornia:DISK,weights={tmp_path / 'text.pth'}")
        torch.save({"a": torch.zeros(3)}, tmp_path / "other.pth")
        for name in ("DISK", "ALIKED"):
            words = refused(f"kornia:{name},weights={tmp_path / 'other.pth'}")
            assert f"other.pth: not the weights of {name}" in words
