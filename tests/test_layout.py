"""The layout of the code: every module has its tests, and no public name is there for tests alone."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "logpolar", ROOT / "tests"

SHARED = {
    "cli/options.py": "cli/test_cli_help.py",
    "datasets/columns.py": "datasets/test_files.py",
    "datasets/page.py": "cli/test_cli_dataset_show.py",
    "errors.py": "cli/test_cli_help.py",
    "evaluation/descriptors/extraction.py": "evaluation/test_sfm.py",
    "evaluation/descriptors/kornia_features.py": "evaluation/descriptors/test_whole_features.py",
    "evaluation/descriptors/opencv_features.py": "evaluation/descriptors/test_whole_features.py",
    "evaluation/descriptors/patch_networks.py": "evaluation/descriptors/test_registry.py",
    "evaluation/descriptors/specs.py": "evaluation/descriptors/test_registry.py",
    "evaluation/detector_pairs.py": "evaluation/test_detectors.py",
    "evaluation/figures.py": "cli/test_cli_eval.py",
    "evaluation/options.py": "cli/test_cli_eval.py",
    "evaluation/report/figures.py": "evaluation/report/test_sections.py",
    "evaluation/report/paper_numbers.py": "evaluation/report/test_sections.py",
    "evaluation/report/tables.py": "evaluation/report/test_sections.py",
    "evaluation/report/writing.py": "evaluation/report/test_sections.py",
    "geometry/estimators.py": "geometry/test_two_view.py",
    "geometry/options.py": "geometry/test_two_view.py",
    "matching/batch.py": "matching/test_files.py",
    "matching/torch_learned.py": "matching/test_learned.py",
    "matching/options.py": "matching/test_nearest.py",
    "models/runtimes/onnxruntime_cpu.py": "models/test_describers.py",
    "sampling/onnx_arrays.py": "sampling/test_onnx_arrays_and_lookup.py",
    "sampling/onnx_lookup.py": "sampling/test_onnx_arrays_and_lookup.py",
    "storage/collection_files.py": "features/test_collections.py",
    "sfm/quality.py": "cli/test_cli_sfm.py",
    "settings.py": "cli/test_cli_settings.py",
    "sfm/facts.py": "sfm/test_diagnosis.py",
    "training/cards.py": "training/test_run.py",
    "training/detector_data.py": "training/test_detector_run.py",
    "training/detector_options.py": "training/test_detector_config.py",
    "training/detector_sources.py": "training/test_detector_crops.py",
    "training/detector_votes.py": "training/test_detector_loop.py",
    "training/matcher_data.py": "training/test_matcher_run.py",
    "training/matcher_loop.py": "training/test_matcher_run.py",
    "training/matcher_options.py": "training/test_matcher_config.py",
    "training/matcher_plan.py": "training/test_matcher_run.py",
    "training/matcher_validation.py": "training/test_matcher_run.py",
    "training/options.py": "training/test_config.py",
    "training/validation.py": "training/test_run.py",
    "types.py": "test_layout.py",
    "viewing/options.py": "viewing/test_drawing.py",
}
"""Modules whose tests are in the file of another module."""

API = {
    "extract_many",
    *("descriptorSize", "descriptorType", "getDefaultName"),  # of cv2.Feature2D
    *("get_command", "list_commands"),  # of click.Group
    "find_class",  # of pickle.Unpickler
}
"""Names that are called by others: users, or the libraries whose interface they implement."""


def modules() -> list[str]:
    files = (path for path in SOURCE.rglob("*.py") if not path.name.startswith("__"))
    return sorted(path.relative_to(SOURCE).as_posix() for path in files)


def mirrored(module: str) -> Path:
    """``tests/<room>/test_<module>.py``; of commands ``tests/cli/test_cli_<command>.py``."""
    folder, _, name = module.rpartition("/")
    return TESTS / folder / f"test_{'cli_' if folder == 'cli' else ''}{name}"


def test_every_module_has_a_test_file():
    assert [module for module in modules() if not mirrored(module).exists() and module not in SHARED] == []


def test_the_table_of_shared_test_files_is_up_to_date():
    assert [module for module in SHARED if not (SOURCE / module).exists()] == []
    assert [file for file in SHARED.values() if not (TESTS / file).exists()] == []


@pytest.mark.parametrize("path", [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/*.py")], ids=lambda p: p.name)
def test_names_that_scripts_import_exist(path):
    """Scripts are not run by tests, nor checked by mypy."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "logpolar":
            module = importlib.import_module(node.module)
            names = [each.name for each in node.names if not hasattr(module, each.name)]
            assert [name for name in names if importlib.util.find_spec(f"{node.module}.{name}") is None] == []


def definitions(tree: ast.Module) -> Iterator[str]:
    """Names of public functions and classes and of the public methods of classes, but those that click calls."""
    for node in tree.body:
        for each in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            if isinstance(each, ast.FunctionDef | ast.ClassDef) and not each.name.startswith("_"):
                decorators = " ".join(map(ast.unparse, each.decorator_list))
                if "command" not in decorators and "group" not in decorators:
                    yield each.name


def references(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^\w+$", node.value)


def test_no_public_name_is_used_by_tests_alone():
    """By name: one that is also in use elsewhere for another thing is not noticed."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    used = {name for tree in trees.values() for name in references(tree)}
    for folder in ("benchmarks", "examples", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md"):
                used |= set(re.findall(r"\w+", path.read_text()))
    unused = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path, tree in trees.items()
        for name in definitions(tree)
        if name not in used | API
    ]
    assert unused == []
