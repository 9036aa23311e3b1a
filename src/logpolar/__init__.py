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
    from logpolar.errors import ImageError as ImageError
    from logpolar.errors import KeypointError as KeypointError
    from logpolar.errors import LogpolarError as LogpolarError
    from logpolar.errors import LogpolarWarning as LogpolarWarning
    from logpolar.errors import MissingExtraError as MissingExtraError
    from logpolar.errors import ModelError as ModelError
    from logpolar.errors import StorageError as StorageError
    from logpolar.features.batch import extract_images as extract_images
    from logpolar.features.collections import open_features as open_features
    from logpolar.features.extractor import Extractor as Extractor
    from logpolar.features.features import Features as Features
    from logpolar.features.files import FeatureFile as FeatureFile
    from logpolar.geometry.intrinsics import Intrinsics as Intrinsics
    from logpolar.geometry.options import EstimationOptions as EstimationOptions
    from logpolar.geometry.second_look import MatchedImages as MatchedImages
    from logpolar.geometry.second_look import match_images as match_images
    from logpolar.geometry.two_view import Geometry as Geometry
    from logpolar.geometry.two_view import RelativePose as RelativePose
    from logpolar.geometry.two_view import estimate_fundamental as estimate_fundamental
    from logpolar.geometry.two_view import estimate_homography as estimate_homography
    from logpolar.geometry.two_view import estimate_pose as estimate_pose
    from logpolar.geometry.verification import VerifiedMatches as VerifiedMatches
    from logpolar.geometry.verification import match_and_verify as match_and_verify
    from logpolar.keypoints import Keypoints as Keypoints
    from logpolar.keypoints.detection import FeatureDetector as FeatureDetector
    from logpolar.keypoints.detection import SiftDetector as SiftDetector
    from logpolar.matching.collections import open_matches as open_matches
    from logpolar.matching.files import MatchFile as MatchFile
    from logpolar.matching.learned import LearnedMatcher as LearnedMatcher
    from logpolar.matching.nearest import Matches as Matches
    from logpolar.matching.nearest import match_descriptors as match_descriptors
    from logpolar.matching.nearest import match_features as match_features
    from logpolar.matching.options import MatchingOptions as MatchingOptions
    from logpolar.models import load_model as load_model
    from logpolar.models import shipped_models as shipped_models
    from logpolar.models.detectors import NetworkDetector as NetworkDetector
    from logpolar.sampling import Cartesian as Cartesian
    from logpolar.sampling import LogPolar as LogPolar
    from logpolar.sampling import sample_patches as sample_patches
    from logpolar.viewing.drawing import draw_matches as draw_matches

_NAMES = {
    "errors": (
        "ImageError",
        "KeypointError",
        "LogpolarError",
        "LogpolarWarning",
        "MissingExtraError",
        "ModelError",
        "StorageError",
    ),
    "features.batch": ("extract_images",),
    "features.collections": ("open_features",),
    "features.extractor": ("Extractor",),
    "features.features": ("Features",),
    "features.files": ("FeatureFile",),
    "geometry.intrinsics": ("Intrinsics",),
    "geometry.options": ("EstimationOptions",),
    "geometry.second_look": ("MatchedImages", "match_images"),
    "geometry.two_view": (
        "Geometry",
        "RelativePose",
        "estimate_fundamental",
        "estimate_homography",
        "estimate_pose",
    ),
    "geometry.verification": ("VerifiedMatches", "match_and_verify"),
    "keypoints": ("Keypoints",),
    "keypoints.detection": ("FeatureDetector", "SiftDetector"),
    "matching.collections": ("open_matches",),
    "matching.files": ("MatchFile",),
    "matching.learned": ("LearnedMatcher",),
    "matching.nearest": ("Matches", "match_descriptors", "match_features"),
    "matching.options": ("MatchingOptions",),
    "models": ("load_model", "shipped_models"),
    "models.detectors": ("NetworkDetector",),
    "sampling": ("Cartesian", "LogPolar", "sample_patches"),
    "viewing.drawing": ("draw_matches",),
}
_HOME = {name: home for home, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    """Import a public name on first use: ``import logpolar`` and ``logpolar --help`` stay fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'logpolar' has no attribute '{name}'")
    return getattr(importlib.import_module(f"logpolar.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
