"""How does the verdict about a power law depend on the range, the number of lengths and the number of samples?

    python -m experiments.law_ranges [--models minilm] [--text alice] [--out docs/images/law_ranges.jsonl]

Each layer is measured on three grids: that of the paper (n = 2, 4, …, 98, ten samples), a long one (n = 16, 32, …, 512,
five samples), and the long one on the embedded text with special tokens. A record is a curve with all its values. The
laws are then fitted to parts of it: every second, fourth, … length, fewer samples, shorter ranges. Alice is read from
the folder $HOWSMOOTH_DATA. An interrupted run is resumed by the same command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.records import Record, Records
from howsmooth import load, measure
from howsmooth.fits import Law, fit_law

GRIDS: dict[str, dict[str, Any]] = {
    "paper": {"lengths": list(range(2, 99, 2)), "samples": 10, "special_tokens": "none"},
    "long": {"lengths": [16, 32, 64, 128, 256, 512], "samples": 5, "special_tokens": "none"},
    "embedded": {"text": "embedded", "lengths": [16, 32, 64, 128, 256, 512], "samples": 3},
}
LAYERS = {"minilm": range(6), "smollm2": (0, 10, 20, 29)}
KEY = ("model", "text", "grid", "layer")


def key_of(record: Record) -> tuple[Any, ...]:
    """Return what identifies a curve."""
    return tuple(record[name] for name in KEY)


def curve(model: Any, name: str, text: str, grid: str, layer: int, options: dict[str, Any], tol: float) -> Record:
    """Measure one layer on one grid."""
    found = measure(model, **{"text": text, "layers": [layer], "tol": tol, **options})
    by_length: dict[int, list[float]] = {}
    for record in found:
        by_length.setdefault(record["n"], []).append(float(f"{record['value']:.5g}"))
    return {
        "model": name,
        "text": options.get("text", text),
        "grid": grid,
        "layer": layer,
        "special_tokens": found[0]["special_tokens"],
        "tol": tol,
        "n": list(by_length),
        "values": list(by_length.values()),
    }


def law_of(record: Record, *, every: int = 1, samples: int | None = None, longest: int | None = None) -> Law:
    """Fit the law to a part of a curve: every k-th length, the first samples, lengths up to `longest`."""
    points = [
        (n, value, sample)
        for n, values in list(zip(record["n"], record["values"], strict=True))[::every]
        if longest is None or n <= longest
        for sample, value in enumerate(values[:samples])
    ]
    return fit_law(*zip(*points, strict=True))


def parts(record: Record) -> Iterator[dict[str, Any]]:
    """Yield the parts of a curve that are fitted, as arguments of `law_of`."""
    yield {}
    if record["grid"] == "paper":
        yield from ({"every": every} for every in (2, 4, 8, 16))
        yield from ({"every": 4, "samples": samples} for samples in (5, 2))
        yield {"longest": 50}
    else:
        yield {"longest": 256}


def has_quarter(law: Law) -> bool:
    """Return whether ¼ lies in the interval of the exponent of a law that passes as a power law."""
    interval = law.exponent_interval
    return bool(law.is_power_law) and interval is not None and interval[0] <= 0.25 <= interval[1]


def describe(law: Law) -> str:
    """Return exponent, interval and verdict in words."""
    interval = "" if law.exponent_interval is None else "{:.2f} … {:.2f}".format(*law.exponent_interval)
    return f"{law.exponent:5.2f}  {interval:13}  {law.lengths:2} lengths  {law.points:3} points  {law.verdict}"


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["minilm"], help="names, or folders; smollm2 takes an hour more")
    parser.add_argument("--text", default="alice")
    parser.add_argument("--layers", type=int, nargs="+", help="these layers of every model")
    parser.add_argument("--grids", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--out", type=Path, default=Path("docs/images/law_ranges.jsonl"))
    arguments = parser.parse_args(given)
    store = Records(arguments.out, key_of, "curves of law_ranges", '{"model"')
    for name in arguments.models:
        model, short = load(name), Path(name).name
        for grid in arguments.grids:
            for layer in arguments.layers or LAYERS.get(short, model.layer_numbers):
                text = Path(GRIDS[grid].get("text", arguments.text)).name
                record = store.done.get((short, text, grid, layer))
                if record is None:
                    record = curve(model, short, arguments.text, grid, layer, GRIDS[grid], arguments.tol)
                    record["text"] = text
                    store.append(record)
                for part in parts(record):
                    law = law_of(record, **part)
                    if law.exponent is not None:
                        shown = ", ".join(f"{key} {value}" for key, value in part.items()) or "all"
                        print(f"{short:8} {grid:9} layer {layer:2}  {shown:20} {describe(law)}", flush=True)


if __name__ == "__main__":
    main()
