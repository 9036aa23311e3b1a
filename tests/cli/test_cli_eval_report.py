"""`logpolar eval report` on what the other commands really leave behind, and what it says of bad input."""

from __future__ import annotations

import json
import sys

from click.testing import CliRunner
from matplotlib.figure import Figure

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.evaluation.report import paper_plots
from report_runs import amos_results, write_run


def run(*arguments: object):
    return CliRunner().invoke(main, ["eval", *map(str, arguments)])


def test_report_of_real_runs(photo_file, tmp_path, monkeypatch):
    for name in ("plot_pooling", "plot_pair", "plot_supports"):  # the same in all reports, and slow to draw
        monkeypatch.setattr(paper_plots, name, Figure)
    monkeypatch.setattr(sys, "argv", ["logpolar", "eval", "something"])
    results, small = tmp_path / "results", ("-d", "sift", "-d", "rootsift", "--pairs", 2)
    assert run("patches", photo_file, *small, "--resamples", 5, "-o", results).exit_code == 0
    assert run("retrieval", photo_file, *small, "-o", results).exit_code == 0
    fixed = run("patches", photo_file, *small, "--resamples", 5, "-o", results / "fixed", "--fixed-size", "median")
    assert fixed.exit_code == 0
    result = run("report", results, "-o", tmp_path / "deep" / "report")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Table 4: AMOS patches, rank-1 by support λ: not run" in result.output
    document = json.loads((tmp_path / "deep" / "report" / "report.json").read_text())
    assert document["command"] == "logpolar eval something"
    assert [each["label"] for each in document["runs"]] == ["patches (fixed)", "patches (results)", "retrieval"]
    text = (tmp_path / "deep" / "report" / "report.md").read_text()
    for folder in (results, results / "fixed"):
        measured = json.loads((folder / "patches.json").read_text())["results"]
        for scenes in measured.values():
            assert f" {100 * scenes['mean']['fpr95']:.2f} |" in text
    ranked = json.loads((results / "retrieval.json").read_text())["results"]["SIFT"]["mean"]
    assert f"{ranked['shares']['1']:.4f}" in text
    assert ranked["curve"]["places"][0] == 1
    assert ranked["curve"]["shares"][0] == ranked["shares"]["1"]
    assert ranked["curve"]["shares"] == sorted(ranked["curve"]["shares"])
    for name in ("figure-4.png", "figure-5.png"):
        assert f"({name})" in text
        assert (tmp_path / "deep" / "report" / name).stat().st_size > 10_000


class TestBadInput:
    def test_output_is_a_file(self, tmp_path):
        write_run(tmp_path / "results", "amos", amos_results(SIFT=0.5))
        (tmp_path / "file").write_text("mine")
        result = run("report", tmp_path / "results", "-o", tmp_path / "file")
        assert_one_error(result, "file: cannot be a folder for results")
        assert (tmp_path / "file").read_text() == "mine"

    def test_nothing_is_written_for_bad_results(self, tmp_path):
        (tmp_path / "empty").mkdir()
        assert_one_error(run("report", tmp_path / "empty", "-o", tmp_path / "out"), "empty: no results there")
        assert_one_error(run("report", tmp_path / "none", "-o", tmp_path / "out"), "none: no such folder")
        (tmp_path / "empty" / "amos.json").write_text("{")
        assert_one_error(run("report", tmp_path / "empty", "-o", tmp_path / "out"), "amos.json: damaged or incomplete")
        assert not (tmp_path / "out").exists()

    def test_arguments(self, tmp_path):
        assert run("report", "-o", tmp_path).exit_code == 2
        assert "--output" in run("report", tmp_path).stderr


def test_without_matplotlib(tmp_path, monkeypatch):
    write_run(tmp_path / "results", "amos", amos_results(SIFT=0.5))
    monkeypatch.delitem(sys.modules, "logpolar.evaluation.report.paper_plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("report", tmp_path / "results", "-o", tmp_path / "out")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("logpolar: figures are left out: ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json", "report.md"]
