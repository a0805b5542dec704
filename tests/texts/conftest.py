"""The tiny checkpoint of the studies, whose tokenizer knows a dozen words."""

from tests.studies.conftest import tiny  # noqa: F401
