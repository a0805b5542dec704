"""The command line of a spec: what a user types to ask the same again.

The names of options are here, for the commands that are made from specs as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from howsmooth.errors import InputError
from howsmooth.questions import QUESTIONS
from howsmooth.questions.spec import LOADING_FIELDS, ModelChoice, Spec, TextChoice
from howsmooth.texts.corpora import STRING

_OPTION_NAMES = {"texts": "text"}  # fields of every spec whose option has another name


def option_name(field: str) -> str:
    """Return the option of a field that does not declare its own.

    Example:
        >>> option_name("special_tokens"), option_name("texts")
        ('--special-tokens', '--text')
    """
    return "--" + _OPTION_NAMES.get(field, field).replace("_", "-")


def flag_of(name: str, field: Any) -> str:
    """Return the option of a field: the one that it declares, or that of its name."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return str(extra.get("flag") or option_name(name))


def literal_values(annotation: Any) -> list[str]:
    """Return the values of the `Literal` types within an annotation.

    Example:
        >>> literal_values(tuple[Literal["all", "no-first"], ...])
        ['all', 'no-first']
    """
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for inner in get_args(annotation) for value in literal_values(inner)]


def written(value: Any) -> str:
    """Return the value of a field as it is written after its option.

    Example:
        >>> written((0.01, 0.1)), written(4.0), written([[1.0, 0.0], [0.0, 2.5]])
        ('0.01,0.1', '4', '1,0;0,2.5')
    """
    if isinstance(value, (tuple, list)):
        has_rows = any(isinstance(item, (tuple, list)) for item in value)
        return (";" if has_rows else ",").join(map(written, value))
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def command_line(spec: Spec) -> str:
    """Return the command that asks the question of a spec: the fields that were set, as options.

    Raises:
        InputError: A command cannot say it: there are several models or texts, or a model has fields without an option.

    Example:
        >>> from howsmooth.questions.spec import spec_of
        >>> command_line(spec_of({"models": "minilm", "layers": [0, 3], "lengths": "16..64*2", "samples": 1}))
        'howsmooth measure minilm --lengths 16,32,64 --samples 1 --layers 0,3'
        >>> command_line(spec_of({"question": "splitting-line", "a": -0.5, "masked": True}))
        'howsmooth meanfield splitting-line --a -0.5 --masked'
    """
    entry = QUESTIONS[spec.question]
    words = ["howsmooth", *([entry.group] if entry.group else []), entry.command or spec.question]
    argument = getattr(spec, spec.argument) if spec.argument in spec.model_fields_set else None
    options: list[str] = []
    if spec.argument == "models" and argument is not None:
        argument = _only(argument, "model")
    if isinstance(argument, ModelChoice):
        _refuse_others(argument, ("name", "weights", *LOADING_FIELDS))
        options += _options(argument, LOADING_FIELDS)
        argument = ("random:" if argument.weights == "random" else "") + argument.name
    options += _options(spec, spec.options)
    if argument is None:
        return shlex.join([*words, *options])
    arguments = [argument, *_second(spec)]
    after_options = any(name.startswith("-") for name in arguments)
    return shlex.join([*words, *options, "--", *arguments] if after_options else [*words, *arguments, *options])


def _second(spec: Spec) -> list[str]:
    """Return the second argument of a command, if the question takes one."""
    choice = getattr(spec, spec.second_argument) if spec.second_argument else None
    if choice is None:
        return []
    _refuse_others(choice, ("name", "weights"))
    return [("random:" if choice.weights == "random" else "") + choice.name]


def _options(model: Any, names: Sequence[str]) -> list[str]:
    """Return the options of the fields that were set."""
    found: list[str] = []
    for name in names:
        value = getattr(model, name) if name in model.model_fields_set else None
        field = type(model).model_fields[name]
        flag = flag_of(name, field)
        if value is None or (value is False and field.annotation is bool):
            continue
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{flag[2:]}")
            continue
        if name == "texts":
            value = _only(value, "text")
            _refuse_others(value, ("source",))
            value = value.source
            if value.startswith(STRING):
                flag, value = "--string", value.removeprefix(STRING)
        metavar = (field.json_schema_extra or {}).get("metavar", "")
        found += [flag, *(value if len(metavar.split()) > 1 else [written(value)])]
    return found


def _only(values: Sequence[Any], what: str) -> Any:
    if len(values) != 1:
        raise InputError(f"expected one {what} in a command, got {len(values)}; write a study file")
    return values[0]


def _refuse_others(choice: ModelChoice | TextChoice, allowed: Sequence[str]) -> None:
    defaults = type(choice).model_fields
    for name in choice.model_fields_set - {*allowed}:
        if getattr(choice, name) != defaults[name].default:
            raise InputError(f"expected a command's options alone, got {name}, which has none; write a study file")
