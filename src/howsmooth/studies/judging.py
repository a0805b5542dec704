"""How well each predictor foretold each attack: rank correlations and calibration from the records of `predicting`.

Every outcome is a number that is larger where the attacker got further. Outcomes at a layer are held against predictors
of that layer; outcomes of the whole model (its input perturbed, or its tokens exchanged) against predictors of every
layer and of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howsmooth.errors import InputError
from howsmooth.studies.calibration import reliability
from howsmooth.studies.correlations import FEWEST, p_values, permuted, rank_correlation
from howsmooth.studies.predictors import AT_LAYERS, AT_MODELS, named_predictors

Record = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What an attack achieved, read off a record of its place."""

    name: str
    place: str
    label: str
    read: Callable[[Record], float | None]


def _at(objective: str | None, size: int, value: str) -> Callable[[Record], float | None]:
    """The largest `value` of a record's attacks at its small (0) or large (1) budget, with an objective of this name.

    None is whatever the model is used for: the objective that is not the output's change.
    """
    def read(record: Record) -> float | None:
        share = sorted({attack["share"] for attack in record["attacks"]})[size]
        found = [attack[value] for attack in record["attacks"] if attack["share"] == share
                 and (attack["objective"]["name"] == "output") == (objective == "output")]
        return max(found, default=None)
    return read


def _flipped(record: Record) -> float | None:
    says = record["attacks"][0]["says"]
    return None if says is None else float(says[0] != says[1])


OUTCOMES = (
    Outcome("layer_gain_small", "layer", "layer: gain, small budget", _at("output", 0, "gain")),
    Outcome("layer_gain_large", "layer", "layer: gain, large budget", _at("output", 1, "gain")),
    Outcome("layer_change_large", "layer", "layer: share of the output, large budget", _at("output", 1, "relative")),
    Outcome("model_hidden_small", "model", "model: hidden states, small budget", _at("output", 0, "relative")),
    Outcome("model_hidden_large", "model", "model: hidden states, large budget", _at("output", 1, "relative")),
    Outcome("model_use_small", "model", "model: KL or cosine, small budget", _at(None, 0, "change")),
    Outcome("model_use_large", "model", "model: KL or cosine, large budget", _at(None, 1, "change")),
    Outcome("token_change", "tokens", "tokens: KL or cosine", lambda record: record["attacks"][0]["value"]),
    Outcome("token_flip", "tokens", "tokens: next token flipped", _flipped),
)
OUTCOME_LABELS = {outcome.name: outcome.label for outcome in OUTCOMES}


def judge(records: Sequence[Record], *, predictors: tuple[str, ...] | str = "all", confidence: float = 0.95,
          resamples: int = 1000, seed: int = 0) -> list[Record]:
    """One record for each model, outcome, predictor and scope: "within" layers, "pooled", and each "layer" alone.

    `adjusted_p` counts all pairs of a model within layers as one family, whose number is `family`.
    """
    chosen = named_predictors(predictors)
    found = []
    for model in dict.fromkeys(record["model"] for record in records):
        table = _Table([record for record in records if record["model"] == model])
        rows = [row for outcome in OUTCOMES for name in chosen
                for row in _rows(table, outcome, name, confidence, resamples, seed)]
        _adjust(table, [row for row in rows if row["scope"] == "within" and row["value"] is not None], resamples, seed)
        found += rows
    return found


def calibrations(records: Sequence[Record], bins: int = 5) -> list[Record]:
    """Predicted change σ₁‖E‖ against the achieved one, for each model, place, layer, objective and budget.

    Of several ascents on one text at one budget the one that achieved most counts.
    """
    curves: dict[tuple, dict[int, tuple[float, float]]] = {}
    for record in records:
        for attack in record["attacks"] if record["place"] != "tokens" else ():
            objective = attack["objective"]["name"]
            name = "sigma" if record["place"] == "layer" else \
                "model_sigma" if objective == "output" else "objective_sigma"
            pair = (record["predictors"][name] * attack["spent"], attack["change"])
            curve = curves.setdefault((record["model"], record["place"], record["layer"], objective, attack["share"]),
                                      {})
            curve[record["text"]] = max(curve.get(record["text"], pair), pair, key=lambda pair: pair[1])
    names = ("model", "place", "layer", "objective", "share")
    found = []
    for key, pairs in curves.items():
        predicted, achieved = (np.array(values) for values in zip(*pairs.values(), strict=True))
        found.append({**dict(zip(names, key, strict=True)), "texts": len(pairs),
                      "ratio": float(np.median(achieved / predicted)), "predicted": predicted.tolist(),
                      "achieved": achieved.tolist(),
                      "bins": [bin.as_record() for bin in reliability(predicted, achieved, bins)]})
    return found


