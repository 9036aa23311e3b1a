"""Constructed reconstructions, each with one thing wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from logpolar.sfm.diagnosis import diagnose, weakest_photos, why_unregistered
from logpolar.sfm.facts import Facts, Lens, PairFacts, PhotoFacts, SceneModel, connected

LENS = Lens(1, "SIMPLE_RADIAL", 4000, 3000, 3200.0, (3200.0, 2000.0, 1500.0, 0.02))


def pairs_of(rows: dict[tuple[int, int], tuple[int, int, int]]) -> PairFacts:
    """Matches, inliers and common points by pair."""
    table = np.array([[*pair, *counts] for pair, counts in sorted(rows.items())], np.intp).reshape(-1, 5)
    return PairFacts(table[:, :2], *table.T[2:])


def model_of(number: int, photos: list[int]) -> SceneModel:
    poses = np.concatenate([np.tile(np.eye(3), (len(photos), 1, 1)), np.zeros((len(photos), 3, 1))], axis=2)
    nothing = np.zeros(0, np.intp)
    return SceneModel(
        number,
        np.zeros((1, 3)),
        np.zeros((1, 3), np.uint8),
        np.array([2]),
        np.array(photos),
        poses,
        [nothing for _ in photos],
    )


def sound() -> Facts:
    """Six photos in a row, all registered, each sharing points with its neighbours."""
    photos = [PhotoFacts(f"{n}.jpg", 2000, 1, 0, 400 + n, 0.8) for n in range(6)]
    pairs = pairs_of({(n, n + 1): (300, 250, 200) for n in range(5)} | {(n, n + 2): (90, 60, 40) for n in range(4)})
    return Facts(photos, {1: LENS}, pairs, [model_of(0, list(range(6)))])


def changed(facts: Facts, row: int, **values) -> list[PhotoFacts]:
    return [replace(photo, **values) if n == row else photo for n, photo in enumerate(facts.photos)]


def titles(facts: Facts) -> list[str]:
    return [finding.title for finding in diagnose(facts)]


def test_a_sound_reconstruction_has_no_findings():
    assert diagnose(sound()) == []
    assert why_unregistered(sound()) == {}
    assert weakest_photos(sound(), 2) == [0, 1]


def test_photos_without_keypoints_and_with_few():
    facts = replace(sound(), photos=changed(sound(), 2, keypoints=0))
    assert titles(facts) == ["1 photo without keypoints"]
    assert diagnose(facts)[0].photos == [2]
    assert titles(replace(sound(), photos=changed(sound(), 2, keypoints=7))) == ["1 photo with fewer than 50 keypoints"]


def test_photos_that_cannot_be_read():
    facts = sound()
    facts = replace(facts, photos=[*facts.photos, PhotoFacts("bad.jpg", unreadable="bad.jpg: not an image")])
    assert titles(facts) == ["1 photo cannot be read"]
    assert why_unregistered(facts) == {6: "cannot be read"}


def without_the_last_two(pairs: dict[tuple[int, int], tuple[int, int, int]]) -> Facts:
    """Photos 4 and 5 are not registered; ``pairs`` are theirs."""
    facts = sound()
    kept = {(n, n + 1): (300, 250, 200) for n in range(3)}
    photos = [replace(photo, model=0 if n < 4 else None) for n, photo in enumerate(facts.photos)]
    return Facts(photos, facts.lenses, pairs_of(kept | pairs), [model_of(0, [0, 1, 2, 3])])


def test_islands():
    facts = without_the_last_two({(4, 5): (300, 250, 0), (3, 4): (20, 0, 0)})
    (finding,) = diagnose(facts)
    assert (finding.level, finding.photos) == ("problem", [4, 5])
    assert "beside the group of the model, of 4 photos, 1 island of 2" in finding.title
    assert why_unregistered(facts) == dict.fromkeys((4, 5), "not connected to the photos of the model")


def test_islands_lie_beside_the_model_also_if_they_are_larger():
    facts = without_the_last_two({(4, 5): (300, 250, 0)})
    photos = [replace(photo, model=0 if n > 3 else None) for n, photo in enumerate(facts.photos)]
    finding = diagnose(replace(facts, photos=photos, models=[model_of(0, [4, 5])]))[0]
    assert finding.title.endswith("beside the group of the model, of 2 photos, 1 island of 4")
    assert finding.photos == [0, 1, 2, 3]
    finding = diagnose(replace(facts, photos=photos, models=[]))[1]
    assert finding.title.endswith("beside the largest group, of 4 photos, 1 island of 2")


def test_too_few_inliers():
    facts = without_the_last_two({(3, 4): (60, 21, 0), (3, 5): (40, 0, 0), (2, 5): (30, 0, 0)})
    assert titles(facts) == ["2 photos with too few inliers in every pair"]
    reasons = ["too few inliers: 21 with 3.jpg, the best", "no verified pair; 40 matches in the best of 2"]
    assert why_unregistered(facts) == dict(zip((4, 5), reasons, strict=True))


def test_unpaired_and_not_placed():
    facts = without_the_last_two({(3, 4): (200, 150, 0)})
    assert titles(facts)[0] == "1 photo not paired with any other"
    reasons = ["COLMAP could not place it; 150 inliers with 3.jpg", "not paired with any photo"]
    assert why_unregistered(facts) == dict(zip((4, 5), reasons, strict=True))


def test_two_models_that_could_be_one():
    facts = without_the_last_two({(3, 4): (90, 70, 30), (2, 4): (50, 40, 0), (4, 5): (300, 250, 200)})
    photos = [replace(photo, model=0 if n < 4 else 1) for n, photo in enumerate(facts.photos)]
    facts = Facts(photos, facts.lenses, facts.pairs, [model_of(0, [0, 1, 2, 3]), model_of(1, [3, 4, 5])])
    (finding,) = diagnose(facts)
    assert finding.title == "Models 0 and 1, of 4 and 3 photos, could be one"
    assert finding.advice.startswith("1 photo in both; 1 verified pair between them, 40 inliers")
    assert why_unregistered(facts)[5] == "in another model, number 1"


def test_models_that_nothing_connects_are_separate():
    facts = without_the_last_two({(4, 5): (300, 250, 200)})
    facts = replace(facts, models=[*facts.models, model_of(1, [4, 5])])
    assert not any("could be one" in title for title in titles(facts))


@pytest.mark.parametrize(
    ("lens", "words"),
    [
        (replace(LENS, focal=900.0), "a view of 132 degrees"),
        (replace(LENS, focal=90000.0), "focal length 90000 px for photos of 4000 px, a view of 2.5 degrees"),
        (replace(LENS, parameters=(3200.0, 2000.0, 1500.0, -1.5)), "a radial distortion of -1.50"),
        (replace(LENS, kind="OPENCV_FISHEYE", focal=900.0), None),
    ],
)
def test_implausible_cameras(lens, words):
    found = titles(replace(sound(), lenses={1: lens}))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_look_alikes():
    rows = {(n, n + 1): (300, 250, 200) for n in range(5)} | {(0, 5): (140, 120, 3), (1, 5): (90, 80, 0)}
    (finding,) = diagnose(replace(sound(), pairs=pairs_of(rows)))
    assert finding.title.startswith("2 pairs of look-alike photos")
    assert finding.advice.startswith("0.jpg and 5.jpg: 120 inliers, 3 common points")
    assert list(finding.photos) == [0, 1, 5]


def test_matches_that_agree_with_the_model_are_no_look_alikes():
    rows = {(n, n + 1): (300, 250, 200) for n in range(5)} | {(0, 5): (140, 120, 3), (1, 5): (90, 80, 0)}
    pairs = pairs_of(rows)
    values = {(0, 5): 0.9, (1, 5): 0.04}  # from one spot; of different facades
    agreement = np.array([values.get(tuple(pair), np.nan) for pair in pairs.rows.tolist()])
    facts = replace(sound(), pairs=replace(pairs, agreement=agreement))
    (finding,) = diagnose(facts)
    assert finding.title.startswith("1 pair of look-alike photos")
    assert finding.advice.startswith("1.jpg and 5.jpg: 80 inliers, 0 common points, 4 % of the matches agree")


def test_weak_photos_are_named():
    assert titles(replace(sound(), photos=changed(sound(), 3, points=12)))[0].startswith(
        "1 photo with far fewer points"
    )
    facts = replace(sound(), photos=changed(sound(), 3, error=4.0))
    assert titles(facts) == ["1 photo with a far larger error than the others (median 0.80 px)"]


def test_no_model_and_nothing_at_all():
    facts = replace(sound(), photos=[replace(photo, model=None) for photo in sound().photos], models=[])
    assert diagnose(facts)[0].title.startswith("No model")
    assert weakest_photos(facts) == []
    assert len(diagnose(Facts([], {}, pairs_of({})))) == 1


def test_without_a_database_nothing_is_said_of_pairs():
    """A model from elsewhere: keypoints, matches and inliers are not known."""
    facts, unknown = sound(), np.full(9, -1)
    photos = [replace(photo, keypoints=None) for photo in facts.photos]
    pairs = PairFacts(facts.pairs.rows, unknown, unknown, facts.pairs.shared)
    assert diagnose(replace(facts, photos=photos, pairs=pairs)) == []


def test_connected():
    assert connected(6, np.array([[4, 5], [1, 0], [5, 2]])) == [[2, 4, 5], [0, 1], [3]]
    assert connected(0, np.zeros((0, 2), int)) == []
