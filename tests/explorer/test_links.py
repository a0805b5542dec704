"""Forms and the links that restore them: written and read back, and refused with one line if anything is wrong."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from howsmooth.errors import InputError
from howsmooth.explorer import Limits
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.explorer.forms import MAX_TEXT, read_link, texts_of
from howsmooth.explorer.tabs import forms_of_tabs, layers_form
from howsmooth.questions.command_line import command_line, written

LIMITS = Limits()
FORMS = {
    form.question: form
    for form in (layers_form(LIMITS), *(form for forms in forms_of_tabs(LIMITS).values() for form in forms))
}


def read(query: str):
    return read_link(parse_qsl(query.removeprefix("?"), keep_blank_values=True), FORMS, ModelCatalog(LIMITS).location)


def test_a_link_is_read_back():
    values = {
        "model": "minilm",
        "text": "A quay & <b>ships</b>?\n100 % =+#;ü",
        "layers": "0,2",
        "map": "block",
        "tokens": "no-first",
        "lengths": 12,
        "layer": 2,
    }
    form, found = read(FORMS["measure"].link(texts_of(values)))
    assert form.question == "measure" and texts_of(found) == texts_of(values)
    assert found["lengths"] == 12 and found["text"] == values["text"]  # as the components have them
    attack = {"attacks": ["sign", "noise"], "budget": "0.5"}
    assert read(FORMS["layer-attack"].link(texts_of(attack)))[1] == attack


@pytest.mark.parametrize("question", FORMS)
def test_what_a_form_contains_at_first_is_a_valid_link_and_a_command(question):
    form = FORMS[question]
    values = {name: written(one.value) for name, one in form.inputs.items()}
    assert read(form.link(values))[0] is form
    spec = form.spec(values)
    assert spec.question == question and command_line(spec).startswith("howsmooth ")


def test_the_default_text_is_left_out_and_a_long_text_has_no_link():
    form = FORMS["measure"]
    assert form.link({"model": "minilm", "text": "as it is"}, "as it is") == "?question=measure&model=minilm"
    assert form.link({"text": "x" * MAX_TEXT}) is not None
    assert form.link({"text": "x" * (MAX_TEXT + 1)}) is None


def test_a_page_without_a_link():
    assert read("") is None and read("?__theme=dark&utm=1") is None
    assert read("?question=measure&__theme=dark")[1] == {}


@pytest.mark.parametrize(
    "query, words",
    [
        ("question=nowhere", "expected a link to one of measure, bound, regimes"),
        ("question=", "expected a link to one of"),
        ("question=pde", "expected a link to one of"),  # a question that the page does not ask
        ("question=measure&evil=1", "expected parameters among model, text"),
        ("question=measure&texts=/etc/passwd", "expected parameters among model, text"),
        ("question=measure&max_memory=1T", "expected parameters among model, text"),
        ("question=measure&layer=1&layer=2", "got 'layer' twice"),
        ("question=measure&question=bound", "got 'question' twice"),
        ("question=measure&model=../../etc", "expected a model among minilm, smollm2, got '../../etc'"),
        ("question=measure&model=/etc/passwd", "expected a model among"),
        ("question=measure&model=random:gpt2", "expected a model among"),
        ("question=measure&model=", "expected a model among"),
        ("question=measure&text=" + "x" * (MAX_TEXT + 1), "at most 4,000 characters in a link, got 4,001"),
        ("question=measure&layers=0;import os", 'Layers: expected "all" or numbers such as'),
        ("question=measure&layers=" + "1," * 400 + "1", "in 200 plain characters"),
        ("question=measure&layers=-1", "expected Layers from 0 to 9999"),
        ("question=measure&layer=12345", "expected Layer from 0 to 9999"),
        ("question=measure&layer=x", "expected Layer from 0 to 9999"),
        ("question=measure&map=model", "expected Map among attention, normed, block, layer, got 'model'"),
        ("question=measure&tokens=all,no-first", "expected Tokens that may move among"),
        ("question=measure&lengths=7", "from 8 to 512, got '7'"),
        ("question=measure&lengths=1e9", "from 8 to 512"),
        ("question=measure&lengths=8..512", "from 8 to 512"),
        ("question=measure&lengths=9.5", "Tokens of the text to measure: expected"),
        ("question=measure&lengths=" + "9" * 5000, "in 200 plain characters"),
        ("question=measure&lengths=%D9%A1%D9%A2", "in 200 plain characters"),  # digits of another script
        ("question=bound&layers=all", "expected Layer from 0 to 9999"),
        (
            "question=layer-attack&attacks=noise,exec",
            "expected Attacks among noise, sign, singular, ascent, got 'exec'",
        ),
        ("question=layer-attack&attacks=split", "expected Attacks among"),
        ("question=layer-attack&budget=" + "0.1," * 8 + "0.1", "of at most 8 values"),
        ("question=layer-attack&budget=1e9", "to 100000, got '1e9'"),
        ("question=layer-attack&budget=0", "Sizes, as shares of ‖X‖: expected"),
        ("question=token-attack&calls=100000", "expected Calls of the model from 10 to 200"),
        ("question=particles&example=/etc/passwd", "expected What forms among polytope"),
        ("question=particles&particles=1000000", "expected Tokens from 4 to 200"),
        ("question=regimes&gamma_r2=nan", "to 100000, got 'nan'"),
        ("question=regimes&to=1000000", "from 2 to 60"),
        ("question=splitting-line&a=nan", "from -2 to 2, got 'nan'"),
        ("question=splitting-line&a=inf", "from -2 to 2"),
        ("question=splitting-line&a=", "from -2 to 2"),
        ("question=splitting-line&masses=1,2,3", "of at most 2 values"),
        ("question=splitting-line&masses=1", "expected a number for each of 2 atoms"),
    ],
)
def test_a_wrong_link_is_refused_with_one_line(query, words):
    with pytest.raises(InputError) as caught:
        read(query)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_form_refuses_what_its_link_would():
    """The server may be sent any values, not only those that the page lets a visitor enter."""
    for values in ({"lengths": "100000"}, {"map": "model"}, {"layers": "0," * 200}):
        with pytest.raises(InputError):
            FORMS["measure"].spec({"model": "minilm", **values})
