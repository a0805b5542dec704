"""Flows declared in TOML files: validation, and construction of tokens, field, velocity and trajectory."""

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
from howsmooth.errors import InputError, describe_validation_errors

EXAMPLE_NAMES = ("polytope", "hyperplanes", "polytope_times_subspace", "collapse", "low_rank", "sphere")


class _Section(pydantic.BaseModel):
    """A table of the file: unknown keys and wrong types are errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _is_number(value: Any) -> bool:
    """Return whether the value is a float, or an integer that a float can represent."""
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


Matrix = Annotated[Any, BeforeValidator(_matrix)]  # a multiple of the identity, a diagonal, or rows


class AttentionHead(_Section):
    """Matrices A and V of one softmax head."""

    A: Matrix = 1.0
    V: Matrix = 1.0


class Attention(_Section):
    """The section `[attention]`: scores ⟨Ax, y⟩ (l2: `−|Ax − y|²`) and values Vy.

    Attributes:
        kind: Kind of attention.
        A: Matrix of the scores: a number (times the identity), a diagonal, or rows.
        V: Matrix of the values, likewise.
        bias: Bias of sigmoid attention.
        eps: Regularisation ε of Sinkhorn attention.
        causal: Mask of softmax attention: a token attends to itself and to those before it.
        heads: Softmax heads, whose outputs are added; A and V are then given there.
    """

    kind: Literal["softmax", "l2", "sinkhorn", "linear", "sigmoid"] = "softmax"
    A: Matrix = 1.0
    V: Matrix = 1.0
    bias: float = 0.0
    eps: float = 1.0
    causal: bool = False
    heads: Annotated[tuple[AttentionHead, ...], pydantic.Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Attention:
        for key, kind, without in (("bias", "sigmoid", 0.0), ("eps", "sinkhorn", 1.0)):
            if self.kind != kind and getattr(self, key) != without:
                raise ValueError(f"expected {key} only with {kind}, got it with {self.kind}; leave it out")
        if self.heads and not self.A == self.V == 1.0:
            raise ValueError("expected A and V in the heads, got them in [attention], too; leave those out")
        if self.kind != "softmax" and (self.heads or self.causal):
            raise ValueError(f"expected heads and causal only with softmax, got them with {self.kind}")
        return self


class Tokens(_Section):
    """The section `[tokens]`: the first tokens, drawn at random or given as `points`.

    Attributes:
        count: Number of tokens.
        dim: Dimension of tokens.
        law: "uniform" on [−size, size]^dim, "normal" with standard deviation `size`, or uniform on the "sphere" of
            radius `size`.
        size: Scale of the law.
        seed: Seed of the draw, and of the noise of the flow.
        points: Rows of coordinates in place of a draw.
    """

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
                "expected points without another count, dim, law or size, got one of them, too; leave it out"
            )
        return self


class Integration(_Section):
    """The section `[flow]`: depth, coordinates and solver; see `integrate`.

    Attributes:
        until: The depth to reach.
        coordinates: "tokens" for x, or "renormalised" for z = e^{−tV}x.
        sphere: Keep tokens on the unit sphere.
        solver: Name of the solver.
        rtol: Relative tolerance of adaptive solvers.
        atol: Absolute tolerance of adaptive solvers.
        steps: Number of steps of fixed-step solvers.
        frames: Number of saved depths, evenly spaced.
        max_steps: Maximal number of adaptive steps.
        noise: Standard deviation of a Brownian motion per unit of √depth.
    """

    until: float = 10.0
    coordinates: Literal["tokens", "renormalised"] = "tokens"
    sphere: bool = False
    solver: str = "rk45"
    rtol: float = 1e-6
    atol: float = 1e-9
    steps: int | None = None
    frames: int = 41
    max_steps: int = 100_000
    noise: float = 0.0

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_key(cls, declared: Any) -> Any:
        if isinstance(declared, dict) and "saves" in declared:
            raise ValueError("expected frames, got saves; rename it")
        return declared


class InstrumentSettings(_Section):
    """The section `[watch]`: settings of the instruments.

    Attributes:
        tol: An absolute distance: tokens closer than this are in one cluster.
        lipschitz: Also compute the local Lipschitz constant of attention at each saved depth.
    """

    tol: float = 0.05
    lipschitz: bool = False


class Example(_Section):
    """A declared flow, and what is expected of it at the last depth.

    Attributes:
        name: Name of the example or of the file.
        title: Title of tables and figures.
        about: A description.
        attention: The section `[attention]`.
        tokens: The section `[tokens]`.
        flow: The section `[flow]`.
        watch: The section `[watch]`.
        expect: Expected values of the last record, each a value or a table with `at_least` and `at_most`.
    """

    name: str
    title: str = ""
    about: str = ""
    attention: Attention = Attention()
    tokens: Tokens = Tokens()
    flow: Integration = Integration()
    watch: InstrumentSettings = InstrumentSettings()
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
        """Return a copy with other values in a section; values of None are ignored.

        Expectations are dropped unless the section is `watch`: they hold for the declared flow only.

        Example:
            >>> read_example("polytope").replace("tokens", count=7).tokens.count
            7
        """
        changes = {key: value for key, value in changes.items() if value is not None}
        if not changes:
            return self
        declared = self.model_dump(exclude={"name"})
        declared[section] |= changes
        return parse_example(self.name, declared if section == "watch" else declared | {"expect": {}})


def read_example(name: str) -> Example:
    """Read a named example, or a TOML file.

    Args:
        name: One of the examples (polytope, hyperplanes, polytope_times_subspace, collapse, low_rank, sphere), or the
            path of a file that ends in .toml.

    Returns:
        The validated example.

    Raises:
        InputError: If there is no such example or file, or a key or value in it is not valid.

    Example:
        >>> read_example("polytope").flow.coordinates
        'renormalised'
    """
    if name in EXAMPLE_NAMES:
        text, label = files("howsmooth.dynamics").joinpath(f"examples/{name}.toml").read_text(encoding="utf-8"), name
    else:
        path = Path(name)
        if path.suffix != ".toml":
            near = difflib.get_close_matches(name, EXAMPLE_NAMES, n=1)
            raise InputError(
                f"expected an example among {', '.join(EXAMPLE_NAMES)} or a .toml file, got {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
        try:
            text, label = path.read_text(encoding="utf-8"), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"expected a readable TOML file, got {name} ({error})") from None
    try:
        declared = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{label}: expected valid TOML, got an error ({error})") from None
    return parse_example(label, declared)


def parse_example(name: str, declared: dict[str, Any]) -> Example:
    """Validate the sections of a flow; one `InputError` lists all that is wrong.

    Example:
        >>> parse_example("mine", {"tokens": {"cuont": 3}})
        Traceback (most recent call last):
        ...
        howsmooth.errors.InputError: mine: unknown key 'cuont' in tokens; did you mean 'count'?
    """
    if "name" in declared:
        raise InputError(f"{name}: unknown key 'name'; a flow is named after its file: leave it out, or use title")
    try:
        return Example.model_validate({"name": name, **declared})
    except pydantic.ValidationError as error:
        raise InputError(f"{name}: {describe_validation_errors(error.errors(), Example, hidden=['name'])}") from None


def field_of(attention: Attention, d: int) -> Field:
    """Return the declared attention as a field on R^d.

    Example:
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
    """Return the first tokens (n, d) in float64, normalised if the flow is on the sphere."""
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


