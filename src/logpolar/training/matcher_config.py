"""Configs of matchers: TOML files, every key checked for type and range.

[data]
scenes = ["scenes/*.h5"]
photos = ["photos/*.jpg"]

[optimisation]
steps = 30000
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from logpolar.models import shipped_models
from logpolar.models.files import shipped_detectors
from logpolar.models.matcher_files import DEFAULT_ALIAS, shipped_matchers
from logpolar.training.config import parse_config, read_section, refuse_unknown, typed
from logpolar.training.matcher_options import MatcherConfig, MatcherData

_SECTIONS = ("data", "views", "network", "batch", "optimisation", "run")
_TITLES = ("name", "description", "licence", "descriptor", "init")


def read_matcher_config(path: str | Path, changes: Sequence[str] = ()) -> MatcherConfig:
    """Read a config, with changes of the form ``section.key=value`` applied; files are relative to its folder.

    Raises ``LogpolarError`` naming the file and the key.
    """
    return parse_config(Path(path), changes, make_matcher_config)


def make_matcher_config(table: dict[str, Any], folder: Path) -> MatcherConfig:
    """From parsed TOML; raises ``ValueError`` naming the key."""
    base = MatcherConfig()
    refuse_unknown(table, [*_TITLES, *_SECTIONS], "the config")
    titles = {name: typed(table[name], "", name) for name in _TITLES if name in table}
    name = titles.get("name", base.name)
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(f"name must be usable as a file name, not {name!r}")
    sections = {each: read_section(getattr(base, each), table.get(each, {}), f"[{each}]") for each in _SECTIONS}
    sections["data"] = _placed(sections["data"], folder)
    descriptor = titles.get("descriptor", base.descriptor)
    if descriptor not in shipped_models():
        titles["descriptor"] = str(folder.absolute() / descriptor)
    views = sections["views"]
    if views.detector not in shipped_detectors():
        sections["views"] = replace(views, detector=str(folder.absolute() / views.detector))
    if titles.get("init") and titles["init"] not in (DEFAULT_ALIAS, *shipped_matchers()):
        titles["init"] = str(folder.absolute() / titles["init"])
    return replace(base, **titles, **sections)


def _placed(data: MatcherData, folder: Path) -> MatcherData:
    start = Path(glob.escape(str(folder.absolute())))
    scenes, photos, aligned = (
        tuple(str(start / file) for file in files) for files in (data.scenes, data.photos, data.aligned)
    )
    if not (scenes or photos or aligned):
        raise ValueError("[data] names no scenes, photos or aligned pairs")
    return replace(data, scenes=scenes, photos=photos, aligned=aligned)
