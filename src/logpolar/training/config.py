"""Training configs: TOML files, every key checked for type and range.

A config names the recipe it starts from and states what differs:

    recipe = "default"

    [[data]]
    files = ["set/*.h5"]

    [optimisation]
    steps = 30000
"""

from __future__ import annotations

import difflib
import glob
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from logpolar.errors import LogpolarError, first_line
from logpolar.models import shipped_models
from logpolar.models.cards import NetworkOptions, PatchSizeError
from logpolar.sampling.patterns import Cartesian, LogPolar, Pattern, pattern_from_dict, pattern_to_dict
from logpolar.settings import check_settings
from logpolar.storage.inputs import read_text
from logpolar.training.options import DataSource, TrainingConfig
from logpolar.training.recipes import RECIPES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Config = TypeVar("Config")

_SECTIONS = ("batch", "augmentation", "loss", "distillation", "optimisation", "run")
_TITLES = ("name", "description", "sources", "licence", "init", "own_network", "own_loss")
_TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "a string", tuple: "a list of strings"}
_SAMPLING = {
    "pattern": "log-polar or cartesian.",
    "lambda": "Support: its radius is lambda / 2 keypoint sizes.",
    "rows": "Angles of a log-polar patch.",
    "columns": "Radii of a log-polar patch.",
    "inner_radius": "Of a log-polar patch: covariant (tied to the keypoint), paper (1 px), or between, 0 to 1.",
    "radius_ratio": "Outermost over innermost radius, where that is tied to the keypoint.",
    "antialias": "Look up in a Gaussian pyramid.",
    "outside": "Beyond the image: reflect it, or the mean of the patch.",
}
_NETWORK = {
    "circular": "Circular padding over the rows of every convolution: for log-polar patches only.",
    "dropout": "Before the last convolution.",
    "channels": "Of each 3 x 3 convolution; multiples of 16 use a processor best.",
    "strides": "Of each convolution, 1 or 2; rows and columns must be multiples of their product.",
}
"""Rows and columns of the network are those of the sampling."""


def read_config(path: str | Path, changes: Sequence[str] = ()) -> TrainingConfig:
    """Read a config, with changes of the form ``section.key=value`` applied.

    Data files are relative to the config's folder. Raises ``LogpolarError`` naming the file and the key.
    """
    return parse_config(Path(path), changes, _make_config)


def parse_config(path: Path, changes: Sequence[str], make: Callable[[dict[str, Any], Path], Config]) -> Config:
    """What ``make`` makes of the file's tables and its folder; its ``ValueError`` becomes a ``LogpolarError``."""
    text = read_text(path, LogpolarError, "TOML file")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also integers of thousands of digits
        raise LogpolarError(f"{path}: not a TOML file: {first_line(error)}") from error
    try:
        for change in changes:
            _apply_change(table, change)
        return make(table, path.parent)
    except (ValueError, OverflowError) as error:  # the latter: integers beyond the range of floats or of the library
        raise LogpolarError(f"{path}: {error}") from error


def find_files(source: DataSource) -> list[Path]:
    """The files of a source, sorted; raises ``LogpolarError`` for a pattern that matches nothing."""
    found = []
    for pattern in source.files:
        matches = sorted(glob.glob(pattern))  # noqa: PTH207 # the pattern may start anywhere
        if not matches:
            raise LogpolarError(f"{pattern}: no such correspondence file")
        found += [Path(match) for match in matches]
    return list(dict.fromkeys(found))


