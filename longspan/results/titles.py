"""Titles that could be taken for those of other mechanisms: a card may call a plug-in whatever it likes.

is_misleading("mine.py:Performer", "Performer")        # True: it is not the built-in
is_misleading("performer", "Performer")                # False
"""

import functools
import unicodedata
from collections.abc import Mapping

from longspan.results import catalogue


def is_misleading(mechanism: str, title: str) -> bool:
    """Whether a title looks like that of a built-in which the mechanism is not, or has letters that may look so.

    >>> is_misleading("linear", "soft-max"), is_misleading("mine.py:Mine", "S\u043eftmax"), is_misleading("x.py:X", "X")
    (True, True, False)
    """
    bare = _bare(title)
    own = _titles().get(mechanism.partition("(")[0])
    return own != bare and (bare in _titles().values() or not bare.isascii())


@functools.cache
def _titles() -> Mapping[str, str]:
    return {entry["name"]: _bare(entry["title"]) for entry in catalogue.read(catalogue.SHIPPED)["attentions"]}


def _bare(title: str) -> str:
    """Letters and digits alone, without accents and case; letters of other scripts stay."""
    plain = (letter for letter in unicodedata.normalize("NFKD", title) if not unicodedata.combining(letter))
    return "".join(letter for letter in plain if letter.isalnum() or not letter.isascii()).casefold()
