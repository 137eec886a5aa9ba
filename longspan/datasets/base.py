"""What every dataset has: `prepare`, `load`, `status` and `verify`, and splits in memory-mapped arrays.

A folder per setting contains `{train,valid,test}.{tokens,starts,labels}.npy` and `manifest.json`. It is created by one
rename, so it is complete or absent. NumPy only, no torch.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from longspan.core import litter, mirror
from longspan.core.atomic import folder_beside, storage_errors, write_json
from longspan.core.errors import CorruptFile, DataDamaged, DataMissing, UnknownName, UsageError, did_you_mean
from longspan.core.lock import Busy, only_one
from longspan.datasets.generation.arrays import write_split
from longspan.datasets.generation.manifest import MANIFEST_SCHEMA, advice, read_manifest
from longspan.datasets.generation.ranges import range_faults
from longspan.datasets.generation.shards import Shard, Shards
from longspan.datasets.generation.verified import faults, open_verified

SPLITS = ("train", "valid", "test")
_ARRAYS = ("tokens", "starts", "labels")
LATER = {"later": True}  # metadata of a setting added after the first data was written to disk
D = TypeVar("D")


@dataclass(frozen=True, eq=False)
class Split:
    """Examples of one split: example i is `tokens[starts[i]:stops[i]]`.

    Rows can be left out or shortened, and examples can share a text, without a copy. If an example is a pair of texts,
    `starts` and `stops` have two columns.
    """

    tokens: np.ndarray  # uint8 or wider, flat
    starts: np.ndarray  # int64 [count] or [count 2]
    stops: np.ndarray  # the same shape
    labels: np.ndarray  # uint8 or int64 [count]

    @classmethod
    def of_rows(cls, tokens: np.ndarray, edges: np.ndarray, labels: np.ndarray) -> "Split":
        """Contiguous rows, row i from `edges[i]` to `edges[i + 1]`."""
        return cls(tokens, edges[:-1], edges[1:], labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        return np.asarray(self.stops) - np.asarray(self.starts)

    def example(self, i: int) -> np.ndarray | tuple[np.ndarray, ...]:
        """The bytes of one example, or of both texts of a pair."""
        if np.ndim(self.starts) == 1:
            return self.tokens[self.starts[i] : self.stops[i]]
        return tuple(self.tokens[start:stop] for start, stop in zip(self.starts[i], self.stops[i], strict=True))

    def rows(self, chosen: np.ndarray) -> "Split":
        """Only these examples, in this order."""
        return Split(self.tokens, self.starts[chosen], self.stops[chosen], self.labels[chosen])

    def cut(self, length: int) -> "Split":
        """Every text truncated to `length` tokens."""
        return Split(self.tokens, self.starts, np.minimum(self.stops, self.starts + length), self.labels)


@dataclass(frozen=True, eq=False)
class Splits:
    """The three splits, and the manifest with their origin and hashes."""

    train: Split
    valid: Split
    test: Split
    manifest: dict

    @property
    def variant(self) -> str:
        """`generated`, `official`, `imported`, `standin`, or the name of a known substitute."""
        return self.manifest["variant"]

    @property
    def sha256(self) -> str:
        """Identifies the exact data: a hash of the manifest, which contains the hash of every array."""
        return hashlib.sha256(canonical(self.manifest).encode()).hexdigest()

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in SPLITS}


@dataclass(frozen=True)
class DatasetMeta:
    """What to know before a download: `size` in words, `vocabulary` and `classes` as counts."""

    title: str
    source: str
    paper: str
    size: str
    vocabulary: int
    classes: int
    generated: bool


@dataclass(frozen=True)
class Status:
    """What is on disk for one setting."""

    dataset: str
    folder: Path
    ready: bool
    variant: str | None = None
    counts: dict[str, int] | None = None
    bytes: int = 0
    shards: int = 0  # finished so far by a preparation that is running or was interrupted
    problem: str | None = None  # why the files cannot be used


@dataclass(frozen=True, eq=False)
class Sample:
    """One example for display: text, or an image [height width] of uint8."""

    content: str | np.ndarray
    label: int


class Dataset(ABC):
    """A dataset, named after its file, which also defines its settings: a frozen dataclass called `Data`.

    Settings have `train`, `valid`, `test` (counts) and `seed`. A generated dataset defines the size of a shard and how
    to make one; storage, threads, resuming and duplicates are handled here.
    """

    meta: ClassVar[DatasetMeta]
    Data: ClassVar[type]  # looked up by name in the module of the class
    presets: ClassVar[dict[str, dict[tuple[str, str], Any]]]  # PRESETS in that module: task -> (protocol, tier) -> Data
    generator: ClassVar[int] = 1  # raised when the same settings give different data
    made: ClassVar[Literal["generated", "standin"]] = "generated"  # what `make_shard` makes: real data or stand-ins
    several_paths: ClassVar[bool] = False  # whether `import_from` also takes a list of folders

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        module = sys.modules[cls.__module__]
        if settings := getattr(module, "Data", None):
            cls.Data = settings
        cls.presets = getattr(module, "PRESETS", {})

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @property
    def variants(self) -> tuple[str, ...]:
        """What a manifest of this dataset, and so a card, may say about where the data are from."""
        return ("generated", "imported", "official")

    # What each dataset defines

    @abstractmethod
    def key(self, data: Any) -> str:
        """A setting in a few readable characters, for the folder name."""

    @abstractmethod
    def shard_size(self, data: Any) -> int:
        """How many examples `make_shard` makes."""

    @abstractmethod
    def make_shard(self, data: Any, index: int) -> Shard:
        """The examples of the pool from `index * shard_size` on; depends only on `data` and `index`."""

    def import_from(self, path: Path | str, data: Any = None, *, root: Path | str | None = None) -> Splits:
        """Convert the official files at `path`; from then on `load` prefers them to generated data."""
        raise UsageError(f"{self.name} is generated by its rules and has no files to import; leave out {path}.")

    @abstractmethod
    def samples(self, data: Any = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """A few new examples to look at; nothing is written."""

    def draw_samples(self, data: Any, count: int, path: Path | str, seed: int = 0) -> Path:
        """A contact sheet of `samples` as a PNG file."""
        raise UsageError(f"{self.name} has texts, which cannot be drawn; ask for samples without -o.")

    # What callers use

    def preset(self, protocol: str, tier: str) -> Any:
        """The settings under a protocol and tier: those of the first task that has them.

        For a dataset without presets, its defaults.
        """
        for settings in self.presets.values():
            if (protocol, tier) in settings:
                return settings[protocol, tier]
        if not self.presets:
            return self.Data()
        known = {key for settings in self.presets.values() for key in settings}
        protocols = sorted({one for one, _ in known})
        if protocol not in protocols:
            raise UnknownName(f"{self.name} has no protocol {protocol!r}.{did_you_mean(protocol, protocols)}")
        tiers = sorted(one for of, one in known if of == protocol)
        raise UnknownName(f"{self.name} under {protocol} has no tier {tier!r}.{did_you_mean(tier, tiers)}")

    def prepare(
        self,
        data: Any = None,
        *,
        root: Path | str | None = None,
        workers: int | None = None,
        progress: bool = True,
        source: Path | str | None = None,
    ) -> Splits:
        """Write the data to disk: from `source` (the user's files), else generated. A second call only checks hashes.

        An interrupted call is resumed by the next one. The data does not depend on `workers`.
        """
        data = self._settings(data)
        if source is not None:
            return self.import_from(source, data, root=root)
        if workers is not None and workers < 1:
            raise UsageError(f"Generating takes at least 1 worker, got workers={workers}; None uses all cores.")
        target = self.folder(data, root)
        litter.sweep(target.parent)
        if (target / "manifest.json").exists() and not self._problems(target, data):
            return self._open_splits(target, data)
        work = target.with_name(f"{target.name}.work")
        with storage_errors(target):
            work.mkdir(parents=True, exist_ok=True)
            with only_one(work / "lock", f"{self.name} in {target}"):
                litter.sweep(work)
                mirror.pull_folder(target, "manifest.json")  # written by a machine that held the lock before
                if not (target / "manifest.json").exists() or self._problems(target, data):
                    self._generate(data, target, work, workers, progress)
                    mirror.push_folder(target, "manifest.json")
                shutil.rmtree(work, ignore_errors=True)
        return self._open_splits(target, data)

    def prepare_official(self, data: Any = None, *, root: Path | str | None = None, progress: bool = True) -> Splits:
        """Download the published files where `prepare` would generate them; else the same as `prepare`."""
        return self.prepare(data, root=root, progress=progress)

    def load(
        self, data: Any = None, *, root: Path | str | None = None, variant: str | None = None, real: bool = False
    ) -> Splits:
        """The splits as memory maps: imported ones if there are any, else generated ones (generated now if absent).

        `variant="generated"`, `"imported"` or `"official"` requires that variant. `real` refuses stand-ins and has no
        effect here: data generated by the benchmark's own rules is real.
        """
        data = self._settings(data)
        self._check(variant)
        imported, generated = self.folder(data, root, imported=True), self.folder(data, root)
        litter.sweep(generated.parent)
        for folder in (imported, generated):
            mirror.pull_folder(folder, "manifest.json")
        if variant != "generated" and (imported / "manifest.json").exists():
            splits = self._open_splits(imported, data)
            if variant in (None, splits.variant):
                return splits
        if variant in (None, "generated") and (generated / "manifest.json").exists():
            return self._open_splits(generated, data)
        if variant in (None, "generated") and self.meta.generated:
            return self.prepare(data, root=root)
        raise DataMissing(
            f"{self.name} with {data} is not in {imported}; get it from {self.meta.source} "
            f"({self.meta.size}) and run: longspan data import {self.name} PATH"
        )

    def status(self, data: Any = None, *, root: Path | str | None = None) -> Status:
        """What `load` would find on disk."""
        data = self._settings(data)
        for target in (self.folder(data, root, imported=True), self.folder(data, root)):
            if (target / "manifest.json").exists():
                try:
                    manifest = self._claims(target, data)
                except CorruptFile as error:
                    return Status(self.name, target, False, problem=str(error))
                size = sum(entry["bytes"] for entry in manifest["arrays"].values())
                return Status(self.name, target, True, manifest["variant"], manifest.get("counts"), size)
        target = self.folder(data, root)
        shards = len(list(target.with_name(f"{target.name}.work").glob("*.npz")))
        return Status(self.name, target, False, shards=shards)

    def counts(self, data: Any) -> dict[str, int]:
        """How many examples each split of a setting has."""
        return {split: getattr(data, split) for split in SPLITS}

    def verify(self, data: Any = None, *, root: Path | str | None = None) -> list[str]:
        """Problems with the files that `load` would open, a sentence each; hashes every file."""
        found = self.status(data, root=root)
        if found.problem:
            return [found.problem]
        if not found.ready:
            return [f"{self.name} is not prepared in {found.folder}."]
        return self._problems(found.folder, self._of_setting(found.folder, data))

    def folder(self, data: Any, root: Path | str | None = None, *, imported: bool = False) -> Path:
        """The folder of a setting: `<root>/<dataset>/<readable key>-<hash>`, with `-imported` for imported files."""
        identity = {"dataset": self.name, "generator": self.generator, "settings": settings_of(data)}
        short = hashlib.sha256(canonical(identity).encode()).hexdigest()[:8]
        return data_root(root) / self.name / f"{self.key(data)}-{short}{'-imported' if imported else ''}"

    def range_faults(self, arrays: Mapping[str, np.ndarray], manifest: dict) -> Iterator[str]:
        """Faults that arrays with the right hash can still have: offsets, labels and tokens out of range."""
        words = manifest.get("vocabulary", self.meta.vocabulary)
        words = words.get("entries") if isinstance(words, dict) else words
        yield from range_faults(arrays, classes=self.meta.classes, vocabulary=words if type(words) is int else 0)

    # Internals

    def _open(self, folder: Path, data: Any = None) -> tuple[dict[str, np.ndarray], dict]:
        """All arrays of a folder as verified memory maps, by name without `.npy`, and the manifest.

        The manifest must be for this dataset and, if `data` is given, for these settings.
        """
        manifest = self._claims(folder, data)
        return open_verified(folder, manifest, lambda arrays: self.range_faults(arrays, manifest)), manifest

    def _open_splits(self, folder: Path, data: Any) -> Splits:
        arrays, manifest = self._open(folder, data)
        _remove_shards_of(folder)
        try:
            splits = {name: Split.of_rows(*(arrays[f"{name}.{part}"] for part in _ARRAYS)) for name in SPLITS}
        except KeyError as error:
            raise DataDamaged(f"{folder} has no array {error}; {advice(folder, manifest)}") from error
        return Splits(**splits, manifest=manifest)

    def _problems(self, folder: Path, data: Any = None) -> list[str]:
        """All differences between a folder and its manifest; hashes every file."""
        try:
            manifest = self._claims(folder, data)
        except CorruptFile as error:
            return [str(error)]
        return list(faults(folder, manifest, lambda arrays: self.range_faults(arrays, manifest), always=True))

    def _check(self, variant: str | None) -> None:
        if variant is not None and variant not in self.variants:
            *others, last = map(repr, self.variants)
            raise UsageError(
                f"{self.name} is {', '.join(others)} or {last}, got variant={variant!r}; name one of them."
            )

    def _claims(self, folder: Path, data: Any = None) -> dict:
        """The manifest of a folder, if it is for this dataset and these settings, in a variant that exists."""
        manifest = read_manifest(folder)
        if manifest["variant"] not in self.variants:
            raise DataDamaged(
                f"{folder / 'manifest.json'} names the variant {manifest['variant']!r}, which {self.name} does not "
                f"have; {advice(folder, manifest)}"
            )
        wanted: dict[str, Any] = {"dataset": self.name}
        if data is not None:
            wanted["settings"] = json.loads(canonical(settings_of(data)))
        for name, value in wanted.items():
            if manifest.get(name) != value:
                raise DataDamaged(
                    f"{folder / 'manifest.json'} is of other data ({name} {manifest.get(name)!r:.200}); "
                    f"{advice(folder, manifest)}"
                )
        return manifest

    def _of_setting(self, folder: Path, data: Any) -> Any:
        """The settings that the manifest in a folder must have; None for a folder that serves several settings."""
        return self._settings(data)

    def _official(self, data: Any, root: Path | str | None) -> Splits | None:
        """The published data, if it is on disk and undamaged."""
        target = self.folder(data, root, imported=True)
        if not (target / "manifest.json").exists() or self._problems(target, data):
            return None
        splits = self._open_splits(target, data)
        return splits if splits.variant == "official" else None

    def stored(self, data: Any) -> Any:
        """The settings, reduced to those that affect the data on disk."""
        return data

    def _settings(self, data: Any) -> Any:
        data = self.Data() if data is None else data
        if not isinstance(data, self.Data):
            raise UsageError(f"{self.name} takes settings of type {self.name}.Data, got {data!r}.")
        return self.stored(data)

    def _generate(self, data: Any, target: Path, work: Path, workers: int | None, progress: bool) -> None:
        shards = Shards(work, lambda index: self.make_shard(data, index))
        asked = self.counts(data)
        wanted = sum(asked.values())
        planned = -(-wanted // self.shard_size(data))
        try:
            shards.make_all(planned, workers=workers, progress=progress, title=f"{self.name} {self.key(data)}")
            pool = _choose(shards, wanted, planned, self.name)
        except UsageError:  # these settings are impossible, so the finished shards are useless
            shutil.rmtree(work, ignore_errors=True)
            raise

        kind = shards.read(0).tokens.dtype

        def fill(folder: Path) -> dict:
            arrays, counts, label_counts, start = {}, {}, {}, 0
            for name in SPLITS:
                stop = start + asked[name]
                chosen, tokens = slice(start, stop), pool.tokens(shards, start, stop)
                arrays |= write_split(folder, name, pool.lengths[chosen], pool.labels[chosen], tokens, kind)
                counts[name], label_counts[name] = stop - start, count_labels(pool.labels[start:stop])
                start = stop
            return self._manifest(data, self.made, counts, label_counts, arrays)

        self._publish(target, fill, replace=target.exists())

    def _manifest(self, data: Any, variant: str, counts: dict, label_counts: dict, arrays: dict, **more: Any) -> dict:
        return {
            "schema": MANIFEST_SCHEMA,
            "dataset": self.name,
            "variant": variant,
            "settings": settings_of(data),
            "generator": self.generator if variant == self.made else None,
            "seed": data.seed,
            "counts": counts,
            "label_counts": label_counts,
            "arrays": arrays,
            **more,
        }

    def _publish(self, target: Path, fill: Callable[[Path], dict], *, replace: bool) -> None:
        """`fill` writes to a hidden folder and returns the manifest; the folder is renamed, or removed on error."""
        with folder_beside(target, replace=replace) as hidden:
            write_json(hidden / "manifest.json", fill(hidden))


def _remove_shards_of(finished: Path) -> None:
    """Remove shards that a killed process left beside a finished dataset, unless a process is working on it now."""
    work = finished.with_name(f"{finished.name}.work")
    if work.exists():
        with contextlib.suppress(Busy, OSError), only_one(work / "lock", str(finished), wait=False):
            shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class _Pool:
    """The chosen rows of the shards, in order, with their lengths and labels."""

    shard: np.ndarray
    row: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray

    def tokens(self, shards: Shards, start: int, stop: int):
        """The tokens of pool positions start .. stop - 1, a shard at a time."""
        for index in np.unique(self.shard[start:stop]):
            rows = shards.read(int(index)).rows()
            inside = np.flatnonzero(self.shard[start:stop] == index) + start
            yield np.concatenate([rows[self.row[position]] for position in inside])


def _choose(shards: Shards, wanted: int, planned: int, name: str) -> _Pool:
    """The first `wanted` distinct examples; more shards are made to replace duplicates."""
    seen: set[bytes] = set()
    shard_of, row_of, lengths, labels = [], [], [], []
    index = 0
    while len(seen) < wanted:
        if index >= 20 * planned + 20:
            raise UsageError(
                f"{name} was asked for {wanted} different examples, but {index} shards gave only {len(seen)}; "
                "ask for fewer, or for settings that allow more."
            )
        shard = shards.read(index)
        for row, tokens in enumerate(shard.rows()):
            digest = hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
            if digest not in seen and len(seen) < wanted:
                seen.add(digest)
                shard_of.append(index)
                row_of.append(row)
                lengths.append(shard.lengths[row])
                labels.append(shard.labels[row])
        index += 1
    return _Pool(np.array(shard_of), np.array(row_of), np.array(lengths, np.int64), np.array(labels, np.uint8))


def data_root(root: Path | str | None = None) -> Path:
    """The folder of all data: the argument, else $LONGSPAN_DATA, else out/data in the current folder."""
    return mirror.local(root or os.environ.get("LONGSPAN_DATA") or Path("out") / "data")


def count_labels(labels: np.ndarray) -> dict[str, int]:
    values, counts = np.unique(labels, return_counts=True)
    return {str(value): int(count) for value, count in zip(values, counts, strict=True)}


def by_tier(
    full: Mapping[str, D], *, smoke: D, lite: D | None = None, other_smoke: Mapping[str, D] | None = None
) -> dict[tuple[str, str], D]:
    """The settings of one task by protocol and tier.

    `smoke` is for the protocol `longspan`, `other_smoke` for the others. The lite tier reads the full data, except in
    `longspan` if `lite` is given.
    """
    settings = {("longspan", "smoke"): smoke}
    settings |= {(protocol, "smoke"): data for protocol, data in (other_smoke or {}).items()}
    for protocol, data in full.items():
        settings[protocol, "lite"] = lite if lite is not None and protocol == "longspan" else data
        settings[protocol, "full"] = data
    return settings


def check_counts(data: Any) -> None:
    """Refuse settings with an empty split; None, if the dataset allows it, means all examples."""
    for name in SPLITS:
        if (count := getattr(data, name)) is not None and count < 1:
            raise UsageError(f"Every split needs at least 1 example, got {name}={count}; give a positive count.")


def settings_of(data: Any) -> dict[str, Any]:
    """The settings by name, as stored in manifests and hashed.

    A setting added after the first data was written to disk is marked by `metadata=LATER`, and left out at its default,
    so that unchanged data keeps its hash.
    """
    later = {field.name: field.default for field in fields(data) if field.metadata == LATER}
    return {name: value for name, value in asdict(data).items() if name not in later or value != later[name]}


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
