"""Pathfinder: do two discs lie on one dashed curve? Gray images of 32 to 256 pixels a side (Long Range Arena).

Label 1 means that one curve joins the discs, 0 that each disc ends a curve of its own. Side 32 is LRA's Pathfinder, 128
is Path-X; `hard` (14 paddles per curve) is what LRA reports. Sides 12 and 14 with `short` curves (3 paddles) and no
others in the image are our own: a small network learns them in seconds, partly from where the discs lie. An example is
the image row by row, one byte per pixel. Drawn by the rules in `drawing/`, or the release's own images. Departs from
the release in: the split is a published list of numbers in `splits/`, since the official one follows a record order
that the PNG files do not record.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from longspan.core.archive import is_archive, members, stream
from longspan.core.atomic import storage_errors
from longspan.core.download import need_room
from longspan.core.errors import DataMissing, UsageError
from longspan.core.remote import ask
from longspan.core.seeding import derive
from longspan.datasets import lra_release
from longspan.datasets.base import (
    LATER,
    SPLITS,
    Dataset,
    DatasetMeta,
    Sample,
    Split,
    Splits,
    by_tier,
    check_counts,
    count_labels,
    settings_of,
)
from longspan.datasets.drawing.rules import (
    CONTOUR_LENGTH,
    FOLDER,
    RULES,
    SHORT,
    counts,
    counts_on_the_way,
    rules_of,
)
from longspan.datasets.drawing.sheet import contact_sheet
from longspan.datasets.generation.arrays import write_array, write_split
from longspan.datasets.generation.shards import Shard
from longspan.datasets.lra_release.images import Arrays, Folder, Images, Pile, wanted_images
from longspan.datasets.splits import published

VOCAB = 256
CLASSES = 2
PUBLISHED = 200_000  # images of one side length and difficulty in the release
Difficulty = Literal["short", "easy", "intermediate", "hard"]
Rule = Literal["longspan", "seed42"]


@dataclass(frozen=True)
class Data:
    """Settings; the defaults are those of the Long Range Arena.

    `split` says how the release's images are divided: by our list, or as S4 and its successors do (seed 42 of torch).
    All training images are redrawn every `fresh` epochs, and `symmetries` flips and rotates each one at random whenever
    it is used, which keeps its label. With `curriculum` contours grow over that many epochs, from three paddles and no
    distractors to those of the difficulty. Validation and test images stay those on disk.
    """

    size: int = 32
    difficulty: Difficulty = "hard"
    train: int = 160_000
    valid: int = 20_000
    test: int = 20_000
    seed: int = 0
    split: Rule = "longspan"
    fresh: int = field(default=0, metadata=LATER)
    symmetries: bool = field(default=False, metadata=LATER)
    curriculum: int = field(default=0, metadata=LATER)

    def __post_init__(self):
        check_counts(self)
        if self.fresh < 0:
            raise UsageError(f"fresh counts epochs from 1, or is 0 for images that stay, got fresh={self.fresh}.")
        if self.curriculum < 0:
            raise UsageError(f"curriculum counts epochs from 1, or is 0 for none, got curriculum={self.curriculum}.")
        if self.curriculum and (not self.fresh or self.difficulty == "short"):
            raise UsageError(
                f"A curriculum draws new images with longer and longer contours, got curriculum={self.curriculum} with "
                f"fresh={self.fresh} and difficulty={self.difficulty!r}; set fresh=1 and a difficulty from easy on."
            )
        if self.size not in (sides := (*SHORT, *RULES)):
            raise UsageError(f"Pathfinder images have a side of {_list(sides)} pixels, got size={self.size}; pick one.")
        if self.difficulty not in get_args(Difficulty):
            raise UsageError(
                f"Pathfinder is {_list(get_args(Difficulty))}, got difficulty={self.difficulty!r}; pick one."
            )
        if (self.size in SHORT) != (self.difficulty == "short"):
            raise UsageError(
                f"Only the images of {_list(tuple(SHORT))} pixels a side have short contours, and no others, got "
                f"size={self.size} and difficulty={self.difficulty!r}; set both or neither."
            )
        if self.split not in get_args(Rule):
            raise UsageError(f"Pathfinder is split by {_list(get_args(Rule))}, got split={self.split!r}; pick one.")

    def contours(self, epoch: int) -> list[int]:
        """The numbers of paddles that the contours of an epoch have, in equal shares.

        >>> Data(fresh=1, curriculum=11).contours(3)
        [6, 3, 6, 4, 6, 5, 6, 6]
        >>> Data(fresh=1, curriculum=11).contours(11)
        [14]
        """
        shortest, last = CONTOUR_LENGTH["short"], CONTOUR_LENGTH[self.difficulty]
        if epoch >= self.curriculum:
            return [last]
        longest = shortest + (last - shortest) * epoch // self.curriculum
        return [length for other in range(shortest, longest + 1) for length in (longest, other)]


_PROTOCOLS = ("longspan", "lra-paper", "lra-released", "strong")
SMOKE = Data(size=12, difficulty="short", train=4_000, valid=500, test=1_000)
SMOKE_PATHX = replace(SMOKE, size=14)
PRESETS = {
    "pathfinder": by_tier(
        full=dict.fromkeys(_PROTOCOLS, Data(size=32, difficulty="hard"))
        | {"longspan": Data(size=32, difficulty="hard", fresh=1, symmetries=True)},
        smoke=SMOKE,
        other_smoke={"strong": SMOKE},
    ),
    "pathx": by_tier(
        full=dict.fromkeys(_PROTOCOLS, Data(size=128, difficulty="hard")),
        smoke=SMOKE_PATHX,
        other_smoke={"strong": SMOKE_PATHX},
    ),
}
PRESETS["pathfinder_cls"] = {key: data for key, data in PRESETS["pathfinder"].items() if key[0] == "longspan"}


@dataclass(frozen=True, eq=False)
class Drawn(Split):
    """Training images that are redrawn as the settings say; without a curriculum, the first set is that on disk."""

    data: Data

    def shards(self, number: int) -> list[Callable[[], tuple[np.ndarray, np.ndarray]]]:
        """Calls that draw set number `number` of images, as rows of pixels with their labels; those of one call have
        contours of one length."""
        data, shard = self.data, 1_000
        sizes = [min(shard, len(self) - first) for first in range(0, len(self), shard)]
        contours = data.contours(number * data.fresh)
        return [
            partial(self._draw, derive(data.seed, "fresh", number, i), size, contours[i % len(contours)])
            for i, size in enumerate(sizes)
        ]

    def _draw(self, seed: int, count: int, contour: int) -> tuple[np.ndarray, np.ndarray]:
        seed = derive(seed, "pathfinder", self.data.size, self.data.difficulty)
        images, labels = generate(self.data, count, seed, contour=contour)
        return images.reshape(count, -1), labels


class Pathfinder(Dataset):
    meta = DatasetMeta(
        title="Pathfinder",
        source="https://storage.googleapis.com/long-range-arena/lra_release.gz (pathfinder32/ ...), or generated here",
        paper="arXiv:2011.04006",
        size="200,000 images, 205 MB as arrays at 32 pixels, 3.3 GB at 128",
        vocabulary=VOCAB,
        classes=CLASSES,
        generated=True,
    )

    def load(self, data: Data | None = None, *, variant: str | None = None, **where: Any) -> Splits:
        splits = super().load(data, variant=variant, **where)
        if data is None or not (data.fresh or data.symmetries):
            return splits
        if data.fresh and splits.variant != "generated":
            splits = super().load(data, variant="generated", **where)  # like the fresh ones
        train = Drawn(splits.train.tokens, splits.train.starts, splits.train.stops, splits.train.labels, data)
        return replace(splits, train=train, manifest=splits.manifest | {"settings": settings_of(data)})

    def stored(self, data: Data) -> Data:
        """The data on disk does not depend on how training images are redrawn."""
        return replace(data, fresh=0, symmetries=False, curriculum=0)

    def key(self, data: Data) -> str:
        rule = "" if data.split == "longspan" else f"-{data.split}"
        return f"size{data.size}-{data.difficulty}-n{data.train}-{data.valid}-{data.test}-seed{data.seed}{rule}"

    def shard_size(self, data: Data) -> int:
        return {64: 500, 128: 100, 256: 50}.get(data.size, 1_000)

    def make_shard(self, data: Data, index: int) -> Shard:
        if data.split != "longspan":
            raise UsageError(
                f"The split {data.split} divides the images of the release, and none are here; get them with "
                "longspan data prepare pathfinder --official, or take split=longspan for images drawn here."
            )
        seed = derive(data.seed, "pathfinder", data.size, data.difficulty, index)
        images, labels = generate(data, self.shard_size(data), seed)
        return Shard(images.reshape(-1), np.full(len(images), data.size**2, np.int64), labels)

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        data = cast(Data, self._settings(data))
        images, labels = generate(data, count, derive(seed, "pathfinder", "samples"))
        return [Sample(image, int(label)) for image, label in zip(images, labels, strict=True)]

    def draw_samples(self, data: Data | None, count: int, path: Path | str, seed: int = 0) -> Path:
        """Images side by side, each with its answer below it, as a PNG file."""
        samples = self.samples(data, count, seed)
        words = [("0: not connected", "1: connected")[sample.label] for sample in samples]
        return contact_sheet([np.asarray(sample.content) for sample in samples], words, Path(path))

    def import_from(self, path: Path | str, data: Data | None = None, *, root: Path | str | None = None) -> Splits:
        """Read the images at `path`: a folder, an archive, or a `.npz` file with `x` and `y`.

        A folder holds `imgs/` and `metadata/`, or `pathfinder32/curv_contour_length_14/` (as the settings say) with
        these, or `pathfinder32_hard.npz`; an archive holds what a folder may hold. Empty PNG files are left out and
        counted in the manifest. `index.npy` beside the arrays has, for every example, its line in the metadata.
        """
        data = cast(Data, self._settings(data))
        found = _find(Path(path), data)
        if found.suffix == ".npz":
            arrays = Arrays(found, data.size)
            return self._take(data, root, lambda scratch: arrays, "imported", file=found.name)
        if found.is_dir():
            folder = Folder(found, data.size)
            return self._take(data, root, lambda scratch: folder, "imported")
        listing = lra_release.Listing()

        def read(scratch: Path) -> Images:
            return Pile(listing.through(members(found, _wanted(data))), data.size, scratch)

        return self._take(data, root, read, "imported", file=found.name, members=listing.facts)

    def prepare_official(
        self, data: Data | None = None, *, root: Path | str | None = None, progress: bool = True
    ) -> Splits:
        """Read the images from the published archive while it is downloaded; the archive is not stored.

        It has no table of contents, so that up to 8.2 GB are streamed; a dropped connection is resumed, a killed
        command starts over. To keep the archive, download it by hand and import it.
        """
        data = cast(Data, self._settings(data))
        if (ready := self._official(data, root)) is not None:
            return ready
        if (asked := sum(getattr(data, split) for split in SPLITS)) != PUBLISHED:
            raise UsageError(
                f"The release has {PUBLISHED:,} images of one size and difficulty, the settings ask for {asked:,}; "
                "use those of the full tier (--tier full), or let them be drawn without --official."
            )
        target = self.folder(data, root, imported=True)
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        need_room(target, 2 * PUBLISHED * data.size**2)
        listing, remote = lra_release.Listing(), ask(lra_release.archive(self.name))

        def read(scratch: Path) -> Images:
            found = stream(remote, _wanted(data), progress=progress)
            return Pile(listing.through(found), data.size, scratch, enough=PUBLISHED)

        return self._take(data, root, read, "official", source=remote.facts(), members=listing.facts)

    def _take(
        self, data: Data, root: Path | str | None, read: Callable[[Path], Images], variant: str, **facts: Any
    ) -> Splits:
        """Divide images into splits and write them; `read` may use a scratch folder. Callable facts are called last."""

        def fill(temporary: Path) -> dict:
            images = read(temporary)
            asked = sum(getattr(data, split) for split in SPLITS)
            if len(images.listed) != asked:
                raise UsageError(
                    f"The settings ask for {asked} images, the metadata list {len(images.listed)}; "
                    "import them with settings whose train + valid + test is that number."
                )
            kept, labels = np.flatnonzero(images.holds()), images.labels
            parts = divide(len(kept), data)
            arrays, label_counts, sizes = {}, {}, {}
            for split, part in parts.items():
                chosen = kept[part]
                pixels = (images.pixels(row).reshape(-1) for row in chosen)
                lengths = np.full(len(chosen), data.size**2, np.int64)
                arrays |= write_split(temporary, split, lengths, labels[chosen], pixels)
                label_counts[split], sizes[split] = count_labels(labels[chosen]), len(chosen)
            if images.scratch is not None:
                images.scratch.unlink()
            order = np.concatenate([kept[part] for part in parts.values()])
            index = write_array(temporary / "index.npy", np.int64, order.shape, [order])
            told = {name: fact() if callable(fact) else fact for name, fact in facts.items()}
            told |= {"index": index, "skipped_empty": len(labels) - len(kept)}
            return self._manifest(data, variant, sizes, label_counts, arrays, **told)

        self._publish(self.folder(data, root, imported=True), fill, replace=True)
        return self.load(data, root=root, variant=variant)


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits, drawn at the first call: `pathfinder.load(pathfinder.Data(size=32))`."""
    return Pathfinder().load(data, root=root)


