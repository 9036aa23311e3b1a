"""Result files that are found, called by names of their own, or refused in one line."""

from __future__ import annotations

import pytest

from logpolar.errors import LogpolarError
from logpolar.evaluation.report.runs import read_runs
from report_runs import (
    ABLATION,
    amos_results,
    hpatches_results,
    patches_results,
    pose_results,
    retrieval_results,
    write_ablation,
    write_run,
)

RESULTS = {
    "patches": patches_results(SIFT=0.1),
    "retrieval": retrieval_results(SIFT=0.5),
    "hpatches": hpatches_results(SIFT=0.5),
    "amos": amos_results(SIFT=0.5),
    "phototourism": pose_results(SIFT=0.5),
}


def assert_refused(folder, *words: str) -> None:
    with pytest.raises(LogpolarError) as caught:
        read_runs([folder])
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


class TestFound:
    def test_at_any_depth_in_the_order_of_the_paper(self, tmp_path):
        for number, (protocol, results) in enumerate(reversed(RESULTS.items())):
            write_run(tmp_path / "deep" / str(number), protocol, results)
        write_ablation(tmp_path / "z")
        runs = read_runs([tmp_path])
        assert [run.label for run in runs] == [*RESULTS, "ablation"]
        assert runs[0].results == RESULTS["patches"]
        assert (runs[0].seed, runs[5].seed) == (17, 29)
        assert runs[5].results["cartesian-12"]["fpr95"] == 0.0123
        assert runs[5].results["cartesian-12"]["rank1_scales_differ_2x"] is None

    def test_no_file_is_read_twice(self, tmp_path):
        write_run(tmp_path / "a", "amos", RESULTS["amos"])
        assert len(read_runs([tmp_path, tmp_path / "a", tmp_path / "a" / ".." / "a"])) == 1

    def test_labels_differ(self, tmp_path):
        for place in ("one/x", "two/x", "two/y"):
            write_run(tmp_path / place, "amos", RESULTS["amos"])
        write_run(tmp_path / "two" / "y", "hpatches", RESULTS["hpatches"])
        labels = [run.label for run in read_runs([tmp_path])]
        assert labels == ["hpatches", "amos (x) 1", "amos (x) 2", "amos (y)"]

    def test_ablation_that_was_not_recorded(self, tmp_path):
        write_ablation(tmp_path, recorded=False)
        (run,) = read_runs([tmp_path])
        assert (run.command, run.seed, run.versions) == ("", None, {})
        assert list(run.results) == ["cartesian-12", "log-polar-12", "log-polar-40"]


class TestRefused:
    def test_folders(self, tmp_path):
        assert_refused(tmp_path, str(tmp_path), "no results", "patches.json", "table.csv")
        assert_refused(tmp_path / "none", "none: no such folder")
        (tmp_path / "file").write_text("")
        assert_refused(tmp_path / "file", "file: is not a folder")
        write_run(tmp_path / "good", "amos", RESULTS["amos"])
        (tmp_path / "empty").mkdir()
        with pytest.raises(LogpolarError, match="empty: no results"):
            read_runs([tmp_path / "good", tmp_path / "empty"])

    @pytest.mark.parametrize("protocol", RESULTS)
    def test_truncated(self, tmp_path, protocol):
        path = write_run(tmp_path, protocol, RESULTS[protocol])
        path.write_bytes(path.read_bytes()[:-40])
        assert_refused(tmp_path, f"{protocol}.json: damaged or incomplete JSON")

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "damaged or incomplete"),
            (b"\x9f\x80\x9f\x80", "not a JSON file"),
            (b"[1, 2]", "not results of `logpolar eval patches`"),
            (b'{"name": "another tool"}', "not results of `logpolar eval patches`"),
            (b'{"protocol": "amos"}', "not results of `logpolar eval patches`"),
            (b'{"protocol": "patches"}', "no 'command'"),
        ],
    )
    def test_of_others(self, tmp_path, content, words):
        (tmp_path / "patches.json").write_bytes(content)
        assert_refused(tmp_path, "patches.json: ", words)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "not a table of `logpolar ablate`"),
            ("a,b\n1,2\n", "not a table of `logpolar ablate`"),
            (ABLATION.replace("fpr95", "fpr"), "no 'fpr95'"),
            (ABLATION.replace("0.0031", "x"), "'log-polar-40/fpr95' is not a number"),
        ],
    )
    def test_tables(self, tmp_path, content, words):
        (tmp_path / "table.csv").write_text(content)
        assert_refused(tmp_path, "table.csv: ", words)

    def test_table_of_bytes(self, tmp_path):
        (tmp_path / "table.csv").write_bytes(b"\xff\xfe\x00\x9f")
        assert_refused(tmp_path, "table.csv: not a text file")

    def test_record_of_a_table(self, tmp_path):
        write_ablation(tmp_path)
        (tmp_path / "ablation.json").write_text('{"command": 3}')
        assert_refused(tmp_path, "ablation.json: not in this version's layout")
