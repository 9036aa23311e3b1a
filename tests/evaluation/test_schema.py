"""What is said of results that do not have the layout."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from logpolar.errors import LogpolarError
from logpolar.evaluation.schema import RESULTS, check_layout
from report_runs import amos_results, hpatches_results, patches_results, pose_results, retrieval_results

EXAMPLES = {
    "patches": patches_results(SIFT=0.1),
    "retrieval": retrieval_results(SIFT=0.2),
    "hpatches": hpatches_results(SIFT=0.3),
    "amos": amos_results(SIFT=0.4),
    "phototourism": pose_results(SIFT=0.5),
}


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [
        ("patches", ("mean",)),
        ("patches", ("mean", "fpr95_interval")),
        ("patches", ("one", "correspondences")),
        ("patches", ("mean", "classes", "counts")),
        ("retrieval", ("mean", "shares", "1")),
        ("hpatches", (0, "options", "zoom")),
        ("hpatches", (1, "splits", "viewpoint", "rank1")),
        ("amos", ("views",)),
        ("phototourism", ("mean", "two", "map15")),
    ],
)
def test_missing_or_of_another_kind(protocol, keys):
    """One line with the file and the key."""
    missing, other = (copy.deepcopy(EXAMPLES[protocol]) for _ in range(2))
    inner = [each["SIFT"] for each in (missing, other)]
    for key in keys[:-1]:
        inner = [each[key] for each in inner]
    del inner[0][keys[-1]]
    inner[1][keys[-1]] = "text"
    for results, words in ((missing, f"no '{keys[-1]}' in"), (other, f"/{keys[-1]}' is not ")):
        with pytest.raises(LogpolarError) as caught:
            check_layout(Path("folder", f"{protocol}.json"), results, RESULTS[protocol])
        message = str(caught.value)
        assert f"{protocol}.json: not in this version's layout" in message
        assert words in message
        assert "\n" not in message


def test_missing_values_are_numbers():
    results = copy.deepcopy(EXAMPLES["amos"])
    results["SIFT"]["rank1"] = None
    check_layout(Path("amos.json"), results, RESULTS["amos"])
    results["SIFT"]["views"] = True
    with pytest.raises(LogpolarError, match="'SIFT/views' is not an integer"):
        check_layout(Path("amos.json"), results, RESULTS["amos"])
