"""Defaults that the library and the command line share. Importing this imports nothing else."""

from typing import Literal, TypeAlias

DEFAULT_MODEL = "logpolar-96"

DEFAULT_MAX_KEYPOINTS = 2048
"""Keypoints kept of an image, the strongest ones."""

DEFAULT_MAX_SIZE = 1600
"""Longer side, in pixels, that larger images are reduced to before anything else."""

DEFAULT_RATIO = 0.9
"""Ratio test: largest accepted best distance over second best."""

RuntimeName: TypeAlias = Literal["onnxruntime", "openvino", "torch", "cuda"]
RUNTIME_NAMES: tuple[RuntimeName, ...] = ("onnxruntime", "openvino", "torch", "cuda")

DevicePrecision: TypeAlias = Literal["float16", "float32"]
"""How a network computes on a GPU."""

DESCRIPTOR_SIZE = 128

FILE_ENDINGS = (".h5", ".hdf5")
"""Of correspondence files."""
