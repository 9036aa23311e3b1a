"""A protocol of a few lines, run and reported like all others."""

from __future__ import annotations

import csv
import json

import pytest

from logpolar.errors import LogpolarError
from logpolar.evaluation import protocol as protocols
from logpolar.evaluation import schema
from logpolar.evaluation.options import RunOptions
from logpolar.evaluation.protocol import (
    Protocol,
    check_scene_names,
    decimal,
    evaluate,
    open_methods,
    percent,
    read_numbers,
)


class Length(Protocol):
    """How long the names of methods are."""

    name = "length"
    columns = ("letters", "seed")

    def __init__(self, run, seed=0):
        super().__init__(run)
        self.options = {"seed": seed}
        if seed < 0:
            raise ValueError("seed must be at least 0")

    def prepare(self):
        self.data = {"words": "all"}

    def score(self, method):
        return len(method.name)

    def report(self, results, scores):
        for name, score in scores.items():
            results.results[name] = {"letters": score}
            results.records[""].append({"descriptor": name, "letters": score})
            results.add(name, [str(score), "0"])
        results.notes.append("Spaces count.")


@pytest.fixture
def length(monkeypatch):
    """Found by name, as those of the library are."""
    monkeypatch.setitem(protocols._PROTOCOLS, "length", "Length")
    monkeypatch.setattr(protocols, "import_module", lambda name: __import__("types").SimpleNamespace(Length=Length))
    monkeypatch.setitem(schema.RESULTS, "length", {"*": {"letters": int}})


@pytest.mark.usefixtures("length")
class TestEvaluate:
    def test_files(self, tmp_path):
        run = RunOptions(("sift", "rootsift,lambda=6", "hardnet:none.pth"), tmp_path / "out", skip_missing=True)
        results = evaluate("length", run, seed=3)
        assert results.written == ["length.json", "length.md", "length.csv"]
        document = json.loads((tmp_path / "out" / "length.json").read_text())
        assert list(document) == ["protocol", "command", "versions", "data", "options", "descriptors", "results"]
        assert (document["data"], document["options"]) == ({"words": "all"}, {"seed": 3})
        assert document["results"] == {"SIFT": {"letters": 4}, "RootSIFT (lambda=6)": {"letters": 19}}
        assert document["descriptors"][2] == {
            **{"spec": "hardnet:none.pth", "name": "hardnet:none.pth"},
            "missing": "weights missing",
        }
        rows = list(csv.DictReader((tmp_path / "out" / "length.csv").read_text().splitlines()))
        assert [row["letters"] for row in rows] == ["4", "19"]
        table = (tmp_path / "out" / "length.md").read_text()
        assert table == results.markdown()
        assert "| SIFT | 4 | 0 |" in table
        assert "| hardnet:none.pth | weights missing |  |" in table
        assert table.endswith("\nSpaces count.\n")

    def test_options_of_no_use_write_nothing(self, tmp_path):
        with pytest.raises(LogpolarError, match="seed must be at least 0"):
            evaluate("length", RunOptions(("sift",), tmp_path / "out"), seed=-1)
        assert not (tmp_path / "out").exists()

    def test_results_have_the_layout(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Length, "score", lambda self, method: "four")
        with pytest.raises(LogpolarError, match=r"length\.json: .*'results/SIFT/letters' is not an integer"):
            evaluate("length", RunOptions(("sift",), tmp_path))


class TestMethods:
    def test_equal_names_become_specs(self, tmp_path):
        run = RunOptions(("sift", "opencv:SIFT", "opencv:SIFT,nfeatures=9"), tmp_path)
        task = Length(run)
        task.max_keypoints = 9
        assert [method.name for method in open_methods(task)] == ["SIFT", "OpenCV SIFT", "OpenCV SIFT (nfeatures=9)"]

    def test_the_same_twice(self, tmp_path):
        with pytest.raises(LogpolarError, match="'sift' and 'sift,lambda=12' are the same"):
            open_methods(Length(RunOptions(("sift", "sift,lambda=12"), tmp_path)))
        assert len(open_methods(Length(RunOptions(("sift", "sift"), tmp_path)))) == 1


def test_numbers_and_names():
    assert read_numbers("1,2.5,1", "--x", 0, 3) == [1, 2.5]
    assert read_numbers("", "--x", 0, 3) == []
    for text in ("4", "a", "1,,2", "nan"):
        with pytest.raises(LogpolarError, match="--x takes comma-separated numbers from 0 to 3"):
            read_numbers(text, "--x", 0, 3)
    check_scene_names(["a", "b"], "mean")
    for names, words in ((["a", "a"], "the same name"), (["mean"], "cannot be called 'mean'")):
        with pytest.raises(LogpolarError, match=words):
            check_scene_names(names, "mean")
    assert (percent(0.12345), decimal(0.12345), percent(None), decimal(float("nan"))) == ("12.35", "0.1235", "", "")
