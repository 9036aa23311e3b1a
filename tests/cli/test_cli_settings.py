from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass

import click
import pytest
from click.testing import CliRunner

from logpolar.cli import main
from logpolar.cli.settings import make_settings, settings_options
from logpolar.datasets.options import PhotoOptions, SceneOptions
from logpolar.settings import setting

KINDS = {"colmap": SceneOptions, "homographies": PhotoOptions}


def leaves(settings, path=()) -> dict[tuple[str, ...], tuple]:
    """Every setting of a class and of those inside it: where it is -> the field, its default."""
    found: dict[tuple[str, ...], tuple] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if is_dataclass(value):
            found |= leaves(value, (*path, each.name))
        else:
            found[(*path, each.name)] = each, value
    return found


CASES = [(name, place) for name, kind in KINDS.items() for place in leaves(kind())]
NUMBERS = [case for case in CASES if not isinstance(leaves(KINDS[case[0]]())[case[1]][1], bool)]
FLOATS = [case for case in NUMBERS if isinstance(leaves(KINDS[case[0]]())[case[1]][1], float)]
each_setting, each_number, each_float = (
    pytest.mark.parametrize(("name", "place"), cases, ids=[f"{name} {'.'.join(place)}" for name, place in cases])
    for cases in (CASES, NUMBERS, FLOATS)
)


def command_of(name: str) -> click.Command:
    return main.commands["dataset"].commands[name]


def field_of(name: str, place: tuple[str, ...]):
    """The field and its default."""
    return leaves(KINDS[name]())[place]


def parse(name: str, *arguments: object) -> dict[str, object]:
    """Values of all parameters, without running the command."""
    parent = click.Context(main, **main.context_settings)  # a command remembers the first parent's names of --help
    arguments = ["input", "-o", "out.h5", *map(str, arguments)]
    return command_of(name).make_context(name, arguments, parent=parent).params


def flag_of(place: tuple[str, ...]) -> str:
    return "--" + place[-1].replace("_", "-")


def flat(settings: dict, path=()) -> dict[tuple[str, ...], object]:
    found: dict[tuple[str, ...], object] = {}
    for key, value in settings.items():
        found |= flat(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
    return found


def test_there_are_settings_of_every_depth():
    """The tests below would pass without any."""
    assert {("pairs", "min_shared"), ("depth", "max_cycle"), ("rules", "max_count")} <= set(leaves(SceneOptions()))
    assert {("views",), ("view", "max_zoom"), ("view", "keypoints", "contrast")} <= set(leaves(PhotoOptions()))


@each_setting
def test_is_an_option_with_the_same_default_and_help(name, place):
    each, default = field_of(name, place)
    (option,) = [param for param in command_of(name).params if param.name == each.name]
    assert flag_of(place) in option.opts
    assert option.help == each.metadata["help"]
    assert parse(name)[each.name] == default
    assert type(parse(name)[each.name]) is type(default)


@pytest.mark.parametrize("name", KINDS)
def test_option_names_are_unique(name):
    command = command_of(name)
    flags = [flag for param in command.params for flag in (*param.opts, *param.secondary_opts)]
    assert len(flags) == len(set(flags))
    names = [place[-1] for place in leaves(KINDS[name]())]
    assert len(names) == len(set(names))
    others = {param.name for param in command.params} - set(names)
    assert len(command.params) == len(names) + len(others)


@pytest.mark.parametrize("name", KINDS)
def test_no_option_makes_the_defaults_of_the_class(name):
    assert make_settings(KINDS[name], parse(name)) == KINDS[name]()


@each_setting
def test_an_option_changes_its_setting_and_no_other(name, place):
    field, default = field_of(name, place)
    if isinstance(default, bool):
        value, arguments = not default, [flag_of(place).replace("--", "--no-") if default else flag_of(place)]
    else:
        halved = default / 2
        can_be_halved = isinstance(default, float) and halved != default and halved >= (field.metadata["low"] or 0)
        value = halved if can_be_halved else default + 1
        arguments = [flag_of(place), value]
    before, after = flat(asdict(KINDS[name]())), flat(asdict(make_settings(KINDS[name], parse(name, *arguments))))
    assert {key for key in before if before[key] != after[key]} == {place}
    assert after[place] == value


@each_number
def test_bounds_are_allowed_and_what_is_past_them_is_refused(name, place):
    each, default = field_of(name, place)
    step = 1 if isinstance(default, int) else 1e-6
    bounds = [
        (bound, sign) for bound, sign in ((each.metadata["low"], -1), (each.metadata["high"], 1)) if bound is not None
    ]
    assert bounds
    for bound, sign in bounds:
        assert parse(name, flag_of(place), bound)[each.name] == bound
        with pytest.raises(click.BadParameter, match="not in the range"):
            parse(name, flag_of(place), bound + sign * step)


@each_float
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "much"])
def test_what_is_no_finite_number_is_refused(name, place, value):
    with pytest.raises(click.BadParameter):
        parse(name, flag_of(place), value)


@pytest.mark.parametrize("arguments", [["--max-zoom", "nan"], ["--views", "0"], ["--quality", "101"], ["--embed"]])
def test_refusals_name_the_option_and_nothing_is_written(tmp_path, arguments):
    result = CliRunner().invoke(main, ["dataset", "homographies", "a.png", "-o", f"{tmp_path}/out.h5", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Inner:
    depth: int = setting(3, "How deep.", 1, 9)
    loud: bool = setting(True, "With noise.")
    quiet: bool = setting(False, "Without.")


@dataclass(frozen=True)
class Outer:
    share: float = setting(0.5, "How much.", 0, 1)
    inner: Inner = field(default_factory=lambda: Inner(depth=5))


class TestAnyClass:
    """The same on a class of two levels, whose inner default is not its class's."""

    @pytest.fixture
    def command(self):
        @click.command()
        @settings_options(Outer)
        def run(**values):
            print(make_settings(Outer, values))

        return run

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ([], Outer()),
            (["--depth", "9"], Outer(inner=Inner(9))),
            (["--no-loud", "--quiet"], Outer(inner=Inner(5, False, True))),
            (["--share", "0"], Outer(0.0)),
        ],
    )
    def test_goes_there_and_back(self, command, arguments, expected):
        assert CliRunner().invoke(command, arguments).output == f"{expected}\n"

    def test_help_is_in_the_order_of_the_fields(self, command):
        output = CliRunner().invoke(command, ["--help"]).output
        places = [output.index(word) for word in ("--share", "--depth", "--loud / --no-loud", "--quiet")]
        assert places == sorted(places)
        assert "[default: 5; 1<=x<=9]" in " ".join(output.split())
        assert "How much." in output
