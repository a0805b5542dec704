"""The command of a question: its options, made from its spec, and its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    MODEL_HELP,
    QuestionCommand,
    apply_options,
    complete_model,
    loading_options,
    output_option,
    output_options,
    output_parameter,
    spec_from_options,
    spec_options,
    theme_option,
)
from howsmooth.cli.runtime import runtime_options
from howsmooth.questions import QUESTIONS, find_question
from howsmooth.questions.spec import ModelSpec

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.questions.question import Question
    from howsmooth.questions.spec import Spec
    from howsmooth.studies.plan import Plan

_MODEL_ARGUMENT = "model"  # the parameter for the one model of a command


def question_command(name: str) -> click.Command:
    """Return the command of a question."""
    question = find_question(name)
    spec = question.spec
    loading = loading_options if spec.argument in ("models", "model") else apply_options()
    decorate = apply_options(
        _argument(spec),
        _second_argument(spec),
        spec_options(*spec.options, spec=spec),
        loading,
        output_options(
            *(option for option in ("json", "csv", "plot", "report") if option != "plot" or question.draws),
            json="records already in the file are not computed again",
            plot=question.plots,
        ),
        *(output_option(flag, output.metavar, output.help) for flag, output in question.outputs.items()),
        *([theme_option] if question.draws else []),
        runtime_options(),
    )

    def command(**options: Any) -> int:
        return _run(name, question, options)

    help_text = question.about + (f"\n\n    {_model_help(spec)}" if question.asks_models else "")
    entry = QUESTIONS[name]
    made = click.command(name=entry.command or name, cls=QuestionCommand, short_help=entry.help, help=help_text)
    return made(decorate(command))


def _argument(spec: type[Spec]) -> Any:
    if spec.argument is None:
        return apply_options()
    if spec.argument in ("models", "model"):
        return click.argument(_MODEL_ARGUMENT, metavar="[MODEL]", required=False, shell_complete=complete_model)
    return click.argument(spec.argument, metavar=f"[{spec.argument.upper()}]", required=False)


def _second_argument(spec: type[Spec]) -> Any:
    name = spec.second_argument
    if name is None:
        return apply_options()
    return click.argument(name, metavar=f"[{name.upper()}]", required=False, shell_complete=complete_model)


def _model_help(spec: type[Spec]) -> str:
    """Return what a model is, with the default of the spec first."""
    default = spec.model_fields["models"].default[0].name
    other = "smollm2" if default == "minilm" else "minilm"
    return MODEL_HELP.replace("minilm (the default) or smollm2", f"{default} (the default) or {other}")


def _run(name: str, question: Question, options: dict[str, Any]) -> int:
    """Answer a question, and return the exit code."""
    from howsmooth.cli.run import print_overview, run_command
    from howsmooth.report.style import check_page_path

    flags = ("--json", "--csv", "--plot", "--report", *question.outputs)
    outputs = {flag: options.pop(output_parameter(flag), None) for flag in flags}
    theme = options.pop("theme", "light")
    if outputs["--report"]:
        check_page_path(outputs["--report"], "--report")
    default = question.spec.model_fields["models"].default[0].name if question.asks_models else None
    if question.asks_models and options[_MODEL_ARGUMENT] is None:
        options[_MODEL_ARGUMENT] = default
    spec = spec_from_options(options, name)
    if question.check is not None:
        question.check(spec)
    for flag, output in question.outputs.items():
        if outputs[flag] and output.check is not None:
            output.check(spec)
    artefacts = getattr(spec, "artefacts", None)
    if artefacts and artefacts.endswith(".safetensors"):  # a file, checked as the others are
        outputs["--artefacts"] = artefacts

    def prepare(stderr: Console) -> tuple[str, Plan]:
        if isinstance(spec, ModelSpec):
            from howsmooth.cli.loading import load_model_and_text

            model, corpus, resolved = load_model_and_text(
                spec, needs_text=question.needs_text, needs_weights=question.needs_weights
            )
            if outputs["--plot"] and question.check_panels is not None:
                question.check_panels(resolved.estimates // len(resolved.lengths) // resolved.samples)

            from howsmooth.studies.plan import prepare_model

            plan = prepare_model(resolved, model, corpus, from_files=True)
            print_overview(resolved, model, stderr, plan)
            return model.name, plan

        from howsmooth.cli.loading import show_loading

        label = next((choice.label for choice in spec.chosen_models), name)
        with show_loading(stderr, label if spec.chosen_models else "torch"):
            from howsmooth.studies.plan import prepare as prepare_plan

            # What a model may do is on this command line, not in a file.
            plan = prepare_plan(spec, trust_remote_code=True, allow_pickle=True)
            _ = plan.count  # the plan may load the model
        return label, plan

    return run_command(question, prepare, outputs=outputs, inputs=spec.input_files(), theme=theme)
