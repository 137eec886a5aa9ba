"""Pathfinder: do two discs lie on one dashed curve? Gray images of 32 to 256 pixels a side (Long Range Arena).

Label 1 means that one curve joins the discs, 0 that each disc ends a curve of its own. Side 32 is LRA's Pathfinder, 128
is Path-X; `hard` (14 paddles per curve) is what LRA reports. An example is the image row by row, one byte per pixel.
Drawn by the rules in `drawing/`, or imported from the PNG folders of the release. Departs from the release in: the
split is seeded, since the official one follows a record order that the PNG folders do not tell.
"""

import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, cast, get_args

import numpy as np

from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import SPLITS, Dataset, DatasetMeta, Sample, Splits, check_counts, count_labels
from longspan.datasets.drawing.rules import FOLDER, RULES, counts
from longspan.datasets.generation.arrays import write_array, write_split
from longspan.datasets.generation.shards import Shard

VOCAB = 256
CLASSES = 2
Difficulty = Literal["easy", "intermediate", "hard"]


@dataclass(frozen=True)
class Data:
    """Settings; the defaults are those of the Long Range Arena."""

    size: int = 32
    difficulty: Difficulty = "hard"
    train: int = 160_000
    valid: int = 20_000
    test: int = 20_000
    seed: int = 0

    def __post_init__(self):
        check_counts(self)
        if self.size not in RULES:
            raise UsageError(f"Pathfinder images have a side of {_list(RULES)} pixels, got size={self.size}; pick one.")
        if self.difficulty not in get_args(Difficulty):
            raise UsageError(
                f"Pathfinder is {_list(get_args(Difficulty))}, got difficulty={self.difficulty!r}; pick one."
            )


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

    def key(self, data: Data) -> str:
        return f"size{data.size}-{data.difficulty}-n{data.train}-{data.valid}-{data.test}-seed{data.seed}"

    def shard_size(self, data: Data) -> int:
        return {32: 1_000, 64: 500, 128: 100, 256: 50}[data.size]

    def make_shard(self, data: Data, index: int) -> Shard:
        seed = derive(data.seed, "pathfinder", data.size, data.difficulty, index)
        images, labels = generate(data, self.shard_size(data), seed)
        return Shard(images.reshape(-1), np.full(len(images), data.size**2, np.int64), labels)

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        data = cast(Data, self._settings(data))
        images, labels = generate(data, count, derive(seed, "pathfinder", "samples"))
        return [Sample(image, int(label)) for image, label in zip(images, labels, strict=True)]

    def draw_samples(self, data: Data | None, count: int, path: Path | str, seed: int = 0) -> Path:
        """Images side by side, each with its answer below it, as a PNG file."""
        return contact_sheet(self.samples(data, count, seed), Path(path))

    def import_from(self, path: Path | str, data: Data | None = None, *, root: Path | str | None = None) -> Splits:
        """Read `imgs/<batch>/sample_<i>.png` and `metadata/<batch>.npy` of one difficulty.

        `path` is that folder, or one that holds `pathfinder32/curv_contour_length_14/` (as the settings say). Empty PNG
        files are left out and counted in the manifest. `index.npy` beside the arrays holds, for every example in order,
        the number of its metadata line, so that the seeded 80/10/10 split can be followed.
        """
        data = cast(Data, self._settings(data))
        folder = _official_folder(Path(path), data)
        listed = list(_read_metadata(folder))
        asked = sum(getattr(data, split) for split in SPLITS)
        if len(listed) != asked:
            raise UsageError(
                f"The settings ask for {asked} images, the metadata in {folder} list {len(listed)}; "
                "import them with settings whose train + valid + test is that number."
            )
        files = [folder / name for name, _ in listed]
        labels = np.array([label for _, label in listed], np.uint8)
        kept = np.flatnonzero([_holds_something(file) for file in files])
        parts = split_indices(len(kept), data.seed)
        if min(len(part) for part in parts.values()) == 0:
            raise UsageError(f"{folder} holds only {len(kept)} readable images; 80/10/10 splits need at least 10.")

        def fill(temporary: Path) -> dict:
            arrays, label_counts, sizes = {}, {}, {}
            for split, part in parts.items():
                chosen = kept[part]
                pixels = (_read_png(files[i], data.size).reshape(-1) for i in chosen)
                lengths = np.full(len(chosen), data.size**2, np.int64)
                arrays |= write_split(temporary, split, lengths, labels[chosen], pixels)
                label_counts[split], sizes[split] = count_labels(labels[chosen]), len(chosen)
            order = np.concatenate([kept[part] for part in parts.values()])
            index = write_array(temporary / "index.npy", np.int64, order.shape, [order])
            skipped = len(files) - len(kept)
            return self._manifest(data, "imported", sizes, label_counts, arrays, index=index, skipped_empty=skipped)

        self._publish(self.folder(data, root, imported=True), fill, replace=True)
        return self.load(data, root=root, variant="imported")


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits, drawn at the first call: `pathfinder.load(pathfinder.Data(size=32))`."""
    return Pathfinder().load(data, root=root)


def generate(data: Data, count: int, seed: int, *, markers: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """`count` images [count size size] and labels from one random stream; markers can be left out for comparisons."""
    from longspan.datasets.drawing.growth import draw_image
    from longspan.datasets.drawing.stamps import stamps

    rules, amounts = RULES[data.size], counts(RULES[data.size], data.difficulty)
    plan = (rules.size, rules.padding, rules.seed_distance, amounts.contour, amounts.distractor, amounts.distractors)
    plan = (*plan, rules.paddle_retrials, rules.distractor_retrials)
    contrasts = (rules.snake_contrast * rules.paddle_contrast, rules.snake_contrast)
    rng = np.random.Generator(np.random.PCG64(seed))
    images, labels = np.zeros((count, data.size, data.size), np.uint8), np.zeros(count, np.uint8)
    for i in range(count):
        labels[i] = int(rng.random() * 2)
        margin = rules.margins[int(rng.random() * len(rules.margins))]
        draw_image(rng, stamps(data.size, margin), plan, contrasts, int(labels[i]), markers, images[i])
    return images, labels


def split_indices(count: int, seed: int) -> dict[str, np.ndarray]:
    """Our own 80/10/10 split of `count` examples: a seeded shuffle, then each part in ascending order."""
    order = np.random.Generator(np.random.PCG64(derive(seed, "pathfinder", "split"))).permutation(count)
    tenth = count // 10
    parts = {"train": order[: count - 2 * tenth], "valid": order[count - 2 * tenth : count - tenth]}
    return {split: np.sort(part) for split, part in (parts | {"test": order[count - tenth :]}).items()}


def contact_sheet(samples: list[Sample], path: Path, columns: int = 4) -> Path:
    """Enlarged images in rows, the answer in words below each."""
    from PIL import Image, ImageDraw

    from longspan.core.atomic import write_bytes

    side = np.asarray(samples[0].content).shape[0]
    scale = max(1, 256 // side)
    cell, caption, gap = side * scale, 18, 10
    columns = min(columns, len(samples))
    rows = -(-len(samples) // columns)
    sheet = Image.new("L", (gap + columns * (cell + gap), gap + rows * (cell + caption + gap)), 235)
    pen = ImageDraw.Draw(sheet)
    for i, sample in enumerate(samples):
        x, y = gap + (i % columns) * (cell + gap), gap + (i // columns) * (cell + caption + gap)
        image = Image.fromarray(np.asarray(sample.content)).resize((cell, cell), Image.Resampling.NEAREST)
        sheet.paste(image, (x, y))
        pen.text((x, y + cell + 4), ("0: not connected", "1: connected")[sample.label], fill=0)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_bytes(path, content.getvalue())
    return path


def _official_folder(path: Path, data: Data) -> Path:
    inside = Path(f"pathfinder{data.size}") / FOLDER[data.difficulty]
    nested = [path / FOLDER[data.difficulty], path / inside, path / "lra_release" / inside]
    for folder in [path, *nested, path / "lra_release" / "lra_release" / inside]:
        if (folder / "metadata").is_dir() and (folder / "imgs").is_dir():
            return folder
    raise DataMissing(
        f"{path} was named as the place of Pathfinder, but neither it nor {inside} in it has imgs/ and metadata/; "
        f"unpack them from {Pathfinder.meta.source} and name their folder."
    )


def _read_metadata(folder: Path) -> Iterator[tuple[PurePosixPath, int]]:
    """Image path (relative, inside the folder) and label of every metadata line, batches in numeric order."""
    files = sorted((folder / "metadata").glob("*.npy"), key=lambda file: (len(file.stem), file.stem))
    for file in files:
        for number, fields in enumerate(_metadata_lines(file), start=1):
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise CorruptFile(
                    f"{file}, line {number}: expected folder, file, number and label 0 or 1, found {fields}."
                )
            name = PurePosixPath(fields[0]) / fields[1]
            if name.is_absolute() or ".." in name.parts or "\\" in str(name) or name.suffix != ".png":
                raise CorruptFile(f"{file}, line {number}: {str(name)!r} is not a PNG file inside {folder}; refused.")
            yield name, int(fields[3])


def _metadata_lines(file: Path) -> Iterator[list[str]]:
    """The fields of every line, whether the file is plain text (the release) or a NumPy array (the generator)."""
    with file.open("rb") as handle:
        real_array = handle.read(6) == b"\x93NUMPY"
    if not real_array:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CorruptFile(f"{file} is neither a NumPy array nor UTF-8 text; get it again.") from error
        yield from (line.split(" ") for line in text.splitlines() if line)
        return
    try:
        array = np.load(file, allow_pickle=False)
    except ValueError as error:
        raise CorruptFile(
            f"{file} cannot be read as a plain array ({error}); arrays of Python objects are refused, since loading "
            "them runs code: save it as text or as an array of strings."
        ) from error
    if array.ndim != 2:
        raise CorruptFile(f"{file} should hold a table, found an array of shape {array.shape}.")
    for row in array:
        yield [field.decode() if isinstance(field, bytes) else str(field) for field in row.tolist()]


def _holds_something(file: Path) -> bool:
    """False for the empty files of the release; a file that is not there at all is an error."""
    try:
        return file.stat().st_size > 0
    except FileNotFoundError as error:
        raise CorruptFile(f"{file} is listed in the metadata but is not there; unpack the archive again.") from error


def _read_png(file: Path, size: int) -> np.ndarray:
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(file, formats=["PNG"]) as image:
            warnings.simplefilter("error")  # Pillow only warns of images that unpack to a suspicious size
            if image.size != (size, size) or image.mode != "L":
                found = f"{image.size[0]} x {image.size[1]}, mode {image.mode}"
                raise CorruptFile(
                    f"{file} should be a gray image of {size} x {size}, found {found}; check the settings."
                )
            return np.array(image)
    except (OSError, SyntaxError, Warning) as error:
        raise CorruptFile(f"{file} is not a readable PNG image ({error}); unpack the archive again.") from error


def _list(names) -> str:
    return ", ".join(str(name) for name in names)