def generate(
    data: Data, count: int, seed: int, *, contour: int | None = None, markers: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """`count` images [count size size] and labels from one random stream.

    Contours may have fewer paddles than the difficulty asks for; markers can be left out for comparisons.
    """
    from longspan.datasets.drawing.growth import draw_images
    from longspan.datasets.drawing.stamps import stamps

    rules = rules_of(data.size)
    if contour is None or contour == CONTOUR_LENGTH[data.difficulty]:
        amounts = counts(rules, data.difficulty)
    else:
        amounts = counts_on_the_way(rules, data.difficulty, contour)
    plan = (rules.size, rules.padding, rules.seed_distance, amounts.contour, amounts.distractor, amounts.distractors)
    plan = (*plan, rules.paddle_retrials, rules.distractor_retrials)
    contrasts = (rules.snake_contrast * rules.paddle_contrast, rules.snake_contrast)
    rng = np.random.Generator(np.random.PCG64(seed))
    images, labels = np.zeros((count, data.size, data.size), np.uint8), np.zeros(count, np.uint8)
    tables = tuple(stamps(data.size, margin) for margin in rules.margins)
    draw_images(rng, tables, plan, contrasts, markers, images, labels)
    return images, labels


def divide(count: int, data: Data) -> dict[str, np.ndarray]:
    """Which of `count` images, in the order of their metadata, belong to which split; ascending numbers."""
    if count < 10:
        raise UsageError(f"There are only {count} readable images; 80/10/10 splits need at least 10.")
    if count == PUBLISHED and (data.split == "seed42" or data.seed == 0):
        held = published(f"pathfinder-{data.split}")
        train = np.setdiff1d(np.arange(count), np.concatenate([held["valid"], held["test"]]), assume_unique=True)
        return {"train": train} | {split: held[split] for split in ("valid", "test")}
    return seed42_indices(count) if data.split == "seed42" else split_indices(count, data.seed)


def split_indices(count: int, seed: int) -> dict[str, np.ndarray]:
    """Our own 80/10/10 split of `count` examples: a seeded shuffle, then each split in ascending order."""
    return _cut(np.random.Generator(np.random.PCG64(derive(seed, "pathfinder", "split"))).permutation(count))


def seed42_indices(count: int) -> dict[str, np.ndarray]:
    """The split of S4 and its successors: torch's permutation at seed 42, cut into train, valid and test."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            f"The split seed42 is published for {PUBLISHED:,} images; for {count:,} torch has to draw it, which is not "
            "installed here: install it, or take split=longspan."
        ) from error
    return _cut(torch.randperm(count, generator=torch.Generator().manual_seed(42)).numpy())


def _cut(order: np.ndarray) -> dict[str, np.ndarray]:
    tenth = len(order) // 10
    parts = np.split(order, [len(order) - 2 * tenth, len(order) - tenth])
    return {split: np.sort(part) for split, part in zip(SPLITS, parts, strict=True)}


def _wanted(data: Data) -> Callable[[str], bool]:
    return wanted_images(data.size, _released_folder(data), FOLDER.values())


def _released_folder(data: Data) -> str:
    if data.difficulty not in FOLDER:
        raise UsageError(
            f"The release has no images of {data.size} pixels a side with {data.difficulty} contours, which are drawn "
            "here for the smoke tier; take the settings of another tier (--tier full)."
        )
    return FOLDER[data.difficulty]


def _find(path: Path, data: Data) -> Path:
    """The folder with `imgs/` and `metadata/`, the archive or the `.npz` file at `path`."""
    inside, sample = f"pathfinder{data.size}/{_released_folder(data)}", f"pathfinder{data.size}_{data.difficulty}.npz"
    if path.suffix == ".npz" or is_archive(path):
        return path
    for place in lra_release.places(inside):
        if (path / place / "metadata").is_dir() and (path / place / "imgs").is_dir():
            return path / place
    for name in (sample, lra_release.ARCHIVE):
        if (path / name).is_file():
            return path / name
    raise DataMissing(
        f"{path} is no copy of Pathfinder: neither it nor {inside} in it has imgs/ and metadata/, and "
        f"it is no archive; unpack {Pathfinder.meta.source} and name the folder, or name the archive itself."
    )


def _list(names) -> str:
    return ", ".join(str(name) for name in names)
