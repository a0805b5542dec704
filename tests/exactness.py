"""Find exact comparisons of computed floats in tests, which may fail on another machine by rounding.

The assertions of a file are searched in its AST for

* `==`, `!=`, `in` and `not in` with a computed float on either side,
* `<`, `<=`, `>`, `>=` between two computed numbers (a literal threshold has a margin),
* `torch.equal`, `numpy.array_equal` and `Tensor.equal`,

unless the comparison uses `tests/tolerances.py` or `pytest.approx`, or the assertion has the comment
`# exact: why both sides have the same bits`. Types are inferred within each function, from literals, from called
functions, and from the names of fields that are floats (`FLOAT_NAMES`).
"""

from __future__ import annotations

import ast
import enum
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = re.compile(r"#\s*exact:\s*\S+")

# Fields of results and records, and names of floats in tests.
FLOAT_NAMES = frozenset(
    [
        "value",
        "values",
        "lower",
        "upper",
        "truth",
        "truths",
        "residual",
        "residuals",
        "ratio",
        "ratios",
        "exponent",
        "constant",
        "slope",
        "slopes",
        "gain",
        "gains",
        "norm",
        "norms",
        "sigma",
        "sigmas",
        "share",
        "shares",
        "radius",
        "mean_radius",
        "relative",
        "distance",
        "distances",
        "gap",
        "gaps",
        "error",
        "errors",
        "rate",
        "rates",
        "cost",
        "costs",
        "bound",
        "log_value",
        "log_ratio",
        "best",
        "score",
        "scores",
        "margin",
        "mass",
        "masses",
        "weights",
        "log_weights",
        "direction",
        "change",
        "singular_values",
        "seconds",
        "perturbation",
        "mean",
        "variance",
        "covariance",
        "entropy",
        "loss",
        "price",
        "achieved",
        "predicted",
        "exact",
        "dense",
        "jacobian",
        "spread",
        "energy",
        "diameter",
    ]
)
FLOAT_FUNCTIONS = frozenset(
    [
        "float",
        "norm",
        "matrix_norm",
        "vector_norm",
        "svdvals",
        "eigvalsh",
        "eigvals",
        "det",
        "trace",
        "exp",
        "log",
        "log1p",
        "expm1",
        "sqrt",
        "hypot",
        "sin",
        "cos",
        "tanh",
        "logsumexp",
        "softmax",
        "erf",
        "gamma",
        "lgamma",
        "fsum",
        "dist",
        "pi",
        "item",
        "mean",
        "std",
        "var",
        "median",
        "quantile",
        "double",
        "half",
        "dense",
        "check",
        "largest",
        "local_lipschitz",
        "linspace",
        "randn",
        "rand",
        "normal",
        "norm_of",
    ]
)
# The result has the kind of the argument.
TRANSPARENT = frozenset(
    [
        "abs",
        "max",
        "min",
        "sum",
        "sorted",
        "list",
        "tuple",
        "set",
        "reversed",
        "amax",
        "amin",
        "tolist",
        "clone",
        "detach",
        "flatten",
        "reshape",
        "view",
        "cpu",
        "numpy",
        "squeeze",
        "unsqueeze",
        "transpose",
        "diff",
        "cumsum",
        "sum",
        "prod",
        "clamp",
        "to",
        "contiguous",
        "expand",
        "stack",
        "cat",
        "tensor",
        "as_tensor",
        "array",
        "asarray",
        "maximum",
        "minimum",
        "diagonal",
        "T",
        "mT",
        "all_values",
        "dict",
        "zip",
        "enumerate",
    ]
)
OTHER_FUNCTIONS = frozenset(
    [
        "len",
        "int",
        "str",
        "repr",
        "bool",
        "type",
        "id",
        "isinstance",
        "hasattr",
        "ord",
        "chr",
        "hash",
        "range",
        "read_text",
        "read_bytes",
        "split",
        "splitlines",
        "count",
        "index",
        "find",
        "startswith",
        "endswith",
        "strip",
        "join",
        "format",
        "keys",
        "numel",
        "dim",
        "size",
        "ndim",
        "argmax",
        "argmin",
        "argsort",
        "isfinite",
        "isnan",
        "isinf",
        "isposinf",
        "any",
        "all",
        "is_file",
        "exists",
        "arange",
        "randint",
        "items",
        "loads",
        "match",
        "search",
        "fullmatch",
        "findall",
        "lower",
        "upper",
        "get_rng_state",
        "generate",
    ]
)
OTHER_NAMES = frozenset(
    [
        "shape",
        "dtype",
        "device",
        "status",
        "code",
        "out",
        "err",
        "returncode",
        "name",
        "ndim",
        "T",
        "n",
        "layer",
        "head",
        "sample",
        "steps",
        "products",
        "seed",
        "confidence",
    ]
)


