"""Train small models, healthy and with faults: which signal warns of a divergence before the gradient norm does?

    python -m experiments.alarm runs                      # 2 layers, d = 32, n = 32, 300 steps, 72 runs
    python -m experiments.alarm runs --layers 6 --width 256 --length 256 --steps 1000 --out alarm-full.jsonl
    python -m experiments.alarm table [--figure docs/images/alarm.png]

Texts are Alice and AG_NEWS, from the folder $HOWSMOOTH_DATA. An interrupted run is resumed by the same command.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import logging

from experiments.alarm.evaluation import evaluate, shown
from experiments.alarm.runs import FAULTS, Size, letters, run
from experiments.records import Record, Records
from howsmooth.texts.corpora import read_corpus

OUT = Path("docs/images/alarm.jsonl")


def key_of(record: Record) -> tuple[object, ...]:
    """Return what identifies a run."""
    return (*record["size"], record["fault"], record["seed"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or evaluate what was trained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("runs", "table"))
    for name, default in (("layers", 2), ("width", 32), ("length", 32), ("steps", 300), ("seeds", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--texts", default="alice,ag_news", help="texts, one after the other by seed")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args(arguments)
    records = Records(options.out, key_of, "runs of experiments.alarm", '{"fault"')
    if options.what == "table":
        found = evaluate(list(records.done.values()))
        print(shown(found))
        if options.figure is not None:
            from experiments.alarm.figure import draw

            draw(list(records.done.values()), found).savefig(options.figure, dpi=150)
        return
    logging.set_verbosity_error()
    texts = [letters("\n".join(read_corpus(name).documents)[:400_000]) for name in options.texts.split(",")]
    size = Size(options.layers, options.width, options.length, options.steps)
    for seed in range(options.seeds):  # every fault, before the next seed
        for fault in options.faults.split(","):
            if (size.layers, size.width, size.n, size.steps, fault, seed) not in records.done:
                record = run(size, fault, seed, texts[seed // 2 % len(texts)], options.device)
                records.append(record)
                print(
                    f"{fault:18} seed {seed}: {'healthy' if record['onset'] is None else record['onset']}", flush=True
                )


if __name__ == "__main__":
    main()
