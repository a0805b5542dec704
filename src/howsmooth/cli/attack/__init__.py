"""`howsmooth attack`: inputs with larger constants than text, and certificates around a text."""

from __future__ import annotations

import click

from howsmooth.cli.lazy import Entry, LazyGroup, question_entries

_COMMANDS = {
    "worst-case": Entry("attack.worst_case", "Maximise the constant over a set of tokens by gradient ascent."),
    "ball": Entry("attack.ball", "Certify the constant for all tokens within ε of a text."),
    "layer": Entry("attack.layer", "Perturb the features that enter a layer, within a budget."),
    "model": Entry("attack.layer:model_command", "Perturb a text's embeddings to change the model's output."),
    **question_entries("attack"),
}


@click.group(
    name="attack", cls=LazyGroup, entries=_COMMANDS, short_help="Search for worst cases, and certify that none is near."
)
def command() -> None:
    """Find inputs on which attention is far less smooth than on text, or certify that none is near."""


__all__ = ["command"]
