"""Conversions of an `Estimate`: repr, HTML, float, pickle, and tokens as strings."""

import copy
import math
import pickle
import re

import pytest
import torch

from howsmooth import InputError, local_lipschitz, token_gains
from howsmooth.lipschitz import TopToken, mean_field_lipschitz
from tests.attention.cases import layer, normal
from tests.tolerances import assert_close

WORDS = ["[CLS]", "a", "<b>&", "[SEP]"]


@pytest.fixture
def estimate():
    return local_lipschitz(layer("two heads"), normal(50, 4, 6))


def test_repr_is_short(estimate):
    assert re.fullmatch(
        r"Estimate\(value=\S+, lower=\S+, upper=\S+, confidence=0.999, status='converged'\)", repr(estimate)
    )
    assert len(repr(estimate)) < 120 and not re.search(r"\d{7}", repr(estimate))
    assert f"value={estimate.value:.6g}" in repr(estimate)


def test_repr_without_an_upper_end(estimate):
    from dataclasses import replace

    open_ended = replace(estimate, upper=None, status="lower bound only")
    assert "upper=None" in repr(open_ended) and "≥ " in open_ended._repr_html_() and open_ended.width is None


def test_float(estimate):
    assert float(estimate) == estimate.value  # exact: the same number
    assert math.sqrt(estimate) == estimate.value**0.5  # exact: the same operation


@pytest.mark.parametrize("f", [layer("two heads"), lambda x: 2 * x], ids=["layer", "lambda"])
@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6)])
def test_pickle(f, shape):
    found = local_lipschitz(f, normal(50, *shape), k=2)
    for before in found if isinstance(found, list) else [found]:
        before = before.with_tokens(WORDS)
        after = pickle.loads(pickle.dumps(before))
        assert after.as_record() == before.as_record() and after.tokens == before.tokens  # exact: copied
        assert torch.equal(after.direction, before.direction)  # exact: copied
        assert_close(after.triplets.value, before.triplets.value)
        assert repr(after) == repr(before) and after.remedy == before.remedy
        with pytest.raises(InputError, match="pickled"):
            after.check()
        assert before.check() > 0


def test_pickle_of_a_measure(estimate):
    atoms = normal(1, 3, 6), torch.zeros(3, dtype=torch.float64)
    found = mean_field_lipschitz(layer("two heads"), atoms)
    assert pickle.loads(pickle.dumps(found)).as_record() == found.as_record()  # exact: copied
    assert copy.deepcopy(found).as_record() == found.as_record()  # exact: copied


def test_top_tokens(estimate):
    named = estimate.with_tokens(WORDS)
    top = named.top_tokens(2)
    order = estimate.shares.argsort(descending=True).tolist()
    assert [token.position for token in top] == order[:2] and [token.token for token in top] == [
        WORDS[i] for i in order[:2]
    ]
    assert isinstance(top[0], TopToken)
    string, position, share = top[0]
    assert (string, position) == (WORDS[order[0]], order[0])
    assert math.isclose(share, float(estimate.shares.max()))
    assert len(named.top_tokens(10)) == 4 and len(named.top_tokens()) == 3
    assert estimate.tokens is None and estimate.top_tokens(1)[0].token is None


@pytest.mark.parametrize("strings", [["a"], "abcd", ["a"] * 5])
def test_wrong_strings_are_refused(estimate, strings):
    with pytest.raises(InputError, match="4 strings"):
        estimate.with_tokens(strings)


def test_a_wrong_number_of_tokens_is_refused(estimate):
    with pytest.raises(InputError, match="k ≥ 1"):
        estimate.top_tokens(0)
    with pytest.raises(InputError, match=r"\(n, d\)"):
        local_lipschitz(torch.sin, normal(1, 2, 3, 4), batched=False).with_tokens(["a"] * 3)


def test_gains_of_the_same_tokens_are_kept_for_the_display(estimate):
    gains = token_gains(layer("two heads"), normal(50, 4, 6))
    assert estimate.with_tokens(WORDS, gains).gains is gains
    assert gains.with_tokens(WORDS).tokens == tuple(WORDS) and gains.tokens is None
    with pytest.raises(InputError, match="expected 4 strings, one for each token, got 3 strings"):
        gains.with_tokens(WORDS[:3])
    others = token_gains(layer("two heads"), normal(50, 3, 6))
    with pytest.raises(InputError, match="expected the gains of 4 tokens, got 3"):
        estimate.with_tokens(WORDS, others)
