r"""Text escaped for LaTeX: titles and names come from cards, which are untrusted.

    escaped("50 % of R_1 & [more]")         # '50 \% of R\_1 \& {[}more{]}'

The output is for pdflatex, in any font encoding (OT1 or T1). Nothing in it acts as a command, opens a group or begins
the optional argument of the line break before it, and no two characters form a ligature (`--` stays two hyphens).
"""

import unicodedata

from longspan.core.printable import printable

JOINING = frozenset("-',`")  # twice in a row they are a ligature
LETTERS = frozenset(map(chr, range(0xC0, 0x100))) - set("×÷ÐðÞþ")  # with accents that every font encoding can set
COMMANDS = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    '"': r"\symbol{34}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
SYMBOLS = {
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "÷": r"$\div$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "·": r"$\cdot$",
    "●": r"$^\bullet$",
    "°": r"$^\circ$",
    "†": r"$^\dagger$",
    "✗": r"$^\times$",
    "²": "$^2$",
    "³": "$^3$",
    "ℓ": r"$\ell$",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
}


def escaped(text: str) -> str:
    r"""The text on one line; a letter that pdflatex does not know loses its accents or becomes its code point.

    >>> escaped("Nyströmformer ± 0.1, [softmax]"), escaped("a--b"), escaped("ő 漢")
    ('Nyströmformer $\\pm$ 0.1, {[}softmax{]}', 'a-{}-b', 'o {[}U+6F22{]}')
    """
    out, before = [], ""
    for letter in printable(text, keep="").strip():
        out.append(("{}" if letter in JOINING and letter == before else "") + _written(letter))
        before = letter
    return "".join(out)


def _written(letter: str) -> str:
    if letter in COMMANDS:
        return COMMANDS[letter]
    if letter in SYMBOLS:
        return SYMBOLS[letter]
    if letter.isascii() or letter in LETTERS:
        return letter
    plain = [part for part in unicodedata.normalize("NFKD", letter) if part.isascii() and part.isprintable()]
    if plain:
        return "".join(COMMANDS.get(part, part) for part in plain)
    return f"{{[}}U+{ord(letter):04X}{{]}}"
