from __future__ import annotations

import csv
import io
import json
import math
import shutil

import pytest

from logpolar import load_model
from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError
from logpolar.evaluation.pairs import Score, score_file
from logpolar.models.runtimes.torch_device import TorchDescriber
from logpolar.sampling.patterns import Cartesian, LogPolar
from logpolar.training import ablation
from logpolar.training.ablation import AblationRow, ablate, table_csv, table_markdown, with_support
from logpolar.training.config import read_config
from training_runs import without_graphs

NAMES = ["cartesian-12", "cartesian-32.5", "log-polar-12", "log-polar-32.5"]


def settings(place):
    return read_config(place / "tiny.toml", ["optimisation.steps=2", "run.validate_every=2"])


def apart(place):
    """The training file under another path: a test may not name the file itself."""
    path = place / "apart" / "one.h5"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        shutil.copy(place / "one.h5", path)
    return path


@pytest.fixture(scope="module")
def finished(place, tmp_path_factory):
    """Rows and folder of an ablation tested on a file; not to be changed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_graphs(monkeypatch)
        folder = tmp_path_factory.mktemp("ablation")
        return ablate(settings(place), folder, [place / "two.h5", apart(place)], [12.0, 32.5]), folder


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished[1], tmp_path / "copy")


def times(folder):
    return {str(each.relative_to(folder)): each.stat().st_mtime_ns for each in folder.rglob("*") if each.is_file()}


class TestModels:
    def test_a_folder_each(self, finished):
        rows, folder = finished
        assert sorted(each.name for each in folder.iterdir()) == sorted([*NAMES, "table.csv", "table.md"])
        assert [f"{row.pattern}-{row.lambda_:g}" for row in rows] == NAMES

    def test_differ_in_pattern_and_support_only(self, finished, place):
        base = settings(place)
        patterns = {
            "cartesian": Cartesian(12.0, 8, 8, antialias=base.sampling.antialias, outside=base.sampling.outside),
            "log-polar": base.sampling,
        }
        for name in NAMES:
            card = load_model(finished[1] / name / f"{name}.safetensors").card
            kind, _, lambda_ = name.rpartition("-")
            expected = with_support(patterns[kind], kind, float(lambda_))
            assert card.sampling == expected
            assert card.network.circular == (kind == "log-polar")
            assert card.network.dropout == base.network.dropout
            assert (card.training["seed"], card.training["optimisation"]["steps"]) == (3, 2)
            assert card.training["files"] == [["one.h5"]]

    def test_not_circular_unless_asked_for(self, place, tmp_path, quick):
        config = read_config(place / "tiny.toml", ["optimisation.steps=1", "network.circular=false"])
        ablate(config, tmp_path, [], [12.0])
        for kind in ("cartesian", "log-polar"):
            assert not load_model(tmp_path / f"{kind}-12" / f"{kind}-12.safetensors").card.network.circular


class TestScores:
    def test_are_those_of_the_models_on_all_of_the_files(self, finished, place):
        rows, folder = finished
        for row, name in zip(rows, NAMES, strict=True):
            model = load_model(folder / name / f"{name}.safetensors")
            describer = TorchDescriber(model.network(), model.sampling)
            assert list(row.scores) == ["two", "one"]
            for file_name, score in row.scores.items():
                with CorrespondenceFile(place / f"{file_name}.h5") as file:
                    assert score.to_dict() == score_file(file, describer).to_dict()

    def test_on_the_validation_parts(self, finished, copied, place, quick):
        rows = ablate(settings(place), copied, [], [12.0, 32.5])
        for row, name in zip(rows, NAMES, strict=True):
            card = load_model(copied / name / f"{name}.safetensors").card
            assert list(row.scores) == ["one"]
            assert row.scores["one"].pairs == card.figures["validation"]["one"]["pairs"] == 2
            assert row.scores["one"].pairs < finished[0][0].scores["one"].pairs

    def test_limit_of_pairs(self, copied, place, quick):
        rows = ablate(settings(place), copied, [place / "two.h5"], [12.0], pairs=1)
        assert [row.scores["two"].pairs for row in rows] == [1, 1]
        rows = ablate(settings(place), copied, [place / "two.h5"], [12.0])
        assert [row.scores["two"].pairs for row in rows] == [4, 4]

    def test_files_of_one_name_in_two_folders(self, finished, copied, place, tmp_path):
        for source, folder in (("one", "a"), ("two", "b")):
            (tmp_path / folder).mkdir()
            shutil.copy(place / f"{source}.h5", tmp_path / folder / "scene.h5")
        rows = ablate(settings(place), copied, [tmp_path / folder / "scene.h5" for folder in "ab"], [12.0])
        for row, before in zip(rows, finished[0][::2], strict=True):
            found = {name: score.to_dict() for name, score in row.scores.items()}
            assert found == {"a/scene": before.scores["one"].to_dict(), "b/scene": before.scores["two"].to_dict()}

    def test_training_file_is_refused(self, place, tmp_path):
        tests = [place / "two.h5", tmp_path / ".." / tmp_path.name / "link.h5"]
        (tmp_path / "link.h5").symlink_to(place / "one.h5")
        with pytest.raises(LogpolarError, match=r"link\.h5: is among the training files"):
            ablate(settings(place), tmp_path / "new", tests, [12.0])
        assert not (tmp_path / "new").exists()

    def test_file_that_cannot_be_read_is_found_before_anything_is_trained(self, place, tmp_path):
        with pytest.raises(LogpolarError, match=r"none\.h5: no such file"):
            ablate(settings(place), tmp_path / "new", [apart(place), tmp_path / "none.h5"], [12.0])
        assert not (tmp_path / "new").exists()


class TestContinued:
    def test_all_there(self, finished, copied, place, monkeypatch):
        monkeypatch.setattr(ablation, "score_file", None)  # nothing is tested twice
        before = times(copied)
        rows = ablate(settings(place), copied, [place / "two.h5", apart(place)], [12.0, 32.5])
        after = times(copied)
        assert {name for name in after if after[name] != before.get(name)} == {"table.csv", "table.md"}
        assert table_csv(rows) == table_csv(finished[0])

    def test_one_is_missing(self, finished, copied, place, quick):
        shutil.rmtree(copied / "log-polar-12")
        before = times(copied)
        rows = ablate(settings(place), copied, [place / "two.h5", apart(place)], [12.0, 32.5])
        after = times(copied)
        changed = {name.split("/")[0] for name in after if after[name] != before.get(name)}
        assert changed == {"log-polar-12", "table.csv", "table.md"}
        assert table_csv(rows) == table_csv(finished[0])
        assert (copied / "table.csv").read_bytes() == (finished[1] / "table.csv").read_bytes()

    @pytest.mark.parametrize("content", ["", "[1]", '{"two": {"pairs": 1}}'])
    def test_damaged_scores_are_one_line(self, copied, place, content):
        (copied / "cartesian-12" / "test-0.json").write_text(content)
        with pytest.raises(LogpolarError, match=r"test-0\.json: not the scores of an ablation; delete it"):
            ablate(settings(place), copied, [place / "two.h5"], [12.0])

    def test_another_file_is_tested_without_training(self, finished, copied, place):
        (copied / "cartesian-12" / "test-0.json").unlink()
        rows = ablate(settings(place), copied, [place / "two.h5"], [12.0])
        assert [list(row.scores) for row in rows] == [["two"], ["two"]]
        assert rows[0].scores["two"].to_dict() == finished[0][0].scores["two"].to_dict()
        assert list(json.loads((copied / "cartesian-12" / "test-0.json").read_text())) == ["two"]


class TestTables:
    def test_csv(self, finished):
        rows, folder = finished
        with (folder / "table.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        assert [(each["pattern"], each["lambda"], each["file"]) for each in lines] == [
            (kind, lambda_, file)
            for kind in ("cartesian", "log-polar")
            for lambda_ in ("12", "32.5")
            for file in ("two", "one", "mean")
        ]
        for number, row in enumerate(rows):
            for line, score in zip(lines[3 * number :], [*row.scores.values(), row.mean], strict=False):
                for name, value in score.to_dict().items():
                    assert line[name] == ("" if value is None else str(value))

    def test_markdown(self, finished):
        rows, folder = finished
        text = (folder / "table.md").read_text()
        assert text == table_markdown(rows)
        header, rule, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        assert header == ["lambda", "12", "32.5"]
        assert rule == ["---"] * 3
        found = {title: cells for title, *cells in lines}
        assert len(found) == 6
        for kind, models in (("cartesian", rows[:2]), ("log-polar", rows[2:])):
            assert found[f"{kind}, FPR95 %"] == [f"{100 * row.mean.fpr95:.3f}" for row in models]
            assert found[f"{kind}, rank-1"] == [f"{row.mean.rank1:.4f}" for row in models]

    def test_by_hand(self):
        one = Score(2, 20, 0.125, 0.75, 4, 0.5, 0, math.nan)
        two = Score(1, 10, 0.375, 0.25, 0, math.nan, 0, math.nan)
        rows = [AblationRow("cartesian", 12.0, {"a": one, "b": two}), AblationRow("log-polar", 96.0, {"a": one})]
        lines = table_markdown(rows).splitlines()
        assert lines[0] == "| lambda | 12 | 96 |"
        assert "| cartesian, FPR95 % | 25.000 |  |" in lines
        assert "| log-polar, FPR95 % |  | 12.500 |" in lines
        assert "| cartesian, rank-1 | 0.5000 |  |" in lines
        assert "| log-polar, rank-1, scales differ 2x |  | 0.500 |" in lines
        found = list(csv.reader(io.StringIO(table_csv(rows))))
        assert [line[2] for line in found] == ["file", "a", "b", "mean", "a", "mean"]
        assert found[3][:7] == ["cartesian", "12", "mean", "3", "30", "0.25", "0.5"]


class TestWithSupport:
    def test_same_kind_keeps_everything_else(self):
        base = LogPolar(96, 8, 16, inner_radius=0.25, radius_ratio=50, antialias=False, outside="mean")
        assert with_support(base, "log-polar", 7.0) == LogPolar(7.0, 8, 16, 0.25, 50, False, "mean")
        square = Cartesian(12, 8, 16, antialias=False, outside="mean")
        assert with_support(square, "cartesian", 7.0) == Cartesian(7.0, 8, 16, False, "mean")

    def test_other_kind_keeps_what_both_have(self):
        base = LogPolar(96, 8, 16, inner_radius=0.25, antialias=False, outside="mean")
        assert with_support(base, "cartesian", 7.0) == Cartesian(7.0, 8, 16, False, "mean")
        assert with_support(Cartesian(12, 8, 16, False, "mean"), "log-polar", 7.0) == LogPolar(
            7.0, 8, 16, antialias=False, outside="mean"
        )
