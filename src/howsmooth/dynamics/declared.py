"""A flow as declared: a TOML file, checked key by key; unknown keys are errors."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError

NAMES = ("polytope", "hyperplanes", "polytope_times_subspace", "collapse", "low_rank", "sphere")
KINDS = ("softmax", "l2", "sinkhorn", "linear", "sigmoid")
LAWS = ("uniform", "normal", "sphere")
COORDINATES = ("tokens", "renormalised")
Matrix = float | list  # a number times the identity, a diagonal, or rows


@dataclass(frozen=True)
class Head:
    A: Matrix = 1.0
    V: Matrix = 1.0


@dataclass(frozen=True)
class Attention:
    """Scores ⟨Ax, y⟩ (l2: −|Qx − Ky|² with A = Q and K = the identity) and values Vy; `heads` are added up."""

    kind: str = "softmax"
    A: Matrix = 1.0
    V: Matrix = 1.0
    bias: float = 0.0  # of the sigmoid
    eps: float = 1.0  # of Sinkhorn
    causal: bool = False
    heads: tuple[Head, ...] = ()


@dataclass(frozen=True)
class Tokens:
    """Drawn from a law, in a box, by a standard deviation or on the sphere of radius `size`; or `points` themselves."""

    count: int = 40
    dim: int = 2
    law: str = "uniform"
    size: float = 1.0
    seed: int = 0
    points: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Course:
    """How far, in which coordinates, by which solver; see `integrate`."""

    until: float = 10.0
    coordinates: str = "tokens"
    sphere: bool = False
    solver: str = "rk45"
    rtol: float = 1e-6
    atol: float = 1e-9
    steps: int | None = None
    saves: int = 41
    max_steps: int = 100_000
    noise: float = 0.0


@dataclass(frozen=True)
class Watch:
    tol: float = 0.05  # an absolute distance: tokens closer than this are together
    lipschitz: bool = False  # the local constant of attention at each depth


@dataclass(frozen=True)
class Example:
    """Everything that decides a flow, and what is expected of its last record."""

    name: str
    title: str = ""
    about: str = ""
    attention: Attention = field(default_factory=Attention)
    tokens: Tokens = field(default_factory=Tokens)
    flow: Course = field(default_factory=Course)
    watch: Watch = field(default_factory=Watch)
    expect: dict[str, Any] = field(default_factory=dict)

    def but(self, section: str, **changes: Any) -> Example:
        """The same with other values in a section; None changes nothing.

        >>> read_example("polytope").but("tokens", count=7).tokens.count
        7
        """
        changes = {key: value for key, value in changes.items() if value is not None}
        if not changes:
            return self
        before = getattr(self, section)
        changed = dataclasses.replace(self, **{section: _section(section, type(before), _plain(before) | changes)})
        _refuse_contradictions(changed)
        # What was expected is expected of the declared flow alone.
        return changed if section == "watch" else dataclasses.replace(changed, expect={})


def read_example(name: str) -> Example:
    """The named example, or the file of that path.

    >>> read_example("polytope").flow.coordinates
    'renormalised'
    """
    if name in NAMES:
        text, label = files("howsmooth.dynamics.examples").joinpath(f"{name}.toml").read_text(encoding="utf-8"), name
    else:
        path = Path(name)
        if path.suffix != ".toml":
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise InputError(f"expected an example among {', '.join(NAMES)} or a .toml file, got {name!r}"
                             + (f"; did you mean {near[0]!r}?" if near else ""))
        try:
            text, label = path.read_text(encoding="utf-8"), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"expected a readable TOML file, got {name} ({error})") from None
    try:
        declared = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{label}: expected TOML, got a mistake ({error})") from None
    return example_of(label, declared)


def example_of(name: str, declared: dict[str, Any]) -> Example:
    """A declared flow, every key of it checked.

    >>> example_of("mine", {"tokens": {"cuont": 3}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    howsmooth.errors.InputError: mine: expected keys of [tokens] among count, ..., got 'cuont'; did you mean 'count'?
    """
    sections = {"attention": Attention, "tokens": Tokens, "flow": Course, "watch": Watch}
    try:
        _refuse_unknown("the file", declared, ("title", "about", *sections, "expect"))
        made = {key: _section(key, kind, declared.get(key, {})) for key, kind in sections.items()}
        _refuse_wrong_expectations(declared.get("expect", {}))
        example = Example(name=name, title=_typed("title", declared.get("title", ""), "str"),
                          about=_typed("about", declared.get("about", ""), "str"),
                          expect=dict(declared.get("expect", {})), **made)
        _refuse_contradictions(example)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return example


def _section(name: str, kind: type, declared: dict[str, Any]) -> Any:
    if not isinstance(declared, dict):
        raise InputError(f"expected [{name}] as a table, got {declared!r}")
    declared = dict(declared)
    if isinstance(points := declared.get("points"), list) and points and isinstance(points[0], list):
        declared = {"count": len(points), "dim": len(points[0]), **declared}
    types = {f.name: str(f.type) for f in dataclasses.fields(kind)}
    _refuse_unknown(f"[{name}]", declared, tuple(types))
    for key, value in declared.items():
        declared[key] = _typed(f"{name}.{key}", value, types[key])
    return kind(**declared)


def _refuse_unknown(where: str, declared: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in declared:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise InputError(f"expected keys of {where} among {', '.join(known)}, got {key!r}"
                             + (f"; did you mean {near[0]!r}?" if near else ""))


def _typed(key: str, value: Any, kind: str) -> Any:
    """The value as this type of field wants it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "str" and isinstance(value, str) or kind == "bool" and isinstance(value, bool):
        return value
    if kind == "float" and number and _fits(value):
        return float(value)
    if kind in ("int", "int | None") and number and isinstance(value, int):
        return value
    if kind == "Matrix" and (number and _fits(value) or isinstance(value, list)):
        return value
    if kind.startswith("tuple[Head") and isinstance(value, (list, tuple)):
        return tuple(h if isinstance(h, Head) else _section(f"{key}[{i}]", Head, h) for i, h in enumerate(value))
    if kind.startswith("tuple[tuple[float") and isinstance(value, (list, tuple)):
        try:
            return tuple(tuple(float(entry) for entry in row) for row in value)
        except (TypeError, ValueError, OverflowError):
            pass
    words = {"str": "text", "bool": "true or false", "float": "a number", "int": "a whole number",
             "int | None": "a whole number", "Matrix": "a number, a diagonal or the rows of a matrix"}
    raise InputError(f"expected {words.get(kind, 'a list of rows')} for {key}, got {value!r}")


def _fits(number: int | float) -> bool:
    return isinstance(number, float) or abs(number) < 2**63


def _refuse_wrong_expectations(expect: Any) -> None:
    """Each is a number, or a table of at_least and at_most."""
    if not isinstance(expect, dict):
        raise InputError(f"expected [expect] as a table, got {expect!r}")
    for key, wanted in expect.items():
        bounds = wanted if isinstance(wanted, dict) else {"at_least": wanted}
        for how, value in bounds.items():
            if how not in ("at_least", "at_most"):
                raise InputError(f"expected at_least or at_most for {key} in [expect], got {how!r}")
            _typed(f"expect.{key}", value, "float")


def _refuse_contradictions(example: Example) -> None:
    tokens, flow, attention = example.tokens, example.flow, example.attention
    for key, value, choices in (("attention.kind", attention.kind, KINDS), ("tokens.law", tokens.law, LAWS),
                                ("flow.coordinates", flow.coordinates, COORDINATES)):
        if value not in choices:
            raise InputError(f"expected {key} among {', '.join(choices)}, got {value!r}")
    if min(tokens.count, tokens.dim) < 1 or not tokens.size > 0 or not 0 <= tokens.seed < 2**63:
        raise InputError("expected at least one token and one dimension, a positive size and a seed from 0 to 2⁶³ − 1, "
                         f"got count {tokens.count}, dim {tokens.dim}, size {tokens.size:g}, seed {tokens.seed}")
    given = (tokens.count, tokens.dim, tokens.law, tokens.size)
    if tokens.points and given != (len(tokens.points), len(tokens.points[0]), Tokens.law, Tokens.size):
        raise InputError("expected tokens.points to decide alone, got another count, dim, law or size beside them; "
                         "leave it out")
    for key, kind in (("bias", "sigmoid"), ("eps", "sinkhorn")):
        if attention.kind != kind and getattr(attention, key) != getattr(Attention, key):
            raise InputError(f"expected attention.{key} with {kind} alone, got it with {attention.kind}; leave it out")
    if attention.heads and (attention.A != Attention.A or attention.V != Attention.V):
        raise InputError("expected A and V in the heads, got them beside heads too; leave those of [attention] out")
    if flow.coordinates == "renormalised" and (attention.kind != "softmax" or attention.heads or flow.sphere
                                               or flow.noise):
        raise InputError("expected softmax attention of one head, off the sphere and without noise for renormalised "
                         "coordinates; use coordinates = \"tokens\"")
    if attention.kind != "softmax" and (attention.heads or attention.causal):
        raise InputError(f"expected heads and causal with softmax alone, got them with {attention.kind}")


def _plain(section: Any) -> dict[str, Any]:
    return {f.name: getattr(section, f.name) for f in dataclasses.fields(section)
            if getattr(section, f.name) is not None}
