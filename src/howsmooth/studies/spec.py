"""The spec: everything that decides what is measured, with one default for each field.

A study file, the options of `howsmooth measure`, `howsmooth.measure` in Python, the explorer, the demo and the paper's
figures all use a `Spec`. The description of a field is the help text of its option, and its validator parses what users
write. This module imports neither torch nor transformers, so that `--help` is quick.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from howsmooth.errors import InputError, describe_validation_errors
from howsmooth.reading import LARGEST_TOML, read_whole
from howsmooth.texts.corpora import Corpus, read_corpus

MAPS = ("attention", "head", "normed", "block", "layer", "model")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MAX_LENGTHS = 10_000
_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla")
_MAX_DIGITS = 18  # of a number of tokens, samples or bytes


@dataclass(frozen=True)
class Quantity:
    """A number that is measured for every map and sample.

    Attributes:
        symbol: Its symbol in tables.
        about: A short description.
        function: "module:name" of the function that computes it from an `EvaluationPoint`.
        certified: Whether it has an interval with a confidence.
        every_token: Whether it is defined only for perturbations of all tokens.
        maps: The maps that it is defined for; None for all.
    """

    symbol: str
    about: str
    function: str
    certified: bool = False
    every_token: bool = False
    maps: tuple[str, ...] | None = None


# The only list of quantities: records, tables, charts, pages and the command line use it.
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


class StrictModel(BaseModel):
    """A frozen pydantic model that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


def _expand_ranges(text: str) -> list[int]:
    """Return the lengths that a string of ranges denotes.

    >>> _expand_ranges("2..8+2"), _expand_ranges("16..128*2"), _expand_ranges("4,32..64*2")
    ([2, 4, 6, 8], [16, 32, 64, 128], [4, 32, 64])
    """
    lengths: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18})(?:([+*])(\d{1,18}))?)?", piece.strip())
        if not match:
            raise ValueError(f"expected lengths such as 16, 2..98+2 or 16..512*2, got {(piece.strip() or text)[:60]!r}")
        n, last, operation, step = int(match[1]), int(match[2] or match[1]), match[3] or "+", int(match[4] or 1)
        if last < n or step < (2 if operation == "*" else 1) or (operation == "*" and n < 1):
            raise ValueError(f"expected a range that grows and ends, got {piece.strip()!r}")
        while n <= last:
            if len(lengths) >= _MAX_LENGTHS:
                raise ValueError(
                    f"expected at most {_MAX_LENGTHS} lengths, got more in {piece.strip()!r}; take larger steps"
                )
            lengths.append(n)
            n = n * step if operation == "*" else n + step
    return lengths


def parse_lengths(value: Any) -> Any:
    """Return lengths as a sorted list: from a string such as "16..512*2", a number or a list."""
    value = _expand_ranges(value) if isinstance(value, str) else [value] if isinstance(value, int) else value
    return sorted(set(value)) if isinstance(value, list) and all(isinstance(n, int) for n in value) else value


