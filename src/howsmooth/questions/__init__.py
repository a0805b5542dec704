"""Questions: one module for each question that a user can ask. `QUESTIONS` is the only list of them.

A module has a `QUESTION`: its spec, its records, the function that answers it, its tables and charts. Everything around
a question (options, loading, plan, keys, resuming, progress, files, engines, page) is in `howsmooth.studies`,
`howsmooth.report` and `howsmooth.cli`, once for all of them.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from howsmooth.errors import InputError
from howsmooth.records import form_error

if TYPE_CHECKING:
    from howsmooth.questions.question import Question
    from howsmooth.records.schema import Record

__all__ = ["QUESTIONS", "find_question", "question_of", "record_type", "record_error"]


class Entry(NamedTuple):
    """A question, as the help of a group of commands lists it without importing its module.

    Attributes:
        module: Its module in this package.
        help: One line about it.
        kinds: The kinds of its records.
        group: The group of its command; "" for a command at the top.
        command: Name of the command within its group, where it is not that of the question.
    """

    module: str
    help: str
    kinds: tuple[str, ...]
    group: str = ""
    command: str = ""


QUESTIONS = {
    "measure": Entry("measure", "Measure the attention layers of a model on a text.", ("measurement",)),
    "compare": Entry("compare", "Compare the constants of two models on a text.", ("comparison",)),
    "bound": Entry("bound", "Compare every bound with the measured constant.", ("bound",)),
    "worst-case": Entry(
        "worst_case", "Maximise the constant over a set of tokens by gradient ascent.", ("worst case",), "attack"
    ),
    "ball": Entry("ball", "Certify the constant for all tokens within ε of a text.", ("ball",), "attack"),
    # Its measurements are those of measure.
    "configuration": Entry(
        "configuration",
        "Measure the configuration of the paper's lower bound, or Gaussian tokens.",
        ("ball bound",),
        "attack",
    ),
    "layer-attack": Entry(
        "layer_attack",
        "Perturb the features that enter a layer, within a budget.",
        ("layer attack",),
        "attack",
        "layer",
    ),
    "model-attack": Entry(
        "model_attack",
        "Perturb a text's embeddings to change the model's output.",
        ("model attack",),
        "attack",
        "model",
    ),
    "token-attack": Entry(
        "token_attack", "Substitute, insert or duplicate real tokens of a text.", ("token attack",), "attack", "tokens"
    ),
    "regimes": Entry(
        "regimes", "Lip against n, exactly: √n, √n·log n, and the plateau of mean field.", ("regime",), "meanfield"
    ),
    "masked": Entry(
        "masked",
        "Masked attention in d_p: bounds that are proved, attained, and published.",
        ("masked constant",),
        "meanfield",
    ),
    "splitting": Entry(
        "splitting", "Mass splitting: where repeated tokens have a larger constant.", ("splitting",), "meanfield"
    ),
    "splitting-line": Entry(
        "splitting_line", "Mass splitting of two or three atoms on a line.", ("splitting line",), "meanfield"
    ),
    "splitting-cases": Entry("splitting_cases", "Which kinds of maps split.", ("splitting case",), "meanfield"),
    "splitting-copies": Entry(
        "splitting_copies",
        "The constant of a map when one token of the text is repeated.",
        ("splitting copies",),
        "meanfield",
    ),
    "distance": Entry(
        "distance",
        "Exact distances between texts as token measures, before and after attention.",
        ("distance",),
        "meanfield",
    ),
    "file-distance": Entry(
        "file_distance",
        "Exact distances between measures from files, and after attention.",
        ("file distance",),
        "meanfield",
    ),
    "particles": Entry(
        "particles",
        "Tokens as particles: clusters, hulls, growth of perturbations.",
        ("particles", "perturbation growth"),
        "flow",
    ),
    # Its records are those of particles.
    "weights": Entry("weights", "Tokens of a text under the attention of a real model, as particles.", (), "flow"),
    "gaussian": Entry(
        "gaussian", "A Gaussian under attention: mean, covariance, blow-up, limiting rank.", ("gaussian flow",), "flow"
    ),
    "pde": Entry(
        "pde",
        "Densities under attention on a grid, d = 1 or 2.",
        ("density flow", "particle comparison", "rate"),
        "flow",
    ),
    "depth": Entry(
        "depth", "The layers of a real model: clusters of tokens, growth of perturbations.", ("depth",), "flow", "model"
    ),
}
_QUESTION_OF = {kind: name for name, entry in QUESTIONS.items() for kind in entry.kinds}


def find_question(name: Any) -> Question:
    """Return a question by name.

    Raises:
        InputError: There is no such question.

    Example:
        >>> find_question("bound").noun
        'bound'
        >>> find_question("bounds")
        Traceback (most recent call last):
        ...
        howsmooth.errors.InputError: expected a question among measure, ..., got 'bounds'; did you mean 'bound'?
    """
    if not isinstance(name, str) or name not in QUESTIONS:
        near = difflib.get_close_matches(str(name), QUESTIONS, n=1)
        raise InputError(
            f"expected a question among {', '.join(QUESTIONS)}, got {name!r:.60}; "
            + (f"did you mean {near[0]!r}?" if near else "choose one of them")
        )
    question: Question = importlib.import_module(f"howsmooth.questions.{QUESTIONS[name].module}").QUESTION
    return question


def question_of(record: dict[str, Any]) -> str:
    """Return the name of the question that a record answers.

    Example:
        >>> question_of({"kind": "measurement"})
        'measure'
    """
    return _QUESTION_OF[record["kind"]]


@cache
def record_type(kind: str) -> type[Record]:
    """Return the type of the records of a kind."""
    return next(known for known in find_question(_QUESTION_OF[kind]).records if known.kind_name == kind)


def record_error(record: Any, line: str | None = None) -> str | None:
    """Return why a value is not a valid record of this version, or None if it is one.

    Args:
        record: Anything that a file may contain, for example one parsed line of JSON.
        line: That line, if there is one. Without escapes its text is Unicode, which is not checked again.

    Returns:
        One line of the form "expected …, got …", or None for a valid record.

    Example:
        >>> record_error({"kind": "bound", "schema": 1})
        'expected a record of schema 2, got schema 1; measure again with this version'
    """
    from howsmooth.records.schema import field_errors, text_error

    if (reason := form_error(record)) is not None:
        return reason
    if not isinstance(record["kind"], str) or record["kind"] not in _QUESTION_OF:
        return f"expected a kind of {', '.join(_QUESTION_OF)}, got {record['kind']!r:.40}"
    wrong = field_errors(record_type(record["kind"]), record)
    return wrong or (text_error(record) if line is None or "\\u" in line else None)
