"""Correlations of all predictors with all attacks, and calibration, from the measured records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.prediction.correlation import MIN_TEXTS, p_values, permuted, rank_correlation, reliability
from experiments.prediction.predictors import AT_LAYERS, AT_MODELS, named_predictors
from howsmooth.errors import InputError

Record = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The success of an attack, larger for a stronger effect, as a function of a record.

    Attributes:
        name: Name of the outcome.
        place: What is attacked: "layer", "model" or "tokens".
        read: Returns the value of a record, or None.
    """

    name: str
    place: str
    read: Callable[[Record], float | None]


def _at(objective: str | None, size: int, value: str) -> Callable[[Record], float | None]:
    """Return a function for the largest `value` of a record's attacks at its small (0) or large (1) budget.

    The objective is "output", or None for the one that measures what the model is used for.
    """

    def read(record: Record) -> float | None:
        share = sorted({attack["share"] for attack in record["attacks"]})[size]
        return max(
            (
                attack[value]
                for attack in record["attacks"]
                if attack["share"] == share and (attack["objective"]["name"] == "output") == (objective == "output")
            ),
            default=None,
        )

    return read


def _flipped(record: Record) -> float | None:
    next_tokens = record["attacks"][0]["next_tokens"]
    return None if next_tokens is None else float(next_tokens[0] != next_tokens[1])


OUTCOMES = (
    Outcome("layer_gain_small", "layer", _at("output", 0, "gain")),
    Outcome("layer_gain_large", "layer", _at("output", 1, "gain")),
    Outcome("layer_change_large", "layer", _at("output", 1, "relative")),
    Outcome("model_hidden_small", "model", _at("output", 0, "relative")),
    Outcome("model_hidden_large", "model", _at("output", 1, "relative")),
    Outcome("model_use_small", "model", _at(None, 0, "change")),
    Outcome("model_use_large", "model", _at(None, 1, "change")),
    Outcome("token_change", "tokens", lambda record: record["attacks"][0]["value"]),
    Outcome("token_flip", "tokens", _flipped),
)


