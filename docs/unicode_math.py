"""Formulas written in plain Unicode, as in docstrings and tables, as MathML.

    ‖V‖ (√m + a + √(m/2) b),    κ = n / (1 + (n−1) e^{−2s})

Docstrings stay readable in a terminal, and the site typesets them. A formula consists of letters, numbers, operators,
brackets, words, `_x` and `_{x}`, `^x` and `^{x}`, Unicode superscripts and subscripts, √, and code in backticks.
"""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ᵀᵅ⁽⁾", "0123456789−+Tα()", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₋₊ₙ₍₎", "0123456789−+n()", strict=True))
FUNCTIONS = {"max", "min", "log", "exp", "sup", "inf", "diag", "argmax", "osc", "det", "lim", "Lip", "softmax", "cos"}
SHORT_WORDS = {"as", "at", "for", "in", "is", "of", "on", "or", "to", "no", "if", "by", "and", "the", "its", "per"}
FRACTIONS = {"½": ("1", "2"), "¼": ("1", "4"), "⅓": ("1", "3"), "¾": ("3", "4")}
CLOSING = {"(": ")", "{": "}", "[": "]"}
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<code>`[^`]*`)"
    rf"|(?P<word>[A-Za-z]{{3,}}|\b(?:{'|'.join(sorted(SHORT_WORDS))})\b|(?<=[a-z]{{2}} )a(?= [a-z]{{3}}))"
    r"|(?P<number>\d+(?:\.\d+)?)"
    rf"|(?P<up>[{re.escape(''.join(SUPERSCRIPTS))}]+)|(?P<down>[{re.escape(''.join(SUBSCRIPTS))}]+)"
    r"|(?P<one>.)"
)


class Token(NamedTuple):
    """A piece of a formula: its kind (a group of `_TOKEN`) and its text."""

    kind: str
    text: str


def to_mathml(text: str, *, display: str = "inline") -> str:
    """Return a formula of one line as MathML.

    Example:
        >>> to_mathml("x_i²")
        '<math display="inline"><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></math>'
        >>> to_mathml("√(m/2)")
        '<math display="inline"><msqrt><mrow><mi>m</mi><mo>/</mo><mn>2</mn></mrow></msqrt></math>'
    """
    tokens = [Token(str(found.lastgroup), found[0]) for found in _TOKEN.finditer(text.strip())]
    return f'<math display="{display}">{"".join(_Parser(tokens).row())}</math>'


class _Parser:
    """Reads tokens from left to right; each method returns the MathML of what it read."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0

    def row(self, end: str = "") -> list[str]:
        """Read up to a closing bracket, or to the end."""
        parts = []
        while self.position < len(self.tokens):
            if end and self.tokens[self.position].text == end:
                self.position += 1
                break
            parts.append(self.item())
        return parts

    def item(self) -> str:
        """Read a base with what is raised and lowered at it."""
        base = self.base()
        raised, lowered = "", ""
        while (token := self.peek()) is not None:
            if token.kind == "up":
                raised += self.script(SUPERSCRIPTS)
            elif token.kind == "down":
                lowered += self.script(SUBSCRIPTS)
            elif token.text == "^" and not raised:
                self.position += 1
                raised = self.argument()
            elif token.text == "_" and not lowered:
                self.position += 1
                lowered = self.indices()
            else:
                break
        if raised and lowered:
            return f"<msubsup>{base}{lowered}{raised}</msubsup>"
        if raised:
            return f"<msup>{base}{raised}</msup>"
        return f"<msub>{base}{lowered}</msub>" if lowered else base

    def base(self) -> str:
        """Read one symbol, number, word, root or bracket."""
        kind, text = self.tokens[self.position]
        self.position += 1
        if kind == "space":
            return f'<mspace width="{min(len(text), 5) * 0.28:.2f}em"/>' if len(text) > 1 else _thin(self.around())
        if kind == "code":
            return f"<mtext><code>{escape(text[1:-1])}</code></mtext>"
        if kind == "word":
            return f"<mi>{text}</mi>" if text in FUNCTIONS else f"<mtext>{text}</mtext>"
        if kind == "number":
            return f"<mn>{text}</mn>"
        if text in FRACTIONS:
            above, below = FRACTIONS[text]
            return f"<mfrac><mn>{above}</mn><mn>{below}</mn></mfrac>"
        if text == "√":
            return f"<msqrt>{self.argument()}</msqrt>"
        if text == "{":
            return f"<mrow>{''.join(self.row('}'))}</mrow>"
        if text.isalpha() and text not in "ΣΠ":
            return f"<mi>{text}</mi>"
        stretchy = ' stretchy="false"' if text in "()[]{}|‖⟨⟩Σ∫" else ""
        return f"<mo{stretchy}>{escape(text)}</mo>"

    def argument(self) -> str:
        """Read what follows a root, `_` or `^`: one symbol, or the content of brackets, which are dropped."""
        token = self.peek()
        if token is None:
            return "<mrow/>"
        if token.text in ("{", "("):
            self.position += 1
            inside = self.row(CLOSING[token.text])
            return inside[0] if len(inside) == 1 else f"<mrow>{''.join(inside)}</mrow>"
        if token.text in "−-":
            self.position += 1
            return f"<mrow><mo>−</mo>{self.base()}</mrow>"
        return self.base()

    def indices(self) -> str:
        """Read what follows `_`: an argument, or two letters such as ij."""
        first = self.argument()
        token, before = self.peek(), self.tokens[self.position - 1]
        if token is None or not (before.kind == token.kind == "one" and before.text.islower() and token.text.islower()):
            return first
        return f"<mrow>{first}{self.base()}</mrow>"

    def script(self, letters: dict[str, str]) -> str:
        """Read Unicode superscripts or subscripts."""
        text = "".join(letters[letter] for letter in self.tokens[self.position].text)
        self.position += 1
        parts = [f"<mn>{part}</mn>" if part.isdigit() else f"<mi>{part}</mi>" for part in re.findall(r"\d+|.", text)]
        return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"

    def peek(self) -> Token | None:
        """Return the next token."""
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def around(self) -> tuple[Token | None, Token | None]:
        """Return the tokens before and after the one that was just read."""
        before = self.tokens[self.position - 2] if self.position > 1 else None
        return before, self.peek()


def _thin(around: tuple[Token | None, Token | None]) -> str:
    """Return the space between two tokens: that of a text beside a word, a thin one in a product."""
    beside_word = any(token is not None and token.kind in ("word", "code") for token in around)
    return '<mspace width="0.3em"/>' if beside_word else '<mspace width="0.12em"/>'