def _parse_bytes(value: Any) -> Any:
    """Return a size such as "4G" in bytes."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(?:i?B)?", value.strip(), flags=re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise ValueError(f"expected a size such as 4G or 512M, got {value[:60]!r}")
    return size


def _as_tables(key: str) -> Callable[[Any], Any]:
    """Return a validator that turns a string s, alone or in a list, into the table {key: s}."""

    def tables(value: Any) -> Any:
        value = [value] if isinstance(value, (str, dict)) else value
        return [{key: item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value

    return tables


Index = Annotated[int, Field(ge=0)]


def _parse_indices(value: Any) -> Any:
    """Return "all" or a list of indices, from numbers or a string such as "0,6".

    One error message replaces the three that pydantic's union would report.
    """
    if isinstance(value, str) and value != "all":
        pieces = [piece.strip() for piece in value.split(",")]
        if not all(re.fullmatch(rf"\d{{1,{_MAX_DIGITS}}}", piece) for piece in pieces):
            raise ValueError(f'expected "all" or numbers from 0 such as 0,6, got {value[:60]!r}')
        value = [int(piece) for piece in pieces]
    value = [value] if type(value) is int else value
    numbers = isinstance(value, (list, tuple)) and value and all(type(i) is int and i >= 0 for i in value)
    if value is not None and value != "all" and not numbers:
        raise ValueError(f'expected "all" or numbers from 0 such as [0, 6], got {value!r:.60}')
    return list(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else value


Indices = Annotated[Literal["all"] | tuple[Index, ...], BeforeValidator(_parse_indices)]


def _split_at_commas(value: Any) -> Any:
    """Return a string of words that are separated by commas as a list."""
    return [piece.strip() for piece in value.split(",")] if isinstance(value, str) else value


def _check_quantity(name: str) -> str:
    if name not in QUANTITIES:
        raise ValueError(f"expected a quantity among {', '.join(QUANTITIES)}, got {name[:60]!r}")
    return name


def _check_device(name: str) -> str:
    """Return the name of a device of PyTorch; whether this machine has it is checked when the model is loaded."""
    if not re.fullmatch(rf"({'|'.join(_DEVICES)})(:\d{{1,4}})?", name):
        raise ValueError(f"expected a device such as cpu or cuda:1, got {name[:60]!r}")
    return name


class ModelSpec(StrictModel):
    """A model: arguments of `howsmooth.load`, or a series of checkpoints of one model."""

    name: Annotated[str, Field(min_length=1)]
    weights: Literal["pretrained", "random"] = "pretrained"
    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16"],
        Field(description="Dtype of the model; one in half precision is measured with products in float32."),
    ] = "float32"
    device: Annotated[
        str,
        AfterValidator(_check_device),
        Field(description="Where to compute.", json_schema_extra={"metavar": "cpu|cuda"}),
    ] = "cpu"
    revision: Annotated[
        str | None,
        Field(description="Branch, tag or commit of a model on the Hub.", json_schema_extra={"metavar": "NAME"}),
    ] = None
    tokenizer: Annotated[
        str | None,
        Field(description="Another place to take the tokenizer from.", json_schema_extra={"metavar": "NAME"}),
    ] = None
    part: Annotated[
        Literal["encoder", "decoder", "vision", "text"] | None,
        Field(description="Which stack of layers, of a model that has two."),
    ] = None
    trust_remote_code: Annotated[bool, Field(description="Run code that comes with the model.")] = False
    allow_pickle: Annotated[bool, Field(description="Load weights that are not safetensors.")] = False
    causal: bool = False  # a BERT run as a decoder
    seed: Index | None = None  # of random weights; the study's otherwise
    layers: Indices | None = None  # instead of the study's
    checkpoints: tuple[str, ...] = ()  # names or folders, in the order of training
    revisions: tuple[str, ...] = ()  # or revisions of `name`
    series: str | None = None
    checkpoint: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _parse_random(cls, given: Any) -> Any:
        """Turn the name random:NAME into NAME with random weights."""
        name = given.get("name") if isinstance(given, dict) else None
        if isinstance(name, str) and name.startswith("random:") and "weights" not in given:
            return {**given, "name": name.removeprefix("random:"), "weights": "random"}
        return given

    @model_validator(mode="after")
    def _check_series(self) -> ModelSpec:
        if self.checkpoints and self.revisions:
            raise ValueError("expected checkpoints or revisions, got both; keep one of the two")
        return self

    @property
    def label(self) -> str:
        """Name of the model in records and figures."""
        return ("random:" if self.weights == "random" else "") + self.name + (" (masked)" if self.causal else "")

    def members(self) -> list[ModelSpec]:
        """Return the model itself, or each checkpoint of its series."""
        single = {"checkpoints": (), "revisions": ()}
        if self.checkpoints:
            return [
                self.model_copy(update={**single, "name": name, "series": self.name, "checkpoint": name})
                for name in self.checkpoints
            ]
        if self.revisions:
            return [
                self.model_copy(update={**single, "revision": revision, "series": self.name, "checkpoint": revision})
                for revision in self.revisions
            ]
        return [self]


class TextSpec(StrictModel):
    """A text: the arguments of `howsmooth.texts.corpora.read_corpus`."""

    source: Annotated[str, Field(min_length=1)]
    name: str | None = None
    format: Literal["auto", "text", "ag_news"] = "auto"
    split: str = "test"
    column: str | None = None
    subset: str | None = None


class EngineSpec(StrictModel):
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
        Annotated[int, Field(ge=1, le=4096)] | None,
        Field(
            description="Threads of each process.  [default: 1 up to n = 256, else the cores, divided among processes]",
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

    @model_validator(mode="after")
    def _check_address(self) -> EngineSpec:
        if self.address is not None and self.kind != "ray":
            raise ValueError(
                f"expected an address only with ray, got {self.address[:60]!r} with {self.kind}; choose ray"
            )
        return self


class Spec(StrictModel):
    """Everything that decides what is computed, and the engine that computes it.

    The fields are the keys of a study file and the keyword arguments of `howsmooth.measure`.

    Example:
        >>> spec = Spec(models=["minilm"], lengths="16..64*2", heads=[0, 3])
        >>> spec.lengths, spec.kind, spec.tol
        ((16, 32, 64), 'head', 0.001)
    """

    name: Annotated[str, Field(min_length=1, description="What records and tables call this study.")] = "study"
    description: str = ""
    models: Annotated[
        tuple[ModelSpec, ...],
        BeforeValidator(_as_tables("name")),
        Field(
            min_length=1, description="Models, as `howsmooth.load` takes them.", json_schema_extra={"metavar": "NAME,…"}
        ),
    ] = (ModelSpec(name="minilm"),)
    texts: Annotated[
        tuple[TextSpec, ...],
        BeforeValidator(_as_tables("source")),
        Field(
            min_length=1,
            description="UTF-8 text: a file, a folder, - for stdin, embedded, generated, alice, ag_news, or hf:NAME.",
            json_schema_extra={"metavar": "FILE|-"},
        ),
    ] = (TextSpec(source="embedded"),)
    inputs: Annotated[
        Literal["text", "ids", "normalised", "images", "audio"],
        Field(
            description="Inputs of the model: a text, random token ids, images or sounds; or of each layer: random "
            "tokens through its own normalisation, of any length."
        ),
    ] = "text"
    images: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        Field(
            description="Images for a vision model: a file or a folder.  [default: generated from the seed]",
            json_schema_extra={"metavar": "FILE|DIR"},
        ),
    ] = None
    audio: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        Field(
            description="Sounds for a speech model: a WAV file or a folder.  [default: generated from the seed]",
            json_schema_extra={"metavar": "FILE|DIR"},
        ),
    ] = None
    cutting: Annotated[
        Literal["consecutive", "documents", "prefixes"],
        Field(description="How chunks are cut: one after the other, a document each, or nested prefixes."),
    ] = "consecutive"
    special_tokens: Annotated[
        Literal["add", "none"],
        Field(description="Whether each chunk gets the special tokens that the model's tokenizer gives one text."),
    ] = "add"
    layers: Annotated[Indices, Field(description="Which layers.", json_schema_extra={"metavar": "0,6|all"})] = "all"
    heads: Annotated[
        Indices | None, Field(description="These heads, each alone.", json_schema_extra={"metavar": "0,3|all"})
    ] = None
    lengths: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        BeforeValidator(parse_lengths),
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
            description="Map to measure: attention, each head alone, with the normalisation, with the residual, the "
            "whole Transformer layer, or the whole model.  [default: attention, or head with heads]"
        ),
    ] = None
    tokens: Annotated[
        tuple[Literal["all", "no-special", "no-first"], ...],
        BeforeValidator(_split_at_commas),
        Field(min_length=1, description="Which tokens a perturbation may move."),
    ] = ("all",)
    quantities: Annotated[
        tuple[Annotated[str, AfterValidator(_check_quantity)], ...],
        BeforeValidator(_split_at_commas),
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
        BeforeValidator(_parse_bytes),
        Field(description="Memory that one solve may take.", json_schema_extra={"metavar": "4G"}),
    ] = None
    product_dtype: Annotated[
        Literal["auto", "float64", "float32", "bfloat16", "float16"],
        Field(
            description="Dtype of products on a GPU: float64 measures rounding against a float64 reference, float32 "
            "allows for it, half precision searches faster. auto: float64 up to 4096 tokens, then float32."
        ),
    ] = "auto"
    stop: Annotated[
        Literal["interval", "residual"],
        Field(
            description="Stop on the certified width, or earlier, on the residual: half precision then certifies a "
            "lower end alone."
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
    def _default_inputs(cls, given: Any) -> Any:
        """Take the images or sounds that are given, and random tokens if every model is a file of attention layers."""
        if not isinstance(given, dict) or "inputs" in given or "texts" in given:
            return given
        for kind in ("images", "audio"):
            if given.get(kind) is not None:
                return {**given, "inputs": kind}
        models = given.get("models", ())
        names = [
            model.get("name") if isinstance(model, dict) else getattr(model, "name", model)
            for model in (models if isinstance(models, (list, tuple)) else [models])
        ]
        attention_only = names and all(isinstance(name, str) and name.endswith(".safetensors") for name in names)
        return {**given, "inputs": "normalised"} if attention_only else given

    @model_validator(mode="after")
    def _check_combination(self) -> Spec:
        if self.heads is not None and self.map not in (None, "head"):
            raise ValueError(f'expected heads only with map = "head", got map = "{self.map}"; leave one of the two out')
        for name in self.quantities:
            quantity = QUANTITIES[name]
            if quantity.every_token and "all" not in self.tokens:
                raise ValueError(f'expected "all" among tokens for the quantity {name}, which moves every token')
            if quantity.maps is not None and self.kind not in quantity.maps:
                raise ValueError(f'expected map = "{quantity.maps[0]}" for the quantity {name}, got "{self.kind}"')
        if self.product_dtype not in ("auto", "float64") and not self.is_attention:
            raise ValueError(
                f'expected product_dtype only with attention and its heads, got map = "{self.map}"; '
                "leave one of the two out"
            )
        if self.inputs == "normalised" and not self.is_attention:
            raise ValueError(
                f"expected a text for the map {self.kind}, whose tokens come from a model, got inputs = "
                '"normalised"; measure attention or its heads, or leave inputs out'
            )
        if self.inputs != "text" and [text.source for text in self.texts] != ["embedded"]:
            raise ValueError(
                f'expected a text only with inputs = "text", got inputs = "{self.inputs}"; leave one of them out'
            )
        for kind in ("images", "audio"):
            if getattr(self, kind) is not None and self.inputs != kind:
                raise ValueError(f'expected {kind} only with inputs = "{kind}", got inputs = "{self.inputs}"')
        return self

    @property
    def kind(self) -> str:
        """Name of the map that is measured: `map`, or its default."""
        return self.map or ("attention" if self.heads is None else "head")

    @property
    def is_attention(self) -> bool:
        """Whether the map is attention or one of its heads."""
        return self.kind in ("attention", "head")

    @property
    def estimates(self) -> int:
        """Number of pairs of a map and an input; layers and heads have to be numbers (`resolve`)."""
        heads = 1 if self.heads is None else len(self.heads)
        return len(self.lengths) * self.samples * (1 if self.kind == "model" else len(self.layers)) * heads

    @property
    def chooses_inputs(self) -> bool:
        """Whether the inputs were chosen by the user; if not, a model gets what it takes."""
        return bool({"inputs", "texts", "images", "audio"} & self.model_fields_set)

    @property
    def accuracy(self) -> dict[str, Any]:
        """Width, confidence and seed: the options that every solve shares."""
        return {"tol": self.tol, "confidence": self.confidence, "seed": self.seed}

    @property
    def adds_special_tokens(self) -> bool:
        """Whether each chunk gets special tokens."""
        return self.special_tokens == "add"

    def path(self, name: str) -> str:
        """Return a name that is a path relative to the study file as that path, any other name unchanged."""
        relative = Path(self.base or ".", name).expanduser() if name != "-" else None
        return str(relative) if relative is not None and relative.exists() else name

    def replace(self, **changes: Any) -> Spec:
        """Return a copy with some fields changed, validated again."""
        return spec_of({**self.model_dump(exclude_unset=True), **changes})


def spec_of(declared: dict[str, Any], where: str = "the study", *, name: Callable[[str], str] | None = None) -> Spec:
    """Return a spec from plain values.

    Args:
        declared: The fields.
        where: What an error message starts with.
        name: Returns how the caller writes a field, such as "--lengths"; for error messages.

    Raises:
        InputError: One error that names everything that is wrong.

    Example:
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
        message = describe_validation_errors(error.errors(), Spec, hidden=["base"], **({"name": name} if name else {}))
        raise InputError(_rename_fields(message, name) if name else f"{where}: {message}") from None


