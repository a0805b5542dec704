"""How well does each signal announce a divergence, on runs whose seeds did not choose its threshold?

A sample is one measurement before the divergence. It is positive if the training diverges within the next 5 % (or 20 %)
of the steps: 50 (200) of 1,000. A signal is taken as it is, or as its rise over the last two measurements, upwards or
downwards: what separates the samples of even seeds best. All numbers are of odd seeds; intervals are percentiles of
1,000 bootstrap samples of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.alarm.runs import SIGNALS

HORIZONS = (0.05, 0.2)  # shares of the steps
FALSE_ALARMS = 0.05
BASELINE = "gradient_norm"
RESAMPLES = 1000
_LINEAR = ("spectral_entropy", "loss", "largest_logit")  # others are compared by their logarithms
Run = dict[str, Any]


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Return the probability that a positive sample has a larger score than a negative one; ties count half.

    Example:
        >>> auroc([1.0, 2.0, 3.0, 4.0], [False, True, False, True]), auroc([1.0, 1.0], [True, False])
        (0.75, 0.5)
    """
    values, positive = np.asarray(scores, dtype=float), np.asarray(labels, dtype=bool)
    if positive.all() or not positive.any():
        return math.nan
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    ones = int(positive.sum())
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * (len(values) - ones)))


def series(run: Run, signal: str, form: str) -> list[tuple[int, float]]:
    """Return the steps before the divergence and the signal there: its level, or its rise over two measurements."""
    found: list[tuple[int, float]] = []
    values: list[tuple[int, float]] = []
    for log in run["logs"]:
        value = log[signal]
        if value is None or (run["onset"] is not None and log["step"] >= run["onset"]):
            continue
        value = value if signal in _LINEAR else math.log(max(value, 1e-30))
        values.append((log["step"], value))
        if form == "level":
            found.append(values[-1])
        elif len(values) > 2:
            found.append((log["step"], value - values[-3][1]))
    return found


def samples(run: Run, signal: str, form: str, horizon: float) -> list[tuple[float, bool]]:
    """Return the scores and labels of a run; those whose horizon is beyond the end of a healthy run are left out."""
    steps, onset = run["size"][3], run["onset"]
    ahead = horizon * steps
    return [
        (score, onset is not None and onset - step <= ahead)
        for step, score in series(run, signal, form)
        if onset is not None or step + ahead <= steps
    ]


def auroc_of(runs: Sequence[Run], signal: str, form: str, sign: int, horizon: float) -> float:
    """Return the AUROC of a signal over the samples of some runs."""
    pairs = [pair for run in runs for pair in samples(run, signal, form, horizon)]
    return auroc([sign * score for score, _ in pairs], [label for _, label in pairs])


def choose(runs: Sequence[Run], signal: str, horizon: float) -> tuple[str, int]:
    """Return the form and the sign with the largest AUROC."""
    options = [(form, sign) for form in ("level", "rise") for sign in (1, -1)]
    return max(options, key=lambda option: _or_half(auroc_of(runs, signal, *option, horizon)))


def _or_half(value: float) -> float:
    return 0.5 if math.isnan(value) else value


def threshold(runs: Sequence[Run], signal: str, form: str, sign: int) -> float:
    """Return the score that 5 % of the healthy runs exceed at some step."""
    largest = [
        max((sign * score for _, score in series(run, signal, form)), default=-math.inf)
        for run in runs
        if run["onset"] is None
    ]
    return float(np.quantile(largest or [math.inf], 1 - FALSE_ALARMS, method="higher"))


def lead(run: Run, signal: str, form: str, sign: int, limit: float) -> int | None:
    """Return how many steps before the divergence the signal first exceeds a limit; None without an alarm."""
    first = next((step for step, score in series(run, signal, form) if sign * score > limit), None)
    return None if first is None else (run["onset"] if run["onset"] is not None else run["size"][3]) - first


def interval(runs: Sequence[Run], statistic: Callable[[Sequence[Run]], float], seed: int = 0) -> list[float]:
    """Return the 2.5 % and 97.5 % quantiles of a statistic over bootstrap samples of runs."""
    generator = np.random.default_rng(seed)
    values = [statistic([runs[i] for i in generator.integers(len(runs), size=len(runs))]) for _ in range(RESAMPLES)]
    known = [value for value in values if not math.isnan(value)]  # a resample without a divergence has no AUROC
    return [float(end) for end in np.quantile(known or [math.nan], (0.025, 0.975))]


