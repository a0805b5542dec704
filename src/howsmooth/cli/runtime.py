"""Options of every command that computes: how much it prints, and how many threads it uses.

They act before torch is imported, because OpenMP reads its settings then.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from howsmooth.cli.options import Decorator, apply_options, spec_from_options, spec_options
from howsmooth.errors import InputError
from howsmooth.threads import default_threads, set_threads, wait_passively

_ARGUMENT_WORDS = ("tol", "steps")  # arguments without an underscore that remedies name
_KEY = "howsmooth.runtime"  # in the `meta` of the click context


@dataclass(frozen=True)
class Runtime:
    """How a command runs.

    Attributes:
        quiet: Whether only results, warnings and errors are printed.
        verbose: Whether a line is printed for each record.
        threads: The number of threads that was asked for; None for the default.
    """

    quiet: bool = False
    verbose: bool = False
    threads: int | None = None


_VERBOSITY = (
    click.option("-q", "--quiet", is_flag=True, help="Print results, warnings and errors only."),
    click.option("-v", "--verbose", is_flag=True, help="Print a line for each record."),
)


def runtime_options(*, engine: bool = False) -> Decorator:
    """Return a decorator that adds `--threads`, `--quiet` and `--verbose`, and applies them when the command is called.

    Args:
        engine: Whether the command has `--threads` already, as a field of a study's engine.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*arguments: Any, quiet: bool, verbose: bool, **options: Any) -> Any:
            if quiet and verbose:
                raise InputError("expected --quiet or --verbose, got both; leave one of the two out")
            given = options.get("threads") if engine else options.pop("threads")
            threads = None if given is None else spec_from_options({"threads": given}).engine.threads
            click.get_current_context().meta[_KEY] = Runtime(quiet, verbose, threads)
            wait_passively()
            if threads is not None:
                set_threads(threads)
            try:
                return command(*arguments, **options)
            except InputError as error:
                error.args = (name_options(str(error), click.get_current_context().command.params),)
                raise

        return apply_options(*(() if engine else (spec_options("threads"),)), *_VERBOSITY)(run)

    return decorate


def name_options(message: str, params: Sequence[click.Parameter]) -> str:
    """Return an error message of the library with the options of the command in place of arguments of functions.

    Only what is to be done, after the first semicolon, can name an argument. A message that names the option already
    is for both readers and stays as it is, and so does one about the keys of a file.

    Example:
        >>> params = [click.Option(["--max-memory", "max_memory"]), click.Option(["--normalise"], is_flag=True)]
        >>> name_options("expected 3 GiB of free memory, got 2; set max_memory", params)
        'expected 3 GiB of free memory, got 2; set --max-memory'
        >>> name_options("expected weights that sum to 1, got 2; pass normalise=True to divide by it", params)
        'expected weights that sum to 1, got 2; pass --normalise to divide by it'
    """
    if "unknown key" in message:
        return message
    problem, semicolon, remedy = message.partition("; ")
    for param in params:
        if not isinstance(param, click.Option) or not param.name or param.opts[0] in message:
            continue
        name, option = re.escape(param.name), param.opts[0]
        remedy = re.sub(rf"(?<![\w.-]){name}=True\b", option, remedy)
        remedy = re.sub(rf"(?<![\w.-]){name}=[\"']?([\w.]+)[\"']?", rf"{option} \1", remedy)
        if "_" in param.name or param.name in _ARGUMENT_WORDS:
            remedy = re.sub(rf"(?<![\w.-]){name}(?![\w=])", option, remedy)
    return problem + semicolon + remedy


def current_runtime() -> Runtime:
    """Return how the running command runs; the defaults outside of a command."""
    context = click.get_current_context(silent=True)
    return Runtime() if context is None else context.meta.get(_KEY, Runtime())


def use_default_threads(longest: int | None = None, *, workers: int | None = 0) -> None:
    """Set the number of threads of this process, unless `--threads` or the environment does.

    Args:
        longest: The largest number of tokens; None if that does not apply.
        workers: The number of worker processes; with any but 0, this process only prepares their work, with one thread
            as they have.
    """
    count = default_threads(longest if workers == 0 else 1)
    if current_runtime().threads is None and count is not None:
        set_threads(count)
