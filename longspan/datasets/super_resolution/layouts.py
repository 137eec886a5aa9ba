"""Which picture files are for training and which for the test, in the folders that a user has.

FFHQ and CelebA-HQ      two folders in this order, or one with both; `<number>.png` or .jpg, in subfolders or not.
                        All of FFHQ is for training; CelebA-HQ 00000 .. 00099 are the test, and each must be there.
`faces`, `photos`       known substitutes, by the digest of their MANIFEST.tsv. Photos name their split in it; of the
                        faces, sorted by name, every sixth is for the test. Both together, photos first, are
                            `faces+photos`.
any other folder        sorted by name, every tenth picture is for the test
"""

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longspan.core.download import digests
from longspan.core.errors import CorruptFile, DataMissing
from longspan.datasets.generation.arrays import hash_file

FFHQ, CELEBA_HQ, TESTED = 70_000, 30_000, 100
ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
SUBSTITUTES = {  # the digest of MANIFEST.tsv
    "8a7faa03c6690ffe2a5c8f2cd2c6d63b46069af5748ef2b12e86bc67170c5025": "faces",
    "3ddbfe9c512150c7261861e8e04888eb3a564fad4a2b52ff1d1673007d96ab75": "photos",
}
TRAIN_FOLDERS = ("ffhq*", "images1024x1024", "thumbnails128x128")
TEST_FOLDERS = ("celeba*",)
EVERY_FACE, EVERY_PICTURE = 6, 10  # of this many, the last is for the test


@dataclass(frozen=True)
class Found:
    """The files of both splits in order, the variant they make, and the published digest of each where there is one."""

    variant: str
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    md5: dict[Path, frozenset[str]] = field(default_factory=dict)


def find(sources: Sequence[Path]) -> Found:
    for source in sources:
        if not source.is_dir():
            raise DataMissing(f"{source} is no folder; unpack the pictures and name the folder they are in.")
    known = [_substitute(source) for source in sources]
    if all(known):
        return _joined([one for one in known if one is not None])
    if any(known):
        raise DataMissing("Only known substitutes can be joined; import other folders by themselves.")
    if len(sources) == 2:
        return _ffhq_and_celeba(*sources)
    if len(sources) > 2:
        raise DataMissing(f"FFHQ and CelebA-HQ are two folders, got {len(sources)}; name those two.")
    (source,) = sources
    train, test = (_child(source, names) for names in (TRAIN_FOLDERS, TEST_FOLDERS))
    if train and test:
        return _ffhq_and_celeba(train, test)
    if train or test:
        there, lacks = ("FFHQ", "CelebA-HQ") if train else ("CelebA-HQ", "FFHQ")
        raise DataMissing(f"{source} has {there} but no folder of {lacks}; put it beside, or name both folders.")
    return Found("imported", *_every(EVERY_PICTURE, _pictures(source)))


def _substitute(source: Path) -> Found | None:
    manifest = source / "MANIFEST.tsv"
    name = SUBSTITUTES.get(hash_file(manifest)) if manifest.is_file() else None
    if name is None:
        return None
    with manifest.open(encoding="utf-8", newline="") as handle:
        rows = sorted(csv.DictReader(handle, delimiter="\t"), key=lambda row: row["file"])
    if name == "faces":
        return Found(name, *_every(EVERY_FACE, [source / row["file"] for row in rows]))
    for row in rows:
        file = source / "img128" / row["file"]
        if not file.is_file() or hash_file(file) != row["sha256"]:
            raise CorruptFile(f"{file} is not the file that {manifest} lists; get the pictures again.")
    parts = {
        part: tuple(source / "img128" / row["file"] for row in rows if row["split"] == part)
        for part in ("train", "test")
    }
    return Found(name, parts["train"], parts["test"])


def _joined(found: Sequence[Found]) -> Found:
    found = sorted(found, key=lambda one: one.variant, reverse=True)  # the first, whose samples are kept, has no faces
    names = sorted(one.variant for one in found)
    if len(set(names)) < len(names):
        raise DataMissing(f"The pictures of {names[0]} were named twice; name each folder once.")
    train, test = (tuple(file for one in found for file in getattr(one, part)) for part in ("train", "test"))
    return Found("+".join(names), train, test)


def _ffhq_and_celeba(train: Path, test: Path) -> Found:
    faces, tested = _by_number(train), _by_number(test)
    for number in range(TESTED):
        if number not in tested:
            raise DataMissing(
                f"{test} has no picture {number:05d}; the test is CelebA-HQ 00000 .. {TESTED - 1:05d}, and each of "
                "them must be there."
            )
    complete = sorted(faces) == list(range(FFHQ)) and sorted(tested) == list(range(CELEBA_HQ))
    files = tuple(faces[number] for number in sorted(faces))
    published = _published(train)
    md5 = {faces[number]: published[number] for number in faces if number in published}
    variant = "official" if complete else "imported"
    return Found(variant, files, tuple(tested[number] for number in range(TESTED)), md5)


def check_digest(file: Path, found: Found) -> None:
    """Refuse a picture of FFHQ that is not the published one, where the list of digests lies beside it."""
    if (expected := found.md5.get(file)) and digests(file)["md5"] not in expected:
        raise CorruptFile(f"{file} has another md5 than ffhq-dataset-v2.json lists; get it again.")


def _published(folder: Path) -> dict[int, frozenset[str]]:
    """By number, the md5 of the picture and of its thumbnail."""
    path = next(
        (at / "ffhq-dataset-v2.json" for at in (folder, folder.parent) if (at / "ffhq-dataset-v2.json").is_file()), None
    )
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            int(number): frozenset(entry[kind]["file_md5"] for kind in ("image", "thumbnail"))
            for number, entry in content.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"{path} is not the list of FFHQ ({error!r:.80}); get it again or remove it.") from error


def _by_number(folder: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for file in _pictures(folder):
        if not re.fullmatch(r"\d{1,6}", file.stem):
            raise CorruptFile(f"{file} should be named by its number, as in 00042{file.suffix}; rename or remove it.")
        if (number := int(file.stem)) in found:
            raise CorruptFile(f"{found[number]} and {file} have the same number; remove one of them.")
        found[number] = file
    return found


def _pictures(folder: Path) -> list[Path]:
    """All picture files below a folder, by name."""
    found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not found:
        raise DataMissing(f"{folder} has no pictures ({', '.join(ENDINGS)}); name the folder they are in.")
    return found


def _child(folder: Path, patterns: Sequence[str]) -> Path | None:
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_dir()), None)


def _every(count: int, files: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    if len(files) < count:
        raise DataMissing(f"{files[0].parent} has {len(files)} pictures, too few for a training and a test part.")
    test = tuple(files[count - 1 :: count])
    return tuple(file for i, file in enumerate(files) if i % count != count - 1), test
