"""Time series: a row of values for every hour or quarter of an hour. What the forecasting datasets share.

An example is a window: `past` rows as input and the `horizon` rows that follow as target. Windows start at every row
(stride 1) and are never copied. The rows are split by time into training, validation and test; a window belongs to the
split that contains its future, so that the first windows of a split look back into the one before. Values are
standardised per column with mean and standard deviation of the training rows. The time of a row is given by four
features from -0.5 to 0.5.

On disk: `values.npy` [rows, columns] as read, the target last; `seconds.npy` [rows] since 1970; `borders.npy` [3, 2],
first row and end of each split.
"""

import calendar
import hashlib
import io
import lzma
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from longspan.core.archive import members
from longspan.core.download import fetch
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.lines import lines
from longspan.core.remote import Source
from longspan.core.seeding import derive
from longspan.datasets.base import SPLITS, DatasetMeta, Sample, Splits, by_tier, check_counts
from longspan.datasets.corpus import Corpus
from longspan.datasets.generation.arrays import write_arrays
from longspan.datasets.generation.shards import Shard
from longspan.datasets.standins.waves import make_waves

Borders = tuple[tuple[int, int], ...]  # first row and end of the training, the validation and the test part
TIME_FEATURES = 4  # hour, day of the week, of the month, of the year
CAB_BATCH = 32
LARGEST = 1 << 30  # bytes; a larger table is not one of these
STANDIN_BEGINS = datetime(2016, 7, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Data:
    """Settings: how long a window is, which variables it has, how many windows are taken (None is all).

    The decoder reads the last `prefix` rows of the past once more. `variables="target"` leaves only the target, for
    univariate forecasts. `whole_batches` keeps only the validation and test windows that fill whole batches of that
    size.
    """

    past: int = 336
    prefix: int = 336
    horizon: int = 720
    variables: Literal["all", "target"] = "all"
    whole_batches: int = 1
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    seed: int = 0
    standin: bool = False

    def __post_init__(self):
        check_counts(self)
        for name in ("past", "horizon", "whole_batches"):
            if (number := getattr(self, name)) < 1:
                raise UsageError(f"A forecast needs {name} of at least 1, got {name}={number}; give a positive number.")
        if not 0 <= self.prefix <= self.past:
            raise UsageError(f"The prefix is part of the past, got prefix={self.prefix} and past={self.past}.")
        if self.variables not in ("all", "target"):
            raise UsageError(f"A series has 'all' or its 'target' forecast, got variables={self.variables!r}.")
        if self.standin and None in (self.train, self.valid, self.test):
            raise UsageError("A stand-in has as many windows as asked for; give train, valid and test.")


def forecasts(dataset: str, multivariate: Data, univariate: Data) -> dict[str, dict[tuple[str, str], Data]]:
    """The presets of the two tasks on a series; CAB drops validation and test windows that do not fill a batch."""
    return {
        task: by_tier(
            full={"longspan": data, "cab-2023": replace(data, whole_batches=CAB_BATCH)},
            smoke=Data(48, 24, 24, data.variables, train=400, valid=64, test=64, standin=True),
            other_smoke={
                "cab-2023": Data(48, 24, 24, data.variables, CAB_BATCH, train=400, valid=70, test=70, standin=True)
            },
        )
        for task, data in (
            (f"forecasting_{dataset}", multivariate),
            (f"forecasting_{dataset}_univariate", replace(univariate, variables="target")),
        )
    }


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of one split: number i is rows `starts[i]` to `starts[i] + past + horizon` of the whole series."""

    values: np.ndarray  # float32 [rows variables], standardised
    times: np.ndarray  # float32 [rows TIME_FEATURES]
    starts: np.ndarray  # int64 [count]
    past: int
    horizon: int

    def __len__(self) -> int:
        return len(self.starts)

    def example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The past and the future of one window."""
        split = self.starts[i] + self.past
        return self.values[self.starts[i] : split], self.values[split : split + self.horizon]


class Series(Corpus):
    """Each dataset defines the name and the content of its file; the rest is here."""

    source: ClassVar[Source]  # the table, or a zip archive with it
    files: ClassVar[tuple[str, ...]]  # names of the table, the published one first
    columns: ClassVar[tuple[str, ...] | int]  # besides the date, the target last; a number where names do not matter
    targets: ClassVar[tuple[str, ...]]  # names of the target
    rows: ClassVar[int]
    borders: ClassVar[Borders]
    step: ClassVar[int] = 3_600  # seconds from row to row

    @property
    def width(self) -> int:
        return self.columns if isinstance(self.columns, int) else len(self.columns)

    def obtain(self, downloads: Path, *, progress: bool = True) -> Path:
        return fetch(self.source, downloads, progress=progress)

    def convert(self, source: Path, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read a CSV table, an xz-compressed one, a zip archive with it, or a folder with one of these."""
        content, where = self._content(source)
        names, seconds, values = read_table(content, where)
        values = self._checked(names, seconds, values, where)
        digest = hashlib.sha256(content).hexdigest()
        return _write(folder, values, seconds, np.array(self.borders, np.int64)), {
            "variant": "official" if digest == self.source.sha256 else "imported",
            "counts": {"rows": len(values), "columns": values.shape[1]},
            "source_sha256": digest,
            "complete": values.shape[1] == self.width,
        }

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Any]:
        values, borders = np.asarray(arrays["values"]), np.asarray(arrays["borders"])
        if data.variables == "target":
            values = values[:, -1:]
        elif values.shape[1] != self.width:
            raise UsageError(
                f"{self.meta.title} on disk has {values.shape[1]} of {self.width} variables, enough to forecast the "
                f"target alone; import the whole table to forecast all, or run the univariate task."
            )
        values, times = standardise(values, slice(*borders[0])), time_features(arrays["seconds"])
        return {
            split: Windows(values, times, self._starts(border, split, data), data.past, data.horizon)
            for split, border in zip(SPLITS, borders.tolist(), strict=True)
        }

    def _starts(self, border: Sequence[int], split: str, data: Data) -> np.ndarray:
        """Where the windows of a split start; if only some are wanted, they are evenly spaced."""
        first, end = border
        first = first if split == "train" else first - data.past
        there, wanted = end - first - data.past - data.horizon + 1, getattr(data, split)
        if split != "train":
            there -= there % data.whole_batches
        if first < 0 or there < 1:
            raise UsageError(
                f"The {split} part of {self.meta.title} has no window with past={data.past} and "
                f"horizon={data.horizon}; ask for shorter ones."
            )
        wanted = there if wanted is None else min(wanted, there)
        return first + np.arange(wanted, dtype=np.int64) * there // wanted

    def counts(self, data: Data) -> dict[str, int]:
        borders = self._standin_borders(data) if data.standin else self.borders
        return {split: len(self._starts(border, split, data)) for split, border in zip(SPLITS, borders, strict=True)}

    def key(self, data: Data) -> str:
        counts = "-".join("all" if (n := getattr(data, split)) is None else str(n) for split in SPLITS)
        return f"{data.variables}-{data.past}-{data.horizon}-n{counts}-seed{data.seed}"

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """A few training windows by number: the date at which the future begins, and the target around it, as read."""
        windows, arrays = self._shown(data)
        rng = np.random.Generator(np.random.PCG64(derive(seed, self.name, "samples")))
        chosen = rng.choice(len(windows), min(count, len(windows)), replace=False)
        return [Sample(_in_words(windows, arrays, int(i)), int(i)) for i in chosen]

    def draw_samples(self, data: Data | None, count: int, path: Path | str, seed: int = 0) -> Path:
        """The target in a few windows, past and future, as a PNG file."""
        from matplotlib.figure import Figure

        windows, _ = self._shown(data)
        chosen = [sample.label for sample in self.samples(data, count, seed)]
        figure = Figure(figsize=(8, 1.4 * len(chosen)), layout="constrained")
        for axes, i in zip(np.ravel(figure.subplots(len(chosen), 1, sharex=True)), chosen, strict=True):
            past, future = windows.example(i)
            axes.plot(np.arange(-len(past), 0), past[:, -1], color="black", linewidth=0.8)
            axes.plot(np.arange(len(future)), future[:, -1], color="tab:red", linewidth=0.8)
            axes.set_ylabel(f"window {i}", fontsize=8)
        figure.savefig(path, format="png", dpi=100)
        return Path(path)

    # Stand-ins

    def shard_size(self, data: Data) -> int:
        return 1

    def make_shard(self, data: Data, index: int) -> Shard:
        """A synthetic series, as the bytes of its values."""
        rng = np.random.Generator(np.random.PCG64(derive(data.seed, "series", "standin", index)))
        values = make_waves(rng, self._standin_borders(data)[-1][1], self.width, 86_400 // self.step)
        content = values.astype(np.float64).reshape(-1).view(np.uint8)
        return Shard(content, np.array([content.size]), np.zeros(1, np.uint8))

    def _standin_borders(self, data: Data) -> list[tuple[int, int]]:
        """Splits with exactly the windows that the settings ask for."""
        train = int(data.train or 0) + data.past + data.horizon - 1
        valid = train + int(data.valid or 0) + data.horizon - 1
        return [(0, train), (train, valid), (valid, valid + int(data.test or 0) + data.horizon - 1)]

    def _made(self, data: Data, root: Path | str | None) -> Splits:
        def fill(folder: Path) -> dict:
            values = self.make_shard(data, 0).tokens.view(np.float64).reshape(-1, self.width)
            seconds = int(STANDIN_BEGINS.timestamp()) + self.step * np.arange(len(values), dtype=np.int64)
            arrays = _write(folder, values, seconds, np.array(self._standin_borders(data), np.int64))
            return self._manifest(data, "standin", self.counts(data), {}, arrays)

        return self._made_once(data, root, fill)

    def _shown(self, data: Data | None) -> tuple[Windows, Mapping[str, np.ndarray]]:
        """Training windows and the arrays behind them; nothing is written for stand-ins."""
        data = self._settings(data)
        with tempfile.TemporaryDirectory() as scratch:
            root = scratch if self.invents(data) else None
            windows = self.load(data, root=root).train
            folder = self.folder(data, root) if root else self._whole(root)
            arrays = {name: np.array(array) for name, array in self._open(folder)[0].items()}
        return windows, arrays  # type: ignore[return-value]

    # Tables

    def _content(self, source: Path) -> tuple[bytes, str]:
        """The bytes of the table, decompressed, and where it was found."""
        path = source if source.is_file() else next(self._candidates(source), None)
        if path is None:
            raise DataMissing(
                f"{source} is no copy of {self.meta.title}: it has neither "
                f"{' nor '.join(self.files)}, as they are, packed with xz or in a folder; get it from "
                f"{self.meta.source}."
            )
        where = f"{path}, {self.files[0]}" if path.suffix == ".zip" else str(path)
        try:
            if path.suffix == ".zip":
                (content,) = (member.read(min(member.size, LARGEST + 1)) for member in members(path, self.files[:1]))
            else:
                with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as handle:
                    content = handle.read(LARGEST + 1)
        except (lzma.LZMAError, EOFError) as error:
            raise CorruptFile(f"{path} cannot be unpacked ({error}); get it again.") from error
        if len(content) > LARGEST:
            raise CorruptFile(f"{where} has more than {LARGEST:,} bytes; it is not {self.files[0]}.")
        return content, where

    def _candidates(self, folder: Path) -> Iterator[Path]:
        for name in dict.fromkeys((*self.files, self.source.filename)):
            for pattern in (name, f"{name}.xz", f"*/{name}", f"*/{name}.xz"):
                yield from sorted(folder.glob(pattern))

    def _checked(self, names: list[str], seconds: np.ndarray, values: np.ndarray, where: str) -> np.ndarray:
        """The values with their columns in the published order, the target last."""
        target = next((name for name in self.targets if name in names), None)
        if target is None:
            found = ", ".join(names)[:80]
            raise CorruptFile(f"{where}: expected the target in a column {' or '.join(self.targets)}, found {found}.")
        if isinstance(self.columns, int):
            order = [name for name in names if name != target] + [target]
            if len(order) > self.columns:
                raise CorruptFile(f"{where}: expected at most {self.columns} columns of values, found {len(order)}.")
        else:
            order = list(self.columns)
            if set(order) != set(names):
                absent, unknown = set(order) - set(names), set(names) - set(order)
                raise CorruptFile(
                    f"{where}: expected the columns {', '.join(order)}; missing: {_listed(absent)}, unknown: "
                    f"{_listed(unknown)}."
                )
        if len(values) != self.rows:
            raise CorruptFile(
                f"{where}: expected {self.rows:,} rows of data, found {len(values):,}; get the whole file from "
                f"{self.meta.source}."
            )
        irregular = np.flatnonzero(np.diff(seconds) != self.step)
        if len(irregular):
            raise CorruptFile(
                f"{where}, line {irregular[0] + 3}: expected a date {self.step // 60} minutes after the one before, "
                f"found {_date(seconds[irregular[0] + 1])} after {_date(seconds[irregular[0]])}."
            )
        return np.ascontiguousarray(values[:, [names.index(name) for name in order]])


def series_meta(title: str, source: str, size: str) -> DatasetMeta:
    """What the forecasting datasets have in common."""
    return DatasetMeta(
        title=title, source=source, paper="arXiv:2012.07436", size=size, vocabulary=0, classes=0, generated=False
    )


def months(train: int, valid: int, test: int, *, per_day: int) -> Borders:
    """Borders after whole months of 30 days; the rows after the test split are not used."""
    ends = np.cumsum([0, train, valid, test]) * 30 * per_day
    return tuple(pairwise(ends.tolist()))


def tenths(rows: int) -> Borders:
    """The first 70 % for training, the last 20 % for the test, the rest between them for validation."""
    train, test = rows * 7 // 10, rows * 2 // 10
    return (0, train), (train, rows - test), (rows - test, rows)


def standardise(values: np.ndarray, learned: slice) -> np.ndarray:
    """Subtract the mean and divide by the (population) standard deviation of some rows; a constant column becomes 0."""
    known = values[learned].astype(np.float64)
    deviation = known.std(axis=0)
    return ((values - known.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)


def time_features(seconds: np.ndarray) -> np.ndarray:
    """Hour, day of the week (Monday first), day of the month and of the year, each from -0.5 to 0.5."""
    moment = np.asarray(seconds).astype("datetime64[s]")
    day, month, year = (moment.astype(f"datetime64[{unit}]") for unit in "DMY")
    hour = (moment - day).astype(np.int64) // 3_600
    weekday = (day.astype(np.int64) + 3) % 7  # 1970 began on a Thursday
    columns = (hour / 23, weekday / 6, (day - month).astype(np.int64) / 30, (day - year).astype(np.int64) / 365)
    return np.stack(columns, axis=1).astype(np.float32) - np.float32(0.5)


def read_table(content: bytes, where: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of the columns after `date`, the dates in seconds since 1970 and the values [rows, columns] of a CSV."""
    rows = lines(io.BytesIO(content.removeprefix(b"\xef\xbb\xbf").rstrip()), where)
    header, place = next(rows, (b"", f"{where}, line 1"))
    first, *names = [name.strip() for name in header.decode(errors="replace").split(",")]
    if first != "date" or not names or len(set(names)) != len(names):
        raise CorruptFile(f"{place}: expected a header of date and names of columns, found {header[:80]!r}.")
    seconds, values = [], []
    for line, place in rows:
        date, *cells = line.rstrip(b"\r").split(b",")
        if len(cells) != len(names):
            raise CorruptFile(f"{place}: expected a date and {len(names)} numbers, found {len(cells)} after {date!r}.")
        seconds.append(_seconds(date, place))
        values.append(_numbers(cells, place))
    if not values:
        raise CorruptFile(f"{where}: there are no rows after the header; get the file again.")
    return names, np.array(seconds, np.int64), np.stack(values)


def _numbers(cells: list[bytes], place: str) -> np.ndarray:
    try:
        numbers = np.array(cells, dtype=np.float64)
    except ValueError:
        numbers = np.array([_number(cell) for cell in cells])
    if not np.isfinite(numbers).all():
        wrong = cells[int(np.flatnonzero(~np.isfinite(numbers))[0])]
        raise CorruptFile(f"{place}: expected numbers, found {wrong[:40]!r}.")
    return numbers


def _number(cell: bytes) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


_DAYS = (
    rb"(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})[ T]",
    rb"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}) ",
)
_DATES = [re.compile(day + rb"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?") for day in _DAYS]


def _seconds(date: bytes, place: str) -> int:
    found = next((found for form in _DATES if (found := form.fullmatch(date.strip()))), None)
    try:
        if found is None:
            raise ValueError("neither YYYY-MM-DD hh:mm:ss nor MM/DD/YYYY hh:mm")
        parts = {name: int(text or 0) for name, text in found.groupdict().items()}
        return calendar.timegm(datetime(**parts, tzinfo=UTC).timetuple())
    except ValueError as error:
        raise CorruptFile(f"{place}: expected a date, found {date[:40]!r} ({error}).") from error


def _write(folder: Path, values: np.ndarray, seconds: np.ndarray, borders: np.ndarray) -> dict[str, dict]:
    arrays = {"values": values, "seconds": seconds, "borders": borders}
    return write_arrays(folder, {name: (array.dtype, array.shape, [array]) for name, array in arrays.items()})


def _in_words(windows: Windows, arrays: Mapping[str, np.ndarray], i: int) -> str:
    now = int(windows.starts[i]) + windows.past
    target = arrays["values"][:, -1]
    past, future = (
        " ".join(f"{value:g}" for value in target[part]) for part in (slice(now - 6, now), slice(now, now + 6))
    )
    return f"{_date(arrays['seconds'][now])}: ... {past} | {future} ..."


def _date(seconds: Any) -> str:
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%d %H:%M}"


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
