"""Configs of detector training: TOML files, every key checked for type and range.

[[data]]
kind = "scenes"
files = ["scenes/*"]

[objectives]
matchability = 1.0
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from logpolar.models import shipped_models
from logpolar.models.cards import DetectorOptions
from logpolar.models.files import shipped_detectors
from logpolar.training.config import help_texts, parse_config, read_section, refuse_unknown, toml_lines, typed
from logpolar.training.detector_options import DetectorConfig, DetectorSource

_SECTIONS = ("crops", "objectives", "optimisation", "run")
_TITLES = ("name", "description", "sources", "licence", "init")
_NETWORK = {
    "channels": "At a half, a quarter and an eighth of the resolution; multiples of 8 use a processor best.",
    "blocks": "Further 3 x 3 convolutions at each of them.",
    "window": "Pixels: contrast is normalised over squares of 2 window + 1; 0 does not.",
}


def read_detector_config(path: str | Path, changes: Sequence[str] = ()) -> DetectorConfig:
    """Read a config, with changes of the form ``section.key=value`` applied.

    Files are relative to the config's folder. Raises ``LogpolarError`` naming the file and the key.
    """
    return parse_config(Path(path), changes, _make_config)


def detector_config_to_toml(config: DetectorConfig) -> str:
    """The whole config as a commented file, which ``read_detector_config`` reads back to the same config."""
    titles = {name: getattr(config, name) for name in _TITLES}
    tables: list[tuple[str, Mapping[str, Any], Mapping[str, str]]] = [
        *(("[[data]]", asdict(source), help_texts(DetectorSource)) for source in config.data),
        ("[network]", asdict(config.network), _NETWORK),
        *((f"[{each}]", asdict(getattr(config, each)), help_texts(type(getattr(config, each)))) for each in _SECTIONS),
    ]
    lines = toml_lines(titles, help_texts(DetectorConfig))
    for header, values, words in tables:
        lines += ["", header, *toml_lines(values, words)]
    return "\n".join(lines) + "\n"


def detector_config_to_dict(config: DetectorConfig) -> dict[str, Any]:
    """The config as plain values, for a card or a checkpoint."""
    return dict(json.loads(json.dumps(asdict(config))))


def _make_config(table: Mapping[str, Any], folder: Path) -> DetectorConfig:
    base, rest = DetectorConfig(), dict(table)
    refuse_unknown(rest, [*_TITLES, "data", "network", *_SECTIONS], "the config")
    titles = {name: typed(rest[name], "", name) for name in _TITLES if name in rest}
    name = titles.get("name", base.name)
    if name in ("", "..") or Path(name).name != name:
        raise ValueError(f"name must be usable as a file name, not {name!r}")
    sections = {each: read_section(getattr(base, each), rest.get(each, {}), f"[{each}]") for each in _SECTIONS}
    if sections["crops"].side % 8:
        raise ValueError(f"[crops] side must be a multiple of 8, not {sections['crops'].side}")
    weights = ("imitation", "matchability", "repeatability")
    if not any(getattr(sections["objectives"], each) for each in weights):
        raise ValueError(f"[objectives] the weights of {', '.join(weights)} are all 0: nothing would be learned")
    described = sections["objectives"].descriptor
    if described not in shipped_models():
        sections["objectives"] = replace(sections["objectives"], descriptor=str(folder.absolute() / described))
    if titles.get("init") and titles["init"] not in shipped_detectors():
        titles["init"] = str(folder.absolute() / titles["init"])
    network = _read_network(rest.get("network", {}))
    return replace(base, **titles, **sections, network=network, data=_read_data(rest.get("data", []), folder))


def _read_network(table: Any) -> DetectorOptions:
    if not isinstance(table, dict):
        raise ValueError("[network] must be a section with keys")
    refuse_unknown(table, _NETWORK, "[network]")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    try:
        return replace(DetectorOptions(), **values)
    except ValueError as error:
        raise ValueError(f"[network] {error}") from error


def _read_data(tables: Any, folder: Path) -> tuple[DetectorSource, ...]:
    if not isinstance(tables, list) or not tables:
        raise ValueError("there is no [[data]]: name photos, scenes or aligned pairs to train on")
    sources = [read_section(DetectorSource(), table, "[[data]]") for table in tables]
    if not all(source.files for source in sources) or not sum(source.share for source in sources) > 0:
        raise ValueError("[[data]] must name files, and the shares must not all be 0")
    return tuple(replace(source, files=_find(source.files, folder)) for source in sources)


def _find(patterns: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Existing files and folders, sorted."""
    found: list[str] = []
    for pattern in patterns:
        matches = sorted(glob.glob(str(Path(glob.escape(str(folder.absolute()))) / pattern)))  # noqa: PTH207
        if not matches:
            raise ValueError(f"[[data]] {pattern}: no such file or folder")
        found += matches
    return tuple(dict.fromkeys(found))