def config_to_toml(config: TrainingConfig) -> str:
    """The whole config as a commented file, which ``read_config`` reads back to the same config."""
    titles = {name: getattr(config, name) for name in _TITLES}
    network = {name: getattr(config.network, name) for name in _NETWORK}
    options = {section: getattr(config, section) for section in _SECTIONS}
    tables: list[tuple[str, Mapping[str, Any], Mapping[str, str]]] = [
        *(("[[data]]", asdict(source), help_texts(DataSource)) for source in config.data),
        ("[sampling]", pattern_to_dict(config.sampling), _SAMPLING),
        ("[network]", network, _NETWORK),
        *((f"[{section}]", asdict(values), help_texts(type(values))) for section, values in options.items()),
    ]
    lines = toml_lines(titles, help_texts(TrainingConfig))
    for header, values, words in tables:
        lines += ["", header, *toml_lines(values, words)]
    return "\n".join(lines) + "\n"


def recipe_to_toml(name: str) -> str:
    """A recipe as a config to start from, with an example path for the data."""
    text = config_to_toml(replace(RECIPES[name], data=(DataSource(("set/*.h5",)),)))
    return f'recipe = "{name}"  # Keys left out keep this recipe\'s values: delete what you do not change.\n{text}'


def config_to_dict(config: TrainingConfig) -> dict[str, Any]:
    """The config as plain values, for a card or a checkpoint."""
    values = json.loads(json.dumps(asdict(config)))
    return {**values, "sampling": pattern_to_dict(config.sampling)}


def toml_lines(values: Mapping[str, Any], words: Mapping[str, str]) -> list[str]:
    return [f"{name} = {_toml(value)}  # {words[name]}" for name, value in values.items()]


def help_texts(kind: type) -> dict[str, str]:
    found = {}
    for each in fields(kind):
        choices = each.metadata.get("choices")
        found[each.name] = each.metadata.get("help", "") + (f" One of {', '.join(choices)}." if choices else "")
    return found


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # legal in JSON, not in TOML


