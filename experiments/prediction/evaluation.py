"""How well each predictor foretells each attack: rank correlations and calibration of the measured records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.prediction.correlation import FEWEST, p_values, permuted, rank_correlation, reliability
from experiments.prediction.predictors import AT_LAYERS, AT_MODELS, named_predictors
from howsmooth.errors import InputError

Record = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What an attack achieved, larger where the attacker got further, read off a record of its place."""

    name: str
    place: str
    read: Callable[[Record], float | None]


def _at(objective: str | None, size: int, value: str) -> Callable[[Record], float | None]:
    """The largest `value` of a record's attacks at its small (0) or large (1) budget, with an objective of this name.

    None is whatever the model is used for: the objective that is not the output's change.
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
    says = record["attacks"][0]["says"]
    return None if says is None else float(says[0] != says[1])


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


def judge(
    records: Sequence[Record],
    *,
    predictors: tuple[str, ...] | str = "all",
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[Record]:
    """One record for each model, outcome, predictor and scope: "within" layers, "pooled", and each "layer" alone.

    Outcomes at a layer are held against predictors of that layer; outcomes of the whole model (its input perturbed, or
    its tokens exchanged) against predictors of every layer and of the model. `adjusted_p` counts all pairs of a model
    within layers as one family, whose number is `family`.
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
    """Records of one model as numbers by text and layer."""

    def __init__(self, records: Sequence[Record]):
        self.model = records[0]["model"]
        self.at = {(r["text"], r["place"], r["layer"]): r for r in records}
        self.texts = sorted({text for text, _, _ in self.at})
        self.layers = sorted({layer for _, place, layer in self.at if place == "layer"})
        if len(self.texts) < FEWEST:
            raise InputError(
                f"expected at least {FEWEST} texts of {self.model} to rank, got {len(self.texts)}; collect more of them"
            )

    def outcome(self, outcome: Outcome) -> np.ndarray | None:
        """(texts, layers), or (texts, 1) of the whole model; None where nothing was attacked in this way."""
        values = self._numbers(outcome.place, outcome.read)
        return None if values.size == 0 or np.isnan(values).all() else values

    def predictor(self, name: str) -> np.ndarray:
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
        """The correlations of one pair: within layers, pooled, and of each layer."""
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
        """P of all pairs of a model as one family: texts are exchanged for all of them alike."""
        outcomes = {outcome.name: outcome for outcome in OUTCOMES}
        complete = [row for row in rows if row["texts"] == len(self.texts)]  # others have permutations of their own
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
    """Predicted change σ₁‖E‖ against the achieved one, for each model, place, layer, objective and budget.

    Of several ascents on one text at one budget the one that achieved most counts.
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
