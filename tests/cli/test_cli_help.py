from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import logpolar
from logpolar.cli import main


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command and group below, by its words."""
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from walk(each, (*path, name))


ALL = dict(walk(main))
COMMANDS = [path for path, command in ALL.items() if not isinstance(command, click.Group)]

LIST_HEAVY_MODULES = """
import sys
from click.testing import CliRunner
from logpolar.cli import main
for command in sys.argv[1:]:
    assert CliRunner().invoke(main, [*command.split(), "--help"]).exit_code == 0
heavy = {"numpy", "cv2", "torch", "onnxruntime", "h5py", "matplotlib", "safetensors", "tqdm", "onnx"}
print(sorted(heavy & set(sys.modules)))
"""


def test_commands_of_groups_are_found():
    assert {"match", "eval sfm", "dataset colmap", "imc check"} < set(COMMANDS)


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", LIST_HEAVY_MODULES, *ALL], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_lists_the_commands_in_the_order_of_use():
    output = CliRunner().invoke(main, ["-h"]).output
    listed = re.findall(r"(?m)^  (\S+)", output.partition("Commands:")[2])
    assert listed == list(main.commands)
    assert listed[:3] == ["demo", "match", "extract"]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_with_an_example_whose_options_exist(path):
    result = CliRunner().invoke(main, [*path.split(), "--help"])
    assert result.exit_code == 0
    options, _, example = result.output.partition("Example: ")
    assert example.startswith(f"logpolar {path} ")
    assert {word for word in example.split() if word.startswith("-")} <= set(options.replace(",", " ").split())


@pytest.mark.parametrize("path", COMMANDS)
def test_options_are_unique_and_explained(path):
    params = [param for param in ALL[path].params if isinstance(param, click.Option)]
    flags = [flag for param in params for flag in (*param.opts, *param.secondary_opts)]
    assert len(flags) == len(set(flags))
    assert all(param.help for param in params)


def test_version():
    assert CliRunner().invoke(main, ["--version"]).output.split()[-1] == logpolar.__version__


def test_unknown_command_is_refused_with_a_hint():
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.stderr
    assert "--help" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["match", "a.jpg", "b.jpg", "--ratio", "nan"],
        ["match", "a.jpg", "b.jpg", "--threshold", "inf"],
        ["patches", "a.jpg", "-o", "p.png", "--inner-radius", "square"],
    ],
)
def test_not_a_number_is_refused(arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Invalid value" in result.output
