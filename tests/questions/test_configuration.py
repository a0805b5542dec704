"""Constructed tokens: what is refused, and one value of each construction against the oracle."""

from __future__ import annotations

import pytest

import howsmooth
from howsmooth.attack.configurations import castin
from howsmooth.models.loading import load
from howsmooth.questions.spec import spec_of
from tests.tolerances import at_most


@pytest.mark.parametrize(
    "given, message",
    [
        ({"radius": "data"}, "norm or a number, got data"),
        ({"construction": "gaussian", "heads": [0]}, "no heads for gaussian tokens"),
        ({"construction": "sphere"}, "'adversarial', 'gaussian' or 'ball'"),
        ({"texts": "embedded"}, "unknown key 'texts'"),
    ],
)
def test_bad_input(given, message):
    with pytest.raises(howsmooth.InputError, match=message):
        spec_of({"question": "configuration", **given})


def test_both_signs_of_the_configuration_and_its_bounds(tiny):
    where = {"layers": [1], "heads": [1], "lengths": [6], "radius": 3.0}
    found = {
        (record["map"], record["quantity"]): record
        for construction in ("adversarial", "ball")
        for record in howsmooth.ask("configuration", tiny, construction=construction, **where)
    }
    f = load(tiny).attention(1, 6).double()
    for sign, name in ((1, "head"), (-1, "head, −u")):
        tokens = castin(f, 6, 3.0, head=1, sign=sign).tokens
        estimate = howsmooth.local_lipschitz(f.head(1), tokens, tol=1e-6)
        record = found[name, "lipschitz"]
        assert at_most(record["lower"], estimate.upper) and at_most(estimate.lower, record["upper"])
        assert at_most(estimate.value, found["this_project.upper", "bound"]["value"])
    assert found["attention", "released"]["status"] == "as released" and len(found) == 9
