"""Options of commands: those made from fields of the spec, and those of the files that a command writes.

Each field of a spec becomes one option with one name, one help text and one parser: click passes the
text on, and the spec parses it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, get_args

import click
from click.shell_completion import CompletionItem

from howsmooth.errors import InputError
from howsmooth.questions import find_question
from howsmooth.questions.command_line import flag_of, literal_values, option_name
from howsmooth.questions.measure import MeasureSpec
from howsmooth.questions.spec import LOADING_FIELDS, SOLVER_FIELDS, EngineSpec, ModelChoice, Spec, spec_of
from howsmooth.texts.corpora import STRING

MODEL_HELP = """MODEL is minilm (the default) or smollm2, a local folder, a GGUF file, a name on the Hugging Face Hub,
    random:NAME for an architecture with random weights, or a .safetensors file of GPT-2's attention layers."""
ENGINE_FIELDS = ("engine", "address", "workers", "threads", "cpus", "gpus")

OUTPUT_OPTIONS = {  # option: metavar and help
    "json": ("FILE|-", "One JSON object per record; - is stdout"),
    "csv": ("FILE|-", "Records as CSV; - is stdout"),
    "plot": ("FILE", "A figure (png, svg, pdf)"),
    "report": ("FILE.html", "A self-contained HTML page"),
}

STYLE_NAMES = ("screen", "paper", "slides")  # keys of howsmooth.report.style.STYLES
STYLE_HELP = "Sizes of figures: paper is 3.3 inches wide, or 6.75 with several panels; slides are 16:9."
_STYLE_KEY = "howsmooth.style"

# The sections of the help of a question, in order; options of no section are what the question itself is about.
_THIS_QUESTION = "What is computed"
HELP_SECTIONS = {
    "Most used": (
        *("texts", "string", "layers", "heads", "lengths", "samples", "device"),
        *("json_path", "plot_path", "report_path", "help"),
    ),
    _THIS_QUESTION: (),
    "Input": ("inputs", "images", "audio", "cutting", "special_tokens"),
    "Accuracy": (*SOLVER_FIELDS, "simultaneous", "stop", "max_steps", "max_memory", "product_dtype"),
    "Model": LOADING_FIELDS,
    "Output and running": (
        *("csv_path", "style", "theme", "animate_path", "svg_path", "artefacts"),
        *("threads", "quiet", "verbose"),
    ),
}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
# What the shell completes.
MODELS = ("minilm", "smollm2", "mpnet", "random:bert", "random:gpt2", "random:llama", "random:mpnet")
TEXTS = ("embedded", "generated", "alice", "ag_news", "hf:")


def complete(words: Iterable[str] = (), *, paths: bool = False) -> Completer:
    """Return a function for `shell_complete` that completes words, and paths where no word matches.

    Example:
        >>> [item.value for item in complete(MODELS)(None, None, "random:g")]
        ['random:gpt2']
        >>> [item.type for item in complete(MODELS, paths=True)(None, None, "./my-mo")]
        ['file']
    """
    allowed = tuple(words)

    def completer(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(word) for word in allowed if word.startswith(incomplete)]
        return found or ([CompletionItem(incomplete, type="file")] if paths else [])

    return completer


complete_model = complete(MODELS, paths=True)


class QuestionCommand(click.Command):
    """A command whose help has its options in sections, the most used first."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[int, tuple[str, str]]]] = {title: [] for title in HELP_SECTIONS}
        for option in self.get_params(context):
            line = option.get_help_record(context) if isinstance(option, click.Option) else None
            if line is not None:
                name = "help" if "--help" in option.opts else str(option.name)
                title = next((title for title, names in HELP_SECTIONS.items() if name in names), _THIS_QUESTION)
                order = HELP_SECTIONS[title].index(name) if name in HELP_SECTIONS[title] else 0
                sections[title].append((order, line))
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl([line for _, line in sorted(lines, key=itemgetter(0))])


def apply_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds click options to a command; its help lists them in the given order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def spec_options(*fields: str, spec: type[Spec] = MeasureSpec, **defaults: Any) -> Decorator:
    """Return a decorator that adds options for fields of a spec.

    Args:
        fields: Names of the fields, in the order of the help.
        spec: The spec.
        defaults: Defaults that the help shows instead of those of the spec; the command passes the same values to
            `spec_from_options`.
    """
    return apply_options(*(spec_option(field, defaults.get(field), spec=spec) for field in fields))


def spec_field(name: str, spec: type[Spec] = MeasureSpec) -> Any:
    """Return the field behind an option (a pydantic `FieldInfo`), from the choice of a model, an engine or a spec."""
    if name in LOADING_FIELDS:
        return ModelChoice.model_fields[name]
    if name in ENGINE_FIELDS:
        return EngineSpec.model_fields["name" if name == "engine" else name]
    return spec.model_fields[name]


def spec_option(name: str, default: Any = None, spec: type[Spec] = MeasureSpec) -> Decorator:
    """Return a decorator that adds the option for one field of a spec.

    Args:
        name: Name of the field.
        default: Default that the help shows instead of that of the spec.
        spec: The spec.
    """
    field = spec_field(name, spec)
    help_text = field.description or ""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    flag = flag_of(name, field)
    if field.annotation is bool:
        return click.option(flag, name, is_flag=True, default=None, help=help_text)
    if bool in get_args(field.annotation):
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=help_text)
    shown_default = format_default(field.default if default is None else default)
    if shown_default and "[default" not in help_text:
        help_text += f"  [default: {shown_default}]"
    choices = literal_values(field.annotation)
    metavar = extra.get("metavar") or ("|".join(choices) if choices else name.upper())
    words = {"models": MODELS, "texts": TEXTS, "tokenizer": MODELS}.get(name, choices)
    completer = complete(words, paths=name == "tokenizer" or any(word in str(metavar) for word in ("FILE", "DIR")))
    made = click.option(
        flag, name, metavar=str(metavar), nargs=len(str(metavar).split()), help=help_text, shell_complete=completer
    )
    return apply_options(made, _string_option) if name == "texts" else made


_string_option = click.option("--string", metavar="TEXT", help="The text itself, in place of --text.")


class Parsed(click.ParamType):
    """A type of an option from a parser of `howsmooth.questions.fields`, for options that are not fields of a spec.

    Example:
        >>> from howsmooth.questions.fields import whole
        >>> Parsed(whole(1, 65535)).convert("8080", None, None)
        8080
    """

    name = "value"

    def __init__(self, parser: Any) -> None:
        """Take the parser: a validator of pydantic, or a function."""
        self.parse = getattr(parser, "func", parser)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text."""
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def format_default(default: Any) -> str:
    """Return a default as the help shows it; empty for None."""
    if isinstance(default, tuple):
        return ",".join(
            getattr(item, "source", None) or getattr(item, "name", None) or format_default(item) for item in default
        )
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


