"""A corpus that exists in the world: converted once and whole; settings only choose among its examples.

`<root>/<name>/whole/` holds the arrays of all examples and a manifest. `load(data)` gives a view of them: which rows
are held out, how many are taken, after how many bytes a text ends. Nothing is copied for that.

Where the real thing is absent `load` is an error that says how to get it, with one exception: settings with
`standin=True` (the smoke tier alone has them) take made-up examples from `make_shard` instead, marked as such in the
manifest, on the card and on the board.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import (
    MANIFEST_SCHEMA,
    SPLITS,
    Dataset,
    Sample,
    Split,
    Splits,
    Status,
    data_root,
    open_arrays,
    open_splits,
    problems,
)

BETWEEN = 0  # the byte between the two texts of a made-up pair


class Corpus(Dataset):
    """Settings have `train`, `valid` and `test` (None is all there are), `seed` and `standin`."""

    made = "standin"
    sizes: ClassVar[dict[str, int]]  # how many examples each split has when all are taken

    @abstractmethod
    def obtain(self, downloads: Path, *, progress: bool = True) -> Any:
        """Download what `convert` reads into the folder `downloads`, verified; returns where it lies.

        An archive too large to keep may instead be returned as what the server says of it, for `convert` to stream.
        """

    @abstractmethod
    def convert(self, source: Any, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read the files at the path `source`, in whatever layout, or what `obtain` gave; write all arrays to `folder`.

        Returns the manifest entries of the arrays, as `write_array` gives them, and facts for the manifest: `variant`
        ("official" where a published digest agreed, else "imported"), `counts` by split, what else is worth telling.
        """

    @abstractmethod
    def view(self, arrays: Mapping[str, np.ndarray], data: Any) -> dict[str, Split]:
        """The train, valid and test split that the settings ask for."""

    def standin_view(self, made: Split, data: Any) -> Split:
        """Made-up rows as examples of this corpus."""
        return made

    def shown(self, example: Any) -> str | np.ndarray:
        """One example as a person sees it."""
        return example.tobytes().decode(errors="replace")

    # What everyone may ask of it

    def samples(self, data: Any = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """A few training examples drawn at random; made-up ones where the settings allow it and there are no others."""
        data = self._settings(data)
        if self.invents(data):
            shards = [self.make_shard(data, index) for index in range(-(-count // self.shard_size(data)))]
            tokens, lengths, labels = (
                np.concatenate([getattr(shard, part) for shard in shards]) for part in ("tokens", "lengths", "labels")
            )
            edges = np.concatenate([[0], np.cumsum(lengths)])
            split = self.standin_view(Split.of_rows(tokens, edges, labels), data)
        else:
            split = self.load(data, real=True).train
        rng = np.random.Generator(np.random.PCG64(derive(seed, self.name, "samples")))
        rows = rng.choice(len(split), min(count, len(split)), replace=False)
        return [Sample(self.shown(split.example(row)), int(split.labels[row])) for row in rows]

    def prepare(
        self,
        data: Any = None,
        *,
        root: Path | str | None = None,
        workers: int | None = None,
        progress: bool = True,
        source: Path | str | None = None,
    ) -> Splits:
        """Put the real data on disk: from `source` (files the user has), else downloaded. A second call only checks."""
        data = self._settings(data)
        if source is not None:
            return self.import_from(source, data, root=root)
        if not self._has(data, root) or problems(self._whole(root)):
            self._take(self._fetch(data_root(root) / "downloads", data, progress), root)
        return self.load(data, root=root, real=True)

    def import_from(self, path: Path | str, data: Any = None, *, root: Path | str | None = None) -> Splits:
        """Convert the files that lie at `path`; they take the place of what was imported before."""
        data = self._settings(data)
        if not Path(path).exists():
            raise DataMissing(
                f"{path} was named as the place of {self.meta.title}, but there is no such file or folder."
            )
        self._take(Path(path), root)
        return self.load(data, root=root, real=True)

    def load(
        self, data: Any = None, *, root: Path | str | None = None, variant: str | None = None, real: bool = False
    ) -> Splits:
        """A view of the real examples; without them an error, or stand-ins where settings and `real` allow it."""
        data = self._settings(data)
        self._check(variant)
        whole = self._whole(root)
        if variant != "standin" and (whole / "manifest.json").exists():
            arrays, manifest = open_arrays(whole)
            if variant in (None, manifest["variant"]):
                return self._viewed(arrays, manifest, data)
        if variant in (None, "standin") and data.standin and not real:
            made = self._made(data, root)
            splits = {name: self.standin_view(getattr(made, name), data) for name in SPLITS}
            return Splits(**splits, manifest=made.manifest)
        raise self._absent(root)

    def status(self, data: Any = None, *, root: Path | str | None = None) -> Status:
        data = self._settings(data)
        whole = self._whole(root)
        if (whole / "manifest.json").exists():
            try:
                arrays, manifest = open_arrays(whole)
                counts = self._viewed(arrays, manifest, data).counts
            except (CorruptFile, UsageError) as error:
                return Status(self.name, whole, False, problem=str(error))
            size = sum(entry["bytes"] for entry in manifest["arrays"].values())
            return Status(self.name, whole, True, manifest["variant"], counts, size)
        return super().status(data, root=root) if data.standin else Status(self.name, whole, False)

    def counts(self, data: Any) -> dict[str, int]:
        return {split: self.sizes[split] if (n := getattr(data, split)) is None else n for split in SPLITS}

    def invents(self, data: Any, *, root: Path | str | None = None) -> bool:
        """Whether `load` would give made-up examples."""
        return data.standin and not (self._whole(root) / "manifest.json").exists()

    # How it is done

    def _has(self, data: Any, root: Path | str | None) -> bool:
        """Whether the real data lie on disk that the settings ask for."""
        return self._whole(root).exists()

    def _fetch(self, downloads: Path, data: Any, progress: bool) -> Any:
        """What `convert` reads, downloaded as far as the settings ask for it."""
        return self.obtain(downloads, progress=progress)

    def _check(self, variant: str | None) -> None:
        if variant not in (None, "official", "imported", "standin"):
            raise UsageError(f"{self.name} is 'official', 'imported' or 'standin', got variant={variant!r}.")

    def _absent(self, root: Path | str | None) -> DataMissing:
        return DataMissing(
            f"{self.meta.title} was asked for, but {self._whole(root)} is not there; run longspan data prepare "
            f"{self.name} to get it from {self.meta.source} ({self.meta.size}), or longspan data import {self.name} "
            "PATH if you have it."
        )

    def _take(self, source: Any, root: Path | str | None) -> None:
        def fill(folder: Path) -> dict:
            arrays, facts = self.convert(source, folder)
            return {"schema": MANIFEST_SCHEMA, "dataset": self.name, "arrays": arrays} | facts

        self._publish(self._whole(root), fill, replace=True)

    def _whole(self, root: Path | str | None) -> Path:
        return data_root(root) / self.name / "whole"

    def _viewed(self, arrays: Mapping[str, np.ndarray], manifest: dict, data: Any) -> Splits:
        try:
            splits = self.view(arrays, data)
        except KeyError as error:
            raise CorruptFile(f"{self.name} on disk has no array {error}; prepare the dataset again.") from error
        counts = {name: len(split) for name, split in splits.items()}
        return Splits(**splits, manifest=manifest | {"settings": asdict(data), "seed": data.seed, "counts": counts})

    def _made(self, data: Any, root: Path | str | None) -> Splits:
        """Stand-in rows, made at the first call."""
        target = self.folder(data, root)
        if not (target / "manifest.json").exists():
            super().prepare(data, root=root, progress=False)
        return open_splits(target)


def spread(count: int, wanted: int | None) -> np.ndarray:
    """At most `wanted` of `count` places, at equal distances; all of them for None. Someone's copy may have fewer: the
    counts on the card say how many there were."""
    kept = count if wanted is None else min(wanted, count)
    return np.arange(kept) * count // max(kept, 1)


def evenly(labels: np.ndarray, rows: np.ndarray, wanted: int | None) -> np.ndarray:
    """At most `wanted` of the rows in their order, at equal distances within each class, so that classes stay in
    proportion."""
    by_class = np.argsort(labels[rows], kind="stable")
    return rows[np.sort(by_class[spread(len(rows), wanted)])]


def apart(made: Split) -> Split:
    """Made-up rows of two texts with one byte `BETWEEN` them, as pairs."""
    between = np.flatnonzero(np.asarray(made.tokens) == BETWEEN)
    assert len(between) == len(made), "a made-up pair has one zero byte"
    starts, stops = np.stack([made.starts, between + 1], axis=1), np.stack([between, made.stops], axis=1)
    return Split(made.tokens, starts, stops, made.labels)
