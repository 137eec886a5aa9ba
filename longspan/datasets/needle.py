"""Needle: one sentence about a number lies somewhere in a long text; the row ends by asking for the number.

    ... Adela thought of the map. The number of Tessa is 4827. Nobody in Dunmere ... The number of Tessa is ?

Our definition. Tokens are bytes. The sentence stands at a relative depth from 0 (the start) to 1 (just before the
question), moved back to the start of a word; `distractors` are sentences of other names with other numbers at random
places. All digits but the last are also inputs, each before the next is asked for, so that all are right exactly when
decoding them one by one is. The text is prose of a small grammar (`standins/novels.py`), which can be made at any
length.
"""

from dataclasses import dataclass

import numpy as np

from longspan.core.errors import UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import DatasetMeta, check_counts
from longspan.datasets.placed_answers import Kind, PlacedAnswers
from longspan.datasets.standins.novels import make_novel

NAMES = (
    "Tessa",
    "Ulric",
    "Verity",
    "Wilmot",
    "Xanthe",
    "Yorick",
    "Zelda",
    "Oswin",
    "Petra",
    "Quentin",
    "Rowan",
    "Sable",
)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
LIBRARY = 1 << 20  # bytes of prose, from which every row takes its own passage


@dataclass(frozen=True)
class Data:
    """Settings. Rows for training and validation have one of the lengths `trained`, at any depth."""

    train: int = 20_000
    valid: int = 500
    test: int = 3_500
    trained: tuple[int, ...] = (256, 512, 1_024, 2_048, 4_096)
    tested: tuple[int, ...] = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
    depths: tuple[float, ...] = DEPTHS
    digits: int = 4
    distractors: int = 0
    seed: int = 0

    def __post_init__(self):
        check_counts(self)
        if not (self.trained and self.tested and self.depths) or not all(0 <= depth <= 1 for depth in self.depths):
            raise UsageError(
                f"needle needs lengths for training and test, and depths from 0 to 1, got trained={self.trained}, "
                f"tested={self.tested}, depths={self.depths}."
            )
        if not 1 <= self.digits <= 9 or not 0 <= self.distractors < len(NAMES):
            raise UsageError(
                f"needle has 1 to 9 digits and at most {len(NAMES) - 1} distractors, got digits={self.digits} and "
                f"distractors={self.distractors}."
            )
        least = (self.distractors + 2) * (len("The number of Quentin is . ") + self.digits) + 8
        if (shortest := min((*self.trained, *self.tested))) < least:
            raise UsageError(f"Rows with {self.distractors} distractors need {least} bytes or more, got {shortest}.")

    @property
    def longest(self) -> int:
        return max((*self.trained, *self.tested))


PRESETS = {
    "needle": {
        ("longspan", "smoke"): Data(
            train=5_000, valid=100, test=300, trained=(96,), tested=(96, 128), depths=(0.0, 0.5, 1.0), digits=1
        ),
        ("longspan", "lite"): Data(trained=(256, 512, 1_024), tested=(256, 512, 1_024, 2_048)),
        ("longspan", "full"): Data(),
    }
}


class Needle(PlacedAnswers):
    meta = DatasetMeta(
        title="Needle in a haystack",
        source="generated here",
        paper="none",
        size="24,000 rows, about 100 MB as arrays",
        vocabulary=128,
        classes=0,
        generated=True,
    )

    def key(self, data: Data) -> str:
        return f"length{max(data.trained)}-digits{data.digits}-n{data.train}-{data.valid}-{data.test}-seed{data.seed}"

    def kinds(self, data: Data, split: str) -> list[Kind]:
        if split != "test":
            return [Kind(f"{length}", 1, (length, None)) for length in data.trained]
        return [Kind(f"{length}_{d:g}", 1, (length, d)) for length in data.tested for d in data.depths]

    def draw(self, data: Data, kind: Kind, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        (length, depth), prose = kind.settings, _library(data.seed)
        rows = [make_row(data, length, rng.random() if depth is None else depth, prose, rng) for _ in range(count)]
        text = np.frombuffer(b"".join(rows), np.uint8).reshape(count, length + 1)
        answers = np.zeros((count, length), np.uint8)
        answers[:, length - data.digits :] = text[:, length + 1 - data.digits :]
        return text[:, :-1], answers

    def text(self, data: Data, tokens: np.ndarray, answers: np.ndarray) -> str:
        return f"{bytes(tokens).decode()}?{bytes(answers[answers > 0]).decode()}"


def make_row(data: Data, length: int, depth: float, prose: bytes, rng: np.random.Generator) -> bytes:
    """A row of `length` bytes, followed by the last digit."""
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[: data.distractors + 1]]
    numbers = ["".join(str(digit) for digit in rng.integers(0, 10, data.digits)) for _ in names]
    sentences = [f"The number of {name} is {number}. ".encode() for name, number in zip(names, numbers, strict=True)]
    question = f"The number of {names[0]} is {numbers[0]}".encode()
    room = length + 1 - len(question) - sum(map(len, sentences))
    start = int(rng.integers(0, len(prose) - room))
    hay = prose[start : start + room - 1] + b" "
    depths = [depth, *rng.random(data.distractors)]
    places = [hay.rfind(b" ", 0, round(d * len(hay))) + 1 for d in depths]
    for place, sentence in sorted(zip(places, sentences, strict=True), reverse=True):
        hay = hay[:place] + sentence + hay[place:]
    return hay + question


_LIBRARIES: dict[int, bytes] = {}


def _library(seed: int) -> bytes:
    """Prose without line ends, made once per seed."""
    if seed not in _LIBRARIES:
        rng = np.random.default_rng(derive(seed, "needle", "prose"))
        books = [make_novel(rng, LIBRARY // 32) for _ in range(32)]
        _LIBRARIES[seed] = b" ".join(b" ".join(books).split())
    return _LIBRARIES[seed]
