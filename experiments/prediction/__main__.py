"""Do the constants predict what an attacker can do?

    python -m experiments.prediction minilm --texts ag_news --count 31 --length 48 --layers 0,2,5 --out minilm.jsonl
    python -m experiments.prediction smollm2 --texts ag_news --count 16 --length 32 --layers 0,15,29 --out smollm2.jsonl
    python -m experiments.figures.prediction minilm.jsonl smollm2.jsonl

Attacks many texts, and correlates what the attacks achieve with quantities of the clean text: the local constant,
bounds, the splitting criterion, norms, attention entropy. An interrupted run is resumed by the same command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

import howsmooth
from experiments.figures.prediction import calibration_table, prediction_figure, prediction_tables
from experiments.prediction.correlation import check_resampling
from experiments.prediction.evaluation import calibrations, correlations
from experiments.prediction.measurements import Design, check, predictions, rankable, texts_of
from experiments.prediction.predictors import named_predictors
from experiments.records import Record, Records
from howsmooth.errors import InputError
from howsmooth.records import json_line
from howsmooth.report.figure import save_figure
from howsmooth.report.style import check_plot_path
from howsmooth.texts.corpora import read_corpus


def numbers(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    return tuple(float(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    return tuple(part.strip() for part in text.split(","))


def layers(text: str) -> tuple[int, ...] | str:
    """Parse layers separated by commas, "all" or "spread"."""
    return text if text in ("all", "spread") else tuple(int(part) for part in text.split(","))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m experiments.prediction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("models", nargs="*", default=["minilm"], help="what howsmooth.load takes")
    found.add_argument("--texts", default="ag_news", help="a file or folder, alice, ag_news, hf:NAME or embedded")
    found.add_argument("--count", type=int, default=50, help="number of texts, at least 3")
    found.add_argument("--length", type=int, default=64, help="tokens of every text, special tokens included")
    found.add_argument(
        "--layers", type=layers, default="spread", help="0,6 or all; by default the first, middle and last"
    )
    found.add_argument("--out", type=Path, required=True, help="the records, one JSON line each")
    found.add_argument(
        "--attacks",
        type=names,
        default="layer,model,tokens",
        help="on the features of a layer, on those of the model's input, on the text's tokens",
    )
    found.add_argument(
        "--shares", type=numbers, default="0.001,0.1", help="small and large budget at a layer, in units of ‖X‖"
    )
    found.add_argument("--model-shares", type=numbers, default="0.01,0.1", help="the same at the model's input")
    found.add_argument("--steps", type=int, default=10, help="steps of ascent")
    found.add_argument("--edits", type=int, default=2, help="tokens that may be edited")
    found.add_argument("--calls", type=int, default=24, help="calls of the model for an attack on tokens")
    found.add_argument("--predictors", type=names, default="all", help="which to correlate")
    found.add_argument("--confidence", type=float, default=0.95, help="confidence of the intervals")
    found.add_argument("--resamples", type=int, default=1000, help="draws and permutations of texts")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--json", type=Path, help="correlations and calibration, one JSON line each")
    found.add_argument("--plot", type=Path, help="correlations and calibration as a figure")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    chosen = parser().parse_args(arguments)
    try:
        return experiment(chosen)
    except InputError as error:
        parser().error(str(error))


def experiment(chosen: argparse.Namespace) -> int:
    """Measure all models, then show correlations; return the exit code."""
    if chosen.plot is not None:
        check_plot_path(str(chosen.plot))
    check_resampling(chosen.confidence, chosen.resamples)
    predictors = named_predictors("all" if chosen.predictors == ("all",) else chosen.predictors)
    design = Design(
        layers=chosen.layers,
        length=chosen.length,
        count=chosen.count,
        shares=chosen.shares,
        model_shares=chosen.model_shares,
        steps=chosen.steps,
        edits=chosen.edits,
        calls=chosen.calls,
        places=chosen.attacks,
        seed=chosen.seed,
    )
    corpus = read_corpus(chosen.texts)
    saved = Records(chosen.out, key_of, "predictors and attacks", '{"model": "')
    records: list[Record] = []
    stopped = False
    try:
        for name in dict.fromkeys(chosen.models):
            model = howsmooth.load(name, dtype=torch.float32, seed=chosen.seed)
            chunks = texts_of(model, corpus, design)
            note(
                f"{name}: {len(chunks)} texts of {design.length} tokens from {corpus.name}, layers "
                f"{', '.join(map(str, check(model, chunks, design)))}"
            )
            for record in predictions(model, corpus, chunks, design, done=saved.done, progress=show_progress):
                if record["key"] not in saved.done:
                    saved.append(record)
                records.append(record)
    except KeyboardInterrupt:  # rank the texts so far
        stopped = True
    reused = sum(record["key"] in saved.done for record in records)
    note(f"{len(records)} records in {chosen.out}, {reused} of them from before")
    if ranked := rankable(records):
        show(ranked, predictors, chosen)
    return 130 if stopped else 0


def show(records: list[Record], predictors: tuple[str, ...], chosen: argparse.Namespace) -> None:
    """Print, save and draw the correlations of the records."""
    found = correlations(
        records, predictors=predictors, confidence=chosen.confidence, resamples=chosen.resamples, seed=chosen.seed
    )
    curves = calibrations(records)
    if chosen.json is not None:
        rows = [{"kind": "correlation", **row} for row in found] + [{"kind": "calibration", **row} for row in curves]
        chosen.json.write_text("".join(json_line(row) + "\n" for row in rows), encoding="utf-8")
    if chosen.plot is not None:
        save_figure(prediction_figure(found, curves), chosen.plot)
    console = Console(width=120)
    for table in (*prediction_tables(found), calibration_table(curves)):
        console.print(table)


def key_of(record: Record) -> str:
    """Return the settings that identify a record; KeyError for a record of another kind."""
    for name in ("predictors", "attacks"):
        record[name]
    return record["key"]


def note(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def show_progress(text: int, place: str) -> None:
    """Name the text and the place on a terminal."""
    if sys.stderr.isatty():
        note(f"text {text}, {place}")


if __name__ == "__main__":
    sys.exit(main())
