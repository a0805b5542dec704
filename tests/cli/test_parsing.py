from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from howsmooth.cli.parameter_types import MAX_COUNT, Bytes, Count, Number, NumberList
from howsmooth.report.plan_tables import show_bytes


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True))
def test_integer_lists_read_back(numbers):
    kind = NumberList(integer=True, minimum=0, keyword="all", example="0,6")
    assert kind.convert(", ".join(map(str, numbers)), None, None) == tuple(numbers)


def test_integer_lists_drop_duplicates_and_accept_the_keyword():
    assert NumberList(integer=True, example="1").convert("3,1,3", None, None) == (3, 1)
    assert NumberList(integer=True, keyword="all", example="1").convert("all", None, None) == "all"
    with pytest.raises(click.BadParameter):
        NumberList(integer=True, example="1").convert("all", None, None)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", str(MAX_COUNT + 1), "1" + "0" * 20, "9" * 5000, "nan", "1e3"])
def test_invalid_counts(text):
    with pytest.raises(click.BadParameter, match=f"whole number from 1 to {MAX_COUNT}, got") as refused:
        Count().convert(text, None, None)
    assert len(str(refused.value)) < 200
    assert Count().convert(f" {MAX_COUNT} ", None, None) == Count().convert(MAX_COUNT, None, None) == MAX_COUNT


@pytest.mark.parametrize("text", ["", "nan", "inf", "-inf", "1e400", "x", "9" * 5000, "-1e101"])
def test_invalid_numbers(text):
    with pytest.raises(click.BadParameter, match=r"expected a finite number from -1e[+]100 to 1e[+]100, got"):
        Number().convert(text, None, None)
    assert Number().convert("-0.5", None, None) == -0.5  # exact: read from a decimal fraction of two digits in base two
    for end in ("0", "1", "nan"):
        with pytest.raises(click.BadParameter, match="between 0 and 1, got"):
            Number(0, 1, exclusive=True).convert(end, None, None)


@pytest.mark.parametrize(
    "text, size",
    [("4G", 4 * 2**30), ("512M", 2**29), ("1.5k", 1536), ("1000", 1000), ("2GiB", 2**31), ("7 MB", 7 * 2**20)],
)
def test_sizes(text, size):
    assert Bytes().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "4X", "4GG", "nan", "0.0001", "9" * 400, "9" * 5000, "99999999T"])
def test_invalid_sizes(text):
    with pytest.raises(click.BadParameter):
        Bytes().convert(text, None, None)


def test_formatted_sizes():
    assert [show_bytes(size) for size in (0, 1023, 1024, 5 * 2**30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
