"""Do the constants predict? Picture and numbers of docs/prediction.md, from records of `howsmooth attack predict`.

    howsmooth attack predict minilm --texts ag_news --count 31 --length 48 --layers 0,2,5 --out minilm.jsonl
    howsmooth attack predict smollm2 --texts ag_news --count 16 --length 32 --layers 0,15,29 --out smollm2.jsonl
    python docs/figures/prediction.py minilm.jsonl smollm2.jsonl

Without files it draws docs/images/prediction.json once more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from howsmooth.report.figure import save_figure
from howsmooth.report.prediction_figure import prediction_figure
from howsmooth.report.prediction_table import calibration_table, prediction_tables
from howsmooth.studies.judging import calibrations, judge
from howsmooth.studies.predicting import read_predictions

KEPT = ("model", "outcome", "predictor", "scope", "value", "lower", "upper", "confidence", "p", "expected",
        "adjusted_p", "family", "texts", "status", "kendall")


def judged(files: list[Path]) -> dict:
    records = [record for file in files for record in read_predictions(file)]
    if not records:
        raise SystemExit(f"no records in {', '.join(map(str, files))}")
    return {"correlations": [rounded({name: row[name] for name in KEPT}) for row in judge(records)
                             if row["scope"] != "layer"],
            "calibrations": [rounded(curve) for curve in calibrations(records)],
            "designs": {record["model"]: {**record["design"], "corpus": record["corpus"]} for record in records}}


def rounded(value):
    """The same with four significant digits, which is more than the intervals allow."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=Path("docs/images/prediction"))
    arguments = parser.parse_args()
    kept = arguments.out.with_suffix(".json")
    found = judged(arguments.records) if arguments.records else json.loads(kept.read_text(encoding="utf-8"))
    console = Console(width=120)
    for table in (*prediction_tables(found["correlations"]), calibration_table(found["calibrations"])):
        console.print(table)
    if arguments.records:
        rows = [json.dumps(row, ensure_ascii=False) for row in found["correlations"]]
        rest = {name: found[name] for name in ("calibrations", "designs")}
        kept.write_text('{"correlations": [\n' + ",\n".join(rows) + '\n],\n' + json.dumps(rest, ensure_ascii=False)[1:]
                        + "\n", encoding="utf-8")
    save_figure(prediction_figure(found["correlations"], found["calibrations"]), arguments.out.with_suffix(".png"))
    print(f"drew {arguments.out.with_suffix('.png')}")
