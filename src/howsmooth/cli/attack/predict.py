"""`howsmooth attack predict`: do the constants predict what an attacker can do?"""

from __future__ import annotations

from pathlib import Path

import click

from howsmooth.cli.choosing import MODEL, csv_option, load_chosen, loading_options
from howsmooth.cli.parsing import Count, IntegerList, Number, NumberList
from howsmooth.errors import InputError


@click.command(
    name="predict",
    short_help="Do constants, bounds and baselines predict attack success?",
    help="Attack many texts, and hold what the attacks achieved against what was known before: the local constant, "
    "bounds, the splitting criterion, norms, attention entropy. Rank correlations over texts, with intervals.\n\n"
    f"    {MODEL} Several may be named.\n\n"
    "    The first, middle and last layer unless --layers names others. A run that was stopped goes on with the same\n"
    "    command: what is in --out is not computed again.",
)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--texts", "source", metavar="FILE|NAME", default="ag_news", show_default=True,
              help="A file or folder, alice, ag_news, hf:NAME, embedded, or - for stdin.")
@click.option("--count", type=Count(), metavar="TEXTS", default=50, show_default=True,
              help="How many texts; 3 are the fewest that can be ranked.")
@click.option("--length", type=Count(), metavar="TOKENS", default=64, show_default=True,
              help="Of every text, special tokens included: constants of different lengths do not compare.")
@click.option("--layers", type=IntegerList(word="all", example="0,6"), help="Which layers.")
@click.option("--out", "out_path", metavar="FILE", required=True, help="Keep every text's numbers, one JSON line each.")
@click.option("--attacks", "places", metavar="KIND,…", default="layer,model,tokens", show_default=True,
              help="On the features of a layer, on those of the model's input, on the text's tokens.")
@click.option("--shares", type=NumberList(example="0.001,0.1"), default="0.001,0.1", show_default=True,
              help="Small and large budget at a layer, as shares of ‖X‖.")
@click.option("--model-shares", type=NumberList(example="0.01,0.1"), default="0.01,0.1", show_default=True,
              help="The same at the model's input.")
@click.option("--steps", type=Count(), metavar="COUNT", default=10, show_default=True,
              help="Steps of ascent.")
@click.option("--edits", type=Count(), metavar="COUNT", default=2, show_default=True,
              help="Tokens that may be edited.")
@click.option("--calls", type=Count(3), metavar="COUNT", default=24, show_default=True,
              help="Calls of the model for an attack on tokens.")
@click.option("--predictors", metavar="NAME,…|all", default="all", show_default=True, help="Which to correlate.")
@click.option("--confidence", type=Number(0, 1, open=True), default=0.95,
              show_default=True, help="Of the correlations' intervals.")
@click.option("--resamples", type=Count(100), metavar="COUNT", default=1000, show_default=True,
              help="Draws and permutations of texts.")
@loading_options
@click.option("--json", "json_path", metavar="FILE|-",
              help="Correlations and calibration, one JSON object each; - is stdout.")
@csv_option
@click.option("--plot", "plot_path", metavar="FILE", help="Correlations and calibration as a picture.")
def command(models, source, count, length, layers, out_path, places, shares, model_shares, steps, edits, calls,
            predictors, confidence, resamples, seed, json_path, csv_path, plot_path, **loading) -> int:
    from howsmooth.cli.attack.saved import SavedFile
    from howsmooth.cli.outputs import check_writable, record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, console
    from howsmooth.report.figure import check_plot_path

    refuse_one_file_twice({"--texts": source if source != "-" else None, "--out": out_path, "--json": json_path,
                           "--csv": csv_path, "--plot": plot_path})
    if out_path == "-":
        raise InputError("expected a file for --out, got stdout; use --json - for the correlations")
    files = record_files(json_path, csv_path)
    if plot_path is not None:
        check_plot_path(plot_path)
        check_writable(Path(plot_path), "--plot")

    from howsmooth.studies.predicting import Design, read_predictions
    from howsmooth.studies.predictors import named_predictors
    from howsmooth.texts.corpora import read_corpus

    names = named_predictors("all" if predictors == "all" else tuple(n.strip() for n in predictors.split(",")))
    design = Design(layers="spread" if layers is None else layers, length=length, count=count, shares=shares,
                    model_shares=model_shares, steps=steps, edits=edits, calls=calls, seed=seed,
                    places=tuple(place.strip() for place in places.split(",")))
    corpus = read_corpus(source)
    saved = SavedFile(out_path, read_predictions, "--out")
    notes = console(stderr=True)
    run = Run((), notes, thing="record")
    for name in dict.fromkeys(models or ("minilm",)):
        loaded = load_chosen(name, seed=seed, **loading)
        _collect(loaded, corpus, design, saved, run, notes)
        if run.interrupted or run.failures:
            break
    return _told(run, saved, names, confidence, resamples, seed, files, plot_path, notes)


def _collect(model, corpus, design, saved, run, notes) -> None:
    """The records of one model, each kept the moment it is there."""
    from howsmooth.cli.running import say
    from howsmooth.report.rows import model_name
    from howsmooth.studies.predicting import check, predictions, texts_of

    chunks = texts_of(model, corpus, design)
    layers = check(model, chunks, design)
    each = sum(len(layers) if place == "layer" else 1 for place in design.places)

    def produce(step):
        for record, new in predictions(model, corpus, chunks, design, done=saved.records, step=step):
            if new:
                with run.writing(saved.path, "--out"):
                    saved.append(record)
            yield record

    say(notes, f"{model_name(model.name)}: {len(chunks)} texts of {design.length} tokens from {corpus.name}, layers "
        f"{', '.join(map(str, layers))}", style="dim")
    run.collect(model.name, each * len(chunks), produce, describe=lambda number, place: f"text {number}, {place}")


def _told(run, saved, names, confidence, resamples, seed, files, plot_path, notes) -> int:
    """Correlations of what there is: table, files, picture."""
    from howsmooth.cli.running import console, say
    from howsmooth.report.prediction_table import calibration_table, prediction_tables
    from howsmooth.studies.judging import calibrations, judge
    from howsmooth.studies.predicting import rankable

    if run.records:
        reused = saved.reused(run.records)
        before = f", {reused} of them from before" if reused else ""
        say(notes, f"{len(run.records)} records in {saved.path}{before}", style="dim")
    records = rankable(run.records)
    if not records:
        return run.finish()
    found = judge(records, predictors=names, confidence=confidence, resamples=resamples, seed=seed)
    curves = calibrations(records)
    for file in files:
        with run.writing(file.path, file.option):
            for row in found:
                file.write({"kind": "correlation", **row} if file.form == "json" else row)
            for curve in curves if file.form == "json" else ():
                file.write({"kind": "calibration", **curve})
            file.close()
        if file.path != "-" and file.path not in run.failures:
            say(notes, f"wrote {len(found)} correlations to {file.path}")
    if plot_path is not None:
        from howsmooth.report.figure import save_figure
        from howsmooth.report.prediction_figure import prediction_figure

        with run.writing(plot_path, "--plot"):
            save_figure(prediction_figure(found, curves), plot_path)
    shown = notes if any(file.path == "-" for file in files) else console()
    with run.writing("-", "the table"):
        for table in prediction_tables(found):
            shown.print(table)
        shown.print(calibration_table(curves))
    return run.finish()

