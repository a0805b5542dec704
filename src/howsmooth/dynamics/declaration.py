"""Flows declared in TOML files, validated without torch, so that an error in a file is reported at once."""

from __future__ import annotations

import difflib
import math
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import BeforeValidator, model_validator

from howsmooth.errors import InputError, describe_validation_errors
from howsmooth.reading import LARGEST_TOML, read_whole

SCIPY = ("rk45", "dop853", "lsoda", "radau")
FIXED_STEPS = ("residual", "rk4")  # keys of howsmooth.dynamics.fixed_steps.SCHEMES
SOLVERS = (*SCIPY, "torchdiffeq", *FIXED_STEPS)
MAX_DEPTH = 1e12


def check_settings(
    solver: str, until: float, rtol: float, atol: float, steps: int | None, max_steps: int, noise: float
) -> None:
    """Raise InputError if these arguments of `howsmooth.dynamics.integrate` are not valid together.

    Example:
        >>> check_settings("rk4", 1.0, 1e-6, 1e-9, None, 100, 0.0)
        Traceback (most recent call last):
        howsmooth.errors.InputError: expected a number of steps for the solver rk4, got none; set steps
    """
    if solver not in SOLVERS:
        raise InputError(f"expected a solver among {', '.join(SOLVERS)}, got {solver!r}")
    for name, value, least, most in (
        ("until", until, 0.0, MAX_DEPTH),
        ("rtol", rtol, 0.0, 1.0),
        ("atol", atol, 0.0, math.inf),
    ):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least < value <= most:
            raise InputError(f"expected {name} as a positive number up to {most:g}, got {value!r}")
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise InputError(f"expected max_steps as a positive whole number, got {max_steps!r}")
    if steps is None and solver in FIXED_STEPS:
        raise InputError(f"expected a number of steps for the solver {solver}, got none; set steps")
    if steps is not None and solver not in FIXED_STEPS:
        raise InputError(
            f"expected a number of steps only with the solvers {' and '.join(FIXED_STEPS)}, got {steps} with {solver}, "
            "which chooses its own; leave it out"
        )
    if not isinstance(noise, (int, float)) or not 0 <= noise < math.inf:
        raise InputError(f"expected noise as a number ≥ 0, got {noise!r}")
    if noise and solver != "residual":
        raise InputError(
            f"expected the solver residual with noise (Euler–Maruyama), got {solver}; noise would reduce the order of "
            "the other solvers"
        )


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


AttentionName = Literal["softmax", "l2", "sinkhorn", "linear", "sigmoid"]  # the only list of them
ATTENTION_NAMES: tuple[AttentionName, ...] = get_args(AttentionName)
NOT_GAUSSIAN = ("sigmoid",)  # a Gaussian does not stay one under these
Matrix = Annotated[Any, BeforeValidator(_matrix)]  # a multiple of the identity, a diagonal, or rows


class AttentionHead(_Section):
    """Matrices A and V of one softmax head."""

    A: Matrix = 1.0
    V: Matrix = 1.0


class Attention(_Section):
    """The section `[attention]`: scores ⟨Ax, y⟩ (l2: `−|Ax − y|²`) and values Vy.

    Attributes:
        name: Which attention: softmax, l2, …
        A: Matrix of the scores: a number (times the identity), a diagonal, or rows.
        V: Matrix of the values, likewise.
        bias: Bias of sigmoid attention.
        eps: Regularisation ε of Sinkhorn attention.
        causal: Mask of softmax attention: a token attends to itself and to those before it.
        heads: Softmax heads, whose outputs are added; A and V are then given there.
    """

    name: AttentionName = "softmax"
    A: Matrix = 1.0
    V: Matrix = 1.0
    bias: float = 0.0
    eps: float = 1.0
    causal: bool = False
    heads: Annotated[tuple[AttentionHead, ...], pydantic.Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Attention:
        for key, only, without in (("bias", "sigmoid", 0.0), ("eps", "sinkhorn", 1.0)):
            if self.name != only and getattr(self, key) != without:
                raise ValueError(f"expected {key} only with {only}, got it with {self.name}; leave it out")
        if self.heads and not self.A == self.V == 1.0:
            raise ValueError("expected A and V in the heads, got them in [attention], too; leave those out")
        if self.name != "softmax" and (self.heads or self.causal):
            raise ValueError(f"expected heads and causal only with softmax, got them with {self.name}")
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

    @model_validator(mode="after")
    def _consistent(self) -> Integration:
        try:
            check_settings(self.solver, self.until, self.rtol, self.atol, self.steps, self.max_steps, self.noise)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self


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
        one_head = self.attention.name == "softmax" and not self.attention.heads
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
            text, label = read_whole(path, name, LARGEST_TOML).decode("utf-8"), path.stem
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"expected a readable TOML file, got {name} ({error})") from None
    try:
        declared = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # syntax, numbers with too many digits, or deep nesting
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


def check_matrix(given: Matrix, d: int, name: str) -> None:
    """Raise InputError unless a matrix is a number, a diagonal of d numbers, or d rows of d numbers.

    Example:
        >>> check_matrix([1.0, 2.0, 3.0], 2, "V")
        Traceback (most recent call last):
        howsmooth.errors.InputError: expected V of shape (2, 2) for tokens of dimension 2, got (3, 3); change one
    """
    if _is_number(given):
        return
    rows = (
        [row if isinstance(row, (list, tuple)) else [row] for row in given] if isinstance(given, (list, tuple)) else []
    )
    widths = {len(row) for row in rows}
    is_diagonal = bool(rows) and not any(isinstance(row, (list, tuple)) for row in given)
    is_matrix = (
        bool(rows) and len(widths) == 1 and (is_diagonal or all(isinstance(row, (list, tuple)) for row in given))
    )
    if not is_matrix or not all(_is_number(entry) for row in rows for entry in row):
        raise InputError(f"expected {name} as a number, a diagonal or the rows of a matrix, got {given!r}")
    shape = (len(rows), len(rows) if is_diagonal else widths.pop())
    if shape != (d, d):
        raise InputError(f"expected {name} of shape ({d}, {d}) for tokens of dimension {d}, got {shape}; change one")
