"""The spec of a question: everything that decides what is computed, with one default for each field.

A study file, the options of a command, `howsmooth.ask` in Python, the explorer, the demo and the paper's figures all
use a spec. The description of a field is the help text of its option, and its validator parses what users write. This
module imports neither torch nor transformers, so that `--help` is quick.

A question about models has a `ModelSpec`: models × texts × layers × heads × lengths × samples. Any other has a `Spec`
of its own fields. `options` names the fields that users may set, in the order of the help.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from howsmooth.choices import CUTTINGS, FORMATS, STOPS, TOKENS
from howsmooth.errors import InputError, describe_validation_errors
from howsmooth.models.map_types import MAPS, MapType, parse_map
from howsmooth.questions.fields import (
    Index,
    Indices,
    StrictModel,
    as_tables,
    option,
    parse_bytes,
    parse_lengths,
    split_at_commas,
)
from howsmooth.reading import LARGEST_TOML, read_whole
from howsmooth.texts.corpora import STRING, Corpus, read_corpus

if TYPE_CHECKING:
    from howsmooth.spectral.solver import Solver

_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla")
# Fields that a study file may set for every question; `question` is its name.
COMMON = ("question", "name", "description", "engine")
_FITTED = ("lengths", "samples")  # their defaults are fitted to the text and the model, what was chosen is not
LOADING_FIELDS = ("dtype", "device", "revision", "tokenizer", "part", "trust_remote_code", "allow_pickle")
CHUNK_FIELDS = ("texts", "special_tokens", "lengths", "samples")
SOLVER_FIELDS = ("tol", "confidence", "seed")


def _check_device(name: str) -> str:
    """Return the name of a device of PyTorch; whether this machine has it is checked when the model is loaded."""
    if not re.fullmatch(rf"({'|'.join(_DEVICES)})(:\d{{1,4}})?", name):
        raise ValueError(f"expected a device such as cpu or cuda:1, got {name[:60]!r}")
    return name


def about_maps(names: Iterable[str] = MAPS) -> str:
    """Return the maps with their arguments and what they are: "attention, head (each head alone) or block (…)"."""
    *first, last = (
        name + found.syntax + (f" ({found.about})" if found.about != name else "")
        for name, found in ((name, MAPS[name]) for name in names)
    )
    return f"{', '.join(first)} or {last}"


def map_among(names: Iterable[str] = MAPS) -> Any:
    """Return the parser of a map's name, with its argument.

    Example:
        >>> map_among(("attention", "head")).func("block")
        Traceback (most recent call last):
        ...
        howsmooth.errors.InputError: expected a map among attention, head, got 'block'
    """
    allowed = tuple(names)
    return AfterValidator(lambda name: None if name is None else str(parse_map(name, allowed)))


class ModelChoice(StrictModel):
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
        Literal["encoder", "decoder", "vision", "text", "audio"] | None,
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
    def _check_series(self) -> ModelChoice:
        if self.checkpoints and self.revisions:
            raise ValueError("expected checkpoints or revisions, got both; keep one of the two")
        return self

    @property
    def label(self) -> str:
        """Name of the model in records and figures."""
        return ("random:" if self.weights == "random" else "") + self.name + (" (masked)" if self.causal else "")

    def members(self) -> list[ModelChoice]:
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


class TextChoice(StrictModel):
    """A text: the arguments of `howsmooth.texts.corpora.read_corpus`."""

    source: Annotated[str, Field(min_length=1)]
    name: str | None = None
    format: Literal[*FORMATS] = "auto"  # type: ignore[valid-type]  # the names of the registry
    split: str = "test"
    column: str | None = None
    subset: str | None = None


class EngineSpec(StrictModel):
    """Where tasks run: processes of this machine, or a Ray cluster."""

    name: Annotated[Literal["local", "ray"], Field(description="Processes of this machine, or a Ray cluster.")] = (
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
        if self.address is not None and self.name != "ray":
            raise ValueError(
                f"expected an address only with ray, got {self.address[:60]!r} with {self.name}; choose ray"
            )
        return self


class Spec(StrictModel):
    """What one question asks, and the engine that answers it. Each question has a subclass with fields of its own.

    Attributes:
        options: The fields that users may set, in the order of the help.
        argument: The field that a command takes without an option's name; None if there is none.
        second_argument: The field that it takes after that one in the same way; None if there is none.
        varied: Fields with several values, each of which is a record of its own: they are part of a place.
        unhashed: Fields that change no number.
    """

    options: ClassVar[tuple[str, ...]] = ()
    argument: ClassVar[str | None] = None
    second_argument: ClassVar[str | None] = None
    varied: ClassVar[tuple[str, ...]] = ()
    unhashed: ClassVar[tuple[str, ...]] = ("question", "name", "description", "engine", "base", "artefacts")

    question: str
    name: Annotated[str, option("What records and tables call this study.", min_length=1)] = "study"
    description: str = ""
    seed: Annotated[Index, option("Seed of everything that is drawn.", metavar="NUMBER", lt=2**63)] = 0
    engine: EngineSpec = EngineSpec()
    base: str | None = None  # the folder that relative paths start from: the study file's

    @property
    def chosen_models(self) -> tuple[ModelChoice, ...]:
        """The models that are loaded."""
        return ()

    def input_files(self) -> dict[str, str | None]:
        """Return the files that are read, by option: no output may replace one of them."""
        value = getattr(self, self.argument) if self.argument else None
        return {str(self.argument).upper(): value} if isinstance(value, str) and value.endswith(".toml") else {}

    def determining(self) -> dict[str, Any]:
        """Return the fields that determine the numbers at a place, as plain values."""
        return self.model_dump(mode="json", exclude={*self.unhashed, *self.varied})

    def declared(self) -> dict[str, Any]:
        """Return the keys of a study that has this spec, as plain values."""
        defaults = {name for name in _FITTED if name not in self.model_fields_set}
        return self.model_dump(mode="json", include={*_keys_of(self.question), "base"} - defaults)

    def path(self, name: str) -> str:
        """Return a name that is a path relative to the study file as that path, any other name unchanged."""
        is_path = name != "-" and not name.startswith(STRING)
        relative = Path(self.base or ".", name).expanduser() if is_path else None
        return str(relative) if relative is not None and relative.exists() else name

    def asking(self, question: str, **changes: Any) -> Any:
        """Return the spec of another question with the fields that both have and that were set here."""
        from howsmooth.questions import find_question

        fields = (*find_question(question).spec.options, "models", "base")
        shared = {name: getattr(self, name) for name in fields if name in self.model_fields_set}
        return spec_of({"question": question, **shared, **changes})

    def replace(self, **changes: Any) -> Any:
        """Return a copy with some fields changed, validated again."""
        return spec_of({**self.model_dump(exclude_unset=True), "question": self.question, **changes})


# Fields whose default some questions change.
Models = Annotated[
    tuple[ModelChoice, ...],
    BeforeValidator(as_tables("name")),
    Field(min_length=1, description="Models, as `howsmooth.load` takes them.", json_schema_extra={"metavar": "NAME,…"}),
]
Lengths = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...],
    BeforeValidator(parse_lengths),
    Field(
        min_length=1,
        description="Numbers of tokens, special tokens included: 64,128 or 16..512*2 or 2..98+2.",
        json_schema_extra={"metavar": "64,128"},
    ),
]
Samples = Annotated[
    int,
    Field(ge=1, le=10**9, description="Chunks of the text for each length.", json_schema_extra={"metavar": "COUNT"}),
]
Tolerance = Annotated[
    float,
    Field(gt=0, lt=1, description="Relative width of the interval to reach.", json_schema_extra={"metavar": "WIDTH"}),
]


class ModelSpec(Spec):
    """A question about maps of models: models × texts × layers × heads × lengths × samples.

    A question takes those of the fields that its `options` name; the others keep their defaults.

    Attributes:
        loading: Whether a command takes one model, with the options for loading it.
        per_layer: Whether each layer (and head) is a place of its own, not the model as a whole.
        takes_short_texts: Whether a text that is shorter than a length is one shorter chunk, and a text of fewer chunks
            than samples has fewer samples.
        takes_any_map: Whether the input of the map may be something else than the tokens of the sequence.
    """

    argument: ClassVar[str | None] = "models"
    unhashed: ClassVar[tuple[str, ...]] = (
        *Spec.unhashed,
        *("models", "texts", "inputs", "images", "audio", "layers", "heads", "lengths", "samples"),
        *("max_memory", "product_dtype"),
    )
    per_layer: ClassVar[bool] = True
    takes_short_texts: ClassVar[bool] = False
    takes_any_map: ClassVar[bool] = False

    models: Models = (ModelChoice(name="minilm"),)
    texts: Annotated[
        tuple[TextChoice, ...],
        BeforeValidator(as_tables("source")),
        Field(
            min_length=1,
            description="UTF-8 text: a file, a folder, - for stdin, embedded, generated, alice, ag_news, or hf:NAME.",
            json_schema_extra={"metavar": "FILE|-"},
        ),
    ] = (TextChoice(source="embedded"),)
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
        Literal[*CUTTINGS],  # type: ignore[valid-type]
        Field(description="How chunks are cut: one after the other, a document each, or nested prefixes."),
    ] = "consecutive"
    special_tokens: Annotated[
        Literal["add", "none"],
        Field(description="Whether each chunk gets the special tokens that the model's tokenizer gives one text."),
    ] = "add"
    layers: Annotated[
        Indices, Field(description="Which layers; -1 is the last.", json_schema_extra={"metavar": "0,6|all"})
    ] = "all"
    heads: Annotated[
        Indices | None, Field(description="These heads, each alone.", json_schema_extra={"metavar": "0,3|all"})
    ] = None
    lengths: Lengths = (32, 64, 128, 256)
    samples: Samples = 4
    map: Annotated[
        str | None,
        map_among(),
        option(f"Map to measure: {about_maps()}.  [default: attention, or head with heads]", metavar="NAME"),
    ] = None
    tokens: Annotated[
        tuple[Literal[*TOKENS], ...],  # type: ignore[valid-type]
        BeforeValidator(split_at_commas),
        Field(min_length=1, description="Which tokens a perturbation may move."),
    ] = ("all",)
    tol: Tolerance = 1e-3
    confidence: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="Probability that the interval's upper end holds.",
            json_schema_extra={"metavar": "PROBABILITY"},
        ),
    ] = 0.999
    max_memory: Annotated[
        Annotated[int, Field(ge=1)] | None,
        BeforeValidator(parse_bytes),
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
        Literal[*STOPS],  # type: ignore[valid-type]
        Field(
            description="Stop on the certified width, or earlier, on the residual: half precision then certifies a "
            "lower end alone."
        ),
    ] = "interval"
    max_steps: Annotated[
        Annotated[int, Field(ge=1, le=10**9)] | None,
        Field(description="Lanczos steps at most.  [default: enough for tol]", json_schema_extra={"metavar": "COUNT"}),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _default_inputs(cls, given: Any) -> Any:
        """Take the images or sounds that are given, and random tokens if every model is a file of attention layers."""
        if not isinstance(given, dict) or "inputs" in given or "texts" in given:
            return given
        for name in ("images", "audio"):
            if given.get(name) is not None:
                return {**given, "inputs": name}
        models = given.get("models", ())
        names = [
            model.get("name") if isinstance(model, dict) else getattr(model, "name", model)
            for model in (models if isinstance(models, (list, tuple)) else [models])
        ]
        attention_only = names and all(isinstance(name, str) and name.endswith(".safetensors") for name in names)
        return {**given, "inputs": "normalised"} if attention_only else given

    @model_validator(mode="after")
    def _check_combination(self) -> ModelSpec:
        if self.heads is not None and self.map not in (None, "head"):
            raise ValueError(f'expected heads only with map = "head", got map = "{self.map}"; leave one of the two out')
        if self.product_dtype not in ("auto", "float64") and not self.is_attention:
            raise ValueError(
                f'expected product_dtype only with attention and its heads, got map = "{self.map}"; '
                "leave one of the two out"
            )
        if not self.map_type.of_tokens and not self.takes_any_map:
            raise ValueError(f'expected a map of the tokens for the question {self.question}, got map = "{self.map}"')
        if not self.map_type.of_tokens and self.tokens != ("all",):
            raise ValueError(f'expected tokens = "all" with map = "{self.map}", whose input is not the tokens')
        if self.inputs == "normalised" and not self.is_attention:
            raise ValueError(
                f"expected a text for the map {self.map_name}, whose tokens come from a model, got inputs = "
                '"normalised"; measure attention or its heads, or leave inputs out'
            )
        if self.inputs != "text" and [text.source for text in self.texts] != ["embedded"]:
            raise ValueError(
                f'expected a text only with inputs = "text", got inputs = "{self.inputs}"; leave one of them out'
            )
        for name in ("images", "audio"):
            if getattr(self, name) is not None and self.inputs != name:
                raise ValueError(f'expected {name} only with inputs = "{name}", got inputs = "{self.inputs}"')
        return self

    @property
    def second(self) -> ModelChoice | None:
        """The model that each model is compared with; None unless the question is about two."""
        return None

    @property
    def chosen_models(self) -> tuple[ModelChoice, ...]:
        """The models that are loaded."""
        return self.models if self.second is None else (*self.models, self.second)

    def input_files(self) -> dict[str, str | None]:
        """Return the files that are read, by option."""
        source = self.texts[0].source
        return {} if source.startswith(STRING) else {"--text": source}

    @property
    def map_name(self) -> str:
        """Name of the map: `map`, or its default."""
        return self.map or ("attention" if self.heads is None else "head")

    @property
    def map_type(self) -> MapType:
        """The entry of the map in `MAPS`."""
        return parse_map(self.map_name).type

    @property
    def is_attention(self) -> bool:
        """Whether the map is attention or one of its heads."""
        return self.map_type.by_weights

    @property
    def estimates(self) -> int:
        """Number of pairs of a map and an input; layers and heads have to be numbers (`resolve`)."""
        heads = 1 if self.heads is None else len(self.heads)
        return len(self.lengths) * self.samples * (len(self.layers) if self.map_type.per_layer else 1) * heads

    @property
    def chooses_inputs(self) -> bool:
        """Whether the inputs were chosen by the user; if not, a model gets what it takes."""
        return bool({"inputs", "texts", "images", "audio"} & self.model_fields_set)

    @property
    def spectral_solver(self) -> Solver:
        """The options of a solve; `solver` is the integrator of a flow."""
        from howsmooth.spectral.solver import Solver

        return Solver(self.tol, self.confidence, self.stop, self.max_steps, self.max_memory, self.seed)

    @property
    def adds_special_tokens(self) -> bool:
        """Whether each chunk gets special tokens."""
        return self.special_tokens == "add"


def spec_of(
    declared: dict[str, Any],
    where: str = "the study",
    *,
    question: str | None = None,
    name: Callable[[str], str] | None = None,
) -> Any:
    """Return the spec of a question from plain values.

    Args:
        declared: The fields. `question` among them names the question; without it, it is "measure".
        where: What an error message starts with.
        question: The name of the question, if it is not among the fields.
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
        >>> spec_of({"question": "bound", "quantities": ["released"]})
        Traceback (most recent call last):
        ...
        howsmooth.errors.InputError: the study: unknown key 'quantities' of the question bound; known are ...
    """
    from howsmooth.questions import find_question

    asked = declared.get("question", question or "measure")
    model = find_question(asked).spec
    known = _keys_of(asked)
    wrong = [_unknown_key(key, known, str(asked)) for key in declared if key not in (*known, "base")]
    fields = {key: value for key, value in declared.items() if key in (*known, "base")}
    try:
        found = model.model_validate({"question": asked, **fields})
    except ValidationError as error:
        naming = {"name": name} if name else {}
        message = describe_validation_errors(error.errors(), model, hidden=["base"], **naming)
        wrong.append(_rename_fields(message, name) if name else message)
    if wrong:
        raise InputError("; ".join(wrong) if name else f"{where}: {'; '.join(wrong)}")
    return found


def _unknown_key(key: str, known: tuple[str, ...], question: str) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    of = "" if near or question == "measure" else f" of the question {question}"
    return f"unknown key {key!r}{of}; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")


def _rename_fields(message: str, name: Callable[[str], str]) -> str:
    """Write the fields in an error message as the caller does.

    >>> _rename_fields('expected heads only with map = "head", got map = "block"', lambda field: f"--{field}")
    'expected --heads only with --map head, got --map block'
    >>> _rename_fields('expected eps with within = "near"', lambda field: f"--{field}")
    'expected --eps with --within near'
    """
    message = re.sub(r'\b(\w+) = "([\w-]+)"', lambda found: f"{name(found[1])} {found[2]}", message)
    return re.sub(r"^expected (\w+)(?= only| with| up to)", lambda found: f"expected {name(found[1])}", message)


def read_study(path: str | Path, overrides: dict[str, Any] | None = None) -> Any:
    """Return the study in a TOML file that asks one question; `read_questions` reads any.

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
    specs = read_questions(path, overrides)
    if len(specs) > 1:
        raise InputError(
            f"expected a study with one question, got {', '.join(spec.question for spec in specs)} in {path}; use "
            "read_questions"
        )
    return specs[0]


