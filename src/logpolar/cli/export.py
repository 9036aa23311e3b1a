"""logpolar export"""

from __future__ import annotations

from pathlib import Path

import click

from logpolar.errors import LogpolarError
from logpolar.storage.atomic_io import check_output, write_whole

_TOLERANCE, _INT8_TOLERANCE = 1e-3, 1e-2  # 8 bit rounding amplifies tiny differences of the samplers


@click.command(
    short_help="Write a model as an ONNX file.",
    epilog="Example: logpolar export logpolar-96 -o logpolar-96.onnx --end-to-end",
)
@click.argument("model")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="File to write (.onnx).")
@click.option("--end-to-end", is_flag=True, help="Include the sampler: image and keypoints in, not patches.")
def export(model: str, output: Path, end_to_end: bool) -> None:
    """Write a shipped model or a model file as ONNX, for any runtime (extra 'onnx').

    The network alone maps patches to descriptors; with --end-to-end, a gray image and any number of keypoints. The
    result is compared with the library, in onnxruntime, before it is written.
    """
    from logpolar.models import load_model
    from logpolar.models.export import end_to_end_file, largest_difference, network_file

    if output.suffix.lower() != ".onnx":
        raise LogpolarError(f"{output}: ONNX files end in .onnx")
    check_output(output, Path(model))
    loaded = load_model(model)
    content = (end_to_end_file if end_to_end else network_file)(loaded)
    difference = largest_difference(loaded, content, end_to_end)
    if not difference < (_INT8_TOLERANCE if loaded.card.variant else _TOLERANCE):
        raise LogpolarError(f"{model}: the file would differ from the library by {difference:.1e}; nothing was written")
    write_whole(output, content)
    what = "image, keypoints -> descriptors" if end_to_end else "patches -> descriptors"
    click.echo(
        f"wrote {output} ({what}), {len(content) / 1e6:.1f} MB; differs from the library by at most {difference:.1e}"
    )
