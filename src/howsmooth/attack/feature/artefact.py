"""Attacks as files: tokens and perturbation as safetensors, the record beside them; and the proof that they hold.

`verify` evaluates the map once more from what the file holds and compares everything that was reported.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from howsmooth.attack.feature.budget import Budget, touched
from howsmooth.attack.feature.objectives import NextToken, Objective, OutputChange, Similarity
from howsmooth.attack.feature.problem import Problem
from howsmooth.attack.feature.result import FeatureAttack, evaluated
from howsmooth.attack.feature.targets import Target
from howsmooth.errors import InputError

FORMAT = 1
AGAIN = 1e-4  # relative to the change: what another machine's order of sums may do; exact on the same one
COMPARED = ("spent", "change", "gain", "attacked")


@dataclass(frozen=True)
class Verification:
    """ok, or what is wrong, in words; `change` is what the map says now, `reported` what the file says."""

    path: str
    ok: bool
    wrong: tuple[str, ...]
    change: float
    reported: float

    def as_record(self) -> dict:
        return {"path": self.path, "ok": self.ok, "wrong": list(self.wrong), "change": self.change,
                "reported": self.reported}


def save_attack(attack: FeatureAttack, path: str | os.PathLike, more: dict | None = None) -> None:
    """Write an attack; `more` is kept with its record. The file is complete or absent."""
    facts = {"format": str(FORMAT), "record": json.dumps(attack.as_record() | (more or {}), ensure_ascii=False),
             "origin": json.dumps(attack.origin, ensure_ascii=False)}
    building = Path(f"{os.fspath(path)}.part")
    save_file({"tokens": attack.x.contiguous().cpu(), "perturbation": attack.perturbation.contiguous().cpu()}, building,
              metadata=facts)
    building.replace(path)


def read(path: str | os.PathLike) -> tuple[dict, dict, dict[str, torch.Tensor]]:
    """(record, origin, tensors) of a file that `save_attack` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        return json.loads(facts["record"]), json.loads(facts["origin"]), {k: tensors[k] for k in
                                                                          ("tokens", "perturbation")}
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"expected a saved attack, got {os.fspath(path)!r} ({type(error).__name__}: {error}); name a "
                         "file that save_attack wrote") from None


def load_attack(path: str | os.PathLike) -> FeatureAttack:
    """The attack as it was saved, unchecked: `verify` checks it."""
    record, origin, tensors = read(path)
    names = ("attack", "objective", "spent", "touched", "change", "gain", "clean", "attacked", "calls", "seconds",
             "seed", "status")
    known = {*names, "budget", "dtype", "n"}
    return FeatureAttack(**{name: record[name] for name in names}, budget=Budget(**record["budget"]),
                         dtype=getattr(torch, record["dtype"]), origin=origin, n=len(tensors["tokens"]),
                         facts={key: value for key, value in record.items() if key not in known},
                         x=tensors["tokens"], perturbation=tensors["perturbation"])


def verify(path: str | os.PathLike, target: Target | None = None, *, model=None) -> Verification:
    """Evaluate the map again at the saved tokens and the saved perturbation, and compare with what was reported.

    A target that is part of a model is found again by the file's own record (`model`, if it is loaded already, saves
    the time); then the tokens, too, are computed anew from the text's token numbers, unless an edit has added some. For
    any other map the caller gives the target.
    """
    reported, wrong = load_attack(path), []
    given = model
    if target is None:
        model = model if model is not None else _model(reported)
        target = _found_again(reported, model)
        edited = "edit" in reported.attack
        if not edited and not _close(target.x, reported.x):
            wrong.append("the tokens are not those that enter the map on this text")
        if given is not None and given.source.get("sha256") != reported.origin["source"].get("sha256"):
            wrong.append("the weights are not those that were attacked")
    target = target.double() if reported.dtype == torch.float64 else target
    target = target.rows(reported.x.to(target.x.device))
    problem = Problem(target, _objective(reported, model))
    now = evaluated(problem, reported.perturbation.to(target.x.device), attack=reported.attack, budget=reported.budget,
                    seed=reported.seed, began=time.perf_counter())
    for name in COMPARED:
        said, found = getattr(reported, name), getattr(now, name)
        slack = max(AGAIN * abs(said), 1e-6 if name == "attacked" else 0.0) if reported.status == "fine" else abs(said)
        if not abs(said - found) <= slack:
            wrong.append(f"{name}: {said:.8g} reported, {found:.8g} found")
    if reported.touched != touched(reported.perturbation):
        wrong.append(f"tokens touched: {reported.touched} reported, {touched(reported.perturbation)} found")
    if not reported.budget.allows(reported.perturbation, slack=1e-3 if reported.dtype == torch.float32 else 1e-6):
        wrong.append(f"the perturbation is beyond its budget {reported.budget}")
    for key, said in reported.facts.items():
        if key in now.facts and now.facts[key] != said:
            wrong.append(f"{key}: {said} reported, {now.facts[key]} found")
    return Verification(os.fspath(path), not wrong, tuple(wrong), now.change, reported.change)


def _model(reported: FeatureAttack):
    from howsmooth.models import load

    if "model" not in reported.origin:
        raise InputError("expected a target: this attack was on a map that no file describes; give verify the map and "
                         "its tokens")
    origin = reported.origin
    model = load(origin["model"], dtype=origin["dtype"], seed=origin["source"].get("seed") or 0)
    if model.source.get("sha256") != origin["source"].get("sha256"):
        raise InputError(f"expected the weights of {model.name!r} that were attacked, got others (sha256)")
    return model


def _found_again(reported: FeatureAttack, model) -> Target:
    origin = reported.origin
    return Target.in_model(model, torch.tensor(origin["ids"]), origin["layer"], origin["kind"], head=origin["head"])


def _objective(reported: FeatureAttack, model) -> Objective:
    kind = dict(reported.objective)
    name = kind.pop("name")
    if name == NextToken.name:
        if model is None:
            raise InputError("expected model= to verify an attack on the next token, got none: its head is needed")
        return NextToken(model.language_head, **kind)
    return {OutputChange.name: OutputChange, Similarity.name: Similarity}[name](**kind)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a.double() - b.double()).abs().max() <= 1e-4 * (1 + b.double().abs().max()))
