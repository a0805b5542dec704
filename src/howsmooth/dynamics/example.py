"""A flow as declared in a TOML file: checked key by key, then made into tokens, a velocity and a trajectory."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import torch
from pydantic import BeforeValidator, model_validator
from torch import Tensor

from howsmooth.attention import Field, L2Field, LinearField, SelfAttention, SigmoidField, SinkhornField, SoftmaxField
from howsmooth.dynamics.integration import integrate
from howsmooth.dynamics.renormalised import Renormalised
from howsmooth.dynamics.trajectory import Trajectory
from howsmooth.dynamics.velocity import Layer, Velocity
from howsmooth.errors import InputError, complaints

NAMES = ("polytope", "hyperplanes", "polytope_times_subspace", "collapse", "low_rank", "sphere")


class _Declared(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    return not isinstance(value, bool) and (isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63))


def _matrix(value: Any) -> Any:
    if _is_number(value) or isinstance(value, (list, tuple)):
        return value
    raise ValueError(f"expected a number, a diagonal or the rows of a matrix, got {value!r}")


def _rows(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and all(map(_is_number, row)) for row in value
    ):
        return tuple(tuple(float(entry) for entry in row) for row in value)
    raise ValueError(f"expected a list of rows of numbers, got {value!r}")


def _expectation(value: Any) -> Any:
    bounds = value if isinstance(value, dict) else {"at_least": value}
    for how, bound in bounds.items():
        if how not in ("at_least", "at_most"):
            raise ValueError(f"expected at_least or at_most, got {how!r}")
        if not _is_number(bound):
            raise ValueError(f"expected a number, got {bound!r}")
    return value


Matrix = Annotated[Any, BeforeValidator(_matrix)]  # a number times the identity, a diagonal, or rows


class Head(_Declared):
    A: Matrix = 1.0
    V: Matrix = 1.0


class Attention(_Declared):
    """Scores ⟨Ax, y⟩ (l2: −|Qx − Ky|² with A = Q and K = the identity) and values Vy; `heads` are added up."""

    kind: Literal["softmax", "l2", "sinkhorn", "linear", "sigmoid"] = "softmax"
    A: Matrix = 1.0
    V: Matrix = 1.0
    bias: float = 0.0  # of the sigmoid
    eps: float = 1.0  # of Sinkhorn
    causal: bool = False
    heads: Annotated[tuple[Head, ...], pydantic.Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Attention:
        for key, kind, without in (("bias", "sigmoid", 0.0), ("eps", "sinkhorn", 1.0)):
            if self.kind != kind and getattr(self, key) != without:
                raise ValueError(f"expected {key} with {kind} alone, got it with {self.kind}; leave it out")
        if self.heads and not self.A == self.V == 1.0:
            raise ValueError("expected A and V in the heads, got them beside heads too; leave those of [attention] out")
        if self.kind != "softmax" and (self.heads or self.causal):
            raise ValueError(f"expected heads and causal with softmax alone, got them with {self.kind}")
        return self


class Tokens(_Declared):
    """Drawn from a law, in a box, by a standard deviation or on the sphere of radius `size`; or `points` themselves."""

    count: Annotated[int, pydantic.Field(ge=1)] = 40
    dim: Annotated[int, pydantic.Field(ge=1)] = 2
    law: Literal["uniform", "normal", "sphere"] = "uniform"
    size: Annotated[float, pydantic.Field(gt=0)] = 1.0
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**63)] = 0
    points: Annotated[tuple[tuple[float, ...], ...], BeforeValidator(_rows)] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_points(cls, declared: Any) -> Any:
        points = declared.get("points") if isinstance(declared, dict) else None
        if isinstance(points, (list, tuple)) and points and isinstance(points[0], (list, tuple)):
            return {"count": len(points), "dim": len(points[0]), **declared}
        return declared

    @model_validator(mode="after")
    def _consistent(self) -> Tokens:
        given = (self.count, self.dim, self.law, self.size)
        if self.points and given != (len(self.points), len(self.points[0]), "uniform", 1.0):
            raise ValueError(
                "expected points to decide alone, got another count, dim, law or size beside them; leave it out"
            )
        return self


class Integration(_Declared):
    """How far, in which coordinates, by which solver; see `integrate`."""

    until: float = 10.0
    coordinates: Literal["tokens", "renormalised"] = "tokens"
    sphere: bool = False
    solver: str = "rk45"
    rtol: float = 1e-6
    atol: float = 1e-9
    steps: int | None = None
    saves: int = 41
    max_steps: int = 100_000
    noise: float = 0.0


class Watch(_Declared):
    tol: float = 0.05  # an absolute distance: tokens closer than this are together
    lipschitz: bool = False  # the local constant of attention at each depth


class Example(_Declared):
    """Everything that decides a flow, and what is expected of its last record: values, or at_least and at_most."""

    name: str
    title: str = ""
    about: str = ""
    attention: Attention = Attention()
    tokens: Tokens = Tokens()
    flow: Integration = Integration()
    watch: Watch = Watch()
    expect: dict[str, Annotated[Any, BeforeValidator(_expectation)]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Example:
        one_head = self.attention.kind == "softmax" and not self.attention.heads
        if self.flow.coordinates == "renormalised" and (not one_head or self.flow.sphere or self.flow.noise):
            raise ValueError(
                "expected softmax attention of one head, off the sphere and without noise for "
                'renormalised coordinates, got something else; use coordinates = "tokens"'
            )
        return self

    def replace(self, section: str, **changes: Any) -> Example:
        """The same with other values in a section; None changes nothing.

        >>> read_example("polytope").replace("tokens", count=7).tokens.count
        7
        """
        changes = {key: value for key, value in changes.items() if value is not None}
        if not changes:
            return self
        declared = self.model_dump(exclude={"name"})
        declared[section] |= changes
        # What was expected is expected of the declared flow alone.
        return example_of(self.name, declared if section == "watch" else declared | {"expect": {}})


def read_example(name: str) -> Example:
    """The named example, or the file of that path.

    >>> read_example("polytope").flow.coordinates
    'renormalised'
    """
    if name in NAMES:
        text, label = files("howsmooth.dynamics").joinpath(f"examples/{name}.toml").read_text(encoding="utf-8"), name
    else:
        path = Path(name)
        if path.suffix != ".toml":
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise InputError(
                f"expected an example among {', '.join(NAMES)} or a .toml file, got {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
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
    """A declared flow, every key of it checked; one `InputError` names all that is wrong with it.

    >>> example_of("mine", {"tokens": {"cuont": 3}})
    Traceback (most recent call last):
    ...
    howsmooth.errors.InputError: mine: unknown key 'cuont' in tokens; did you mean 'count'?
    """
    if "name" in declared:
        raise InputError(f"{name}: unknown key 'name'; a flow is named after its file: leave it out, or say title")
    try:
        return Example.model_validate({"name": name, **declared})
    except pydantic.ValidationError as error:
        raise InputError(f"{name}: {complaints(error.errors(), Example, hidden=['name'])}") from None


def field_of(attention: Attention, d: int) -> Field:
    """The field that is declared, on tokens of width d.

    >>> field_of(Attention(V=2.0), 3).layer.wv[0].tolist()
    [2.0, 0.0, 0.0]
    """
    A, V = matrix(attention.A, d, "A"), matrix(attention.V, d, "V")
    eye = torch.eye(d, dtype=torch.float64)
    if attention.kind == "l2":
        return L2Field(A, eye, V)
    if attention.kind == "sinkhorn":
        return SinkhornField(A, V, eps=attention.eps)
    if attention.kind == "linear":
        return LinearField(A, V)
    if attention.kind == "sigmoid":
        return SigmoidField(A, V, bias=attention.bias)
    pairs = [
        (matrix(h.A, d, f"heads[{i}].A"), matrix(h.V, d, f"heads[{i}].V")) for i, h in enumerate(attention.heads)
    ] or [(A, V)]
    count = len(pairs)
    return SoftmaxField(
        SelfAttention(
            torch.cat([A for A, _ in pairs]),
            eye.repeat(count, 1),
            torch.cat([V for _, V in pairs]),
            eye.repeat(1, count),
            heads=count,
            scale=1.0,
            causal=attention.causal,
        )
    )


def tokens_of(tokens: Tokens, sphere: bool = False) -> Tensor:
    """The first tokens (n, d), float64; of unit norm where the flow is on the sphere."""
    if tokens.points:
        if len({len(row) for row in tokens.points}) > 1 or not tokens.points[0]:
            raise InputError(f"expected points of one width, got widths {sorted({len(row) for row in tokens.points})}")
        x = torch.tensor(tokens.points, dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(tokens.seed)
        shape = (tokens.count, tokens.dim)
        if tokens.law == "uniform":
            x = tokens.size * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)
        else:
            x = tokens.size * torch.randn(shape, generator=generator, dtype=torch.float64)
            if tokens.law == "sphere":
                x = tokens.size * x / x.norm(dim=-1, keepdim=True)
    if not sphere:
        return x
    norms = x.norm(dim=-1, keepdim=True)
    if not norms.all():
        raise InputError(
            f"expected tokens other than 0 on a sphere, got 0 as token {int(norms.argmin())}; it has no direction"
        )
    return x / norms


def follow(
    example: Example,
    progress: Callable[[float], None] | None = None,
    *,
    layers: Sequence[Layer] | None = None,
    x: Tensor | None = None,
) -> tuple[Trajectory, Field | Layer | list[Layer]]:
    """Integrate a declared flow: the trajectory, in the declared coordinates, and the attention behind it.

    `layers` and `x` take the place of the declared attention and tokens: one layer for all depths, or a list, each of
    which has an equal share of the depth.
    """
    flow = example.flow
    x = tokens_of(example.tokens, flow.sphere) if x is None else x
    field = attention_behind(example, x.shape[1], layers)
    if flow.coordinates == "renormalised":
        velocity = Velocity(Renormalised(field).at)
    else:
        velocity = Velocity(field, sphere=flow.sphere)
    trajectory = integrate(
        velocity,
        x,
        flow.until,
        solver=flow.solver,
        rtol=flow.rtol,
        atol=flow.atol,
        steps=flow.steps,
        saves=flow.saves,
        max_steps=flow.max_steps,
        noise=flow.noise,
        seed=example.tokens.seed,
        progress=progress,
    )
    return trajectory, field


def attention_behind(example: Example, d: int, layers: Sequence[Layer] | None = None) -> Field | Layer | list[Layer]:
    """What the tokens follow: the declared attention, or `layers` in its place, a single one by itself."""
    if layers is None:
        return field_of(example.attention, d)
    return layers[0] if len(layers) == 1 else list(layers)


def unmet(expect: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """What the record does not fulfil of what was expected; each expectation is a value or at_least/at_most.

    >>> unmet({"clusters": {"at_most": 3}, "rank": 2}, {"clusters": 4, "rank": 2})
    ['clusters: expected at_most 3, got 4']
    """
    wrong = []
    for key, wanted in expect.items():
        if key not in record:
            raise InputError(f"expected something to watch among {', '.join(record)}, got {key!r} in [expect]")
        got, bounds = record[key], wanted if isinstance(wanted, dict) else {"equal to": wanted}
        for how, value in bounds.items():
            if how not in ("at_least", "at_most", "equal to"):
                raise InputError(f"expected at_least or at_most for {key} in [expect], got {how!r}")
            fine = got is not None and (
                got >= value if how == "at_least" else got <= value if how == "at_most" else got == value
            )
            if not fine:
                wrong.append(f"{key}: expected {how} {value}, got {got}")
    return wrong


def matrix(given: Matrix, d: int, name: str) -> Tensor:
    """A number times the identity, a diagonal, or rows, (d, d).

    >>> matrix([1.0, 2.0], 2, "V").tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    try:
        t = torch.tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InputError(f"expected {name} as a number, a diagonal or the rows of a matrix, got {given!r}") from None
    if t.dim() == 0:
        t = t * torch.eye(d, dtype=torch.float64)
    elif t.dim() == 1:
        t = torch.diag(t)
    if t.shape != (d, d):
        raise InputError(
            f"expected {name} of shape ({d}, {d}) for tokens of dimension {d}, got {tuple(t.shape)}; "
            "change the matrix or the dimension"
        )
    return t