loading_options = spec_options(*LOADING_FIELDS)  # for loading one model
engine_options = spec_options(*ENGINE_FIELDS)  # for the engine of a study: local processes or Ray


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

    def one(name: str) -> Decorator:
        metavar, help_text = OUTPUT_OPTIONS[name]
        return output_option(f"--{name}", metavar, help_text + (f": {contents[name]}." if contents.get(name) else "."))

    return apply_options(*map(one, names), *([style_option] if "plot" in names else []))


def output_parameter(flag: str) -> str:
    """Return the parameter of click for the option of an output file.

    Example:
        >>> output_parameter("--plot-rate")
        'plot_rate_path'
    """
    return flag.removeprefix("--").replace("-", "_") + "_path"


def output_option(flag: str, metavar: str, help_text: str) -> Decorator:
    """Return a decorator that adds the option for one output file."""
    return click.option(
        flag, output_parameter(flag), metavar=metavar, help=help_text, shell_complete=complete(paths=True)
    )


theme_option = click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of figures."
)


def spec_from_options(options: dict[str, Any], question: str = "measure") -> Any:
    """Return the spec of a command.

    Args:
        options: Values by field, None where an option was not given.
        question: Name of the question.

    Raises:
        InputError: If a value is invalid; the message names the option.
    """
    declared = {"name": question, **study_keys(options, question)}
    return spec_of(declared, question=question, name=_namer(question))


def study_keys(options: dict[str, Any], question: str = "measure") -> dict[str, Any]:
    """Return the options that were given as the keys of a study file."""
    given = {name: value for name, value in options.items() if value is not None}
    keys: dict[str, Any] = {}
    fields = find_question(question).spec.model_fields
    if "model" in given:
        choice = {"name": given["model"], **{name: given[name] for name in LOADING_FIELDS if name in given}}
        keys |= {"model": choice} if "model" in fields else {"models": [choice]}
    elif "models" in given:
        keys["models"] = _split_names(given["models"])
    if "texts" in given and "string" in given:
        raise InputError("expected one text, got --text and --string; leave one of the two out")
    if "string" in given:
        keys["texts"] = [STRING + given["string"]]
    if "texts" in given:  # a command for one model takes one text, whose path may contain commas
        keys["texts"] = [given["texts"]] if "model" in given else _split_names(given["texts"])
    for name in fields:
        if name in given and name not in ("model", "models", "texts", "engine"):
            keys[name] = given[name]
    engine = {("name" if name == "engine" else name): given[name] for name in ENGINE_FIELDS if name in given}
    return keys | ({"engine": engine} if engine else {})


def _split_names(text: str) -> list[str]:
    if not text.isascii() and text.encode("utf-8", "replace").decode("utf-8") != text:
        raise InputError(f"expected names in UTF-8, got {text[:60]!r}; check how the terminal encodes them")
    return [name.strip() for name in text.split(",") if name.strip()]


def _namer(question: str) -> Callable[[str], str]:
    """Return a function from a dotted key of a study file, such as `models.0.dtype`, to its option."""
    spec = find_question(question).spec

    def option_of_key(key: str) -> str:
        parts = key.split(".")
        if parts[0] in ("models", "model") and parts[-1] in LOADING_FIELDS:
            parts = parts[-1:]
        if parts[0] == "models":
            return "MODEL"
        if parts[0] == spec.argument:
            return parts[0].upper()
        if parts[0] == "engine" and len(parts) > 1:
            return "--engine" if parts[1] == "name" else option_name(parts[1])
        field = spec.model_fields.get(parts[0])
        return option_name(parts[0]) if field is None else flag_of(parts[0], field)

    return option_of_key


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
    if isinstance(engine, dict) and engine.get("name") == "local":
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
