"""The numbers behind a Pathfinder image: one set per side length, three contour lengths for the difficulties.

Sides of 12 and 14 pixels with `short` contours are our own, for the smoke tier; all else is LRA's.
"""

from dataclasses import dataclass

CONTOUR_LENGTH = {"short": 3, "easy": 6, "intermediate": 9, "hard": 14}
FOLDER = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}


@dataclass(frozen=True)
class Rules:
    """How snakes of one side length look; lengths in pixels of the finished image."""

    size: int
    padding: int  # border in which nothing may grow
    seed_distance: int  # between the first paddles of the two target snakes
    marker_radius: float
    paddle_length: int
    paddle_thickness: float
    margins: tuple[int, ...]  # gap between paddles, one drawn per image
    continuity: float  # the larger, the straighter
    snake_contrast: float  # of a distractor; a target has snake_contrast * paddle_contrast
    paddle_contrast: float
    distractor_paddles: int  # over all distractors of an image
    antialias: int = 2
    paddle_retrials: int = 2
    distractor_retrials: int = 4
    first_border: int | None = None  # in which the very first paddle does not lie; twice the seed distance if None


SHORT = {
    size: Rules(size, 1, distance, 1.5, 2, 0.5, (1,), 1.8, 2.0, 0.75, distractor_paddles=0, first_border=2)
    for size, distance in ((12, 5), (14, 9))
}
RULES = {
    rules.size: rules
    for rules in (
        Rules(32, 1, 7, 1.5, 2, 0.5, (1,), 1.0, 2.0, 0.75, 20),
        Rules(64, 1, 12, 2.5, 5, 1.0, (1,), 1.8, 0.8, 1.0, 22),
        Rules(128, 1, 20, 3.0, 5, 1.5, (2, 3), 1.8, 0.9, 1.0, 35),
        Rules(256, 22, 27, 5.0, 5, 2.0, (3,), 1.8, 1.0, 1.0, 30),
    )
}


def rules_of(size: int) -> Rules:
    return (SHORT | RULES)[size]


@dataclass(frozen=True)
class Counts:
    """How many paddles a snake has and how many distractors there are."""

    contour: int
    distractor: int
    distractors: int


def counts(rules: Rules, difficulty: str) -> Counts:
    contour = CONTOUR_LENGTH[difficulty]
    return Counts(contour, contour // 3, rules.distractor_paddles // (contour // 3))


def counts_on_the_way(rules: Rules, difficulty: str, contour: int) -> Counts:
    """For contours with fewer paddles than the difficulty has: the shorter, the fewer distractors, and none at three.

    Distractors have two to four paddles: a third of the contour, as in LRA, but never a single paddle.
    """
    shortest, length = CONTOUR_LENGTH["short"], max(2, contour // 3)
    share = (contour - shortest) / (CONTOUR_LENGTH[difficulty] - shortest)
    return Counts(contour, length, int(share * rules.distractor_paddles / length))
