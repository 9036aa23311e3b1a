"""ONNX: image and keypoints to descriptors in one file, run without logpolar (extra 'onnx' to write the file)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

from logpolar import Extractor, Keypoints, load_model
from logpolar.models.export import end_to_end_file
from logpolar.viewing.demo import demo_pair

photo = cv2.cvtColor(demo_pair().first, cv2.COLOR_BGR2GRAY)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "logpolar-96.onnx"
    path.write_bytes(end_to_end_file(load_model("logpolar-96")))  # or: logpolar export logpolar-96 --end-to-end

    # From here on nothing but numpy, OpenCV and onnxruntime.
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = cv2.SIFT.create(nfeatures=200, enable_precise_upscale=True).detect(photo, None)
    keypoints = np.array([(*each.pt, each.size, each.angle) for each in found], np.float32)
    (descriptors,) = session.run(["descriptors"], {"image": photo / np.float32(255), "keypoints": keypoints})

expected = Extractor("logpolar-96", max_size=None).extract(photo, Keypoints.from_opencv(found)).descriptors
print(f"ONNX: {len(descriptors)} descriptors, off the library's by at most {np.abs(descriptors - expected).max():.1e}")
