"""What the commands that climb share: options of the ascent, and the loop over maps with its files and its table."""

from __future__ import annotations

from collections.abc import Callable

import click

from howsmooth.cli.choosing import load_chosen, read_text
from howsmooth.cli.parsing import Count


def restarts_option(default: int) -> Callable:
    return click.option("--restarts", type=Count(most=10_000), metavar="COUNT", default=default, show_default=True,
                        help="Starting points, all moved at once; the best is kept.")


def steps_option(default: int) -> Callable:
    return click.option("--steps", type=Count(), metavar="COUNT", default=default, show_default=True,
                        help="Steps of ascent.")


def run_over_maps(model, text_path, json_path, csv_path, produce, table, per_map, thing, *, layers, heads, lengths,
         special_tokens, tol, confidence, seed, **loading) -> int:
    """Files, model, progress and table around `produce`."""
    from howsmooth.cli.outputs import record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, announce, console

    outputs = {"--json": json_path, "--csv": csv_path}
    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, **outputs})
    files = record_files(json_path, csv_path)
    text = read_text(text_path)

    from howsmooth.studies import resolve

    notes = console(stderr=True)
    loaded = load_chosen(model, seed=seed, **loading)
    settings = resolve(loaded, text, layers=layers, heads=heads, lengths=lengths, samples=1,
                       special_tokens=special_tokens == "add", tol=tol, confidence=confidence, seed=seed)
    announce(loaded, text, settings, notes)
    run = Run(files, notes, thing=thing)
    try:
        run.collect(loaded.name, settings.estimates * per_map, lambda step: produce(loaded, text, settings, step))
    finally:
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(table(run.records))
        code = run.finish()
    return code
