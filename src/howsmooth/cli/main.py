"""The commands, imported when they are called, and `main`, which turns errors into one line and an exit code."""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from howsmooth import __version__
from howsmooth.errors import InputError, is_out_of_memory
from howsmooth.extras import missing_package
from howsmooth.questions import QUESTIONS


class Entry(NamedTuple):
    """A command of a lazy group.

    Attributes:
        location: `module` or `module:name` within `howsmooth.cli`; the name is `command` by default. ?NAME is the
            command of a question; with `help` it is a group of such commands.
        short_help: The command's line in the help of its group.
        help: What a group of questions is about.
    """

    location: str
    short_help: str
    help: str = ""


def question_entries(group: str) -> dict[str, Entry]:
    """Return the entries of the questions of a group of commands, by command name."""
    return {
        entry.command or name: Entry(f"?{name}", entry.help)
        for name, entry in QUESTIONS.items()
        if entry.group == group
    }


def _command_paths() -> dict[str, str]:
    """Return the command lines of the questions, by command name."""
    return {
        entry.command or name: " ".join(filter(None, ("howsmooth", entry.group, entry.command or name)))
        for name, entry in QUESTIONS.items()
    }


class LazyGroup(click.Group):
    """A group of commands given by location and short help; the group's own help imports none of them."""

    def __init__(self, *arguments: Any, entries: dict[str, Entry], **settings: Any) -> None:
        """Take the entries by command name, and the arguments of `click.Group`."""
        super().__init__(*arguments, **settings)
        self.entries = entries

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the entries."""
        return list(self.entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import a command by name; return None if the group has no such command."""
        if name not in self.entries:
            return None
        location, short_help, about = self.entries[name]
        if about:
            return LazyGroup(name, entries=question_entries(name), short_help=short_help, help=about)
        if location.startswith("?"):
            from howsmooth.cli.ask import question_command

            return question_command(location[1:])
        module, _, attribute = location.partition(":")
        return getattr(importlib.import_module(f"howsmooth.cli.{module}"), attribute or "command")

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name; the error for an unknown one suggests the nearest, of other groups, too."""
        name = arguments[0]
        if name in self.entries or name.startswith("-") or context.resilient_parsing:
            return super().resolve_command(context, arguments)
        paths = {**_command_paths(), **{own: f"{context.command_path} {own}" for own in self.entries}}
        near = difflib.get_close_matches(name, paths, n=1)
        hint = f"did you mean `{paths[near[0]]}`?" if near else f"choose among {', '.join(self.entries)}"
        raise click.UsageError(f"expected a command, got {name[:60]!r}; {hint}", context)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, or the group's own options, that start with what was typed; no command is imported."""
        if incomplete.startswith("-"):
            return super().shell_complete(context, incomplete)
        return [
            CompletionItem(name, help=entry.short_help)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and short help of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self.entries.items()])


_COMMANDS = {
    **question_entries(""),
    "attack": Entry(
        "?attack",
        "Search for worst cases, and certify that none is near.",
        "Find inputs on which attention is far less smooth than on text, or certify that none is near.",
    ),
    "meanfield": Entry(
        "?meanfield",
        "The mean-field limit: regimes, splitting, masks, distances.",
        "Study attention as a map of probability measures: the constants in the limit of infinite length.",
    ),
    "flow": Entry(
        "?flow",
        "Tokens along depth: particles, Gaussians, densities, real layers.",
        "Follow tokens through many layers of attention: as an ODE, as a flow of densities, or in a real model.",
    ),
    "study": Entry("study", "Run studies that can be interrupted and resumed."),
    "plan": Entry("plan", "Estimate the time and memory of a study or a measurement."),
    "report": Entry("report", "Write records as an HTML page, CSV tables and figures."),
    "reproduce": Entry("reproduce", "Reproduce the figures of the paper."),
    "explore": Entry("explore", "Explore a model interactively in a local web page."),
    "demo": Entry("demo", "Measure two embedded models: table, plot and page."),
    "models": Entry("information:models", "List the model families that can be measured."),
    "doctor": Entry("information:doctor", "Show what is installed and which implementation runs."),
    "cite": Entry("information:cite", "Print BibTeX of the paper and the methods used."),
}

_MAX_WORD_LENGTH = 1000  # characters of a word in an error message: enough for a long path
EXIT_BROKEN_PIPE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


@click.group(cls=LazyGroup, entries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="howsmooth")
def group() -> None:
    """How smooth is attention, in this model, on this text, at this length?

    Measures the local Lipschitz constant of attention layers, with a certified interval.
    Start with `howsmooth measure`, which needs no arguments, or `howsmooth demo`.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its exit code: 0 on success, 2 for bad input, 130 after Ctrl-C.

    If the reader of a pipe closes it (`| head`), the exit code is 1 and nothing is printed, as with click and rich.

    Args:
        arguments: The command line without the program's name; `sys.argv[1:]` by default.
    """
    _prepare_streams()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # before huggingface_hub is imported, which reads it once
    try:
        code = group.main(arguments, prog_name="howsmooth", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _print_error(str(error))
        code = EXIT_BAD_INPUT
    except ModuleNotFoundError as error:
        missing = missing_package(error, "for this command")
        if missing is None:
            raise
        _print_error(str(missing))
        code = EXIT_BAD_INPUT
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        _print_error(error.format_message().rstrip(".") + hint)
        code = EXIT_BAD_INPUT
    except (click.exceptions.Abort, KeyboardInterrupt):
        _print_error("interrupted")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _print_error(
            f"expected the computation to fit into memory, got {str(error)[:200] or 'too little memory'}; use "
            "shorter lengths, fewer at once, or a smaller model"
        )
        code = EXIT_BAD_INPUT
    except OSError as error:  # stdout on a full disk, or a file system that is no longer mounted
        where = f" ({error.filename})" if error.filename else ""
        _print_error(f"{(error.strerror or str(error)).lower()}{where}; nothing more could be written or read")
        code = EXIT_BAD_INPUT
    _discard_unwritable_stdout()
    sys.exit(code if isinstance(code, int) else 0)


def _prepare_streams() -> None:
    """Make stdin, stdout and stderr usable if they are closed (`>&-`), or if their encoding lacks our characters.

    A stream that is closed reads nothing and discards what is written, as Python's own `print` does. Characters that
    the encoding lacks, such as σ in ASCII, are written as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # The lowest free descriptor, which is the closed one: no file of records becomes the stdout of a library.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            is_utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            if stream.errors == "strict" or (stream.errors == "surrogateescape" and not is_utf8):
                stream.reconfigure(errors="backslashreplace")


def _discard_unwritable_stdout() -> None:
    """Discard buffered output that stdout cannot take, so that Python does not report the error again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str) -> None:
    """Print a message as one line on stderr."""
    words = (word if len(word) <= _MAX_WORD_LENGTH else word[:_MAX_WORD_LENGTH] + "…" for word in message.split())
    line = " ".join(words) or "stopped without a reason; report this command"
    # A name from the command line may contain bytes that are not UTF-8, which a terminal cannot show.
    print("howsmooth: " + line.encode("utf-8", "backslashreplace").decode("utf-8"), file=sys.stderr)
