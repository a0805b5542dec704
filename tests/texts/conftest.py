"""The tiny checkpoint of the studies, whose tokenizer has a dozen words."""

from tests.studies.conftest import tiny  # noqa: F401