class Kind(enum.Enum):
    OTHER = "not a float"
    LITERAL = "a number as written"
    FLOAT = "a computed float"
    TOLERANT = "compares with a tolerance"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.source}"


class _Types:
    """The inferred kinds of the names in one scope."""

    def __init__(self, known: dict[str, Kind] | None = None):
        self.known = dict(known or {})

    def of(self, node: ast.AST | None) -> Kind:
        """Return the kind of an expression."""
        match node:
            case ast.Constant(value=bool() | str() | bytes() | None):
                return Kind.OTHER
            case ast.Constant(value=int() | float() | complex()):
                return Kind.LITERAL
            case ast.JoinedStr() | ast.Compare() | ast.Lambda():
                return Kind.OTHER
            case ast.UnaryOp(op=op, operand=operand):
                return Kind.OTHER if isinstance(op, ast.Not) else self.of(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self._arithmetic(left, op, right)
            case ast.Name(id=name):
                return self.known.get(name, Kind.FLOAT if name in FLOAT_NAMES else Kind.UNKNOWN)
            case ast.Attribute(value=base, attr=name):
                return self._field(base, name)
            case ast.Subscript(value=base, slice=ast.Constant(value=str(name))):
                return self._named(name)
            case ast.Subscript(value=base):
                return self.of(base)
            case ast.Starred(value=inner) | ast.NamedExpr(value=inner):
                return self.of(inner)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return self._common_kind(parts)
            case ast.Dict(values=parts):
                return self._common_kind(parts)
            case ast.ListComp(elt=inner) | ast.SetComp(elt=inner) | ast.GeneratorExp(elt=inner):
                return self._comprehension_scope(node.generators).of(inner)
            case ast.DictComp(value=inner):
                return self._comprehension_scope(node.generators).of(inner)
            case ast.IfExp(body=one, orelse=other):
                return self._common_kind([one, other])
            case ast.BoolOp(values=parts):
                return self._common_kind(parts)
            case ast.Call():
                return self._call(node)
        return Kind.UNKNOWN

    def _arithmetic(self, left: ast.AST, op: ast.operator, right: ast.AST) -> Kind:
        kinds = {self.of(left), self.of(right)}
        if Kind.TOLERANT in kinds:
            return Kind.TOLERANT
        if Kind.FLOAT in kinds:
            return Kind.FLOAT
        if kinds == {Kind.LITERAL}:
            return Kind.LITERAL
        if Kind.OTHER in kinds:
            return Kind.OTHER
        written = any(isinstance(side, ast.Constant) and isinstance(side.value, float) for side in (left, right))
        return Kind.FLOAT if written or isinstance(op, ast.Div) else Kind.UNKNOWN

    def _named(self, name: str) -> Kind:
        return Kind.FLOAT if name in FLOAT_NAMES else Kind.OTHER if name in OTHER_NAMES else Kind.UNKNOWN

    def _field(self, base: ast.AST, name: str) -> Kind:
        if isinstance(base, ast.Name) and base.id == "math":
            return Kind.LITERAL  # math.pi, math.inf
        if name in TRANSPARENT:
            return self.of(base)
        return self._named(name)

    def _common_kind(self, parts: list[ast.expr]) -> Kind:
        kinds = [self.of(part) for part in parts]
        for kind in (Kind.TOLERANT, Kind.FLOAT):
            if kind in kinds:
                return kind
        return kinds[0] if kinds and len(set(kinds)) == 1 else Kind.OTHER if not kinds else Kind.UNKNOWN

    def _call(self, node: ast.Call) -> Kind:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "approx":
            return Kind.TOLERANT
        if name in OTHER_FUNCTIONS:
            return Kind.OTHER
        if name in FLOAT_FUNCTIONS:
            return Kind.FLOAT
        if name in TRANSPARENT:
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            modules = ("torch", "np", "numpy", "math")
            if owner is not None and not (isinstance(owner, ast.Name) and owner.id in modules):
                return self.of(owner)
            if name in ("tensor", "as_tensor", "array", "asarray") and any(
                keyword.arg == "dtype" for keyword in node.keywords
            ):
                return Kind.FLOAT
            return self._common_kind(node.args)
        return Kind.UNKNOWN

    def _comprehension_scope(self, generators: list[ast.comprehension]) -> _Types:
        inner = _Types(self.known)
        for generator in generators:
            inner.assign(generator.target, generator.iter)
        return inner

    def assign(self, target: ast.AST, value: ast.AST) -> None:
        """Infer the kind of the target of an assignment, or of a loop over `value`."""
        if isinstance(target, ast.Name):
            self.known[target.id] = self.of(value)
            if self.known[target.id] is Kind.UNKNOWN:
                del self.known[target.id]  # fall back to the list of names
        elif isinstance(target, ast.Tuple | ast.List):
            parts = (
                value.elts
                if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
                else value.args
                if (
                    isinstance(value, ast.Call)
                    and getattr(value.func, "id", "") == "zip"
                    and len(value.args) == len(target.elts)
                )
                else None
            )
            for i, part in enumerate(target.elts):
                if parts is not None:
                    self.assign(part, parts[i])
                elif isinstance(part, ast.Name):
                    self.known.pop(part.id, None)


def _exact(node: ast.AST, types: _Types) -> Iterator[ast.AST]:
    """Yield the exact comparisons of computed floats in an assertion."""
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        types = types._comprehension_scope(node.generators)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            if _compares_floats(op, left, right, types):
                yield node
                break
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("equal", "array_equal")
    ) and Kind.OTHER not in {types.of(argument) for argument in node.args}:
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _exact(child, types)