def read_questions(path: str | Path, overrides: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """Return the spec of each question of the study in a TOML file.

    Args:
        path: The file; relative paths in it start from its folder.
        overrides: Values that replace those of the file.

    Raises:
        InputError: The file cannot be read, is not TOML, or is not a valid study.
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
    return specs_of(merged(declared, overrides or {}), str(path))


def specs_of(declared: dict[str, Any], where: str = "the study") -> tuple[Any, ...]:
    """Return the spec of each question of a study.

    `question` is a name or a list of names. Of several questions, all take the keys of the study; keys that only one of
    them takes are in a table with its name.

    Args:
        declared: The keys of the study; "specs" are those of each question, as a store keeps them.
        where: What an error message starts with.

    Raises:
        InputError: A question or a key is unknown, or not all questions take a key.

    Example:
        >>> several = {"question": ["measure", "bound"], "lengths": [8], "bound": {"radius": "data"}}
        >>> [(spec.question, spec.lengths) for spec in specs_of(several)]
        [('measure', (8,)), ('bound', (8,))]
        >>> specs_of({"question": ["measure", "bound"], "radius": "data"})
        Traceback (most recent call last):
        ...
        howsmooth.errors.InputError: the study: expected keys that all questions take, got 'radius', which measure ...
    """
    from howsmooth.questions import find_question

    if "specs" in declared:
        changes = {key: value for key, value in declared.items() if key not in ("specs", "question")}
        return tuple(spec_of(merged(spec, _taken(spec["question"], changes)), where) for spec in declared["specs"])
    asked = declared.get("question", "measure")
    if not isinstance(asked, list):
        return (spec_of(declared, where),)
    if not asked:
        raise InputError(f"{where}: expected a question, got an empty list; name one")
    names = list(dict.fromkeys(asked))
    for name in names:
        find_question(name)
    own = {name: declared[name] for name in names if isinstance(declared.get(name), dict)}
    shared = {key: value for key, value in declared.items() if key not in (*own, "question")}
    for key in shared:
        without = [name for name in names if key != "base" and key not in _keys_of(name)]
        if without:
            raise InputError(
                f"{where}: expected keys that all questions take, got {key!r}, which {without[0]} does not; put it in "
                "a table with the name of its question"
            )
    return tuple(
        spec_of({**shared, **own.get(name, {}), "question": name}, f"{where}, question {name}") for name in names
    )


def _keys_of(question: str) -> tuple[str, ...]:
    """Return the keys that a study may set for a question."""
    from howsmooth.questions import find_question

    spec = find_question(question).spec
    return (*COMMON, *spec.options, *(name for name in (spec.argument, spec.second_argument) if name))


def _taken(question: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key in _keys_of(question)}


def read_texts(spec: Spec) -> tuple[Corpus, ...]:
    """Return the texts of a spec; none with other inputs."""
    if not isinstance(spec, ModelSpec) or spec.inputs != "text":
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


def load_arguments(spec: Spec, choice: ModelChoice) -> dict[str, Any]:
    """Return the keyword arguments of `howsmooth.load` for one model of a spec."""
    return {
        "name": ("random:" if choice.weights == "random" else "") + spec.path(choice.name),
        "dtype": choice.dtype,
        "device": choice.device,
        "revision": choice.revision,
        "trust_remote_code": choice.trust_remote_code,
        "allow_pickle": choice.allow_pickle,
        "seed": spec.seed if choice.seed is None else choice.seed,
        "tokenizer": choice.tokenizer and spec.path(choice.tokenizer),
        "causal": choice.causal,
        "part": choice.part or ("vision" if getattr(spec, "inputs", None) == "images" else None),
    }


def untrusted(study: Spec) -> dict[str, list[str]]:
    """Return the options by which models of a study could run code of their own, with the names of those models."""
    return {
        flag: names
        for flag in ("trust_remote_code", "allow_pickle")
        if (names := [model.name for model in study.chosen_models if getattr(model, flag)])
    }


def refuse_untrusted(study: Spec, **allowed: bool) -> None:
    """Raise an `InputError` if models of a study may run code of their own and the caller does not allow it."""
    for key, names in untrusted(study).items():
        if not allowed[key]:
            flag = "--" + key.replace("_", "-")
            raise InputError(
                f"expected {flag} on the command line for a study with {key} = true for "
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
    """Return the wanted indices, each once; "all" is every available one, and those below 0 count from the end.

    Raises:
        InputError: An index is not available, or none is wanted.

    Example:
        >>> select_indices("all", (0, 1, 2), "layers"), select_indices([-1, 0, 2], (0, 1, 2), "layers")
        ((0, 1, 2), (2, 0))
    """
    if isinstance(wanted, str) and wanted == "all":
        return available
    counted = [available[index] if -len(available) <= index < 0 else index for index in wanted]
    unknown = [index for index in counted if index not in available]
    if unknown or not wanted:
        contiguous = available == tuple(range(len(available)))
        among = f"between 0 and {len(available) - 1}" if contiguous else "among " + ", ".join(map(str, available))
        raise InputError(
            f"expected {name} {among}, got {unknown[0] if unknown else 'none'}; choose among them or use all"
        )
    return tuple(dict.fromkeys(counted))
