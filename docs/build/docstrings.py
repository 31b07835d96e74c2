"""Docstrings for the site: `Example:` becomes code, `Reference:` and `Use when:` become separate paragraphs."""

from __future__ import annotations

import re
from typing import Any

import griffe

LITERAL = re.compile(r"::\n\n")
WORDS = re.compile(r"^(References?|Use when|Cover): *\n? *", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = LITERAL.sub(":\n\n", obj.docstring.value)
            text = re.sub(r"^Example:", "Examples:", text, flags=re.MULTILINE)
            obj.docstring.value = WORDS.sub(r"**\1.** ", text)
