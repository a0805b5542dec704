from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from howsmooth.cli.parsing import Bytes, IntegerList, show_bytes


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True))
def test_integer_lists_read_back(numbers):
    kind = IntegerList(word="all", example="0,6")
    assert kind.convert(", ".join(map(str, numbers)), None, None) == tuple(numbers)


def test_integer_lists_drop_duplicates_and_know_their_word():
    assert IntegerList(example="1").convert("3,1,3", None, None) == (3, 1)
    assert IntegerList(word="all", example="1").convert("all", None, None) == "all"
    with pytest.raises(click.BadParameter):
        IntegerList(example="1").convert("all", None, None)


@pytest.mark.parametrize(
    "text, size",
    [
        ("4G", 4 * 2**30),
        ("512M", 2**29),
        ("1.5k", 1536),
        ("1000", 1000),
        ("2GiB", 2**31),
        ("7 MB", 7 * 2**20),
    ],
)
def test_sizes(text, size):
    assert Bytes().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "4X", "4GG", "nan", "0.0001"])
def test_what_is_no_size(text):
    with pytest.raises(click.BadParameter):
        Bytes().convert(text, None, None)


def test_sizes_for_people():
    assert [show_bytes(size) for size in (0, 1023, 1024, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
    ]
