"""A corpus that is downloaded, not generated: converted once, as a whole; settings only select from its examples.

`<root>/<name>/whole/` contains the arrays of all examples and a manifest. `load(data)` gives a view of them without a
copy: which rows are held out, how many are taken, where texts are truncated.

If the data is absent, `load` raises an error that says how to get it, with one exception: settings with `standin=True`
(only the smoke tier has them) use synthetic examples from `make_shard`, marked as stand-ins in the manifest, on the
card and on the board.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from longspan.core import litter
from longspan.core.errors import CorruptFile, DataDamaged, DataMissing, UsageError
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
    settings_of,
)
from longspan.datasets.generation.verified import map_arrays

BETWEEN = 0  # the byte between the two texts of a synthetic pair


class Corpus(Dataset):
    """Settings have `train`, `valid` and `test` (None means all), `seed` and `standin`."""

    made = "standin"
    sizes: ClassVar[dict[str, int]]  # how many examples each split has when all are taken
    substitutes: ClassVar[tuple[str, ...]] = ()  # variants that stand in for the corpus under a name of their own

    @property
    def variants(self) -> tuple[str, ...]:
        return ("official", "imported", *self.substitutes, "standin")

    @abstractmethod
    def obtain(self, downloads: Path, *, progress: bool = True) -> Any:
        """Download and verify what `convert` reads, into the folder `downloads`; returns its path.

        For an archive too large to store, a `Remote` is returned instead, which `convert` streams.
        """

    @abstractmethod
    def convert(self, source: Any, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read the files at the path `source`, in any known layout, or what `obtain` returned; write all arrays.

        Returns the manifest entries of the arrays, as `write_array` returns them, and further entries for the manifest:
        `variant` ("official" if a published digest matches, else "imported"), `counts` by split, and others.
        """

    @abstractmethod
    def view(self, arrays: Mapping[str, np.ndarray], data: Any) -> dict[str, Split]:
        """The train, valid and test split that the settings ask for."""

    def read_as(self, splits: dict[str, Split], data: Any) -> dict[str, Split]:
        """All splits in the tokens that the settings ask for, where there is a choice."""
        return splits

    def standin_view(self, made: Split, data: Any) -> Split:
        """Synthetic rows as examples of this corpus."""
        return made

    def shown(self, example: Any) -> str | np.ndarray:
        """One example for display."""
        return example.tobytes().decode(errors="replace")

    # What callers use

    def samples(self, data: Any = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """A few random training examples; synthetic ones if there are no real ones and the settings allow it."""
        data = self._settings(data)
        if self.invents(data):
            shards = [self.make_shard(data, index) for index in range(-(-count // self.shard_size(data)))]
            tokens, lengths, labels = (
                np.concatenate([getattr(shard, part) for shard in shards]) for part in ("tokens", "lengths", "labels")
            )
            edges = np.concatenate([[0], np.cumsum(lengths)])
            split = self.read_as({"train": self.standin_view(Split.of_rows(tokens, edges, labels), data)}, data)[
                "train"
            ]
        else:
            split = self.load(data, real=True).train
        rows = self._drawn(len(split), count, seed)
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
        """Write the real data to disk: from `source` (the user's files), else downloaded. A second call only checks."""
        data = self._settings(data)
        if source is not None:
            return self.import_from(source, data, root=root)
        litter.sweep(self._whole(root).parent)
        litter.sweep(data_root(root) / "downloads")
        if not self._has(data, root) or self._problems(self._whole(root)):
            self._take(self._fetch(data_root(root) / "downloads", data, progress), root)
        return self.load(data, root=root, real=True)

    def import_from(self, path: Path | str, data: Any = None, *, root: Path | str | None = None) -> Splits:
        """Convert the files at `path`; they replace what was imported before."""
        data = self._settings(data)
        if not Path(path).exists():
            raise DataMissing(f"There is no file or folder {path} to import {self.meta.title} from; check the path.")
        self._take(Path(path), root)
        return self.load(data, root=root, real=True)

    def load(
        self, data: Any = None, *, root: Path | str | None = None, variant: str | None = None, real: bool = False
    ) -> Splits:
        """A view of the real examples; if absent an error, or stand-ins if the settings and `real` allow them."""
        data = self._settings(data)
        self._check(variant)
        whole = self._whole(root)
        litter.sweep(whole.parent)
        there = variant != "standin" and (whole / "manifest.json").exists()
        if there and variant in (None, self._claims(whole)["variant"]):
            return self._viewed(*self._open(whole), data)
        if variant in (None, "standin") and data.standin and not real:
            made = self._made(data, root)
            splits = self.read_as({name: self.standin_view(getattr(made, name), data) for name in SPLITS}, data)
            return Splits(**splits, manifest=made.manifest)
        raise self._absent(root)

    def status(self, data: Any = None, *, root: Path | str | None = None) -> Status:
        data = self._settings(data)
        whole = self._whole(root)
        if (whole / "manifest.json").exists():
            try:
                manifest = self._claims(whole)
                counts = self._viewed(map_arrays(whole, manifest), manifest, data).counts
            except (CorruptFile, UsageError) as error:
                return Status(self.name, whole, False, problem=str(error))
            size = sum(entry["bytes"] for entry in manifest["arrays"].values())
            return Status(self.name, whole, True, manifest["variant"], counts, size)
        return super().status(data, root=root) if data.standin else Status(self.name, whole, False)

    def counts(self, data: Any) -> dict[str, int]:
        return {split: self.sizes[split] if (n := getattr(data, split)) is None else n for split in SPLITS}

    def invents(self, data: Any, *, root: Path | str | None = None) -> bool:
        """Whether `load` would return stand-ins."""
        return data.standin and not (self._whole(root) / "manifest.json").exists()

    # Internals

    def _has(self, data: Any, root: Path | str | None) -> bool:
        """Whether the real data for these settings is on disk."""
        return self._whole(root).exists()

    def _fetch(self, downloads: Path, data: Any, progress: bool) -> Any:
        """Download what `convert` reads, as far as these settings need it."""
        return self.obtain(downloads, progress=progress)

    def _made_once(self, data: Any, root: Path | str | None, fill: Callable[[Path], dict]) -> Splits:
        """A stand-in, which `fill` writes if it is not on disk yet."""
        target = self.folder(data, root)
        if not (target / "manifest.json").exists():
            self._publish(target, fill, replace=False)
        return self._viewed(*self._open(target, data), data)

    def _drawn(self, rows: int, count: int, seed: int) -> list[int]:
        """The indices of a few of `rows` rows, for display."""
        rng = np.random.Generator(np.random.PCG64(derive(seed, self.name, "samples")))
        return rng.choice(rows, min(count, rows), replace=False).tolist()

    def _absent(self, root: Path | str | None) -> DataMissing:
        return DataMissing(
            f"{self.meta.title} is not in {self._whole(root)}; run longspan data prepare "
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
            splits = self.read_as(self.view(arrays, data), data)
        except KeyError as error:
            raise DataDamaged(f"{self.name} on disk has no array {error}; prepare the dataset again.") from error
        except (IndexError, ValueError) as error:  # only `status` gets here, which does not verify what it opens
            if isinstance(error, UsageError):
                raise
            raise DataDamaged(f"The arrays of {self.name} do not fit one another ({error}); verify them.") from error
        counts = {name: len(split) for name, split in splits.items()}
        return Splits(
            **splits, manifest=manifest | {"settings": settings_of(data), "seed": data.seed, "counts": counts}
        )

    def _made(self, data: Any, root: Path | str | None) -> Splits:
        """Stand-in rows, made at the first call."""
        target = self.folder(data, root)
        if not (target / "manifest.json").exists():
            super().prepare(data, root=root, progress=False)
        return self._open_splits(target, data)

    def _of_setting(self, folder: Path, data: Any) -> Any:
        return None if folder.name == "whole" else self._settings(data)


def spread(count: int, wanted: int | None) -> np.ndarray:
    """At most `wanted` of `count` indices, evenly spaced; all of them for None.

    An imported copy may have fewer: the counts on the card say how many there were.
    """
    kept = count if wanted is None else min(wanted, count)
    return np.arange(kept) * count // max(kept, 1)


def evenly(labels: np.ndarray, rows: np.ndarray, wanted: int | None) -> np.ndarray:
    """At most `wanted` of the rows in order, evenly spaced within each class, which keeps the class proportions."""
    by_class = np.argsort(labels[rows], kind="stable")
    return rows[np.sort(by_class[spread(len(rows), wanted)])]


def apart(made: Split) -> Split:
    """Synthetic rows of two texts, separated by one byte `BETWEEN`, as pairs."""
    between = np.flatnonzero(np.asarray(made.tokens) == BETWEEN)
    assert len(between) == len(made), "a made-up pair has one zero byte"
    starts, stops = np.stack([made.starts, between + 1], axis=1), np.stack([between, made.stops], axis=1)
    return Split(made.tokens, starts, stops, made.labels)
