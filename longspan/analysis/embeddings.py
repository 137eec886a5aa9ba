"""Which intensities and positions look alike to a model of images? Embedding similarity, figure 4 of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import CorruptFile, DataMissing

INTENSITIES = 256
APART = (1, 16, 64, 128)
COLUMNS = (
    Column("Task"),
    Column("Mechanism"),
    Column("From"),
    Column("Seed", "count"),
    *(Column(f"{apart} apart", "number", f"mean cosine of intensities {apart} apart") for apart in APART),
    Column("Beside", "number", "mean cosine of positions of pixels side by side"),
    Column("Below", "number", "mean cosine of positions of pixels one above the other"),
    Column("All", "number", "mean cosine of positions of any two pixels"),
)


@dataclass(frozen=True)
class Similarity:
    """Cosines of one model; the arrays are None where their file is missing."""

    task: str
    title: str
    rules: str
    seed: int
    side: int
    by_intensity_distance: tuple[float, ...]
    intensity: np.ndarray | None  # [256 256]
    position: np.ndarray | None  # [pixels pixels]


def answer(evidence: Evidence) -> Finding:
    cards = evidence.asked("embeddings")
    if not cards:
        raise DataMissing(
            "No model was asked for its embeddings; ask one with longspan probe embeddings CARD, CARD being that of a "
            "run on image."
        )
    made, rows, notes = [], [], []
    for card in cards:
        subject, found = card["subject"], card["results"]
        who = (subject["task"], name_of(subject), evidence.rules(card), subject["seed"])
        try:
            arrays = evidence.arrays(card)
        except CorruptFile as error:
            arrays = {}
            notes.append(str(error))
        intensity, position = _matrix(arrays, "intensity", INTENSITIES), _matrix(arrays, "position", found["side"] ** 2)
        decay = found["by_intensity_distance"]
        made.append(Similarity(*who, found["side"], tuple(decay), intensity, position))
        places = (found["beside"], found["below"], found["others"])
        rows.append((*who, *(decay[apart] for apart in APART), *places))
        closer = "Below (y)" if found["below"] > found["beside"] else "Beside (x)"
        notes.append(f"{', '.join(map(str, who[:3]))}, seed {who[3]}: neighbours {closer.lower()} are kept closer.")
        if intensity is None or position is None:
            notes.append(f"The arrays of {who[1]} on {who[0]} are not beside their card, so they cannot be drawn.")
    notes.append("The paper finds neighbours in y closer than in x, and intensities more alike the nearer they are.")
    return Finding(
        "embeddings",
        "Embedding similarity",
        "Cosines between the embeddings of intensities, and between learned positions of pixels.",
        COLUMNS,
        tuple(rows),
        tuple(notes),
        tuple(made),
    )


def _matrix(arrays: Mapping[str, np.ndarray], name: str, size: int) -> np.ndarray | None:
    """A square of finite numbers from an untrusted file, or None."""
    found = arrays.get(name)
    if found is None or found.shape != (size, size) or found.dtype.kind != "f":
        return None
    return np.nan_to_num(found.astype(np.float32)).clip(-1, 1)