def _rename_fields(message: str, name: Callable[[str], str]) -> str:
    """Write the fields in an error message as the caller does.

    >>> _rename_fields('expected heads only with map = "head", got map = "block"', lambda field: f"--{field}")
    'expected --heads only with --map head, got --map block'
    """
    message = re.sub(r'\b(\w+) = "([\w-]+)"', lambda found: f"{name(found[1])} {found[2]}", message)
    return re.sub(r"^expected (\w+) only", lambda found: f"expected {name(found[1])} only", message)


def read_study(path: str | Path, overrides: dict[str, Any] | None = None) -> Spec:
    """Return the study in a TOML file.

    Args:
        path: The file; relative paths in it start from its folder.
        overrides: Values that replace those of the file.

    Raises:
        InputError: The file cannot be read, is not TOML, or is not a valid study.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        ...     _ = file.write("lengths = '16..64*2'")
        ...     file.flush()
        ...     study = read_study(file.name, {"samples": 2})
        >>> study.lengths, study.samples
        ((16, 32, 64), 2)
    """
    path = Path(path)
    try:
        declared = tomllib.loads(read_whole(path, path, LARGEST_TOML).decode("utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"expected a study file, got {path} ({(error.strerror or str(error)).lower()}); check the path"
        ) from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # syntax, encoding, or numbers with too many digits
        raise InputError(f"expected TOML in {path}, got something else ({error}); correct it") from None
    if "base" in declared:
        raise InputError(f"{path}: unknown key 'base'; relative paths start from the file's own folder")
    name, folder = (os.fsencode(part) for part in (path.stem, path.resolve().parent))
    if folder != folder.decode("utf-8", "replace").encode():
        raise InputError(f"expected a study in a folder with a name in UTF-8, got {path}; rename the folder")
    declared = {"name": name.decode("utf-8", "backslashreplace"), **declared, "base": os.fsdecode(folder)}
    return spec_of(merged(declared, overrides or {}), str(path))


def read_texts(spec: Spec) -> tuple[Corpus, ...]:
    """Return the texts of a spec; none with other inputs."""
    if spec.inputs != "text":
        return ()
    if sum(text.source == "-" for text in spec.texts) > 1:
        raise InputError("expected stdin (-) as one text at most, got it twice; read the others from files")
    corpora = tuple(read_corpus(spec.path(t.source), **t.model_dump(exclude={"source"})) for t in spec.texts)
    names = [corpus.name for corpus in corpora]
    if len(set(names)) < len(names):
        raise InputError(f"expected texts of different names, got {', '.join(names)}; give one of them a name")
    return corpora


def merged(declared: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the declared values with the overrides applied, table by table."""
    result = dict(declared)
    for key, value in overrides.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def untrusted(study: Spec) -> dict[str, list[str]]:
    """Return the options by which models of a study could run code of their own, with the names of those models."""
    return {
        option: names
        for option in ("trust_remote_code", "allow_pickle")
        if (names := [model.name for model in study.models if getattr(model, option)])
    }


def refuse_untrusted(study: Spec, **allowed: bool) -> None:
    """Raise an `InputError` if models of a study may run code of their own and the caller does not allow it."""
    for option, names in untrusted(study).items():
        if not allowed[option]:
            flag = "--" + option.replace("_", "-")
            raise InputError(
                f"expected {flag} on the command line for a study with {option} = true for "
                f"{', '.join(names)}, got none; it runs code that comes with the model: add {flag} only "
                "if you trust it"
            )


def refuse_connection(study: Spec, connect: bool) -> None:
    """Raise an `InputError` if a study names a Ray cluster and the caller does not allow a connection to it."""
    if study.engine.address is not None and not connect:
        raise InputError(
            f"expected --address {study.engine.address[:60]} on the command line for a study that names this Ray "
            "cluster, got none; a cluster is sent the texts and paths of the study, and can run code here: repeat "
            "the address only if you trust it (in Python: connect=True)"
        )


def select_indices(wanted: Any, available: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Return the wanted indices, each once; "all" is every available one.

    Raises:
        InputError: An index is not available, or none is wanted.

    Example:
        >>> select_indices("all", (0, 1, 2), "layers"), select_indices([2, 0, 2], (0, 1, 2), "layers")
        ((0, 1, 2), (2, 0))
    """
    if isinstance(wanted, str) and wanted == "all":
        return available
    unknown = [index for index in wanted if index not in available]
    if unknown or not wanted:
        contiguous = available == tuple(range(len(available)))
        among = f"between 0 and {len(available) - 1}" if contiguous else "among " + ", ".join(map(str, available))
        raise InputError(
            f"expected {name} {among}, got {unknown[0] if unknown else 'none'}; choose among them or use all"
        )
    return tuple(dict.fromkeys(wanted))
