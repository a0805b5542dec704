"""Forms: what they contain at first is a valid spec and a command, and any other value is refused in one line."""

from __future__ import annotations

import pytest

from howsmooth.errors import InputError
from howsmooth.explorer import Limits
from howsmooth.explorer.tabs import forms_of_tabs, layers_form
from howsmooth.questions.command_line import command_line, written

LIMITS = Limits()
FORMS = {
    form.question: form
    for form in (layers_form(LIMITS), *(form for forms in forms_of_tabs(LIMITS).values() for form in forms))
}


@pytest.mark.parametrize("question", FORMS)
def test_what_a_form_contains_at_first_is_a_command(question):
    form = FORMS[question]
    spec = form.spec({name: written(one.value) for name, one in form.inputs.items()})
    assert spec.question == question and command_line(spec).startswith("howsmooth ")


@pytest.mark.parametrize(
    "question, field, value, words",
    [
        ("measure", "layers", "0;import os", 'Layers: expected "all" or numbers such as 0,6'),
        ("measure", "layers", "1," * 400 + "1", "in 200 plain characters"),
        ("measure", "layers", "-1", "expected Layers from 0 to 9999"),
        ("measure", "map", "model", "expected Map among attention, normed, block, layer"),
        ("measure", "tokens", "all,no-first", "expected Tokens that may move among"),
        ("measure", "lengths", "7", "from 8 to 512, got '7'"),
        ("measure", "lengths", "1e9", "from 8 to 512"),
        ("measure", "lengths", "8..512", "from 8 to 512"),
        ("measure", "lengths", "9.5", "Tokens of the text to measure: expected"),
        ("measure", "lengths", "9" * 5000, "in 200 plain characters"),
        ("measure", "lengths", "\u0661\u0662", "in 200 plain characters"),  # digits of another script
        ("bound", "layers", "all", "expected Layer from 0 to 9999"),
        ("bound", "layers", "12345", "expected Layer from 0 to 9999"),
        ("layer-attack", "attacks", "noise,exec", "expected Attacks among noise, sign, singular, ascent, got 'exec'"),
        ("layer-attack", "attacks", "split", "expected Attacks among"),
        ("layer-attack", "budget", "0.1," * 8 + "0.1", "of at most 8 values"),
        ("layer-attack", "budget", "1e9", "to 100000, got '1e9'"),
        ("layer-attack", "budget", "0", "Sizes, as shares of ‖X‖: expected"),
        ("token-attack", "calls", "100000", "expected Calls of the model from 10 to 200"),
        ("particles", "example", "/etc/passwd", "expected What forms among polytope"),
        ("particles", "particles", "1000000", "expected Tokens from 4 to 200"),
        ("regimes", "gamma_r2", "nan", "to 100000, got 'nan'"),
        ("regimes", "to", "1000000", "from 2 to 60"),
        ("splitting-line", "a", "nan", "from -2 to 2, got 'nan'"),
        ("splitting-line", "a", "inf", "from -2 to 2"),
        ("splitting-line", "a", "", "from -2 to 2"),
        ("splitting-line", "masses", "1,2,3", "of at most 2 values"),
        ("splitting-line", "masses", "1", "expected a number for each of 2 atoms"),
    ],
)
def test_a_value_that_the_form_could_not_contain_is_refused(question, field, value, words):
    """The server may be sent any values, not only those that the page lets a visitor enter."""
    with pytest.raises(InputError) as caught:
        FORMS[question].spec({field: value})
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300
