from __future__ import annotations

from dataclasses import dataclass, field

import click
import pytest
from click.testing import CliRunner

from logpolar.cli import main
from logpolar.cli.settings import make_settings, settings_options
from logpolar.settings import check_settings, setting


@dataclass(frozen=True)
class Inner:
    depth: int = setting(3, "How deep.", 1, 9)
    loud: bool = setting(True, "With noise.")
    quiet: bool = setting(False, "Without.")


@dataclass(frozen=True)
class Outer:
    fraction: float = setting(0.5, "How much.", 0, 1)
    kind: str = setting("one", "Which.", choices=("one", "two"))
    inner: Inner = field(default_factory=lambda: Inner(depth=5))  # not the default of its class


@click.command()
@settings_options(Outer)
def command(**values):
    print(make_settings(Outer, values))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Outer()),
        (["--depth", "9"], Outer(inner=Inner(9))),
        (["--depth", "1"], Outer(inner=Inner(1))),
        (["--no-loud", "--quiet"], Outer(inner=Inner(5, False, True))),
        (["--fraction", "0"], Outer(0.0)),
        (["--kind", "two"], Outer(kind="two")),
    ],
)
def test_options_become_settings(arguments, expected):
    assert CliRunner().invoke(command, arguments).output == f"{expected}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--depth", "0"],
        ["--depth", "10"],
        ["--depth", "1.5"],
        ["--fraction", "1.000001"],
        ["--fraction", "nan"],
        ["--fraction", "much"],
        ["--kind", "three"],
    ],
)
def test_values_out_of_range_are_refused(arguments):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Inner(depth=0), "depth must be between 1 and 9, not 0"),
        (Outer(fraction=float("nan")), "fraction must be between 0 and 1, not nan"),
        (Outer(kind="three"), "kind must be one or two, not 'three'"),
    ],
)
def test_the_library_refuses_the_same(settings, reason):
    with pytest.raises(ValueError, match=reason):
        check_settings(settings)


def test_help_is_in_the_order_of_the_fields():
    output = CliRunner().invoke(command, ["--help"]).output
    places = [output.index(word) for word in ("--fraction", "--kind", "--depth", "--loud / --no-loud", "--quiet")]
    assert places == sorted(places)
    assert "[default: 5; 1<=x<=9]" in " ".join(output.split())
    assert "How much." in output


def test_refusals_write_nothing(tmp_path):
    result = CliRunner().invoke(main, ["dataset", "homographies", "a.png", "-o", f"{tmp_path}/out.h5", "--views", "0"])
    assert result.exit_code == 2
    assert "--views" in result.stderr
    assert list(tmp_path.iterdir()) == []
