"""`howsmooth reproduce`: the figures of the paper, as described there and as computed by its released scripts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from howsmooth.cli.options import chosen_style, spec_from_options, spec_options, style_option
from howsmooth.cli.runtime import runtime_options, use_default_threads
from howsmooth.errors import InputError

STORE_NAME = "reproduce.sqlite"
FIGURE_DEFAULTS: dict[str, Any] = dict.fromkeys(("models", "layers", "lengths", "samples", "tol"), "the figure's")


@click.command(name="reproduce", short_help="Reproduce the figures of the paper.")
@click.argument("figures", nargs=-1, metavar="[FIGURE…|all]")
@spec_options("models", "layers", "lengths", "samples", "tol", **FIGURE_DEFAULTS)
@click.option("--out", "folder", metavar="DIR", default="reproduced", show_default=True, help="Folder for the results.")
@click.option("--data", metavar="DIR", help="Folder with alice.txt and ag_news_test.csv.  [default: $HOWSMOOTH_DATA]")
@click.option("--gpt2-attention", metavar="FILE", help="GPT-2's attention layers (safetensors), for synthetic inputs.")
@spec_options("workers", "threads")
@style_option
@click.option("--quick", is_flag=True, help="A few short lengths and two samples in this process: minutes, not hours.")
@runtime_options(engine=True)
def command(
    figures: tuple[str, ...], folder: str, data: str | None, gpt2_attention: str | None, quick: bool, **options: Any
) -> int:
    """Reproduce the figures of "How Smooth Is Attention?", also for other models.

    FIGURE is text (Lip against n), radius (Lip against the mean radius), adversarial, norms (token norms against n),
    others (models that are not in the paper), synthetic (GPT-2's attention layers on random inputs), or all, the
    default. Records in the folder's store are not computed again; a model that cannot be loaded is a missing panel.
    """
    from howsmooth.cli.loading import load_torch
    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.cli.run import make_console, print_line, print_warning
    from howsmooth.questions.fields import make_folder
    from howsmooth.report.style import check_plot_path
    from howsmooth.studies.figures import figure_names, read_figure
    from howsmooth.studies.store import Store

    chosen = figure_names() if not figures or "all" in figures else list(dict.fromkeys(figures))
    chosen_figures = [read_figure(name) for name in chosen]
    if gpt2_attention is not None and not (Path(gpt2_attention).is_file() and gpt2_attention.endswith(".safetensors")):
        raise InputError(f"expected a file for --gpt2-attention, *.safetensors, got {gpt2_attention}; check the path")
    spec = spec_from_options(options)
    # "all" stands for the layers of the figure, of which a deep model has a few.
    given = {name: getattr(spec, name) for name in FIGURE_DEFAULTS if options[name] not in (None, "all")}
    if min(given.get("lengths", (2,))) < 2:
        raise InputError(f"expected lengths of at least 2, got {min(spec.lengths)}; one token has nothing to attend to")
    if options["workers"] is not None:
        given["engine"] = spec.engine
    check_plot_path("figure.png", "the figures")
    if data is not None:
        if not Path(data).is_dir():
            raise InputError(f"expected a folder for --data, got {data}; name one that exists")
        os.environ["HOWSMOOTH_DATA"] = data
    stderr, out, made = make_console(stderr=True), make_folder(folder, "--out"), []
    use_default_threads(max(spec.lengths), workers=0 if quick else spec.engine.workers)
    load_torch(stderr)

    from howsmooth.cli.progress import StudyProgressBar
    from howsmooth.report.reproduction import write_figure, write_index
    from howsmooth.report.rows import counted
    from howsmooth.report.style import figure_style
    from howsmooth.studies.figures import run_figure

    with Store.write(out / STORE_NAME) as store:
        if store.recovered:
            print_warning(stderr, store.recovered)
        try:
            for figure in chosen_figures:
                with StudyProgressBar(stderr) as bar:
                    outcome = run_figure(
                        figure,
                        store,
                        given,
                        quick=quick,
                        gpt2_attention=gpt2_attention,
                        progress=bar.show,
                        log=lambda line: print_line(stderr, line, style="dim"),
                    )
                with figure_style(chosen_style()):
                    made.append((outcome, write_figure(outcome, out)))
                write_index(made, out)
        except KeyboardInterrupt:
            print_warning(stderr, "interrupted; run the same command again to continue")
            return EXIT_INTERRUPTED
    stdout = make_console()
    for outcome, pictures in made:
        missing = {(panel.model, panel.reason) for panel in outcome.missing}
        print_line(
            stdout,
            f"{outcome.figure.name}: {counted(len(outcome.records), 'record')}, {counted(len(pictures), 'picture')}"
            + (f", {counted(len(missing), 'model')} missing" if missing else ""),
        )
        for model, reason in sorted(missing):
            print_line(stdout, f"  missing {model}: {reason}", style="yellow")
    print_line(stdout, f"index    {out / 'index.md'}, {out / 'index.html'}")
    return 0
