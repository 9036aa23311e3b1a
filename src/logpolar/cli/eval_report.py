"""logpolar eval report"""

from __future__ import annotations

from pathlib import Path

import click

from logpolar.cli.eval_output import made_by, make_folder


@click.command(
    short_help="All runs beside the paper's tables and figures.",
    epilog="Example: logpolar eval report results/ ablation/ -o report/",
)
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Folder, or Markdown file.")
def report(results: tuple[Path, ...], output: Path) -> None:
    """Put what the other commands measured beside the tables and figures of the paper.

    RESULTS are folders that they wrote to, searched at any depth: patches.json, retrieval.json, hpatches.json,
    amos.json, phototourism.json, sfm.json, and table.csv of `logpolar ablate`. Several runs of one protocol may be
    there, such as `eval patches` with and without --fixed-size. Writes report.md, report.json, and figures (extra
    'viz'); if the output is called NAME.md, that file and the others into the folder NAME.
    """
    from logpolar.evaluation.report.runs import read_runs
    from logpolar.evaluation.report.sections import paper_sections
    from logpolar.evaluation.report.writing import write_report

    runs = read_runs(results)
    sections = paper_sections(runs)
    parent = output.parent if output.suffix == ".md" else output
    make_folder(parent)
    made, reason = write_report(output, sections, runs, made_by())
    if reason:
        click.echo(f"logpolar: figures are left out: {reason}", err=True)
    for section in sections:
        state = "not run" if section.missing else ", ".join(run.label for run in section.runs) or "drawn"
        click.echo(f"{section.title}: {state}")
    click.echo(f"wrote {', '.join(made)} to {parent}")
