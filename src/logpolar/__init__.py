"""Local image features with log-polar support regions and a learned descriptor.

>>> import logpolar                                                             # doctest: +SKIP
>>> extractor = logpolar.Extractor("logpolar-96")                               # doctest: +SKIP
>>> a, b = extractor.extract("a.jpg"), extractor.extract("b.jpg")               # doctest: +SKIP
>>> matches = logpolar.match_descriptors(a.descriptors, b.descriptors)          # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from logpolar.settings import VERSION as __version__

if TYPE_CHECKING:
    from logpolar.datasets.files import CorrespondenceFile as CorrespondenceFile
    from logpolar.errors import LogpolarError as LogpolarError
    from logpolar.features.extractor import Extractor as Extractor
    from logpolar.features.features import Features as Features
    from logpolar.features.files import FeatureFile as FeatureFile
    from logpolar.geometry.two_view import estimate_essential as estimate_essential
    from logpolar.geometry.two_view import estimate_fundamental as estimate_fundamental
    from logpolar.geometry.two_view import estimate_homography as estimate_homography
    from logpolar.keypoints import Keypoints as Keypoints
    from logpolar.keypoints.detection import FeatureDetector as FeatureDetector
    from logpolar.keypoints.detection import SiftDetector as SiftDetector
    from logpolar.matching.files import MatchFile as MatchFile
    from logpolar.matching.nearest import MatchingOptions as MatchingOptions
    from logpolar.matching.nearest import match_descriptors as match_descriptors
    from logpolar.models import load_model as load_model
    from logpolar.models import shipped_models as shipped_models
    from logpolar.sampling import Cartesian as Cartesian
    from logpolar.sampling import ImagePyramid as ImagePyramid
    from logpolar.sampling import LogPolar as LogPolar
    from logpolar.sampling import sample_patches as sample_patches

_HOME = {
    "Cartesian": "sampling",
    "CorrespondenceFile": "datasets.files",
    "Extractor": "features.extractor",
    "FeatureDetector": "keypoints.detection",
    "FeatureFile": "features.files",
    "Features": "features.features",
    "Keypoints": "keypoints",
    "ImagePyramid": "sampling",
    "LogPolar": "sampling",
    "LogpolarError": "errors",
    "MatchFile": "matching.files",
    "MatchingOptions": "matching.nearest",
    "SiftDetector": "keypoints.detection",
    "estimate_essential": "geometry.two_view",
    "estimate_fundamental": "geometry.two_view",
    "estimate_homography": "geometry.two_view",
    "load_model": "models",
    "match_descriptors": "matching.nearest",
    "sample_patches": "sampling",
    "shipped_models": "models",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    """Public names are imported when first used, so that ``import logpolar`` and ``logpolar --help`` are quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'logpolar' has no attribute '{name}'")
    return getattr(importlib.import_module(f"logpolar.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
