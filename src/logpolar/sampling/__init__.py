"""From keypoints to patches: ``patterns`` says where to sample; ``numpy_``, ``torch_`` and ``onnx_lookup`` do it."""

from logpolar.sampling.numpy_lookup import ImagePyramid, sample_patches
from logpolar.sampling.patterns import Cartesian, LogPolar, Pattern

__all__ = ["Cartesian", "ImagePyramid", "LogPolar", "Pattern", "sample_patches"]
