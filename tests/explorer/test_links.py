"""Links that restore a view: written and read back, and rejected with one line if anything in them is wrong."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from howsmooth.errors import InputError
from howsmooth.explorer import Limits
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.explorer.choice import MAPS
from howsmooth.explorer.links import (
    LAYERS,
    MAX_TEXT,
    TEXT,
    View,
    checked,
    link,
    one_of,
    read_link,
    real_number,
    some_of,
    whole_number,
)

VIEWS = [
    View(
        "measure",
        "Layers",
        {
            "model": checked(ModelCatalog(Limits()).location),
            "text": TEXT,
            "layers": LAYERS,
            "map": one_of(MAPS),
            "length": whole_number(8, 512),
            "layer": whole_number(0, 9999),
        },
    ),
    View("attack", "Attacks", {"attacks": some_of(("noise", "sign")), "a": real_number(-2, 2)}),
]


def read(query: str):
    return read_link(parse_qsl(query.removeprefix("?"), keep_blank_values=True), VIEWS)


def test_a_link_is_read_back():
    values = {
        "model": "minilm",
        "text": "A quay & <b>ships</b>?\n100 % =+#;ü",
        "layers": "0,2",
        "map": "block",
        "length": 12,
        "layer": 2,
    }
    view, found = read(link("measure", values))
    assert view.name == "measure" and found == values  # exact: text and whole numbers
    assert read(link("attack", {"attacks": ["sign", "noise"], "a": -0.5}))[1] == {
        "attacks": ["sign", "noise"],
        "a": -0.5,
    }


def test_the_default_text_is_left_out_and_a_long_text_has_no_link():
    assert link("measure", {"model": "minilm", "text": "as it is"}, "as it is") == "?show=measure&model=minilm"
    assert link("measure", {"text": "x" * MAX_TEXT}) is not None
    assert link("measure", {"text": "x" * (MAX_TEXT + 1)}) is None


def test_a_page_without_a_link():
    assert read("") is None and read("?__theme=dark&utm=1") is None
    assert read("?show=measure&__theme=dark")[1] == {}


@pytest.mark.parametrize(
    "query, words",
    [
        ("show=nowhere", "expected a link to one of measure, attack, got 'nowhere'"),
        ("show=", "expected a link to one of"),
        ("show=measure&evil=1", "expected parameters among model, text"),
        ("show=measure&layer=1&layer=2", "got 'layer' twice"),
        ("show=measure&show=attack", "got 'show' twice"),
        ("show=measure&model=../../etc", "expected a model among minilm, smollm2, got '../../etc'"),
        ("show=measure&model=/etc/passwd", "expected a model among"),
        ("show=measure&model=random:gpt2", "expected a model among"),
        ("show=measure&model=", "expected a model among"),
        ("show=measure&text=" + "x" * (MAX_TEXT + 1), "at most 4,000 characters, got 4,001"),
        ("show=measure&layers=0;import os", "expected layers in the link"),
        ("show=measure&layers=" + "1," * 400 + "1", "at most 200 characters"),
        ("show=measure&map=model", "expected map in the link as one of attention, normed, block, layer"),
        ("show=measure&length=7", "whole number from 8 to 512, got '7'"),
        ("show=measure&length=1e9", "whole number from 8 to 512"),
        ("show=measure&length=" + "9" * 5000, "whole number from 8 to 512"),
        ("show=measure&length=%D9%A1%D9%A2", "whole number from 8 to 512"),  # digits of another script
        ("show=attack&attacks=noise,exec", "expected attacks in the link as one of noise, sign, got 'exec'"),
        ("show=attack&a=nan", "number from -2 to 2, got 'nan'"),
        ("show=attack&a=inf", "number from -2 to 2"),
        ("show=attack&a=", "number from -2 to 2"),
    ],
)
def test_a_wrong_link_is_rejected_with_one_line(query, words):
    with pytest.raises(InputError) as caught:
        read(query)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300
