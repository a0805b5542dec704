"""The command group, and the one place where errors become a line on stderr and an exit code."""

from __future__ import annotations

import os
import sys

import click

from howsmooth import __version__
from howsmooth.cli.lazy import Entry, LazyGroup
from howsmooth.errors import InputError

_COMMANDS = {
    "measure": Entry("measure", "Measure the attention layers of a model on a text."),
    "bound": Entry("bound", "Every bound of the theory beside the measured constant."),
    "attack": Entry("attack", "Worst cases: search for them, certify against them."),
    "meanfield": Entry("meanfield", "Infinite length: regimes, splitting, masks, distances."),
    "flow": Entry("flow", "Depth: particles, Gaussians, densities, real layers."),
    "study": Entry("study", "Run whole studies that survive interruption."),
    "plan": Entry("plan", "What a study or a measurement would take."),
    "report": Entry("report", "Records as a page to look at, as CSV and as figures."),
    "reproduce": Entry("reproduce", "The paper's figures, made again."),
    "explore": Entry("explore", "Look around: a local web page where numbers arrive and can be clicked."),
    "demo": Entry("demo", "Two embedded models: table, plot and page."),
    "models": Entry("models", "Which model families can be measured, and how."),
    "doctor": Entry("doctor", "What is installed and what will run."),
    "cite": Entry("cite", "BibTeX of the paper and the methods used."),
}

_LONGEST = 1000  # characters of a word of a complaint: a path may be long, an endless number is of no use
EXIT_BROKEN_PIPE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


@click.group(cls=LazyGroup, entries=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="howsmooth")
def group() -> None:
    """How smooth is attention, in this model, on this text, at this length?

    Measures the local Lipschitz constant of attention layers, with an interval that says how sure it is.
    Start with `howsmooth measure`, which needs no arguments, or `howsmooth demo`.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code: 0, 2 for bad input, 130 after Ctrl-C.

    A reader that goes away (`| head`) ends the command with 1, quietly, as click and rich do.
    """
    try:
        code = group.main(arguments, prog_name="howsmooth", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _complain(str(error))
        code = EXIT_BAD_INPUT
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        _complain(error.format_message().rstrip(".") + hint)
        code = EXIT_BAD_INPUT
    except (click.exceptions.Abort, KeyboardInterrupt):
        _complain("interrupted")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _complain(
            f"expected what is asked for to fit into memory, got {str(error)[:200] or 'too much'}; ask for "
            "shorter lengths, fewer at once, or a smaller model"
        )
        code = EXIT_BAD_INPUT
    except OSError as error:  # a full disk behind stdout, a file system that went away
        where = f" ({error.filename})" if error.filename else ""
        _complain(f"{(error.strerror or str(error)).lower()}{where}; nothing more could be written or read")
        code = EXIT_BAD_INPUT
    _let_go_of_stdout()
    sys.exit(code if isinstance(code, int) else 0)


def _let_go_of_stdout() -> None:
    """Drop what stdout cannot take any more, or Python complains once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _out_of_memory(error: Exception) -> bool:
    """Whether Python or torch, which raises a plain RuntimeError on a CPU, found no memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("allocate", "out of memory"))


def _complain(message: str) -> None:
    words = (word if len(word) <= _LONGEST else word[:_LONGEST] + "…" for word in message.split())
    line = " ".join(words) or "stopped without a reason; report this command"
    # A name from the command line may hold bytes that are no text, which a terminal cannot show.
    print("howsmooth: " + line.encode("utf-8", "backslashreplace").decode("utf-8"), file=sys.stderr)
