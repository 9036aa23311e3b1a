"""Image to descriptors, how it grows, and the start of a process."""

from __future__ import annotations

import subprocess
import sys

from logpolar.features.extractor import Extractor
from speed_subjects import peers
from speed_subjects.inputs import COUNT, LARGE, SMALL, gray_picture, picture, random_keypoints
from speed_subjects.measuring import Case, Settings, Subject, Work

_EXTRACTED = ("logpolar-96-int8", "logpolar-sf-int8")

_FIRST_DESCRIPTOR = """
import numpy, logpolar
extractor = logpolar.Extractor({model!r}, runtime={runtime!r})
image = numpy.random.default_rng(0).random((256, 256), numpy.float32)
extractor.extract(image, logpolar.Keypoints.from_points(numpy.full((1, 2), 128.0)))
"""


def ours(model: str, threads: int, count: int, size: tuple[int, int]) -> Work:
    """Given keypoints described, from the 8 bit picture on."""
    name, _, runtime = model.partition("@")
    extractor = Extractor(name, max_size=None, runtime=runtime, threads=threads)  # type: ignore[arg-type]
    pixels, keypoints = picture(size), random_keypoints(count, size)
    return lambda: extractor.extract(pixels, keypoints)


def description(settings: Settings) -> Subject:
    """Image and given keypoints in, descriptors out; no detection for anyone."""
    keypoints = random_keypoints(COUNT, SMALL)
    chunk = peers.KORNIA_CHUNK
    baseline = f"kornia patches + HardNet, chunks of {chunk}"
    return Subject(
        f"Image to descriptors: {COUNT} given keypoints of a {SMALL[0]} px picture",
        "descriptors/s",
        (
            *(
                Case(model, lambda model=model: ours(model, settings.threads, COUNT, SMALL), COUNT)
                for model in settings.models
            ),
            Case(baseline, lambda: peers.kornia_description(gray_picture(SMALL), keypoints, chunk), COUNT),
            Case(
                "kornia LAFDescriptor(HardNet), all at once",
                lambda: peers.kornia_module(gray_picture(SMALL), keypoints),
                COUNT,
            ),
            Case("cv2.SIFT.compute", lambda: peers.opencv_sift(picture(SMALL), keypoints), COUNT),
        ),
        baseline,
    )


def extraction(settings: Settings) -> Subject:
    """Image in, detected keypoints and their descriptors out: SIFT's keypoints, and those of the network detector."""

    def detected(model: str) -> Work:
        name, _, runtime = model.partition("@")
        extractor = Extractor(name, max_keypoints=2048, runtime=runtime, threads=settings.threads)  # type: ignore[arg-type]
        pixels = picture(SMALL)
        return lambda: extractor.extract(pixels)

    names = [f"{name}@{runtime}" for runtime in ("onnxruntime", "openvino") for name in _EXTRACTED]
    cases = tuple(Case(model, lambda model=model: detected(model), 2048) for model in names)
    return Subject(f"Image to 2048 keypoints and descriptors, {SMALL[0]} px picture", "keypoints/s", cases, names[0])


def growth(settings: Settings) -> Subject:
    """More keypoints, larger pictures; the last case is 8000 keypoints of 12 megapixels."""
    model = settings.models[-1]
    grid = [(count, SMALL) for count in (0, 1000, 2000, 4000, 8000)]
    grid += [(2000, (2048, 1536)), (2000, LARGE), (8000, LARGE)]
    cases = tuple(
        Case(
            f"{count} keypoints, {size[0]} x {size[1]}",
            lambda count=count, size=size: ours(model, settings.threads, count, size),
            count,
        )
        for count, size in grid
    )
    return Subject(f"Growth: {model}, given keypoints, full resolution", "descriptors/s", cases)


def start(settings: Settings) -> Subject:
    """Whole processes, from nothing to the end."""

    def process(code: str) -> Work:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    firsts = []
    for model in settings.models:
        name, _, runtime = model.partition("@")
        code = _FIRST_DESCRIPTOR.format(model=name, runtime=runtime)
        firsts.append(Case(f"first descriptor, {model}", lambda code=code: process(code), 1))
    return Subject(
        "Start: whole processes",
        "processes/s",
        (
            Case("python -c pass", lambda: process("pass"), 1),
            Case("import logpolar", lambda: process("import logpolar"), 1),
            Case("import logpolar.cli", lambda: process("import logpolar.cli"), 1),
            *firsts,
        ),
    )
