"""Options of commands: those made from fields of the spec, and those of the files that a command writes.

Each field of `howsmooth.studies.Spec` becomes one option with one name, one help text and one parser: click passes the
text on, and the spec parses it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import click

from howsmooth.cli.completion import MODELS, TEXTS, complete, complete_model
from howsmooth.errors import InputError
from howsmooth.studies.spec import EngineSpec, ModelSpec, Spec, spec_of

MODEL_HELP = """MODEL is minilm (the default) or smollm2, a local folder, a GGUF file, a name on the Hugging Face Hub,
    random:NAME for an architecture with random weights, or a .safetensors file of GPT-2's attention layers."""
LOADING_FIELDS = ("dtype", "device", "revision", "tokenizer", "part", "trust_remote_code", "allow_pickle")
ENGINE_FIELDS = ("engine", "address", "workers", "threads", "cpus", "gpus")
SOLVER_FIELDS = ("tol", "confidence", "seed")
CHUNK_FIELDS = ("texts", "special_tokens", "lengths", "samples")
_OPTION_NAMES = {"texts": "text", "kind": "engine"}  # fields whose option has another name

OUTPUT_OPTIONS = {  # option: metavar and help
    "json": ("FILE|-", "One JSON object per record; - is stdout"),
    "csv": ("FILE|-", "Records as CSV; - is stdout"),
    "plot": ("FILE", "A figure (png, svg, pdf)"),
    "report": ("FILE.html", "A self-contained HTML page"),
}

STYLE_NAMES = ("screen", "paper", "slides")  # keys of howsmooth.report.style.STYLES
STYLE_HELP = "Sizes of figures: paper is 3.3 inches wide, or 6.75 with several panels; slides are 16:9."
_STYLE_KEY = "howsmooth.style"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def apply_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds click options to a command; its help lists them in the given order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def model_argument(default: str | None = "minilm", *, metavar: str = "MODEL") -> Decorator:
    """Return a decorator that adds the argument for one model, which the shell completes."""
    name = metavar.lower().replace(".toml", "").replace("|", "_or_")
    return click.argument(name, metavar=f"[{metavar}]", default=default, required=False, shell_complete=complete_model)


def spec_options(*fields: str, **defaults: Any) -> Decorator:
    """Return a decorator that adds options for fields of the spec.

    Args:
        fields: Names of the fields, in the order of the help.
        defaults: Defaults that the help shows instead of those of the spec; the command passes the same values to
            `spec_from_options`.
    """
    return apply_options(*(spec_option(field, defaults.get(field)) for field in fields))


def loading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for loading one model."""
    return spec_options(*LOADING_FIELDS)(command)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the engine of a study: local processes or Ray."""
    return spec_options(*ENGINE_FIELDS)(command)


def spec_field(name: str) -> Any:
    """Return the field behind an option (a pydantic `FieldInfo`), from the spec of a model, an engine or a study."""
    if name in LOADING_FIELDS:
        return ModelSpec.model_fields[name]
    if name in ENGINE_FIELDS:
        return EngineSpec.model_fields["kind" if name == "engine" else name]
    return Spec.model_fields[name]


