"""What users write in fields, as text of an option and as the value of a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howsmooth.questions.fields import MAX_COUNT, matrix, names, number, numbers, parse_bytes, whole
from howsmooth.report.plan_tables import show_bytes


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True))
def test_integer_lists_read_back(values):
    parse = numbers("0,6", integer=True, minimum=0, keyword="all").func
    assert parse(", ".join(map(str, values))) == parse(values) == tuple(values)  # exact: integers


def test_integer_lists_drop_duplicates_and_accept_the_keyword():
    assert numbers("1", integer=True).func("3,1,3") == (3, 1)
    assert numbers("1", integer=True, keyword="all").func("all") == "all"
    for wrong in ("all", "1.5", "", "1,,2", [], [True], {"a": 1}):
        with pytest.raises(ValueError, match="expected comma-separated integers"):
            numbers("1", integer=True).func(wrong)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", str(MAX_COUNT + 1), "1" + "0" * 20, "9" * 5000, "nan", "1e3"])
def test_invalid_counts(text):
    with pytest.raises(ValueError, match=f"whole number from 1 to {MAX_COUNT}, got") as refused:
        whole().func(text)
    assert len(str(refused.value)) < 200
    assert whole().func(f" {MAX_COUNT} ") == whole().func(MAX_COUNT) == MAX_COUNT
    with pytest.raises(ValueError, match="whole number"):
        whole().func(True)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-inf", "1e400", "x", "9" * 5000, "-1e101"])
def test_invalid_numbers(text):
    with pytest.raises(ValueError, match=r"expected a finite number from -1e[+]100 to 1e[+]100, got"):
        number().func(text)
    assert number().func("-0.5") == -0.5  # exact: read from a decimal fraction of two digits in base two
    for end in ("0", "1", "nan"):
        with pytest.raises(ValueError, match="between 0 and 1, got"):
            number(0, 1, exclusive=True).func(end)


def test_names_are_among_those_that_are_known():
    parse = names(("sign", "noise"), everything="all").func
    assert parse("noise, sign,noise") == parse(["noise", "sign"]) == ("noise", "sign") and parse("all") == (
        "sign",
        "noise",
    )
    for wrong, message in (("all,sign", "all by itself"), ("other", "among sign, noise"), (7, "among sign, noise")):
        with pytest.raises(ValueError, match=message):
            parse(wrong)


@pytest.mark.parametrize("text", ["x", "1,y", "1;2,z", "nan", "9" * 5000 + "e9"])
def test_matrices_that_are_none(text):
    with pytest.raises(ValueError, match="expected a number, a diagonal such as") as refused:
        matrix().func(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text, size",
    [("4G", 4 * 2**30), ("512M", 2**29), ("1.5k", 1536), ("1000", 1000), ("2GiB", 2**31), ("7 MB", 7 * 2**20)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "4X", "4GG", "nan", "0.0001", "9" * 400, "9" * 5000, "99999999T"])
def test_invalid_sizes(text):
    with pytest.raises(ValueError, match="expected a size such as 4G"):
        parse_bytes(text)


def test_formatted_sizes():
    assert [show_bytes(size) for size in (0, 1023, 1024, 5 * 2**30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]


def test_every_name_that_can_be_chosen_has_a_class():
    from howsmooth import choices
    from howsmooth.attack.objectives import FEATURE_OBJECTIVES, TEXT_OBJECTIVES
    from howsmooth.attack.tokens import METHODS

    assert tuple(METHODS) == choices.METHODS
    assert tuple(TEXT_OBJECTIVES) == choices.TEXT_OBJECTIVES and tuple(FEATURE_OBJECTIVES) == choices.FEATURE_OBJECTIVES
    substituting = tuple(name for name, method in METHODS.items() if method.operations == (choices.SUBSTITUTE,))
    assert substituting == choices.ONLY_SUBSTITUTE