def integrate_example(
    example: Example,
    progress: Callable[[float], None] | None = None,
    *,
    layers: Sequence[Layer] | None = None,
    x: Tensor | None = None,
) -> tuple[Trajectory, Field | Layer | list[Layer]]:
    """Integrate a declared flow.

    Args:
        example: The declared flow.
        progress: Called with the depth after every step.
        layers: Replace the declared attention: one layer for all depths, or several, each for an equal part.
        x: Replaces the declared tokens, (n, d).

    Returns:
        The trajectory in the declared coordinates, and the attention that moves the tokens.

    Raises:
        InputError: If a matrix does not fit the dimension, or a setting is not valid.
        Interrupted: On Ctrl-C; its `partial` is the trajectory up to then.

    Example:
        >>> trajectory, field = integrate_example(read_example("low_rank").replace("flow", until=1.0))
        >>> trajectory.status, field.name
        ('finished', 'softmax')
    """
    flow = example.flow
    x = tokens_of(example.tokens, flow.sphere) if x is None else x
    field = attention_of(example, x.shape[1], layers)
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
        frames=flow.frames,
        max_steps=flow.max_steps,
        noise=flow.noise,
        seed=example.tokens.seed,
        progress=progress,
    )
    return trajectory, field


def attention_of(example: Example, d: int, layers: Sequence[Layer] | None = None) -> Field | Layer | list[Layer]:
    """Return the declared attention, or `layers` in place of it; a single layer is not wrapped in a list."""
    if layers is None:
        return field_of(example.attention, d)
    return layers[0] if len(layers) == 1 else list(layers)


def unmet_expectations(expect: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Return a line for each expectation that the record does not meet.

    Args:
        expect: For each field of a record a value, or a table with `at_least` and `at_most`.
        record: A record of `trajectory_records`.

    Raises:
        InputError: If an expectation names no field of the record, or no known comparison.

    Example:
        >>> unmet_expectations({"clusters": {"at_most": 3}, "rank": 2}, {"clusters": 4, "rank": 2})
        ['clusters: expected at_most 3, got 4']
    """
    wrong = []
    for key, wanted in expect.items():
        if key not in record:
            raise InputError(f"expected a field of a record ({', '.join(record)}), got {key!r} in [expect]")
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
    """Return a (d, d) matrix given as a multiple of the identity, a diagonal, or rows; `name` is for errors.

    Example:
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
