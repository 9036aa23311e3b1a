"""A page in one file: style, script, pictures and numbers are inside, and the browser is told to load nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.images import fitted_size, to_bytes, to_gray
from logpolar.storage.atomic_io import write_whole
from logpolar.types import Image

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


_SCRIPTS = {
    "pair": ("page", "match", "pair"),
    "document": ("page", "tables", "document"),
    "scene": ("page", "tables", "charts", "orbit", "renderer", "software", "scene"),
}
"""Scripts of each kind of page, in ``assets``."""


def write_page(path: Path, kind: str, title: str, data: Mapping[str, Any]) -> None:
    """Write a page; ``kind`` names its HTML in ``assets`` and its scripts."""
    write_whole(path, render_page(kind, title, data).encode())


def render_page(kind: str, title: str, data: Mapping[str, Any]) -> str:
    """The page as text. What comes from users (``title``, ``data``) cannot become markup or script."""
    style, script = _asset("page.css"), "".join(_asset(f"{name}.js") for name in _SCRIPTS[kind])
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        title=html.escape(title),
        style=style,
        body=_asset(f"{kind}.html"),
        data=_plain_json(data),
        script=script,
    )


def pack_array(values: NDArray[Any]) -> dict[str, Any]:
    """An array for the page's script: little-endian bytes in base64, with type and shape."""
    kind = values.dtype.newbyteorder("<")
    data = base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()
    return {"type": kind.str[1:], "shape": values.shape, "data": data}


def pack_picture(encoded: bytes, kind: str = "jpeg") -> str:
    """An encoded picture as the address of an image element."""
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


def photo_jpeg(image: Image, side: int, quality: int) -> bytes:
    """A photo as JPEG, in colour if it has any, at most ``side`` pixels on the longer side."""
    colour = image.ndim == 3 and image.shape[2] >= 3 and image.dtype == np.uint8
    pixels = image[..., :3] if colour else to_bytes(to_gray(image))
    size = fitted_size((pixels.shape[1], pixels.shape[0]), side)
    return jpeg(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), quality)


def jpeg(image: Image, quality: int) -> bytes:
    _, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return encoded.tobytes()


def _plain_json(data: Mapping[str, Any]) -> str:
    """JSON without the characters that could end or open an element, or end a line of script."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII: all else is escaped
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (resources.files("logpolar.viewing.pages") / "assets" / name).read_text(encoding="utf-8")
