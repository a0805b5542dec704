"""Sources of text, and errors for those that do not exist."""

from __future__ import annotations

import io
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from howsmooth.errors import InputError
from howsmooth.texts.corpora import DATA, read_corpus


def test_a_file_with_windows_line_ends_and_a_byte_order_mark(tmp_path):
    file = tmp_path / "alice.txt"
    file.write_bytes("\ufeffDown the\r\nrabbit hole".encode())
    corpus = read_corpus(str(file))
    assert (corpus.name, corpus.documents) == ("alice.txt", ("Down the\nrabbit hole",))


def test_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one two")))
    assert read_corpus("-", name="piped").documents == ("one two",)


def test_a_folder_is_a_document_per_file_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    texts = {"b.txt": "second", "a.md": "first", "sub/c.txt": "third", "d.png": "no text", "e.txt": " "}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert read_corpus(str(tmp_path)).documents == ("first", "second", "third")
    assert read_corpus(str(tmp_path)).content == "first\nsecond\nthird"


def test_ag_news_rows(tmp_path):
    file = tmp_path / "test.csv"
    file.write_text('"3","Fears, again","Unions say ""no""."\n"4","Race","On."\n')
    assert read_corpus(str(file)).documents == ('Fears, again Unions say "no".', "Race On.")
    file.write_text("class,title,description\n1,a,b\n")
    assert read_corpus(str(file)).documents == ("a b",)
    file.write_text("1,a,b\nx,y\n")
    with pytest.raises(InputError, match=r"2 fields in row 2; .*text"):
        read_corpus(str(file))
    assert read_corpus(str(file), format="text").documents == ("1,a,b\nx,y\n",)


def test_the_papers_corpora_come_from_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "alice.txt").write_text("Alice")
    (tmp_path / "ag_news_test.csv").write_text("1,t,d\n")
    monkeypatch.setenv(DATA, str(tmp_path))
    assert read_corpus("alice").documents == ("Alice",)
    assert read_corpus("ag_news").documents == ("t d",)


def test_without_data_folder_and_packages_the_error_names_a_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DATA, raising=False)
    monkeypatch.setitem(sys.modules, "nltk", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=rf"expected nltk .*howsmooth\[datasets\].*{DATA}.*alice\.txt"):
        read_corpus("alice")
    with pytest.raises(InputError, match=r"pip install 'howsmooth\[datasets\]', or give a file"):
        read_corpus("hf:some/dataset")


class _Table(dict):
    features: ClassVar = {"label": SimpleNamespace(dtype="int64"), "body": SimpleNamespace(dtype="string")}


def test_a_dataset_by_name(monkeypatch):
    """The library `datasets` is replaced: it returns a table, and then fails as without a network."""
    calls = []
    fake = ModuleType("datasets")
    fake.load_dataset = lambda *a, **k: calls.append((a, k)) or _Table(body=["one", "two"], label=[0, 1])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert read_corpus("hf:some/dataset", split="train").documents == ("one", "two")
    assert calls == [(("some/dataset", None), {"split": "train", "trust_remote_code": False})]
    with pytest.raises(InputError, match="got 'label'; it has body"):
        read_corpus("hf:some/dataset", column="label")

    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the Hub")

    fake.load_dataset = offline
    with pytest.raises(InputError, match=r"reach the Hub.*network, or give a file"):
        read_corpus("hf:some/dataset")


@pytest.mark.parametrize("content, words", [(b"caf\xe9", "byte 3"), (b" \n", "nothing in")])
def test_files_without_text_are_refused(tmp_path, content, words):
    file = tmp_path / "x.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_corpus(str(file))


@pytest.mark.parametrize("source, words", [("no/such/file", "no such file"), ("", "empty")])
def test_unknown_sources_are_refused(source, words):
    with pytest.raises(InputError, match=words):
        read_corpus(source)
    with pytest.raises(InputError, match="format"):
        read_corpus("embedded", format="pdf")


def test_the_generated_text_does_not_repeat_and_grows():
    from howsmooth.texts import generated_text

    text = generated_text(5000)
    sentences = re.findall(r"[^.]+\.", text)
    assert len(text.split()) >= 5000 and len(set(sentences)) == len(sentences)
    assert generated_text(6000).startswith(text)
    assert read_corpus("generated:5000").documents == (text,)


def test_a_file_named_generated_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "generated").write_text("A text of mine.")
    assert read_corpus("generated").documents == ("A text of mine.",)
