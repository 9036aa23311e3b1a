"""Options of matching. Imports nothing heavy: the command line is built from these."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.settings import DEFAULT_PAIR_RATIO, DEFAULT_RATIO, check_settings, setting

FILTERS = ("none", "consensus", "auto")

NEAREST = "nearest"
"""The matcher that compares descriptors alone."""

_RATIO_HELP = "Ratio test: best over second best distance; 1 accepts all."
_FILTER_HELP = (
    "consensus: neighbouring matches must agree on the change of scale and rotation; auto: the same for nearest "
    "neighbours of keypoints with sizes and angles, none for others."
)
MATCHER_HELP = (
    "nearest: nearest neighbours; learned: the shipped learned matcher, for features of logpolar-sf; or the file of "
    "one. Looks at other features than a learned matcher's are matched by nearest neighbours."
)


@dataclass(frozen=True)
class MatchingOptions:
    """Which keypoints match; ``ratio`` (None or 1 accepts all) and ``mutual`` are of nearest neighbours."""

    ratio: float | None = setting(DEFAULT_RATIO, _RATIO_HELP, 1e-3, 1)
    mutual: bool = setting(True, "Matches are mutual nearest neighbours.")
    filter: str = setting("none", _FILTER_HELP, choices=FILTERS)
    matcher: str = setting(NEAREST, MATCHER_HELP)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def learned(self) -> bool:
        return self.matcher != NEAREST


@dataclass(frozen=True)
class PairMatchingOptions(MatchingOptions):
    """The defaults where the geometry of two images is estimated: a weaker ratio test, and the filter."""

    ratio: float | None = setting(DEFAULT_PAIR_RATIO, _RATIO_HELP, 1e-3, 1)
    filter: str = setting("auto", _FILTER_HELP, choices=FILTERS)