def _compares_floats(op: ast.cmpop, left: ast.AST, right: ast.AST, types: _Types) -> bool:
    kinds = {types.of(left), types.of(right)}
    if Kind.TOLERANT in kinds or isinstance(op, ast.Is | ast.IsNot):
        return False
    if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return Kind.FLOAT in kinds and not kinds & {Kind.LITERAL, Kind.OTHER}
    if isinstance(op, ast.In | ast.NotIn):
        return types.of(left) is Kind.FLOAT and types.of(right) is not Kind.OTHER
    written = any(
        isinstance(part, ast.Constant) and isinstance(part.value, float)
        for side in (left, right)
        for part in [side, *getattr(side, "elts", [])]
    )
    return (Kind.FLOAT in kinds or written) and Kind.OTHER not in kinds and not _infinite(left, right)


def _infinite(*sides: ast.AST) -> bool:
    """Return whether one side is an infinity, which rounding does not change."""
    names = {ast.unparse(side).lstrip("-") for side in sides}
    return bool(names & {"math.inf", "torch.inf", "np.inf", "float('inf')"})


def _walk(body: list[ast.stmt], types: _Types) -> Iterator[tuple[ast.Assert, ast.AST]]:
    for statement in body:
        match statement:
            case ast.Assert(test=test):
                yield from ((statement, found) for found in _exact(test, types))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    types.assign(target, value)
            case ast.For(target=target, iter=values):
                types.assign(target, values)
            case ast.FunctionDef() | ast.ClassDef():
                yield from _walk(statement.body, _Types(types.known))
                continue
        for inner in ("body", "orelse", "finalbody"):
            yield from _walk(getattr(statement, inner, []), types)
        for handler in getattr(statement, "handlers", []):
            yield from _walk(handler.body, types)


def marked_lines(source: str) -> set[int]:
    """Return the lines with a comment `# exact: reason`."""
    lines = iter(source.splitlines(keepends=True))
    return {
        token.start[0]
        for token in tokenize.generate_tokens(lambda: next(lines, ""))
        if token.type == tokenize.COMMENT and MARK.match(token.string)
    }


def exact_comparisons(source: str, path: Path = Path("<source>"), *, marked: bool = False) -> list[Finding]:
    """Return the assertions in `source` that compare computed floats exactly, by default only those without a mark."""
    marks, lines, found = marked_lines(source), source.splitlines(), []
    for statement, node in _walk(ast.parse(source).body, _Types()):
        if marked or not marks & set(range(statement.lineno - 1, statement.end_lineno + 1)):
            found.append(Finding(path, node.lineno, lines[node.lineno - 1].strip()))
    return found
