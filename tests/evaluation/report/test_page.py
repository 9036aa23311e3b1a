from __future__ import annotations

import json
import re

from logpolar.evaluation.report.sections import report_results
from report_runs import amos_results, write_run


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text()).group(1))


def test_rows_tell_their_n_and_command_and_missing_runs_their_command(tmp_path, monkeypatch):
    monkeypatch.setattr("logpolar.evaluation.report.writing.draw_figures", lambda *arguments: ([], "not now"))
    write_run(tmp_path / "results", "amos", amos_results(SIFT=0.5))
    _, made, folder = report_results([tmp_path / "results"], tmp_path / "out")
    assert made[0] == "report.html"
    data = data_of(folder / "report.html")
    titles = [section["title"] for section in data["sections"]]
    assert titles[-2:] == ["Not run", "Runs"]
    amos = next(section for section in data["sections"] if section["title"].startswith("Table 4"))
    hints = [hint for table in amos["tables"] for hint in table["hints"] if hint]
    run = dict(
        zip(data["sections"][-1]["tables"][0]["columns"], data["sections"][-1]["tables"][0]["rows"][0], strict=True)
    )
    assert hints
    assert all(f"N = {run['N']}" in hint and run["command"] in hint for hint in hints)
    assert any("logpolar eval patches" in row[1] for row in data["sections"][-2]["tables"][0]["rows"])


def test_beside_a_markdown_file(tmp_path, monkeypatch):
    monkeypatch.setattr("logpolar.evaluation.report.writing.draw_figures", lambda *arguments: ([], "not now"))
    write_run(tmp_path / "results", "amos", amos_results(SIFT=0.5))
    report_results([tmp_path / "results"], tmp_path / "figures.md")
    assert data_of(tmp_path / "figures.html")["title"] == "Our figures beside the paper's"
