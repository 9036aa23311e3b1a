"""Result files as the commands of `logpolar eval` leave them, with numbers made up so that each occurs once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SAMPLING = {"lambda": 96.0, "rows": 32, "columns": 32}
IDENTITIES: dict[str, dict[str, Any]] = {
    "SIFT": {"kind": "sift", "lambda": 12.0},
    "RootSIFT": {"kind": "rootsift", "lambda": 12.0},
    "cart": {"kind": "model", "sampling": {**SAMPLING, "pattern": "cartesian", "lambda": 12.0}},
    "polar": {"kind": "model", "sampling": {**SAMPLING, "pattern": "log-polar"}},
}


def write_run(folder: Path, protocol: str, results: dict[str, Any], **changes: Any) -> Path:
    """A result file of a protocol; ``changes`` replace what stands at its top."""
    names = [*results, *(["absent"] if changes.pop("absent", False) else [])]
    document = {
        "protocol": protocol,
        "command": f"logpolar eval {protocol} 'a b.h5' -o {folder.name}",
        "versions": {"python": "3.10.0", "logpolar": "9.8.7"},
        "data": {"one": {"file": "one.h5", "digest": "abc"}},
        "options": {"seed": 17, "fixed_size": None},
        "descriptors": [
            {
                "spec": name,
                "name": name,
                **({"identity": IDENTITIES[name]} if name in IDENTITIES else {"missing": "no"}),
            }
            for name in names
        ],
        "results": results,
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{protocol}.json"
    path.write_text(json.dumps(document))
    return path


def patches_results(**fpr95: float) -> dict[str, Any]:
    """Two scenes, of which the mean has the given FPR95 by descriptor."""
    return {
        name: {"one": _scene(share / 2, 40), "two": _scene(1.5 * share, 60), "mean": _scene(share, 100)}
        for name, share in fpr95.items()
    }


def _scene(fpr95: float, count: int) -> dict[str, Any]:
    shares: list[list[float | None]] = [[None] * 6 for _ in range(5)]
    shares[0][0] = fpr95
    counts = [[0] * 6 for _ in range(5)]
    counts[0][0] = count
    return {
        "pairs": 3,
        "correspondences": count,
        "fpr95": fpr95,
        "rank1": 0.6543,
        "scales_differ_2x": 0,
        "rank1_scales_differ_2x": None,
        "fpr95_interval": [fpr95 / 2, 2 * fpr95],
        "rank1_interval": [0.6, 0.7],
        "classes": {"counts": counts, "fpr95": shares},
    }


def retrieval_results(**rank1: float) -> dict[str, Any]:
    return {
        name: {
            "mean": {
                "pairs": 4,
                "correspondences": 321,
                "distractors": 2987.5,
                "full_pools": 1,
                "shares": {"1": share, "2": share, "3": 0.99, "3500": 1.0},
                "curve": {"places": [1, 2, 3, 3500], "shares": [share, share, 0.99, 1.0]},
            }
        }
        for name, share in rank1.items()
    }


def hpatches_results(mode: str = "paper", **rank1: float) -> dict[str, Any]:
    """Of the viewpoint split, as it is and turned by 45 degrees."""
    return {
        name: [
            {
                "options": {"mode": mode, "turn": turn, "zoom": 1.0},
                "thresholds": [1, 3],
                "splits": {"viewpoint": {"pairs": 5, "correspondences": 777, "rank1": share - turn / 1000}},
            }
            for turn in (0.0, 45.0)
        ]
        for name, share in rank1.items()
    }


def amos_results(**rank1: float) -> dict[str, Any]:
    return {name: {"pairs": 1234, "views": 21, "rank1": share} for name, share in rank1.items()}


def pose_results(**maa10: float) -> dict[str, Any]:
    """With both tasks for the first descriptor, and with stereo alone for the others."""
    results = {}
    for number, (name, share) in enumerate(maa10.items()):
        mean = {"two": {"pairs": 90, "maa10": share, "map15": share + 0.1}}
        if number == 0:
            mean["several"] = {"pairs": 45, "maa10": share + 0.2, "map15": share + 0.3}
        results[name] = {"ratio": 0.85, "maa10_by_tuned_ratio": {}, "mean": mean, "stereo": {}, "multi_view": {}}
    return results


ABLATION = """pattern,lambda,file,pairs,correspondences,fpr95,rank1,scales_differ_2x,rank1_scales_differ_2x
cartesian,12,one,3,300,0.4,0.5,0,
cartesian,12,mean,3,300,0.0123,0.5432,0,
log-polar,12,mean,3,300,0.0077,0.6161,0,
log-polar,40,mean,3,300,0.0031,0.7171,0,
"""


def write_ablation(folder: Path, recorded: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.csv").write_text(ABLATION)
    if recorded:
        document = {"protocol": "ablation", "command": "logpolar ablate a.toml", "versions": {"logpolar": "9.8.7"}}
        (folder / "ablation.json").write_text(json.dumps({**document, "data": {}, "options": {"seed": 29}}))
    return folder / "table.csv"


def structure_results(**registered: int) -> dict[str, Any]:
    """Of two scenes with 20 and 10 images, of which the first one is registered so far and the second not at all."""
    results = {}
    for name, count in registered.items():
        one = {**_model(20, count), "pairs": 190, "verified": 77, "keypoints_mean": 1234.4, "repeats": []}
        two = {**_model(10, 0), "pairs": 45, "verified": 0, "keypoints_mean": 50.0, "repeats": []}
        together = {**_model(30, count), "reduced": 15, "reduced_registered": 4}
        results[name] = {"ratio": 0.85, "all": together, "scenes": {"one": one, "two": two}}
    return results


def _model(images: int, registered: int) -> dict[str, Any]:
    known = registered > 0
    return {
        "images": images,
        "reduced": images // 2,
        "registered": registered + 0.25 if known else 0.0,
        "registered_least": max(registered - 1, 0),
        "registered_most": registered + 2 if known else 0,
        "reduced_registered": 4 if known else 0,
        "right": max(registered - 1, 0),
        "points": 100 * registered,
        "mean_track_length": 3.456 if known else None,
        "mean_reprojection_error": 0.678 if known else None,
        "rotation_median": 0.123 if known else None,
        "position_median": 0.0456 if known else None,
    }
