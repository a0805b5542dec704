"""Options of commands: those of the spec, made from its fields, and those of the files that a command writes.

A field of `howsmooth.studies.spec.Spec` is one option with one name, one help text and one parser: click hands over
what was typed, and the spec reads it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from howsmooth.errors import InputError
from howsmooth.studies.spec import EngineSpec, ModelSpec, Spec, spec_of

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.texts.corpora import Corpus

MODEL = """MODEL is minilm (the default) or smollm2, a local folder, a GGUF file, a name on the Hugging Face Hub,
    random:NAME for an architecture with random weights, or a .safetensors file of GPT-2's attention layers."""
LOADING = ("dtype", "device", "revision", "tokenizer", "trust_remote_code", "allow_pickle")
ENGINE = ("engine", "address", "workers", "threads", "cpus", "gpus")
SOLVER = ("tol", "confidence", "seed")
CHUNKS = ("texts", "special_tokens", "lengths", "samples")
_OPTIONS = {"texts": "text", "kind": "engine"}  # fields whose option has another name

OUTPUTS = {
    "json": ("FILE|-", "One JSON object per record; - is stdout"),
    "csv": ("FILE|-", "Records as CSV; - is stdout"),
    "plot": ("FILE", "A figure (png, svg, pdf)"),
    "report": ("FILE.html", "A page that needs nothing else"),
}


def spec_options(*names: str, **defaults: Any) -> Callable:
    """Make options of fields of the spec; `defaults` are shown, and taken, in place of the spec's own."""

    def decorate(command: Callable) -> Callable:
        for name in reversed(names):
            command = _option(name, defaults.get(name))(command)
        return command

    return decorate


def loading_options(command: Callable) -> Callable:
    """Make the options by which one model is loaded."""
    return spec_options(*LOADING)(command)


def engine_options(command: Callable) -> Callable:
    """Make the options that say where a study runs."""
    return spec_options(*ENGINE)(command)


def _option(name: str, default: Any) -> Callable:
    field = (ModelSpec if name in LOADING else EngineSpec if name in ENGINE else Spec).model_fields[
        "kind" if name == "engine" else name
    ]
    flag = "--" + _OPTIONS.get(name, name).replace("_", "-")
    said = field.description or ""
    if field.annotation is bool:
        return click.option(flag, name, is_flag=True, default=None, help=said)
    shown = _shown(field.default if default is None else default)
    if shown and "[default" not in said:
        said += f"  [default: {shown}]"
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    choices = _choices(field.annotation)
    metavar = extra.get("metavar") or ("|".join(choices) if choices else name.upper())
    return click.option(flag, name, metavar=str(metavar), help=said)


def _choices(annotation: Any) -> list[str]:
    """The words that a field may be, for its metavar."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for inner in get_args(annotation) for word in _choices(inner)]


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(getattr(item, "source", None) or getattr(item, "name", None) or str(item) for item in default)
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def output_options(*names: str, **contents: str) -> Callable:
    """Make the options of the files that a command writes; `contents` say what is in them."""

    def decorate(command: Callable) -> Callable:
        for name in reversed(names):
            metavar, said = OUTPUTS[name]
            said += f": {contents[name]}." if name in contents else "."
            command = click.option(f"--{name}", f"{name}_path", metavar=metavar, help=said)(command)
        return command

    return decorate


def spec_from(given: dict[str, Any], **defaults: Any) -> Spec:
    """Return the spec that options say; `defaults` stand where nothing was typed."""
    return spec_of({**defaults, **declared(given)}, name=_flag)


def declared(given: dict[str, Any]) -> dict[str, Any]:
    """Return what options say as a study file would say it."""
    found: dict[str, Any] = {}
    said = {name: value for name, value in given.items() if value is not None}
    if "model" in said:
        found["models"] = [{"name": said["model"], **{key: said[key] for key in LOADING if key in said}}]
    elif "models" in said:
        found["models"] = _list(said["models"])
    if "texts" in said:  # a command about one model takes one text, whose path may hold commas
        found["texts"] = [said["texts"]] if "model" in said else _list(said["texts"])
    for name in Spec.model_fields:
        if name in said and name not in ("models", "texts", "engine"):
            found[name] = said[name]
    engine = {("kind" if name == "engine" else name): said[name] for name in ENGINE if name in said}
    return found | ({"engine": engine} if engine else {})


def _list(said: str) -> list[str]:
    if not said.isascii() and said.encode("utf-8", "replace").decode("utf-8") != said:
        raise InputError(f"expected names in UTF-8, got {said[:60]!r}; check how the terminal encodes them")
    return [piece.strip() for piece in said.split(",") if piece.strip()]


def _flag(path: str) -> str:
    """A place in the spec as the option that leads there."""
    parts = path.split(".")
    if parts[0] == "models" and len(parts) > 2 and parts[2] in LOADING:
        parts = parts[2:]
    if parts[0] == "models":
        return "MODEL"
    field = parts[1] if parts[0] == "engine" and len(parts) > 1 else parts[0]
    return "--" + _OPTIONS.get(field, field).replace("_", "-")


def overrides(settings: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Return what the options of a study command say instead of its file, --set KEY=VALUE included."""
    found = declared(given)
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path.strip():
            raise InputError(f"expected --set KEY=VALUE, got {setting!r}; for example --set samples=4")
        place = found
        *outer, last = path.strip().split(".")
        for key in outer:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise InputError(f"expected --set with a key of the study, got {path.strip()!r}; set {outer[0]} whole")
        place[last] = _toml(value)
    return found


def _toml(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return value  # a bare word is meant as text


set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key of the study file, the value as TOML; may be repeated.",
)


def one_model(spec: Spec) -> tuple[Model, Corpus | None, Spec]:
    """Read the text, load the one model of a command, and resolve the spec against both; no text: tokens are drawn."""
    from howsmooth.studies.inputs import resolve
    from howsmooth.studies.plan import load_arguments, read_texts
    from howsmooth.studies.worker import cached_model

    try:
        corpus = next(iter(read_texts(spec)), None)
    except InputError as error:
        raise InputError(f"--text: {error}") from None
    model = cached_model(load_arguments(spec, spec.models[0]))
    return model, corpus, resolve(model, corpus, spec)
