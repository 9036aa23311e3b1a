"""Every rule for config.json, each broken once."""

from __future__ import annotations

import pytest

from logpolar.integrations.imc.checking import check_submission
from logpolar.integrations.imc.config import SubmissionOptions


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("metadata", None, "has no metadata"),
        ("metadata.authors", 3, "metadata.authors"),
        ("config_common", None, "has no config_common"),
        ("config_common.json_label", "Mine", "json_label must be made of"),
        ("config_common.keypoint", "a_b", "keypoint must be made of"),
        ("config_common.num_keypoints", 8001, "from 2 to 8000"),
        ("config_common.num_keypoints", 10, "more than 10"),
        ("config_phototourism_stereo.use_custom_matches", None, "use_custom_matches must be"),
        ("config_phototourism_stereo.use_custom_matches", False, "has no matcher"),
        ("config_phototourism_stereo.custom_matches_name", "a_b", "custom_matches_name"),
        ("config_phototourism_stereo.matcher", {}, "has a matcher beside"),
        ("config_phototourism_stereo.geom", {"method": "magic"}, "geom.method must be one of"),
        ("config_phototourism_stereo.geom", {"method": "cv2-ransac-f", "threshold": 1}, "needs confidence"),
        ("config_phototourism_stereo.geom", {"method": "cv2-8pt", "threshold": 1}, "takes no threshold"),
        ("config_googleurban_stereo", {"use_custom_matches": True}, "no scenes of it"),
    ],
)
def test_a_broken_config(edit, path, value, words):
    def change(method):
        *outer, last = path.split(".")
        for key in outer:
            method = method[key]
        method[last] = value

    problems = edit(change)
    assert any(words in problem for problem in problems), problems


def test_a_config_that_is_none(submission):
    for text, words in (
        ("{}", "a list of methods"),
        ("[]", "a list of methods"),
        ("[3]", "not an object"),
        ("x", "JSON"),
    ):
        (submission / "config.json").write_text(text)
        assert any(words in problem for problem in check_submission(submission).problems)
    (submission / "config.json").unlink()
    assert "config.json: is missing" in check_submission(submission).problems


@pytest.mark.parametrize("options", [{"label": "My Method"}, {"keypoint": "a_b"}, {"descriptor": ""}, {"ratio": 0}])
def test_impossible_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SubmissionOptions(**options)