def evaluate(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the numbers of each signal, and how many runs diverged."""
    chosen, tested = ([run for run in runs if run["seed"] % 2 == parity] for parity in (0, 1))
    diverged = [run for run in tested if run["onset"] is not None]
    healthy = [run for run in tested if run["onset"] is None]
    found: dict[str, Any] = {}
    for signal in SIGNALS:
        numbers: dict[str, Any] = {}
        for horizon in HORIZONS:
            how, base = choose(chosen, signal, horizon), choose(chosen, BASELINE, horizon)
            of = _statistic(signal, how, horizon)
            over = _difference(of, _statistic(BASELINE, base, horizon))
            numbers[f"{horizon}"] = {
                "form": how[0],
                "sign": how[1],
                "auroc": of(tested),
                "interval": interval(tested, of),
                "above_gradient_norm": interval(tested, over),
            }
        form, sign = choose(chosen, signal, HORIZONS[1])
        limit = threshold(chosen, signal, form, sign)
        leads = [lead(run, signal, form, sign, limit) or 0 for run in diverged]
        numbers["lead"] = float(np.median(leads)) if leads else math.nan
        generator = np.random.default_rng(0)
        resampled = [np.median(generator.choice(leads, len(leads))) for _ in range(RESAMPLES)] if leads else [math.nan]
        numbers["lead_interval"] = [float(end) for end in np.quantile(resampled, (0.025, 0.975))]
        numbers["warned"] = sum(value > 0 for value in leads)
        numbers["false_alarms"] = sum(lead(run, signal, form, sign, limit) is not None for run in healthy)
        found[signal] = numbers
    better = [
        (signal, horizon)
        for signal in SIGNALS
        for horizon in HORIZONS
        if signal != BASELINE and found[signal][f"{horizon}"]["above_gradient_norm"][0] > 0
    ]
    return {
        "runs": len(runs),
        "size": runs[0]["size"],
        "diverged": sum(run["onset"] is not None for run in runs),
        "tested": len(tested),
        "tested_diverged": len(diverged),
        "signals": found,
        "better_than_gradient_norm": better,
    }


def _statistic(signal: str, how: tuple[str, int], horizon: float) -> Callable[[Sequence[Run]], float]:
    return lambda runs: auroc_of(runs, signal, *how, horizon)


def _difference(
    one: Callable[[Sequence[Run]], float], other: Callable[[Sequence[Run]], float]
) -> Callable[[Sequence[Run]], float]:
    return lambda runs: one(runs) - other(runs)


def shown(found: dict[str, Any]) -> str:
    """Return the table as Markdown, with a sentence about the runs."""
    layers, width, n, steps = found["size"]
    near, far = (round(horizon * steps) for horizon in HORIZONS)
    healthy = found["tested"] - found["tested_diverged"]
    rows = [
        f"{found['runs']} runs of {layers} layers, d = {width}, n = {n}, {steps} steps; {found['diverged']} diverged. "
        f"Tested on {found['tested']}, of which {found['tested_diverged']} diverged.",
        "",
        f"| signal | AUROC, {near} steps | less the gradient norm's | AUROC, {far} steps | less the gradient norm's | "
        "lead in steps | warned | false alarms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for signal, numbers in found["signals"].items():
        cells = [SIGNALS[signal]]
        for horizon in HORIZONS:
            one = numbers[f"{horizon}"]
            form = "" if one["form"] == "level" else ", rise"
            cells.append(f"{one['auroc']:.2f} ({_ends(one['interval'])}){form}")
            cells.append("–" if signal == BASELINE else _ends(one["above_gradient_norm"], signed=True))
        cells.append(f"{numbers['lead']:.0f} ({_ends(numbers['lead_interval'], digits=0)})")
        cells += [f"{numbers['warned']} of {found['tested_diverged']}", f"{numbers['false_alarms']} of {healthy}"]
        rows.append(f"| {' | '.join(cells)} |")
    better = found["better_than_gradient_norm"]
    names = ", ".join(f"{SIGNALS[signal]} ({round(horizon * steps)} steps)" for signal, horizon in better)
    rows += ["", f"Above the gradient norm beyond the interval: {names or 'none'}."]
    return "\n".join(rows)


def _ends(ends: Sequence[float], digits: int = 2, *, signed: bool = False) -> str:
    return " to ".join(f"{end:{'+' if signed else ''}.{digits}f}".replace("-", "−") for end in ends)
