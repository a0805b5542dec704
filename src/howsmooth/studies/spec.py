"""What to measure: one model of every choice, with one default for each, shared by every way to ask.

A study file, the options of `howsmooth measure`, `howsmooth.measure` in Python, the explorer, the demo and the paper's
figures are all a `Spec`. A field's description is the help text of its option, and its validator is the one parser of
what users write. Nothing heavy is imported here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from howsmooth.errors import InputError, complaints

MAPS = ("attention", "head", "normed", "block", "layer", "model")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MOST_LENGTHS = 10_000
_MOST_DIGITS = 18  # of a number of tokens, samples or bytes


@dataclass(frozen=True)
class Quantity:
    """A number that is measured at every map and sample: its symbol in tables, what it is, and what computes it."""

    symbol: str
    about: str
    function: str  # module:name, called by the worker with an `At`
    certified: bool = False  # with an interval, which has a confidence
    every_token: bool = False  # it knows no tokens that are held fixed
    maps: tuple[str, ...] | None = None  # the maps that it is about; None: all


# One line for each quantity: records, tables, charts, pages and the command line take it from here.
QUANTITIES = {
    "lipschitz": Quantity(
        "Lip", "‖D_X f‖₂ with a certified interval", "howsmooth.studies.quantities:lipschitz", certified=True
    ),
    "released": Quantity(
        "√‖Jᵀf‖",
        "what the paper's scripts return, at the described map",
        "howsmooth.studies.quantities:released",
        every_token=True,
    ),
    "scripts": Quantity(
        "√‖Jᵀf‖",
        "the same at the scripts' own map",
        "howsmooth.studies.quantities:scripts",
        every_token=True,
        maps=("attention",),
    ),
}


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


def _range(text: str) -> list[int]:
    """The lengths that a string stands for.

    >>> _range("2..8+2"), _range("16..128*2"), _range("4,32..64*2")
    ([2, 4, 6, 8], [16, 32, 64, 128], [4, 32, 64])
    """
    lengths: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18})(?:([+*])(\d{1,18}))?)?", piece.strip())
        if not match:
            raise ValueError(f"expected lengths such as 16, 2..98+2 or 16..512*2, got {(piece.strip() or text)[:60]!r}")
        first, last, way, step = int(match[1]), int(match[2] or match[1]), match[3] or "+", int(match[4] or 1)
        if last < first or step < (2 if way == "*" else 1) or (way == "*" and first < 1):
            raise ValueError(f"expected a range that grows and ends, got {piece.strip()!r}")
        while first <= last:
            if len(lengths) >= _MOST_LENGTHS:
                raise ValueError(
                    f"expected at most {_MOST_LENGTHS} lengths, got more in {piece.strip()!r}; take larger steps"
                )
            lengths.append(first)
            first = first * step if way == "*" else first + step
    return lengths


def _lengths(value: Any) -> Any:
    value = _range(value) if isinstance(value, str) else [value] if isinstance(value, int) else value
    return sorted(set(value)) if isinstance(value, list) and all(isinstance(n, int) for n in value) else value


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(?:i?B)?", value.strip(), flags=re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise ValueError(f"expected a size such as 4G or 512M, got {value[:60]!r}")
    return size


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def _of_name(key: str):
    def tables(value: Any) -> Any:
        value = _listed(value)
        return [{key: item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value

    return tables


Index = Annotated[int, Field(ge=0)]


def _some(value: Any) -> Any:
    """A selection: "all", numbers, or a string of them such as 0,6; one clear complaint where a union makes three."""
    if isinstance(value, str) and value != "all":
        pieces = [piece.strip() for piece in value.split(",")]
        if not all(re.fullmatch(rf"\d{{1,{_MOST_DIGITS}}}", piece) for piece in pieces):
            raise ValueError(f'expected "all" or numbers from 0 such as 0,6, got {value[:60]!r}')
        value = [int(piece) for piece in pieces]
    value = [value] if type(value) is int else value
    numbers = isinstance(value, (list, tuple)) and value and all(type(i) is int and i >= 0 for i in value)
    if value is not None and value != "all" and not numbers:
        raise ValueError(f'expected "all" or numbers from 0 such as [0, 6], got {value!r:.60}')
    return list(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else value


Some = Annotated[Literal["all"] | tuple[Index, ...], BeforeValidator(_some)]


def _words(value: Any) -> Any:
    """One word, or several with commas between them, as a list."""
    return [piece.strip() for piece in value.split(",")] if isinstance(value, str) else value


def _quantity(name: str) -> str:
    if name not in QUANTITIES:
        raise ValueError(f"expected a quantity among {', '.join(QUANTITIES)}, got {name[:60]!r}")
    return name


class ModelSpec(_Declared):
    """A model as `howsmooth.load` takes it, or a series of checkpoints of one model."""

    name: Annotated[str, Field(min_length=1)]
    weights: Literal["pretrained", "random"] = "pretrained"
    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16"],
        Field(description="Dtype of the model; one in half precision is measured with products in float32."),
    ] = "float32"
    device: Annotated[str, Field(description="Where to compute.", json_schema_extra={"metavar": "cpu|cuda"})] = "cpu"
    revision: Annotated[
        str | None,
        Field(description="Branch, tag or commit of a model on the Hub.", json_schema_extra={"metavar": "NAME"}),
    ] = None
    tokenizer: Annotated[
        str | None,
        Field(description="Another place to take the tokenizer from.", json_schema_extra={"metavar": "NAME"}),
    ] = None
    trust_remote_code: Annotated[bool, Field(description="Run code that comes with the model.")] = False
    allow_pickle: Annotated[bool, Field(description="Load weights that are not safetensors.")] = False
    causal: bool = False  # a BERT run as a decoder
    seed: Index | None = None  # of random weights; the study's otherwise
    layers: Some | None = None  # instead of the study's
    checkpoints: tuple[str, ...] = ()  # names or folders, in the order of training
    revisions: tuple[str, ...] = ()  # or revisions of `name`
    series: str | None = None
    checkpoint: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _random(cls, given: Any) -> Any:
        """random:NAME is NAME with random weights."""
        name = given.get("name") if isinstance(given, dict) else None
        if isinstance(name, str) and name.startswith("random:") and "weights" not in given:
            return {**given, "name": name.removeprefix("random:"), "weights": "random"}
        return given

    @model_validator(mode="after")
    def _one_way(self) -> ModelSpec:
        if self.checkpoints and self.revisions:
            raise ValueError("expected checkpoints or revisions, got both; keep one of the two")
        return self

    @property
    def label(self) -> str:
        """What records and figures call it."""
        return ("random:" if self.weights == "random" else "") + self.name + (" (masked)" if self.causal else "")

    def members(self) -> list[ModelSpec]:
        """The model itself, or each checkpoint of its series."""
        bare = {"checkpoints": (), "revisions": ()}
        if self.checkpoints:
            return [
                self.model_copy(update={**bare, "name": name, "series": self.name, "checkpoint": name})
                for name in self.checkpoints
            ]
        if self.revisions:
            return [
                self.model_copy(update={**bare, "revision": revision, "series": self.name, "checkpoint": revision})
                for revision in self.revisions
            ]
        return [self]


class TextSpec(_Declared):
    """A text as `howsmooth.texts.corpora.read_corpus` takes it."""

    source: Annotated[str, Field(min_length=1)]
    name: str | None = None
    format: Literal["auto", "text", "ag_news"] = "auto"
    split: str = "test"
    column: str | None = None
    subset: str | None = None


class EngineSpec(_Declared):
    """Where tasks run: processes of this machine, or a Ray cluster."""

    kind: Annotated[Literal["local", "ray"], Field(description="Processes of this machine, or a Ray cluster.")] = (
        "local"
    )
    workers: Annotated[
        Annotated[int, Field(ge=0)] | None,
        Field(
            description="Processes; 0 is this one.  [default: as many as cores and memory allow]",
            json_schema_extra={"metavar": "COUNT"},
        ),
    ] = None
    threads: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(
            description="Threads of each process.  [default: cores divided among the processes]",
            json_schema_extra={"metavar": "COUNT"},
        ),
    ] = None
    address: Annotated[
        str | None, Field(description="Address of the Ray cluster.", json_schema_extra={"metavar": "HOST:PORT|auto"})
    ] = None
    cpus: Annotated[float, Field(gt=0, description="CPUs of one Ray task.", json_schema_extra={"metavar": "COUNT"})] = (
        1.0
    )
    gpus: Annotated[float, Field(ge=0, description="GPUs of one Ray task.", json_schema_extra={"metavar": "COUNT"})] = (
        0.0
    )
    retries: Annotated[int, Field(ge=0)] = 3  # of a task whose worker was lost


class Spec(_Declared):
    """Everything that decides what is computed; the engine decides only where."""

    name: Annotated[str, Field(min_length=1, description="What records and tables call this study.")] = "study"
    description: str = ""
    models: Annotated[
        tuple[ModelSpec, ...],
        BeforeValidator(_of_name("name")),
        Field(
            min_length=1, description="Models, as `howsmooth.load` takes them.", json_schema_extra={"metavar": "NAME,…"}
        ),
    ] = (ModelSpec(name="minilm"),)
    texts: Annotated[
        tuple[TextSpec, ...],
        BeforeValidator(_of_name("source")),
        Field(
            min_length=1,
            description="UTF-8 text: a file, a folder, - for stdin, alice, ag_news, hf:NAME, or embedded.",
            json_schema_extra={"metavar": "FILE|-"},
        ),
    ] = (TextSpec(source="embedded"),)
    inputs: Annotated[
        Literal["text", "normalised"],
        Field(
            description="Inputs of the map: tokens of the text, or random ones through each layer's own normalisation, of "
            "any length."
        ),
    ] = "text"
    cutting: Annotated[
        Literal["consecutive", "documents", "prefixes"],
        Field(description="How chunks are cut: one after the other, a document each, or nested prefixes."),
    ] = "consecutive"
    special_tokens: Annotated[
        Literal["add", "none"],
        Field(description="Whether each chunk gets the special tokens that the model's tokenizer gives one text."),
    ] = "add"
    layers: Annotated[Some, Field(description="Which layers.", json_schema_extra={"metavar": "0,6|all"})] = "all"
    heads: Annotated[
        Some | None, Field(description="These heads, each alone.", json_schema_extra={"metavar": "0,3|all"})
    ] = None
    lengths: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        BeforeValidator(_lengths),
        Field(
            min_length=1,
            description="Numbers of tokens, special tokens included: 64,128 or 16..512*2 or 2..98+2.",
            json_schema_extra={"metavar": "64,128"},
        ),
    ] = (32, 64, 128, 256)
    samples: Annotated[
        int,
        Field(
            ge=1, le=10**9, description="Chunks of the text for each length.", json_schema_extra={"metavar": "COUNT"}
        ),
    ] = 4
    map: Annotated[
        Literal["attention", "head", "normed", "block", "layer", "model"] | None,
        Field(
            description="Map to measure: attention, each head alone, with the normalisation, with the residual, the whole "
            "Transformer layer, or the whole model.  [default: attention, or head with heads]"
        ),
    ] = None
    tokens: Annotated[
        tuple[Literal["all", "no-special", "no-first"], ...],
        BeforeValidator(_words),
        Field(min_length=1, description="Which tokens a perturbation may move."),
    ] = ("all",)
    quantities: Annotated[
        tuple[Annotated[str, AfterValidator(_quantity)], ...],
        BeforeValidator(_words),
        Field(
            min_length=1,
            description="What is computed: "
            + ", ".join(f"{name} ({quantity.about})" for name, quantity in QUANTITIES.items())
            + ".",
            json_schema_extra={"metavar": "NAME,…"},
        ),
    ] = ("lipschitz",)
    tol: Annotated[
        float,
        Field(
            gt=0, lt=1, description="Relative width of the interval to reach.", json_schema_extra={"metavar": "WIDTH"}
        ),
    ] = 1e-3
    confidence: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="Probability that the interval's upper end holds.",
            json_schema_extra={"metavar": "PROBABILITY"},
        ),
    ] = 0.999
    simultaneous: Annotated[bool, Field(description="The confidence is for all intervals together.")] = False
    max_memory: Annotated[
        Annotated[int, Field(ge=1)] | None,
        BeforeValidator(_bytes),
        Field(description="Memory that one solve may take.", json_schema_extra={"metavar": "4G"}),
    ] = None
    product_dtype: Annotated[
        Literal["auto", "float64", "float32", "bfloat16", "float16"],
        Field(
            description="Dtype of products on a GPU: float64 measures rounding against a float64 reference, float32 allows "
            "for it, half precision searches faster. auto: float64 up to 4096 tokens, then float32."
        ),
    ] = "auto"
    stop: Annotated[
        Literal["interval", "residual"],
        Field(
            description="Stop on the certified width, or earlier, on the residual: half precision then certifies a lower "
            "end alone."
        ),
    ] = "interval"
    max_steps: Annotated[
        Annotated[int, Field(ge=1, le=10**9)] | None,
        Field(description="Lanczos steps at most.  [default: enough for tol]", json_schema_extra={"metavar": "COUNT"}),
    ] = None
    seed: Annotated[
        Index, Field(lt=2**63, description="Seed of everything that is drawn.", json_schema_extra={"metavar": "NUMBER"})
    ] = 0
    engine: EngineSpec = EngineSpec()
    base: str | None = None  # the folder that relative paths start from: the study file's

    @model_validator(mode="before")
    @classmethod
    def _of_attention_files(cls, given: Any) -> Any:
        """Of files with attention layers alone nothing but random tokens can be measured, unless a text is named."""
        if not isinstance(given, dict) or "inputs" in given or "texts" in given:
            return given
        models = given.get("models", ())
        names = [
            model.get("name") if isinstance(model, dict) else getattr(model, "name", model)
            for model in (models if isinstance(models, (list, tuple)) else [models])
        ]
        alone = names and all(isinstance(name, str) and name.endswith(".safetensors") for name in names)
        return {**given, "inputs": "normalised"} if alone else given

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
        if self.heads is not None and self.map not in (None, "head"):
            raise ValueError(f'expected heads only with map = "head", got map = "{self.map}"; leave one of the two out')
        for name in self.quantities:
            quantity = QUANTITIES[name]
            if quantity.every_token and "all" not in self.tokens:
                raise ValueError(f'expected "all" among tokens for the quantity {name}, which moves every token')
            if quantity.maps is not None and self.kind not in quantity.maps:
                raise ValueError(f'expected map = "{quantity.maps[0]}" for the quantity {name}, got "{self.kind}"')
        plain = self.kind in ("attention", "head")
        if self.product_dtype not in ("auto", "float64") and not plain:
            raise ValueError(
                f'expected products only with attention and its heads, got map = "{self.map}"; leave one of the two out'
            )
        if self.inputs == "normalised" and not plain:
            raise ValueError(
                f"expected a text for the map {self.kind}, whose tokens come from a model, got inputs = "
                '"normalised"; measure attention or its heads, or leave inputs out'
            )
        if self.inputs == "normalised" and [text.source for text in self.texts] != ["embedded"]:
            raise ValueError(
                'expected a text only with inputs = "text", got inputs = "normalised"; leave one of them out'
            )
        return self

    @property
    def kind(self) -> str:
        """The map that is measured."""
        return self.map or ("attention" if self.heads is None else "head")

    @property
    def is_attention(self) -> bool:
        """Whether the map is attention or a head of it, known by its weights in most families."""
        return self.kind in ("attention", "head")

    @property
    def estimates(self) -> int:
        """How many places there are, once layers and heads are resolved to numbers."""
        heads = 1 if self.heads is None else len(self.heads)
        return len(self.lengths) * self.samples * (1 if self.kind == "model" else len(self.layers)) * heads

    @property
    def accuracy(self) -> dict[str, Any]:
        """What every solve is given: the width, the confidence and the seed."""
        return {"tol": self.tol, "confidence": self.confidence, "seed": self.seed}

    @property
    def adds_special_tokens(self) -> bool:
        return self.special_tokens == "add"

    def path(self, name: str) -> str:
        """A name that is a path beside the study file as that path; any other name as it is."""
        beside = Path(self.base or ".", name).expanduser() if name != "-" else None
        return str(beside) if beside is not None and beside.exists() else name

    def replace(self, **changes: Any) -> Spec:
        """The same with some fields changed, checked again."""
        return spec_of({**self.model_dump(exclude_unset=True), **changes})


def spec_of(declared: dict[str, Any], where: str = "the study", *, name: Callable[[str], str] | None = None) -> Spec:
    """Return a spec from plain values, or raise one `InputError` that names everything wrong with them.

    >>> spec_of({"models": "minilm", "lengths": "16..64*2"}).lengths
    (16, 32, 64)
    >>> spec_of({"models": "minilm", "lenghts": [16]})
    Traceback (most recent call last):
    ...
    howsmooth.errors.InputError: the study: unknown key 'lenghts'; did you mean 'lengths'?
    """
    try:
        return Spec.model_validate(declared)
    except ValidationError as error:
        said = complaints(error.errors(), Spec, hidden=["base"], **({"name": name} if name else {}))
        raise InputError(_renamed(said, name) if name else f"{where}: {said}") from None


def _renamed(said: str, name: Callable[[str], str]) -> str:
    """What a validator says of fields as a study file writes them, in the words of whoever asked.

    >>> _renamed('expected heads only with map = "head", got map = "block"', lambda field: f"--{field}")
    'expected --heads only with --map head, got --map block'
    """
    said = re.sub(r'\b(\w+) = "([\w-]+)"', lambda found: f"{name(found[1])} {found[2]}", said)
    return re.sub(r"^expected (\w+) only", lambda found: f"expected {name(found[1])} only", said)


def read_study(path: str | Path, overrides: dict[str, Any] | None = None) -> Spec:
    """The study in a TOML file, with what the command line says instead."""
    path = Path(path)
    try:
        declared = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"expected a study file, got {path} ({(error.strerror or str(error)).lower()}); check the path"
        ) from None
    except (ValueError, RecursionError) as error:  # of the syntax, of the encoding, of numbers with too many digits
        raise InputError(f"expected TOML in {path}, got something else ({error}); correct it") from None
    if "base" in declared:
        raise InputError(f"{path}: unknown key 'base'; relative paths start from the file's own folder")
    declared = {"name": path.stem, **declared, "base": str(path.resolve().parent)}
    return spec_of(merged(declared, overrides or {}), str(path))


def merged(declared: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return what is declared with the overrides in its place, table by table."""
    found = dict(declared)
    for key, value in overrides.items():
        inner = found.get(key)
        found[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return found


def untrusted(study: Spec) -> dict[str, list[str]]:
    """The options by which models of a study would run code of their own, and the names of those models."""
    return {
        option: names
        for option in ("trust_remote_code", "allow_pickle")
        if (names := [model.name for model in study.models if getattr(model, option)])
    }


def refuse_untrusted(study: Spec, **allowed: bool) -> None:
    """Refuse a study whose models may run code of their own, unless whoever runs it allows that as well."""
    for option, names in untrusted(study).items():
        if not allowed[option]:
            flag = "--" + option.replace("_", "-")
            raise InputError(
                f"expected {flag} on the command line for a study that says {option} = true of "
                f"{', '.join(names)}, got none; it runs code that comes with the model: add {flag} only "
                "if you trust it"
            )