def _apply_change(table: dict[str, Any], change: str) -> None:
    """Apply ``section.key=value`` or ``key=value``; a value that is not TOML is a string."""
    name, equals, text = change.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or len(sections) > 1 or not key:
        raise ValueError(f"a change is written section.key=value, not '{change}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    inner = table.setdefault(sections[0], {}) if sections else table
    if not isinstance(inner, dict):
        raise ValueError(f"--set cannot change [[{sections[0]}]], of which there may be several")
    inner[key] = value


def _make_config(table: Mapping[str, Any], folder: Path) -> TrainingConfig:
    rest = dict(table)
    recipe = rest.pop("recipe", "default")
    if not isinstance(recipe, str) or recipe not in RECIPES:
        raise ValueError(f"no recipe '{recipe}' (known: {', '.join(RECIPES)})")
    base = RECIPES[recipe]
    refuse_unknown(rest, [*_TITLES, "data", "sampling", "network", *_SECTIONS], "the config")
    titles = {name: typed(rest[name], "", name) for name in _TITLES if name in rest}
    name = titles.get("name", base.name)
    if name in ("", "..") or Path(name).name != name or not name.isprintable():
        raise ValueError(f"name must be usable as a file name, not {name!r}")
    sections = {each: read_section(getattr(base, each), rest.get(each, {}), f"[{each}]") for each in _SECTIONS}
    distillation = sections["distillation"]
    sections["distillation"] = replace(distillation, teacher=_find_model(distillation.teacher, folder))
    titles |= {"init": _find_model(titles.get("init", base.init), folder)}
    titles |= {key: str(folder.absolute() / titles[key]) for key in ("own_network", "own_loss") if titles.get(key)}
    if titles["init"] and titles.get("own_network"):
        raise ValueError("init and own_network exclude each other: model files hold no networks of your own")
    loss = sections["loss"]
    if not (loss.softmax or loss.triplet or loss.second_order or distillation.wanted or titles.get("own_loss")):
        raise ValueError("[loss] all weights are 0 and there is no teacher: nothing would be learned")
    sampling = _read_sampling(base.sampling, _as_table(rest.get("sampling", {}), "[sampling]"))
    network = _read_network(base.network, sampling, _as_table(rest.get("network", {}), "[network]"))
    data = _read_data(rest.get("data", []), folder)
    return replace(base, **titles, **sections, sampling=sampling, network=network, data=data)


def _read_data(tables: Any, folder: Path) -> tuple[DataSource, ...]:
    if isinstance(tables, dict) and tables:
        raise ValueError("[[data]] needs two brackets, and can only be set in the file: there may be several")
    if not isinstance(tables, list) or not tables:
        raise ValueError("there is no [[data]]: name the correspondence files to train on")
    sources = [read_section(DataSource(), table, "[[data]]") for table in tables]
    if not all(source.files for source in sources):
        raise ValueError("[[data]] names no files")
    if not sum(source.share for source in sources) > 0:
        raise ValueError("[[data]]: the shares must not all be 0")
    start = Path(glob.escape(str(folder.absolute())))  # a copy of the config elsewhere names the same files
    return tuple(replace(source, files=tuple(str(start / file) for file in source.files)) for source in sources)


def _find_model(name: str, folder: Path) -> str:
    """The path of a model file, relative to the config's folder, made absolute; other names as they are."""
    return name if not name or name in shipped_models() else str(folder.absolute() / name)


def _read_sampling(base: Pattern, table: Mapping[str, Any]) -> Pattern:
    values = pattern_to_dict(base)
    kind = table.get("pattern", values["pattern"])
    if kind != values["pattern"]:
        shared = {key: values[key] for key in ("antialias", "outside")}
        if kind not in ("log-polar", "cartesian"):
            raise ValueError(f"[sampling] pattern must be log-polar or cartesian, not {kind!r}")
        values = pattern_to_dict(LogPolar() if kind == "log-polar" else Cartesian()) | shared
    refuse_unknown(table, values, "[sampling]")
    _refuse_booleans(table, values, "[sampling]")
    try:
        return pattern_from_dict({**values, **table})
    except ValueError as error:
        raise ValueError(f"[sampling] {error}") from error


def _read_network(base: NetworkOptions, pattern: Pattern, table: Mapping[str, Any]) -> NetworkOptions:
    refuse_unknown(table, _NETWORK, "[network]")
    values: dict[str, Any] = {key: getattr(base, key) for key in _NETWORK}
    values["circular"] &= isinstance(pattern, LogPolar)
    _refuse_booleans(table, values, "[network]")
    values |= {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    if not isinstance(values["dropout"], int | float):
        raise ValueError(f"[network] dropout must be a number, not {values['dropout']!r}")
    try:
        return replace(base, rows=pattern.rows, columns=pattern.columns, **values)
    except ValueError as error:
        raise ValueError(f"[{'sampling' if isinstance(error, PatchSizeError) else 'network'}] {error}") from error


def read_section(base: Any, table: Any, where: str) -> Any:
    """Options with the table's values."""
    table = _as_table(table, where)
    refuse_unknown(table, [each.name for each in fields(base)], where)
    values = {name: typed(value, getattr(base, name), f"{where} {name}") for name, value in table.items()}
    options = replace(base, **values)
    try:
        check_settings(options)
    except ValueError as error:
        raise ValueError(f"{where} {error}") from error
    return options


def _as_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a section with keys")
    return value


def refuse_unknown(table: Iterable[str], known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
            raise ValueError(f"{where} has no key '{key}' ({hint})")


def _refuse_booleans(table: Mapping[str, Any], values: Mapping[str, Any], where: str) -> None:
    """To Python they are integers."""
    for key, value in table.items():
        if isinstance(value, bool) and not isinstance(values[key], bool):
            raise ValueError(f"{where} {key} must not be true or false")


def typed(value: Any, default: Any, name: str) -> Any:
    """The value, if it has the default's type; integers will do for floats."""
    kind = type(default)
    if kind is float and type(value) is int and abs(value) < 2**63:
        value = float(value)
    if kind is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise ValueError(f"{name} must be {_TYPES[kind]}, not {value!r}")
    return value
