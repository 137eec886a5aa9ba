"""Alignments by the Montreal Forced Aligner: Praat's TextGrid files, in their long or short form.

The tier `phones` has an interval for every phone. Silences at both ends (`sil`, `sp`, `spn` or no label) are left out
and the clip is cut to match; those inside stay as tokens, unlabelled ones as `sp`. A phone lasts
round(end * rate / hop) - round(start * rate / hop) frames.
"""

import itertools
import math
import re
from dataclasses import dataclass

from longspan.core.errors import CorruptFile
from longspan.datasets.speech.phonemes import PAUSE, PHONES

TIER = "phones"
SILENCES = ("sil", "sp", "spn", "")
LABELS = PHONES | {"sil", "sp", "spn", "", "UW"}
TOLERANCE_S = 0.05  # by which an alignment may exceed the end of its clip: times are rounded
LONGEST = 1 << 22  # characters; a clip of ten seconds has some ten thousand
_VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<![\w.\[])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.\]])|<exists>')


@dataclass(frozen=True)
class Alignment:
    """The phones of a clip with their start and end times in seconds, without silences at the ends of the clip."""

    phones: tuple[str, ...]
    times: tuple[float, ...]  # one more than phones

    def durations(self, rate: int, hop: int) -> list[int]:
        """How many frames each phone lasts.

        >>> Alignment(("AH0",), (0.10, 0.25)).durations(22_050, 256)
        [13]
        """
        edges = [round(time * rate / hop) for time in self.times]
        return [end - start for start, end in itertools.pairwise(edges)]

    def samples(self, rate: int) -> slice:
        """The part of the clip that is kept."""
        return slice(int(self.times[0] * rate), int(self.times[-1] * rate))


def read_textgrid(content: bytes, where: str, seconds: float) -> Alignment:
    """The phones of a TextGrid file for a clip of `seconds` seconds."""
    intervals = _phone_tier(_text(content, where), where)
    previous = intervals[0][0] if intervals else 0.0
    for start, end, label in intervals:
        if not (0 <= start < end) or abs(start - previous) > 1e-6 or not math.isfinite(end):
            raise _bad(where, f"the interval {label!r:.20} from {start:g} to {end:g} s does not follow {previous:g} s")
        if label not in LABELS:
            raise _bad(where, f"{label!r:.20} is no ARPAbet phone")
        previous = end
    while intervals and intervals[0][2] in SILENCES:
        intervals.pop(0)
    while intervals and intervals[-1][2] in SILENCES:
        intervals.pop()
    if not intervals:
        raise _bad(where, f"the tier {TIER!r} has no phones")
    if intervals[-1][1] > seconds + TOLERANCE_S:
        raise _bad(where, f"its last phone ends at {intervals[-1][1]:g} s, but the clip lasts {seconds:.3f} s")
    times = (*(start for start, _, _ in intervals), intervals[-1][1])
    return Alignment(tuple(label or PAUSE for _, _, label in intervals), times)


def _text(content: bytes, where: str) -> str:
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise _bad(where, f"it is not text ({error.reason} at byte {error.start})") from error
    if len(text) > LONGEST:
        raise _bad(where, f"it has more than {LONGEST:,} characters")
    return text


def _phone_tier(text: str, where: str) -> list[tuple[float, float, str]]:
    """The intervals of the tier; both forms of the file have the same values in the same order."""
    values = [found[0] for found in _VALUE.finditer(text)]
    strings = [value[1:-1].replace('""', '"') if value.startswith('"') else None for value in values]
    if "TextGrid" not in strings[:3]:
        raise _bad(where, "it does not begin as a TextGrid")
    for at, name in enumerate(strings):
        if name == TIER and strings[at - 1] == "IntervalTier":
            return _intervals(values, strings, at + 1, where)
    raise _bad(where, f"it has no tier {TIER!r}")


def _intervals(values: list[str], strings: list[str | None], at: int, where: str) -> list[tuple[float, float, str]]:
    """The intervals of a tier whose values begin at `at`: its start and end time, their count, the intervals."""
    try:
        count = int(values[at + 2])
        if not 0 <= count <= len(values):
            raise ValueError(f"{count} intervals")
        found = []
        for first in range(at + 3, at + 3 + 3 * count, 3):
            label = strings[first + 2]
            if label is None:
                raise ValueError(f"{values[first + 2]} in place of a label")
            found.append((float(values[first]), float(values[first + 1]), label.strip()))
    except (ValueError, IndexError) as error:
        raise _bad(where, f"its tier {TIER!r} is cut off or malformed ({error})") from error
    return found


def _bad(where: str, what: str) -> CorruptFile:
    return CorruptFile(f"{where} is no alignment of this clip: {what}; get it again, or leave all TextGrids out.")
