"""An extension of griffe, which reads docstrings for the reference.

The Google parser of griffe recognises doctests only in a section `Examples:`. Our docstrings use the singular
`Example:`, whose doctests would otherwise be rendered as nested block quotes.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Reads the section `Example:` of a docstring as `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
