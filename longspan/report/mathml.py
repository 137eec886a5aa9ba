"""The formulas of docstrings, written in plain letters, as MathML: no script, no font and no network is needed.

    typeset("y_i = sum_j p_ij v_j")      # <math ...><msub><mi>y</mi><mi>i</mi></msub> <mo>=</mo> ...

A formula stays on its line: indices, exponents, sums, roots, Greek letters and operators are typeset, fractions keep
their slash. Whatever is not understood is shown as it was written, so nothing is lost or reordered.
"""

import html
import re
from collections.abc import Iterator

GREEK = dict(
    zip(
        [
            "alpha",
            "beta",
            "gamma",
            "delta",
            "eps",
            "epsilon",
            "zeta",
            "eta",
            "theta",
            "kappa",
            "lambda",
            "mu",
            "nu",
            "xi",
            "pi",
            "rho",
            "sigma",
            "tau",
            "phi",
            "chi",
            "psi",
            "omega",
            "Gamma",
            "Delta",
            "Theta",
            "Lambda",
            "Pi",
            "Sigma",
            "Phi",
            "Psi",
            "Omega",
        ],
        "αβγδεεζηθκλμνξπρστφχψωΓΔΘΛΠΣΦΨΩ",
        strict=True,
    )
)
LARGE = {"sum": "∑", "prod": "∏", "union": "⋃"}
OPERATORS = {
    "<=": "≤",
    ">=": "≥",
    "!=": "≠",
    "->": "→",
    "<-": "←",
    ":=": "≔",
    "||": "‖",
    "...": "…",
    "*": "∗",
    "~": "∼",
    "-": "−",
}
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<text>\"[^\"]*\"|`[^`]*`)|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<name>(?!softmax)[a-z]{4,}_[a-z]{4,}\b)|(?P<word>[A-Za-z]+)"
    r"|(?P<operator><=|>=|!=|->|<-|:=|\|\||\.\.\.|.)",
    re.DOTALL,
)
BRACKETS = {"(": ")", "{": "}", "[": "]"}
CLOSING = (")", "]", "}", "|", "||")
OPEN = tuple(f">{sign}</mo>" for sign in (*"=+−/⋅∗≤≥≠→←≔∼([{|‖", "&lt;", "&gt;"))  # after these no gap is needed


def typeset(formula: str) -> str:
    """One formula, with its source as the alternative text."""
    return f'<math alttext="{html.escape(formula, quote=True)}">{_row(formula)}</math>'


def columns(line: str) -> list[str]:
    """The formulas of a line, which three spaces keep apart.

    >>> columns("    y = A v      A = softmax(x)")
    ['y = A v', 'A = softmax(x)']
    """
    return [part for part in re.split(r"\s{3,}", line.strip()) if part]


def paragraphs(docstring: str) -> Iterator[tuple[str, list[list[str]] | str]]:
    """Words as `("words", text)`, formulas as `("formulas", lines of columns)`."""
    for block in re.split(r"\n\s*\n", docstring.strip("\n")):
        lines = [line for line in block.split("\n") if line.strip()]
        if lines and all(line.startswith("    ") for line in lines):
            yield "formulas", [columns(line) for line in lines]
        elif lines:
            yield "words", " ".join(line.strip() for line in lines)


def _row(source: str) -> str:
    made, place, gap = [], 0, False
    while place < len(source):
        place, kind, text = _next(source, place)
        if kind == "space":
            gap = True
            continue
        apart = gap and made and kind != "operator" and not made[-1].endswith(OPEN)
        spaced = '<mspace width=".3em"/>' if apart else ""
        place, atom = _atom(source, place, kind, text)
        made.append(spaced + atom)
        gap = False
    return "<mrow>" + "".join(made) + "</mrow>"


def _next(source: str, place: int) -> tuple[int, str, str]:
    found = TOKEN.match(source, place)
    assert found is not None, "the last branch of the pattern takes any character"
    assert found.lastgroup is not None
    return found.end(), found.lastgroup, found[0]


