"""Features by any method under test, extracted as the library extracts its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from logpolar.evaluation.descriptors.keypoint_sources import open_source
from logpolar.evaluation.descriptors.registry import open_method
from logpolar.features.extractor import Extractor
from logpolar.keypoints.detection import SiftDetector
from logpolar.settings import DetectionOptions


class MethodExtractor(Extractor):
    """SIFT keypoints, or a whole feature's own, described by a method; opened by its spec, also in processes."""

    def __init__(
        self,
        spec: str,
        keypoints: int,
        detection: DetectionOptions,
        engine: Mapping[str, Any],
        detector: str = "sift",
        threads: int = 0,
        contrast: float = SiftDetector.contrast_threshold,
    ) -> None:
        method = open_method(spec, keypoints, **{**engine, "threads": engine.get("threads") or threads})
        assert method.describer is not None
        self.name = method.name
        self.describer, self.max_size, self.min_size = method.describer, detection.max_size or None, detection.min_size
        self._settings = {"descriptor": method.identity, "keypoints": keypoints, **asdict(detection)}
        if method.source is not None:
            self.detector = method.source.detector
        elif detector == "sift":
            self.detector = SiftDetector(keypoints, contrast, spread=detection.spread)
        else:
            source = open_source(detector, keypoints, contrast)
            self.detector = source.detector
            self._settings["detector"] = source.identity

    @property
    def settings(self) -> dict[str, Any]:
        return self._settings
