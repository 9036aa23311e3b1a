from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from logpolar.cli import main

COMMANDS = [
    "demo",
    "match",
    "extract",
    "match-features",
    "sfm",
    "colmap",
    "imc",
    "patches",
    "models",
    "export",
    "quantise",
    "dataset",
    "recipe",
    "train",
    "ablate",
    "eval",
]
GROUPS = {
    "colmap": ("export", "redescribe"),
    "imc": ("export", "check"),
    "dataset": ("colmap", "homographies", "reconstruct", "show"),
    "eval": ("patches", "retrieval", "hpatches", "amos", "phototourism", "report"),
}
PATHS = [command for command in COMMANDS if command not in GROUPS] + [
    f"{group} {name}" for group, names in GROUPS.items() for name in names
]

LIST_HEAVY_MODULES = """
import sys
from click.testing import CliRunner
from logpolar.cli import main
for command in [""] + sys.argv[1:]:
    assert CliRunner().invoke(main, [*command.split(), "--help"]).exit_code == 0
heavy = {"numpy", "cv2", "torch", "onnxruntime", "h5py", "matplotlib", "safetensors", "tqdm", "onnx"}
print(sorted(heavy & set(sys.modules)))
"""


def test_help_imports_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", LIST_HEAVY_MODULES, *PATHS, *GROUPS], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_help_lists_the_commands_in_the_order_of_use():
    output = CliRunner().invoke(main, ["--help"]).output
    listed = [line.split()[0] for line in output.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == COMMANDS


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", PATHS)
def test_every_command_has_help_with_an_example(command, flag):
    result = CliRunner().invoke(main, [*command.split(), flag])
    assert result.exit_code == 0
    assert f"Example: logpolar {command} " in result.output


@pytest.mark.parametrize("command", PATHS)
def test_the_example_has_options_that_exist(command):
    result = CliRunner().invoke(main, [*command.split(), "--help"])
    options, _, example = result.output.partition("Example:")
    for word in example.split():
        if word.startswith("-"):
            assert word in options.replace(",", " ").split()


def test_version_is_that_of_the_package():
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert version("logpolar") in result.output


def test_unknown_command_is_refused_with_a_hint():
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.stderr
    assert "--help" in result.stderr


def test_installed_command_answers():
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from logpolar.cli import main; sys.exit(main())", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("Usage:")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["match", "a.jpg", "b.jpg", "--ratio", "nan"],
        ["match", "a.jpg", "b.jpg", "--threshold", "inf"],
        ["demo", "--rotation", "nan"],
        ["demo", "--noise", "nan"],
        ["patches", "a.jpg", "-o", "p.png", "--lambda", "nan"],
        ["patches", "a.jpg", "-o", "p.png", "--inner-radius", "square"],
        ["ablate", "a.toml", "-o", "folder", "--pairs", "-1"],
    ],
)
def test_not_a_number_is_refused(arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Invalid value" in result.output