def spec_option(name: str, default: Any = None, refused: tuple[str, ...] = ()) -> Decorator:
    """Return a decorator that adds the option for one field of the spec.

    Args:
        name: Name of the field.
        default: Default that the help shows instead of that of the spec.
        refused: Values that this command does not take: neither offered nor accepted.
    """
    field = spec_field(name)
    help_text = field.description or ""
    if refused:  # the description is that of all commands
        help_text = help_text.replace("  [default", f" (Here not {', '.join(refused)}.)  [default")
    if field.annotation is bool:
        return click.option(_option_name(name), name, is_flag=True, default=None, help=help_text)
    shown_default = format_default(field.default if default is None else default)
    if shown_default and "[default" not in help_text:
        help_text += f"  [default: {shown_default}]"
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    choices = [value for value in _literal_values(field.annotation) if value not in refused]
    metavar = extra.get("metavar") or ("|".join(choices) if choices else name.upper())
    words = {"models": MODELS, "texts": TEXTS, "tokenizer": MODELS}.get(name, choices)
    completer = complete(words, paths=name == "tokenizer" or any(word in str(metavar) for word in ("FILE", "DIR")))

    def check(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
        if value in refused:
            raise InputError(f"expected {_option_name(name)} as one of {', '.join(choices)}, got {value!r}; take one")
        return value

    return click.option(
        _option_name(name), name, metavar=str(metavar), help=help_text, shell_complete=completer, callback=check
    )


def _option_name(field: str) -> str:
    return "--" + _OPTION_NAMES.get(field, field).replace("_", "-")


def _literal_values(annotation: Any) -> list[str]:
    """Return the values of the `Literal` types within an annotation."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for inner in get_args(annotation) for value in _literal_values(inner)]


def format_default(default: Any) -> str:
    """Return a default as the help shows it; empty for None."""
    if isinstance(default, tuple):
        return ",".join(getattr(item, "source", None) or getattr(item, "name", None) or str(item) for item in default)
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def _keep_style(context: click.Context, option: click.Parameter, name: str) -> None:
    context.meta[_STYLE_KEY] = name


# The value is kept in the context, for `chosen_style`: commands draw in the current style and do not pass it on.
style_option = click.option(
    "--style",
    type=click.Choice(STYLE_NAMES),
    default="screen",
    show_default=True,
    expose_value=False,
    callback=_keep_style,
    help=STYLE_HELP,
)


def chosen_style() -> str:
    """Return the value of `--style` of the command that runs."""
    context = click.get_current_context(silent=True)
    return "screen" if context is None else str(context.meta.get(_STYLE_KEY, "screen"))


def output_options(*names: str, **contents: str) -> Decorator:
    """Return a decorator that adds options for output files.

    Args:
        names: Keys of `OUTPUT_OPTIONS`, in the order of the help.
        contents: What the file of an option contains, appended to its help.
    """

    def output_option(name: str) -> Decorator:
        metavar, help_text = OUTPUT_OPTIONS[name]
        help_text += f": {contents[name]}." if name in contents else "."
        completer = complete(paths=True)
        return click.option(f"--{name}", f"{name}_path", metavar=metavar, help=help_text, shell_complete=completer)

    return apply_options(*map(output_option, names), *([style_option] if "plot" in names else []))


def spec_from_options(options: dict[str, Any], **defaults: Any) -> Spec:
    """Return the spec of a command.

    Args:
        options: Values by field, None where an option was not given.
        defaults: Values of fields whose option was not given.

    Raises:
        InputError: If a value is invalid; the message names the option.
    """
    keys = study_keys(options)
    spec = spec_of({**defaults, **keys}, name=_option_of_key)
    spec.model_fields_set.difference_update(defaults.keys() - keys.keys())  # it contains what the user chose
    return spec


def study_keys(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given as the keys of a study file."""
    given = {name: value for name, value in options.items() if value is not None}
    keys: dict[str, Any] = {}
    if "model" in given:
        keys["models"] = [{"name": given["model"], **{name: given[name] for name in LOADING_FIELDS if name in given}}]
    elif "models" in given:
        keys["models"] = _split_names(given["models"])
    if "texts" in given:  # a command for one model takes one text, whose path may contain commas
        keys["texts"] = [given["texts"]] if "model" in given else _split_names(given["texts"])
    for name in Spec.model_fields:
        if name in given and name not in ("models", "texts", "engine"):
            keys[name] = given[name]
    engine = {("kind" if name == "engine" else name): given[name] for name in ENGINE_FIELDS if name in given}
    return keys | ({"engine": engine} if engine else {})


def _split_names(text: str) -> list[str]:
    if not text.isascii() and text.encode("utf-8", "replace").decode("utf-8") != text:
        raise InputError(f"expected names in UTF-8, got {text[:60]!r}; check how the terminal encodes them")
    return [name.strip() for name in text.split(",") if name.strip()]


def _option_of_key(key: str) -> str:
    """Return the option for a dotted key of a study file, such as `models.0.dtype`."""
    parts = key.split(".")
    if parts[0] == "models" and len(parts) > 2 and parts[2] in LOADING_FIELDS:
        parts = parts[2:]
    if parts[0] == "models":
        return "MODEL"
    return _option_name(parts[1] if parts[0] == "engine" and len(parts) > 1 else parts[0])


def overrides(settings: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a study file that options override.

    Args:
        settings: Values of `--set`, each KEY=VALUE with a dotted key and a TOML value.
        options: Values of the other options by field, None where an option was not given.
    """
    keys = study_keys(options)
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path.strip():
            raise InputError(f"expected --set KEY=VALUE, got {setting!r}; for example --set samples=4")
        table = keys
        *outer, last = path.strip().split(".")
        for key in outer:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise InputError(f"expected --set with a key of the study, got {path.strip()!r}; set {outer[0]} whole")
        table[last] = _parse_toml_value(value)
    engine = keys.get("engine")
    if isinstance(engine, dict) and engine.get("kind") == "local":
        engine.setdefault("address", None)  # that of the file belongs to the engine that is replaced
    return keys


def names_cluster(chosen: dict[str, Any]) -> bool:
    """Return whether the command line itself names a Ray cluster, by `--address` or `--set engine.address=`.

    A study file or a store may come from a stranger, so that the address in it is not enough to connect to.

    Args:
        chosen: Result of `overrides`.
    """
    engine = chosen.get("engine")
    return isinstance(engine, dict) and engine.get("address") is not None


def _parse_toml_value(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return value  # a string without quotes


set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key of the study file, the value as TOML; may be repeated.",
)