def _atom(source: str, place: int, kind: str, text: str) -> tuple[int, str]:
    """A token with its primes, hats, indices and exponents."""
    if kind in ("text", "name"):
        return place, f"<mtext>{html.escape(text.strip('`'))}</mtext>"
    if kind == "operator":
        sign = html.escape(OPERATORS.get(text, "⋅" if _is_dot(source, place) else text))
        base = f'<mo stretchy="false">{sign}</mo>'
        return _hung(source, place, base, "_^") if text in CLOSING else (place, base)
    if text == "sqrt" and (inner := _bracketed(source, place)):
        return inner[0], f"<msqrt>{_row(inner[1])}</msqrt>"
    base = f"<mn>{text}</mn>" if kind == "number" else _identifier(text)
    place, over = _hat(source, place)
    base = f'<mover accent="true">{base}<mo stretchy="false">{over}</mo></mover>' if over else base
    return _hung(source, place, base, "_^'+", large=text in LARGE)


def _hung(source: str, place: int, base: str, signs: str, large: bool = False) -> tuple[int, str]:
    """The base with the scripts that follow it."""
    lower = upper = ""
    while place < len(source) and source[place] in signs and (taken := _script(source, place)):
        mark, (place, script) = source[place], taken
        lower, upper = (lower + script, upper) if mark == "_" else (lower, upper + script)
    return place, _with_scripts(base, lower, upper, large)


def _is_dot(source: str, place: int) -> bool:
    """Whether the character before stands for a product: a full stop between two spaces."""
    return source[place - 1] == "." and source[place - 2 : place - 1] == " " and source[place : place + 1] == " "


def _identifier(word: str) -> str:
    if word in LARGE:
        return f'<mo largeop="true" movablelimits="false">{LARGE[word]}</mo>'
    return f"<mi>{GREEK.get(word, word)}</mi>"


def _hat(source: str, place: int) -> tuple[int, str]:
    """A tilde or a hat that belongs to the letter before it, as in `K~` and `q^_a`."""
    if source[place : place + 1] == "~":
        return place + 1, "~"
    if source[place : place + 1] == "^" and not re.match(r"\^[\w({\-]", source[place:].replace("^_", "^ ", 1)):
        return place + 1, "^"
    return place, ""


def _script(source: str, place: int) -> tuple[int, str] | None:
    """The index, exponent or prime at this place; None where the sign means something else."""
    mark = source[place]
    if mark == "'":
        return place + 1, "<mo>′</mo>"
    if mark == "+":  # the pseudo-inverse `W+`, not a sum
        after = source[place + 1 : place + 2]
        return (place + 1, "<mo>+</mo>") if after in (" ", ")") and source[place - 1] != " " else None
    if inner := _bracketed(source, place + 1):
        return inner[0], _row(inner[1])
    found = re.match(r"[_^](-?\d+|[A-Za-z]+)", source[place:])
    if not found:
        return None
    script = found[1]
    letters = script if script in GREEK or len(script) > 3 or mark == "^" else " ".join(script)
    return place + found.end(), _row(letters).replace('<mspace width=".3em"/>', "")


def _bracketed(source: str, place: int) -> tuple[int, str] | None:
    """What the bracket at this place encloses, and the place behind it."""
    opening = source[place : place + 1]
    if opening not in BRACKETS or opening == "[":
        return None
    depth = 0
    for end in range(place, len(source)):
        depth += (source[end] == opening) - (source[end] == BRACKETS[opening])
        if depth == 0:
            return end + 1, source[place + 1 : end]
    return None


def _with_scripts(base: str, lower: str, upper: str, large: bool) -> str:
    below, above, both = ("munder", "mover", "munderover") if large else ("msub", "msup", "msubsup")
    lower, upper = (f"<mrow>{part}</mrow>" if part else "" for part in (lower, upper))
    if lower and upper:
        return f"<{both}>{base}{lower}{upper}</{both}>"
    tag = below if lower else above
    return f"<{tag}>{base}{lower}{upper}</{tag}>" if lower or upper else base