class _Table:
    """Records of one model as numbers by text and layer."""

    def __init__(self, records: Sequence[Record]):
        self.model = records[0]["model"]
        self.at = {(r["text"], r["place"], r["layer"]): r for r in records}
        self.texts = sorted({text for text, _, _ in self.at})
        self.layers = sorted({layer for _, place, layer in self.at if place == "layer"})
        if len(self.texts) < FEWEST:
            raise InputError(f"expected at least {FEWEST} texts of {self.model} to rank, got {len(self.texts)}; "
                             "collect more of them")

    def outcome(self, outcome: Outcome) -> np.ndarray | None:
        """(texts, layers), or (texts, 1) of the whole model; None where nothing was attacked in this way."""
        layers = self.layers if outcome.place == "layer" else [None]
        values = self._numbers(lambda text, layer: _of(self.at.get((text, outcome.place, layer)), outcome.read), layers)
        return None if values.size == 0 or np.isnan(values).all() else values

    def predictor(self, name: str) -> np.ndarray:
        if name == "sigma_product":
            sigmas = self.predictor("sigma")
            return np.log(sigmas).sum(1, keepdims=True) if sigmas.size else np.full((len(self.texts), 1), np.nan)
        place, layers = ("layer", self.layers) if name in {p.name for p in AT_LAYERS} else ("model", [None])
        return self._numbers(lambda text, layer: _of(self.at.get((text, place, layer)),
                                                     lambda record: record["predictors"].get(name)), layers)

    def _numbers(self, read: Callable[[int, int | None], float | None], layers: Sequence[int | None]) -> np.ndarray:
        values = [[read(text, layer) for layer in layers] for text in self.texts]
        return np.array([[math.nan if value is None else value for value in row] for row in values], dtype=float)

    def refusal(self, name: str) -> str | None:
        return next((record["refused"][name] for record in self.at.values() if name in record.get("refused", {})), None)


def _of(record: Record | None, read: Callable[[Record], float | None]) -> float | None:
    return None if record is None else read(record)


def _rows(table: _Table, outcome: Outcome, name: str, confidence: float, resamples: int, seed: int) -> list[Record]:
    y = table.outcome(outcome)
    of_model = name in {p.name for p in AT_MODELS}
    if y is None or (of_model and outcome.place == "layer"):
        return []
    x = table.predictor(name)
    if not x.size or (of_model and np.isnan(x).all()):
        return []
    y = np.broadcast_to(y, x.shape)
    options = dict(confidence=confidence, resamples=resamples, seed=seed)
    where = {"model": table.model, "outcome": outcome.name, "predictor": name}
    parts = [("within", None, x, y)]
    if x.shape[1] > 1:
        parts += [("pooled", None, x, y)] if outcome.place == "layer" else []
        parts += [("layer", layer, x[:, [i]], y[:, [i]]) for i, layer in enumerate(table.layers)]
    rows = []
    for scope, layer, a, b in parts:
        pooled = "pooled" if scope == "pooled" else "within"
        rho, tau = (rank_correlation(a, b, method=method, scope=pooled, **options).as_record()
                    for method in ("spearman", "kendall"))
        refusal = table.refusal(name) if np.isnan(a).all() else None
        rows.append({**where, "layer": layer, **rho, "scope": scope, "adjusted_p": None, "family": None,
                     "status": rho["status"] if refusal is None else f"undefined: {refusal}",
                     "kendall": {key: tau[key] for key in ("value", "lower", "upper")}})
    return rows


def _adjust(table: _Table, rows: list[Record], resamples: int, seed: int) -> None:
    """p of all pairs of a model as one family: texts are exchanged for all of them alike."""
    outcomes = {outcome.name: outcome for outcome in OUTCOMES}
    complete = [row for row in rows if row["texts"] == len(table.texts)]  # others have permutations of their own
    if not complete:
        return
    null = np.stack([permuted(x := table.predictor(row["predictor"]),
                              np.broadcast_to(table.outcome(outcomes[row["outcome"]]), x.shape),
                              permutations=resamples, seed=seed)[1] for row in complete])  # expected within: 0
    adjusted = p_values(np.array([row["value"] for row in complete]), null, together=True)
    for row, p in zip(complete, adjusted.tolist(), strict=True):
        row["adjusted_p"], row["family"] = p, len(complete)