def correlations(
    records: Sequence[Record],
    *,
    predictors: tuple[str, ...] | str = "all",
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[Record]:
    """Return one record for each model, outcome, predictor and scope: "within" layers, "pooled", and each "layer".

    Outcomes at a layer are correlated with predictors of that layer; outcomes of the whole model (perturbed input, or
    edited tokens) with predictors of every layer and of the model. `adjusted_p` treats all pairs of a model within
    layers as one family of `family` tests.
    """
    chosen, found = named_predictors(predictors), []
    for model in dict.fromkeys(record["model"] for record in records):
        table = _Table([record for record in records if record["model"] == model])
        rows = [
            row
            for outcome in OUTCOMES
            for name in chosen
            for row in table.rows(outcome, name, confidence=confidence, resamples=resamples, seed=seed)
        ]
        table.adjust([row for row in rows if row["scope"] == "within" and row["value"] is not None], resamples, seed)
        found += rows
    return found


class _Table:
    """The records of one model as arrays over texts and layers."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.model = records[0]["model"]
        self.at = {(r["text"], r["place"], r["layer"]): r for r in records}
        self.texts = sorted({text for text, _, _ in self.at})
        self.layers = sorted({layer for _, place, layer in self.at if place == "layer"})
        if len(self.texts) < MIN_TEXTS:
            raise InputError(
                f"expected at least {MIN_TEXTS} texts of {self.model} to rank, got {len(self.texts)}; collect more"
            )

    def outcome(self, outcome: Outcome) -> np.ndarray | None:
        """Return (texts, layers), or (texts, 1) for the whole model; None if there are no such attacks."""
        values = self._numbers(outcome.place, outcome.read)
        return None if values.size == 0 or np.isnan(values).all() else values

    def predictor(self, name: str) -> np.ndarray:
        """Return (texts, layers), or (texts, 1) for a predictor of the whole model."""
        if name == "sigma_product":
            sigmas = self.predictor("sigma")
            return np.log(sigmas).sum(1, keepdims=True) if sigmas.size else np.full((len(self.texts), 1), np.nan)
        return self._numbers("layer" if name in AT_LAYERS else "model", lambda record: record["predictors"].get(name))

    def _numbers(self, place: str, read: Callable[[Record], float | None]) -> np.ndarray:
        records = [
            [self.at.get((text, place, layer)) for layer in (self.layers if place == "layer" else [None])]
            for text in self.texts
        ]
        values = [[None if record is None else read(record) for record in row] for row in records]
        return np.array([[math.nan if value is None else value for value in row] for row in values], dtype=float)

    def rows(self, outcome: Outcome, name: str, **options: Any) -> list[Record]:
        """Return the correlations of one pair: within layers, pooled, and of each layer."""
        y, x = self.outcome(outcome), self.predictor(name)
        if y is None or not x.size or (name in AT_MODELS and (outcome.place == "layer" or np.isnan(x).all())):
            return []
        y = np.broadcast_to(y, x.shape)
        parts = [("within", None, x, y)]
        if x.shape[1] > 1:
            parts += [("pooled", None, x, y)] if outcome.place == "layer" else []
            parts += [("layer", layer, x[:, [i]], y[:, [i]]) for i, layer in enumerate(self.layers)]
        found = []
        for scope, layer, a, b in parts:
            row = asdict(rank_correlation(a, b, scope="pooled" if scope == "pooled" else "within", **options))
            refusal = next((r["refused"][name] for r in self.at.values() if name in r.get("refused", {})), None)
            if refusal is not None and np.isnan(a).all():
                row["status"] = f"undefined: {refusal}"
            found.append(
                {
                    "model": self.model,
                    "outcome": outcome.name,
                    "predictor": name,
                    "layer": layer,
                    **row,
                    "scope": scope,
                    "adjusted_p": None,
                    "family": None,
                }
            )
        return found

    def adjust(self, rows: list[Record], resamples: int, seed: int) -> None:
        """Set the adjusted p of all pairs as one family, with the same permutations of texts for all of them."""
        outcomes = {outcome.name: outcome for outcome in OUTCOMES}
        complete = [
            row for row in rows if row["texts"] == len(self.texts)
        ]  # missing texts would need other permutations
        if not complete:
            return
        null = np.stack(
            [
                permuted(
                    x := self.predictor(row["predictor"]),
                    np.broadcast_to(self.outcome(outcomes[row["outcome"]]), x.shape),
                    permutations=resamples,
                    seed=seed,
                )[1]
                for row in complete
            ]
        )  # expected within: 0
        adjusted = p_values(np.array([row["value"] for row in complete]), null, together=True)
        for row, p in zip(complete, adjusted.tolist(), strict=True):
            row["adjusted_p"], row["family"] = p, len(complete)


def calibrations(records: Sequence[Record], bins: int = 5) -> list[Record]:
    """Compare predicted changes σ₁‖E‖ with achieved ones, for each model, place, layer, objective and budget.

    Of several ascents on one text at one budget the strongest counts.
    """
    curves: dict[tuple, dict[int, tuple[float, float]]] = {}
    for record in records:
        for attack in record["attacks"] if record["place"] != "tokens" else ():
            objective = attack["objective"]["name"]
            name = (
                "sigma" if record["place"] == "layer" else "model_sigma" if objective == "output" else "objective_sigma"
            )
            pair = (record["predictors"][name] * attack["spent"], attack["change"])
            key = record["model"], record["place"], record["layer"], objective, attack["share"]
            curve = curves.setdefault(key, {})
            curve[record["text"]] = max(curve.get(record["text"], pair), pair, key=lambda pair: pair[1])
    found = []
    for key, pairs in curves.items():
        predicted, achieved = (np.array(values) for values in zip(*pairs.values(), strict=True))
        found.append(
            {
                **dict(zip(("model", "place", "layer", "objective", "share"), key, strict=True)),
                "texts": len(pairs),
                "ratio": float(np.median(achieved / predicted)),
                "predicted": predicted.tolist(),
                "achieved": achieved.tolist(),
                "bins": reliability(predicted, achieved, bins),
            }
        )
    return found
