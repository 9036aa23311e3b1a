"""Sections of a report against the numbers that result files hold, and against the paper's tables typed in by hand."""

from __future__ import annotations

import json
import re
import sys

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from logpolar.errors import LogpolarError, LogpolarWarning
from logpolar.evaluation.report import paper_numbers as paper
from logpolar.evaluation.report import paper_plots
from logpolar.evaluation.report.runs import read_runs
from logpolar.evaluation.report.sections import paper_sections
from logpolar.evaluation.report.writing import counts, write_report
from report_runs import (
    IDENTITIES,
    amos_results,
    hpatches_results,
    patches_results,
    pose_results,
    retrieval_results,
    structure_results,
    write_ablation,
    write_run,
)


def section_of(folder, start: str):
    return next(each for each in paper_sections(read_runs([folder])) if each.title.startswith(start))


def rows_of(table) -> dict[tuple[str, str], dict[str, str]]:
    """Rows by their first two cells."""
    assert all(len(row) == len(table.columns) for row in table.rows)
    found = {(row[0], row[1]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert len(found) == len(table.rows)
    return found


class TestPaper:
    def test_cells_by_hand(self):
        assert paper.TABLE_1["mount_rushmore"]["SIFT, λ = 12"] == 18.71
        assert paper.TABLE_1["sagrada_familia"]["LogPol, λ = 96"] == 0.03
        assert paper.TABLE_1["united_states_capitol"]["GeoDesc, λ = 12"] == 5.43
        assert paper.TABLE_1["average"]["TFeat, λ = 12"] == 3.54
        assert (paper.TABLE_2["Cart, λ = 128"], paper.TABLE_2["LogPol, λ = 32"]) == (8.43, 0.47)
        assert paper.TABLE_3["viewpoint"]["GeoDesc, λ = 12"] == 0.879
        assert paper.TABLE_3["illumination"]["Cart, λ = 64"] == 0.666
        assert (paper.TABLE_4["HardNet, λ = 6"], paper.TABLE_4["LogPol, λ = 96"]) == (0.529, 0.651)
        assert paper.TABLE_5["stereo"]["D2-Net"] == 0.0490
        assert paper.TABLE_5["multi-view"]["LogPol, λ = 64"] == 0.5396

    def test_sizes(self):
        assert (len(paper.TABLE_1), {len(row) for row in paper.TABLE_1.values()}) == (10, {8})
        assert (len(paper.TABLE_2), len(paper.TABLE_4)) == (12, 30)
        assert {len(row) for row in paper.TABLE_3.values()} == {13}
        assert {len(row) for row in paper.TABLE_5.values()} == {12}

    def test_averages_are_those_of_the_scenes(self):
        """A slip of the keyboard would show; the paper itself has 0.67 where its scenes give 0.664."""
        *scenes, mean = paper.TABLE_1.values()
        for name, value in mean.items():
            assert np.mean([row[name] for row in scenes]) == pytest.approx(value, abs=0.0065)

    def test_tables_share_what_is_the_same(self):
        for name in ("Cart, λ = 12", "LogPol, λ = 12", "LogPol, λ = 96"):
            assert paper.TABLE_1["average"][name] == paper.TABLE_2[name]

    def test_counterparts(self):
        means = paper.TABLE_1["average"]
        found = {name: paper.counterpart(identity, means) for name, identity in IDENTITIES.items()}
        assert found == {"SIFT": "SIFT, λ = 12", "RootSIFT": None, "cart": "Cart, λ = 12", "polar": "LogPol, λ = 96"}
        assert paper.counterpart({"kind": "sift", "lambda": 6.0}, means) is None
        assert paper.counterpart({"kind": "hardnet", "lambda": 12.0}, paper.TABLE_5["stereo"]) == "HardNet"
        assert paper.counterpart(IDENTITIES["cart"], paper.TABLE_5["stereo"]) is None
        assert paper.counterpart({}, means) is None


class TestTables:
    def test_table_1(self, tmp_path):
        write_run(tmp_path, "patches", patches_results(SIFT=0.1234, RootSIFT=0.0567, polar=0.0089))
        means, scenes, theirs = section_of(tmp_path, "Table 1").tables
        rows = rows_of(means)
        sift = rows["SIFT", "patches"]
        assert (sift["FPR95 %, ours"], sift["95 %"], sift["FPR95 %, paper"]) == ("12.34", "6.17 - 24.68", "7.50")
        assert (sift["N (pairs)"], sift["rank-1"]) == ("100 (3)", "0.6543")
        assert rows["RootSIFT", "patches"]["FPR95 %, paper"] == "–"
        assert rows["polar", "patches"]["in the paper"] == "LogPol, λ = 96"
        assert [list(row) for row in scenes.rows] == [
            ["one", "6.17", "2.83", "0.45"],
            ["two", "18.51", "8.51", "1.33"],
            ["mean", "12.34", "5.67", "0.89"],
        ]
        assert ["milan_cathedral", "7.08", "1.98", "1.48", "1.86", "0.35", "0.19", "0.12", "0.07"] in theirs.rows

    def test_table_2(self, tmp_path):
        write_ablation(tmp_path)
        shares, ranks = section_of(tmp_path, "Table 2").tables
        rows = rows_of(shares)
        assert shares.columns[2:] == [f"λ = {lambda_}" for lambda_ in (12, 16, 32, 40, 64, 96, 128)]
        assert list(rows["Cart", "paper"].values())[2:] == ["0.72", "0.77", "1.36", "–", "4.79", "7.03", "8.43"]
        assert (rows["Cart", "ablation"]["λ = 12"], rows["Cart", "ablation"]["λ = 40"]) == ("1.23", "–")
        assert (rows["LogPol", "ablation"]["λ = 12"], rows["LogPol", "ablation"]["λ = 40"]) == ("0.77", "0.31")
        assert rows_of(ranks)["LogPol", "ablation"]["λ = 40"] == "0.7171"

    def test_table_3(self, tmp_path):
        write_run(tmp_path / "a", "hpatches", hpatches_results(SIFT=0.9))
        write_run(tmp_path / "b", "hpatches", hpatches_results("full", SIFT=0.8))
        columns, rows = (
            section_of(tmp_path, "Table 3").tables[0].columns,
            section_of(tmp_path, "Table 3").tables[0].rows,
        )
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        assert [(row["run"], row["mode"], row["rotation"], row["viewpoint, ours"]) for row in found] == [
            ("hpatches (a)", "paper", "0", "0.9000"),
            ("hpatches (a)", "paper", "45", "0.8550"),
            ("hpatches (b)", "full", "0", "0.8000"),
            ("hpatches (b)", "full", "45", "0.7550"),
        ]
        assert [row["viewpoint, paper"] for row in found] == ["0.740", "–", "–", "–"]
        assert {row["illumination, ours"] for row in found} == {"–"}

    @pytest.mark.parametrize(("kind", "theirs"), [("sift", "0.740"), ("opencv", "–")])
    def test_no_counterpart_on_keypoints_of_others(self, tmp_path, kind, theirs):
        options = {"seed": 0, "fixed_size": None, "detector": {"kind": kind, "class": "ORB"}}
        write_run(tmp_path, "hpatches", hpatches_results(SIFT=0.9), options=options)
        table = section_of(tmp_path, "Table 3").tables[0]
        assert table.rows[0][list(table.columns).index("viewpoint, paper")] == theirs

    def test_table_4(self, tmp_path):
        write_run(tmp_path, "amos", amos_results(SIFT=0.4567, RootSIFT=0.4711, polar=0.6001))
        rows = rows_of(section_of(tmp_path, "Table 4").tables[0])
        assert (rows["SIFT", "paper"]["λ = 6"], rows["SIFT", "amos, SIFT"]["λ = 12"]) == ("0.551", "0.4567")
        assert rows["RootSIFT", "amos, RootSIFT"]["λ = 12"] == "0.4711"
        assert (rows["LogPol", "amos, polar"]["λ = 96"], rows["LogPol", "paper"]["λ = 96"]) == ("0.6001", "0.651")
        assert rows["LogPol", "amos, polar"]["λ = 6"] == "–"

    def test_table_4_from_a_list_of_pairs(self, tmp_path):
        results = amos_results(SIFT=0.4567)
        results["SIFT"]["lists"] = "as listed in pairs.txt, a stand-in for AMOS with SIFT keypoints"
        write_run(tmp_path, "amos", results)
        assert ("SIFT", "amos, SIFT (stand-in)") in rows_of(section_of(tmp_path, "Table 4").tables[0])

    def test_table_5(self, tmp_path):
        write_run(tmp_path, "phototourism", pose_results(polar=0.31, SIFT=0.22))
        rows = rows_of(section_of(tmp_path, "Table 5").tables[0])
        polar, sift = rows["polar", "phototourism"], rows["SIFT", "phototourism"]
        assert (polar["stereo, mAP 15"], polar["stereo, mAA 10"], polar["stereo, N pairs"]) == (
            "0.4100",
            "0.3100",
            "90",
        )
        assert (polar["multi-view, mAP 15"], polar["multi-view, mAA 10"]) == ("0.6100", "0.5100")
        assert (polar["stereo, mAP 15, paper"], polar["multi-view, mAP 15, paper"]) == ("0.0448", "0.5427")
        assert (sift["multi-view, mAP 15"], sift["stereo, mAP 15, paper"]) == ("–", "0.0277")

    def test_structure_from_motion(self, tmp_path):
        options = {"seed": 3, "shrink": 3.0, "keypoints": 2000, "repeats": 5}
        write_run(tmp_path, "sfm", structure_results(polar=17, SIFT=9), options=options)
        section = section_of(tmp_path, "Structure")
        (table,) = section.tables
        assert table.caption == "sfm: every second photo downscaled 3 times, up to 2000 keypoints, 5 models each."
        rows = rows_of(table)
        assert list(rows) == [(scene, name) for scene in ("one", "two", "all") for name in ("polar", "SIFT")]
        one = rows["one", "polar"]
        assert (one["registered"], one["downscaled"], one["correct"]) == (
            "17.25 of 20 (16 - 19)",
            "4 of 10",
            "16 of 20",
        )
        assert (one["points"], one["track length"], one["reprojection, px"]) == ("1700", "3.46", "0.68")
        assert (one["rotation, °"], one["position"], one["pairs verified"]) == ("0.12", "0.046", "77 of 190")
        assert (one["keypoints"], one["ratio"]) == ("1234", "0.85")
        assert (rows["two", "SIFT"]["registered"], rows["two", "SIFT"]["rotation, °"]) == ("0 of 10 (0 - 0)", "–")
        assert (rows["all", "SIFT"]["registered"], rows["all", "SIFT"]["keypoints"]) == ("9.25 of 30 (8 - 11)", "–")
        assert section.ours["sfm"]["polar"]["one"]["points"] == 1700
        assert counts(section.runs[0]) == "30 images (20 of one, 10 of two)"

    def test_figure_5(self, tmp_path):
        write_run(tmp_path, "retrieval", retrieval_results(cart=0.71, polar=0.93))
        rows = rows_of(section_of(tmp_path, "Fig. 5").tables[0])
        assert (rows["polar", "retrieval"]["rank-1"], rows["polar", "retrieval"]["rank-1, paper"]) == (
            "0.9300",
            "about 0.97",
        )
        assert rows["cart", "retrieval"]["rank-1, paper"] == "–"

    def test_without_scales(self, tmp_path):
        fixed = {"seed": 17, "fixed_size": "median", "resamples": 5}
        write_run(tmp_path / "kept", "patches", patches_results(cart=0.02, polar=0.01))
        write_run(tmp_path / "fixed", "patches", patches_results(cart=0.2, polar=0.05), options=fixed)
        write_run(tmp_path / "other", "patches", patches_results(cart=0.3), options=fixed, data={"another": {}})
        rows = section_of(tmp_path, "Without").tables[0].rows
        assert [list(row[:7]) for row in rows if row[4] == "FPR95 %"] == [
            ["cart", "cartesian", "patches (fixed)", "median", "FPR95 %", "20.00", "2.00"],
            ["polar", "log-polar", "patches (fixed)", "median", "FPR95 %", "5.00", "1.00"],
            ["cart", "cartesian", "patches (other)", "median", "FPR95 %", "30.00", "–"],
        ]
        assert [run.label for run in section_of(tmp_path, "Table 1").runs] == ["patches (kept)"]

    @pytest.mark.parametrize(
        ("protocol", "results", "measures"),
        [
            ("retrieval", retrieval_results(cart=0.5), {"rank-1 among distractors": "0.5000"}),
            ("phototourism", pose_results(cart=0.25), {"stereo, mAA 10": "0.2500", "multi-view, mAA 10": "0.4500"}),
            ("hpatches", hpatches_results(cart=0.75), {"viewpoint, rank-1 (rotation 45, zoom 1)": "0.7050"}),
        ],
    )
    def test_other_protocols_without_scales(self, tmp_path, protocol, results, measures):
        write_run(tmp_path, protocol, results, options={"seed": 1, "fixed_size": 0.02})
        rows = section_of(tmp_path, "Without").tables[0].rows
        assert measures.items() <= {row[4]: row[5] for row in rows}.items()
        assert {row[3] for row in rows} == {"0.02 of the longer side"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """All protocols but AMOS, patches twice, and what the report says."""
    results, output = (tmp_path_factory.mktemp(name) for name in ("results", "report"))
    write_run(results / "a", "patches", patches_results(SIFT=0.1234, polar=0.0089), absent=True)
    write_run(results / "zoomed", "patches", patches_results(SIFT=0.3456))
    write_run(results / "a", "retrieval", retrieval_results(cart=0.71, polar=0.93))
    write_run(results / "b", "hpatches", hpatches_results(SIFT=0.9))
    write_run(results / "b", "phototourism", pose_results(polar=0.31))
    write_ablation(results / "c")
    runs = read_runs([results])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("plot_pooling", "plot_pair", "plot_supports"):  # slow to draw, and tested beside this
            patch.setattr(paper_plots, name, _picture)
        made = write_report(output, paper_sections(runs), runs)
    assert sorted(path.name for path in output.iterdir()) == sorted(made)
    return output


def _picture() -> Figure:
    figure = Figure()
    figure.subplots().imshow(np.eye(9))
    return figure


class TestReport:
    def test_numbers_of_markdown_are_those_of_json(self, report):
        text, document = (report / "report.md").read_text(), json.loads((report / "report.json").read_text())
        found = {section["title"].partition(":")[0]: section for section in document["sections"]}
        ours = found["Table 1"]["ours"]
        assert ours["patches (a)"]["SIFT"]["mean"]["fpr95"] == 0.1234
        for scenes in ours.values():
            for each in scenes.values():
                assert f"{100 * each['two']['fpr95']:.2f}" in text
        assert found["Table 1"]["paper"]["reichstag"]["HardNet, λ = 12"] == 0.21
        assert found["Table 2"]["ours"]["ablation"]["log-polar-40"]["fpr95"] == 0.0031
        assert found["Table 5"]["ours"]["phototourism"]["polar"]["two"]["maa10"] == 0.31
        assert found["Fig. 4"]["ours"]["patches (zoomed)"]["SIFT"]["fpr95"][0][0] == 0.3456

    def test_runs_are_stated(self, report):
        text, document = (report / "report.md").read_text(), json.loads((report / "report.json").read_text())
        assert len(document["runs"]) == 6
        for run in document["runs"]:
            assert f"**{run['label']}**" in text
            assert f"`{run['command']}`" in text
            assert run["versions"]["logpolar"] == "9.8.7"
            assert run["seed"] == (29 if run["protocol"] == "ablation" else 17)
        stated = text.partition("## Runs")[2]
        assert stated.count("seed: 17") == 5
        for words in ("100 correspondences in 3 image pairs", "777 in 5 pairs of viewpoint", "45 pairs, several views"):
            assert words in stated
        assert stated.count("weights missing: absent") == 1

    def test_what_was_not_run(self, report):
        text, document = (report / "report.md").read_text(), json.loads((report / "report.json").read_text())
        missing = [section["title"] for section in document["sections"] if section["not_run"]]
        assert missing == [
            "Table 4: AMOS patches, rank-1 by support λ",
            "Without the detector's scale: log-polar against cartesian",
            "Structure from motion",
        ]
        assert text.count("**Not run.** The command for it: `logpolar eval ") == 3
        assert "Not run: Table 4; Without the detector's scale; Structure from motion." in text

    def test_pictures(self, report):
        names = [
            line.split("](")[1][:-1] for line in (report / "report.md").read_text().splitlines() if line[:2] == "!["
        ]
        expected = ["figure-1", "figure-2", "figure-2-supports", "figure-4-a", "figure-4-zoomed", "figure-5"]
        assert names == [f"{name}.png" for name in expected]
        for name in names:
            assert cv2.imread(str(report / name)).std() > 5

    def test_a_markdown_file_with_its_folder(self, tmp_path):
        write_run(tmp_path, "retrieval", retrieval_results(SIFT=0.5))
        runs = read_runs([tmp_path])
        made = write_report(tmp_path / "results.md", paper_sections(runs)[2:], runs)
        assert made[:2] == ["results.md", "results/report.json"]
        assert all((tmp_path / name).is_file() for name in made)
        links = re.findall(r"!\[.*?\]\((.*?)\)", (tmp_path / "results.md").read_text())
        assert links
        assert set(links) == set(made[2:])

    def test_without_matplotlib(self, tmp_path, monkeypatch):
        for module in (
            "logpolar.evaluation.report.paper_plots",
            "logpolar.evaluation.figures",
            "logpolar.viewing.plotting",
        ):
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        write_ablation(tmp_path)
        runs = read_runs([tmp_path])
        with pytest.warns(LogpolarWarning, match=r"logpolar\[viz\]"):
            assert write_report(tmp_path, paper_sections(runs), runs) == ["report.md", "report.json"]
        text = (tmp_path / "report.md").read_text()
        assert "Figures are left out: " in text
        assert "![" not in text


class TestClassesAndCurves:
    def test_other_classes_are_refused(self, tmp_path):
        results = patches_results(SIFT=0.1)
        results["SIFT"]["mean"]["classes"]["counts"] = [[1, 2], [3, 4]]
        write_run(tmp_path, "patches", results)
        with pytest.raises(LogpolarError, match=r"patches\.json: 'classes' is not the 5 x 6"):
            section_of(tmp_path, "Fig. 4")

    def test_curve_that_is_none(self, tmp_path):
        results = retrieval_results(SIFT=0.5)
        results["SIFT"]["mean"]["curve"]["places"] = [1]
        write_run(tmp_path, "retrieval", results)
        with pytest.raises(LogpolarError, match=r"retrieval\.json: 'curve' is not a curve"):
            section_of(tmp_path, "Fig. 5")

    def test_older_files_have_some_places_of_the_curve(self, tmp_path):
        results = retrieval_results(SIFT=0.5)
        del results["SIFT"]["mean"]["curve"]
        write_run(tmp_path, "retrieval", results)
        (_, draw) = section_of(tmp_path, "Fig. 5").figures["figure-5"]
        (line,) = draw().axes[0].lines
        assert line.get_xdata().tolist() == [1, 2, 3, 3500]
        assert line.get_ydata().tolist() == [0.5, 0.5, 0.99, 1.0]
