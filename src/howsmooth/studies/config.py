"""A study as declared: a TOML file, checked key by key before anything heavy is imported."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from howsmooth.errors import InputError

MAPS = ("attention", "head", "normed", "block", "layer", "model")
CUTTINGS = ("consecutive", "documents", "prefixes")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


_MOST_LENGTHS = 100_000  # of one range


def _range(text: str) -> list[int]:
    """The lengths that a string stands for.

    >>> _range("2..8+2"), _range("16..128*2"), _range("4,32..64*2")
    ([2, 4, 6, 8], [16, 32, 64, 128], [4, 32, 64])
    """
    lengths: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18})(?:([+*])(\d{1,18}))?)?", piece.strip())
        if not match:
            raise ValueError(f"expected lengths such as 16, 2..98+2 or 16..512*2, got {piece.strip()[:60]!r}")
        first, last, way, step = int(match[1]), int(match[2] or match[1]), match[3] or "+", int(match[4] or 1)
        if last < first or step < (2 if way == "*" else 1) or (way == "*" and first < 1):
            raise ValueError(f"expected a range that grows and ends, got {piece.strip()!r}")
        if way == "+" and (last - first) // step >= _MOST_LENGTHS:
            raise ValueError(f"expected at most {_MOST_LENGTHS} lengths, got {piece.strip()!r}; take larger steps")
        while first <= last:
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
    if not match:
        raise ValueError(f"expected a size such as 4G or 512M, got {value[:60]!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


def _of_name(key: str):
    def tables(value: Any) -> Any:
        value = _listed(value)
        return [{key: item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value
    return tables


Index = Annotated[int, Field(ge=0)]


def _some(value: Any) -> Any:
    """One clear complaint where a union would make three."""
    value = [value] if type(value) is int else value
    numbers = isinstance(value, (list, tuple)) and value and all(type(i) is int and i >= 0 for i in value)
    if value is not None and value != "all" and not numbers:
        raise ValueError(f'expected "all" or numbers from 0 such as [0, 6], got {value!r}')
    return value


Some = Annotated[Literal["all"] | tuple[Index, ...], BeforeValidator(_some)]


class ModelSpec(_Declared):
    """A model as `howsmooth.load` takes it, or a series of checkpoints of one model."""

    name: Annotated[str, Field(min_length=1)]
    weights: Literal["pretrained", "random"] = "pretrained"
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    revision: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    causal: bool = False  # a BERT run as a decoder
    seed: Index | None = None  # of random weights; the study's otherwise
    layers: Some | None = None  # instead of the study's
    checkpoints: tuple[str, ...] = ()  # names or folders, in the order of training
    revisions: tuple[str, ...] = ()  # or revisions of `name`
    series: str | None = None
    checkpoint: str | None = None

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
            return [self.model_copy(update={**bare, "name": name, "series": self.name, "checkpoint": name})
                    for name in self.checkpoints]
        if self.revisions:
            return [self.model_copy(update={**bare, "revision": revision, "series": self.name, "checkpoint": revision})
                    for revision in self.revisions]
        return [self]


class CorpusSpec(_Declared):
    """A corpus as `howsmooth.texts.corpora.read_corpus` takes it."""

    source: Annotated[str, Field(min_length=1)]
    name: str | None = None
    format: Literal["auto", "text", "ag_news"] = "auto"
    split: str = "test"
    column: str | None = None
    subset: str | None = None


class EngineSpec(_Declared):
    """Where tasks run: processes of this machine, or a Ray cluster."""

    kind: Literal["local", "ray"] = "local"
    workers: Annotated[int, Field(ge=0)] | None = None  # None: as many as cores and memory allow; 0: this process
    threads: Annotated[int, Field(ge=1)] | None = None
    address: str | None = None
    cpus: Annotated[float, Field(gt=0)] = 1.0  # of one Ray task
    gpus: Annotated[float, Field(ge=0)] = 0.0
    retries: Annotated[int, Field(ge=0)] = 3  # of a task whose worker was lost


class Study(_Declared):
    """Everything that decides what a study computes; the engine decides only where."""

    name: Annotated[str, Field(min_length=1)] = "study"
    description: str = ""
    models: Annotated[tuple[ModelSpec, ...], BeforeValidator(_of_name("name")), Field(min_length=1)]
    corpora: Annotated[tuple[CorpusSpec, ...], BeforeValidator(_of_name("source")), Field(min_length=1)] = (
        CorpusSpec(source="embedded"),)
    cutting: Literal["consecutive", "documents", "prefixes"] = "consecutive"
    special_tokens: bool = False
    layers: Some = "all"
    heads: Some | None = None
    lengths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_lengths), Field(min_length=1)]
    samples: Annotated[int, Field(ge=1)] = 10
    map: Literal["attention", "head", "normed", "block", "layer", "model"] | None = None
    tokens: Annotated[tuple[Literal["all", "no-special", "no-first"], ...], BeforeValidator(_listed),
                      Field(min_length=1)] = ("all",)
    estimators: Annotated[tuple[Literal["described", "released", "scripts"], ...], BeforeValidator(_listed),
                          Field(min_length=1)] = ("described",)
    tol: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.999
    simultaneous: bool = False
    max_memory: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_bytes)] = None
    seed: Index = 0
    engine: EngineSpec = EngineSpec()
    base: str | None = None  # the folder that relative paths start from: the study file's

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        if self.heads is not None and self.map not in (None, "head"):
            raise ValueError(f'expected heads only with map = "head", got map = "{self.map}"; leave one of the two out')
        if set(self.estimators) - {"described"} and "all" not in self.tokens:
            raise ValueError('expected "all" among tokens for the released estimators, which move every token')
        if "scripts" in self.estimators and self.kind != "attention":
            raise ValueError(f'expected map = "attention" for the scripts\' estimator, which has a map of its own, got '
                             f'"{self.kind}"')
        return self

    @property
    def kind(self) -> str:
        return self.map or ("attention" if self.heads is None else "head")

    def path(self, name: str) -> str:
        """A name that is a path beside the study file as that path; any other name as it is."""
        beside = Path(self.base or ".", name).expanduser() if name != "-" else None
        return str(beside) if beside is not None and beside.exists() else name


_TABLES = {"models": ModelSpec, "corpora": CorpusSpec, "engine": EngineSpec}


def study_of(declared: dict[str, Any], where: str = "the study") -> Study:
    """A study from plain values, or one `InputError` that names everything wrong with them.

    >>> study_of({"models": "minilm", "lengths": "16..64*2"}).lengths
    (16, 32, 64)
    >>> study_of({"models": "minilm", "lenghts": [16]})
    Traceback (most recent call last):
    ...
    howsmooth.errors.InputError: the study: unknown key 'lenghts'; did you mean 'lengths'?; lengths: missing
    """
    try:
        return Study.model_validate(declared)
    except ValidationError as error:
        complaints = sorted({_complaint(item) for item in error.errors()}, key=lambda line: "unknown" not in line)
        raise InputError(f"{where}: " + "; ".join(complaints)) from None


def _complaint(item: dict[str, Any]) -> str:
    loc = item["loc"]
    # Types in a union show up in the location; only keys of the file mean anything to its author.
    path = ".".join(str(part) for part in loc
                    if isinstance(part, int) or re.fullmatch(r"[a-z_]+", part) and part not in ("constrained", "tuple"))
    if item["type"] == "extra_forbidden":
        known = [name for name in _TABLES.get(loc[0], Study).model_fields if name != "base"]
        near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
        inside = f" in {loc[0]}" if len(loc) > 1 else ""
        return f"unknown key {loc[-1]!r}{inside}; " + (
            f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")
    if item["type"] == "missing":
        return f"{path}: missing"
    said = item["msg"].removeprefix("Value error, ")
    got = "" if "got" in said else f", got {item['input']!r}"
    return f"{path}: {said[0].lower()}{said[1:]}{got}" if path else f"{said}{got if path else ''}"


def read_study(path: str | Path, overrides: dict[str, Any] | None = None) -> Study:
    """The study in a TOML file, with what the command line says instead."""
    path = Path(path)
    try:
        declared = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"expected a study file, got {path} ({(error.strerror or str(error)).lower()}); "
                         "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"expected TOML in {path}, got something else ({error}); correct it") from None
    if "base" in declared:
        raise InputError(f"{path}: unknown key 'base'; relative paths start from the file's own folder")
    declared = {"name": path.stem, **declared, "base": str(path.resolve().parent)}
    return study_of(_merged(declared, overrides or {}), str(path))


def _merged(declared: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = dict(declared)
    for key, value in overrides.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def untrusted(study: Study) -> dict[str, list[str]]:
    """The options by which models of a study would run code of their own, and the names of those models."""
    return {option: names for option in ("trust_remote_code", "allow_pickle")
            if (names := [model.name for model in study.models if getattr(model, option)])}


def refuse_untrusted(study: Study, **allowed: bool) -> None:
    """Refuse a study whose models may run code of their own, unless whoever runs it allows that as well."""
    for option, names in untrusted(study).items():
        if not allowed[option]:
            flag = "--" + option.replace("_", "-")
            raise InputError(f"expected {flag} on the command line for a study that says {option} = true of "
                             f"{', '.join(names)}, got none; it runs code that comes with the model: add {flag} only "
                             "if you trust it")
