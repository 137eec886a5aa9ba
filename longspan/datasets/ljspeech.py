"""LJSpeech: 13,100 sentences read aloud by one speaker, 24 hours, for text to speech (keithito.com, public domain).

An example is a clip: its phones and its log mel. FastSpeech 2 reads `phones="aligned"`: phones without word boundaries,
each with its duration, pitch and energy. Durations are those of the TextGrids that CAB uses (`durations="mfa"`: clips
are cut to the speech, silences inside are tokens), else those of our own aligners (`"hmm"`, Gaussians, or `"ctc"`, a
network that learns from them: nothing is cut, and commas and the like are tokens `sp`). Transformer-TTS reads
`phones="text"`: phones of the whole text with `|` between words and marks. Clips with fewer than two voiced frames are
left out where pitch is needed.

Features as in fairseq and CAB: 80 log mels of 22,050 Hz every 256 samples; the network normalises them with the mean
and the standard deviation of all clips. Split by book, or by `clips.tsv`, or by a hash of the text (8 % each are held
out). Departs from CAB in: phonemes by dictionary alone (`phonemes` in the manifest), mels kept in 16 bits.

A known substitute is `allison`: 545 telephone prompts read by Allison Smith, 23 minutes, resampled from 16,000 Hz.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from longspan.core import litter
from longspan.core.atomic import storage_errors
from longspan.core.download import fetch
from longspan.core.errors import DataMissing, UsageError
from longspan.core.lock import only_one
from longspan.core.remote import Source
from longspan.core.seeding import derive
from longspan.datasets.base import SPLITS, DatasetMeta, Sample, Splits, Status, by_tier, check_counts, data_root
from longspan.datasets.corpus import Corpus
from longspan.datasets.generation.arrays import hash_file
from longspan.datasets.generation.ranges import range_faults
from longspan.datasets.generation.shards import Bar, Shard
from longspan.datasets.speech import aligner, store
from longspan.datasets.speech.assembly import assemble
from longspan.datasets.speech.extraction import extract_all
from longspan.datasets.speech.layout import TEXTGRIDS, Copy, clips_in, read_textgrids
from longspan.datasets.speech.phonemes import Phonemes
from longspan.datasets.speech.store import Phones, Utterance
from longspan.datasets.speech.view import Speech, split_up
from longspan.datasets.standins.syllables import LEXICON, MadeUp, make_clip

ARCHIVE = Source(
    "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2",
    "LJSpeech-1.1.tar.bz2",
    size=2_748_572_632,
    sha256="be1a30453f28eb8dd26af4101ae40cbf2c50413b1bb21936cbcdc6fae3de8aa5",
    dataset="ljspeech",
    licence="public domain",
)
ALIGNMENTS = Source("https://dl.fbaipublicfiles.com/fairseq/s2/ljspeech_mfa.zip", TEXTGRIDS, dataset="ljspeech")
ALLISON = {
    "metadata.csv": "a45c119172c729890f59bc8c8682e396322fd844a2de17d5c0b6eb3894962bfa",
    "clips.tsv": "89bcc5bdda049a39e2a1ea5eaeafd6f881b9768a34ec64fdc52e163eda046c14",
}


# Frames. No clip of LJSpeech has more (10.1 s), but some of a substitute do: two prompts of 20 s would be two fifths of
# the test split of `allison`, and the few in its training split are not enough to learn clips of that length.
LONGEST = 880


@dataclass(frozen=True)
class Data:
    """Settings: which phones, where their durations come from (`auto`: TextGrids if any), and how many clips.

    Clips of more than `longest` frames are left out.
    """

    phones: Literal["aligned", "text"] = "aligned"
    durations: Literal["auto", "mfa", "hmm", "ctc"] = "auto"
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    longest: int | None = None
    seed: int = 0
    standin: bool = False

    def __post_init__(self):
        check_counts(self)
        for name in ("phones", "durations"):
            if (found := getattr(self, name)) not in (known := get_args(Data.__annotations__[name])):
                raise UsageError(f"The setting {name} is {' or '.join(map(repr, known))}, got {found!r}; pick one.")
        if self.longest is not None and self.longest < 1:
            raise UsageError(f"The setting longest is a number of frames, at least 1, got {self.longest}.")
        if self.standin and None in (self.train, self.valid, self.test):
            raise UsageError("A stand-in has as many clips as asked for; give train, valid and test.")


def _presets(phones: Literal["aligned", "text"], published: Literal["auto", "mfa"]) -> dict[tuple[str, str], Data]:
    smoke = Data(phones, train=64, valid=8, test=8, longest=LONGEST, standin=True)
    return by_tier(
        full={"longspan": Data(phones, longest=LONGEST), "cab-2023": Data(phones, published)},
        smoke=smoke,
        other_smoke={"cab-2023": smoke},  # with any durations: a smoke test is not compared with the paper
    )


PRESETS = {"tts_fastspeech2": _presets("aligned", "mfa"), "tts_transformer": _presets("text", "auto")}


@dataclass(frozen=True)
class _Files:
    """What `convert` reads: the user's files, what to make of them, and where unfinished work is kept."""

    path: Path
    data: Data
    work: Path
    workers: int | None = None
    progress: bool = True


class LJSpeech(Corpus):
    meta = DatasetMeta(
        title="LJSpeech",
        source="https://keithito.com/LJ-Speech-Dataset",
        paper="https://keithito.com/LJ-Speech-Dataset",
        size="13,100 clips of 24 hours, an archive of 2.7 GB, about 2.5 GB as arrays",
        vocabulary=0,
        classes=0,
        generated=False,
    )
    sizes = {"train": 12_229, "valid": 348, "test": 523}
    substitutes = ("allison",)

    def key(self, data: Data) -> str:
        counts = "-".join(str(count) for count in self.counts(data).values())
        return f"{data.phones}-{data.durations}-n{counts}-seed{data.seed}"

    # Real data

    def obtain(self, downloads: Path, *, progress: bool = True) -> Path:
        return fetch(ARCHIVE, downloads / self.name, progress=progress)

    def prepare(
        self,
        data: Any = None,
        *,
        root: Path | str | None = None,
        workers: int | None = None,
        progress: bool = True,
        source: Path | str | None = None,
    ) -> Splits:
        data = self._settings(data)
        if source is not None:
            return self.import_from(source, data, root=root)
        if not self._has(data, root) or self._problems(self._whole(root)):
            archive = self._fetch(data_root(root) / "downloads", data, progress)
            with self._at_work(root) as work:
                self._take(_Files(archive, data, work, workers, progress), root)
        return self.load(data, root=root, real=True)

    def import_from(self, path: Path | str, data: Any = None, *, root: Path | str | None = None) -> Splits:
        """Convert the files at `path`; they replace what was imported before. An interrupted import is resumed."""
        data = self._settings(data)
        if not Path(path).exists():
            raise DataMissing(f"There is no file or folder {path} to import {self.meta.title} from; check the path.")
        with self._at_work(root) as work:
            self._take(_Files(Path(path), data, work), root)
        return self.load(data, root=root, real=True)

    def convert(self, source: _Files, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read a folder in the layout of LJSpeech, or an archive of one; see `speech.layout`."""
        data, copy = source.data, Copy(source.path, voice=source.data.phones == "aligned")
        if data.phones == "aligned" and data.durations in ("auto", "mfa"):
            copy.textgrids = read_textgrids(source.path)
        if data.phones == "aligned" and data.durations == "mfa" and not copy.textgrids:
            raise DataMissing(
                f"{source.path} has no TextGrids, neither {TEXTGRIDS} nor a folder TextGrid, but durations=mfa needs "
                f"them; put {ALIGNMENTS.url} beside it, or use the protocol longspan, which aligns the clips itself."
            )
        with Bar(f"{self.name} features", clips_in(source.path), show=source.progress) as advance:
            features = extract_all(copy.clips(), source.work, workers=source.workers, advance=advance)
        with Bar(f"{self.name} alignment", aligner.EPOCHS + 1, show=source.progress) as advance:
            made = assemble(copy, features, durations=self._method(copy, data), advance=advance)
        made.check(source.path)
        arrays = store.write(folder, made.utterances, made.lexicon, aligned=data.phones == "aligned")
        return arrays, made.facts | {
            "variant": self._variant(source.path, copy),
            "counts": made.counts,
            "complete": made.counts == self.sizes,
        }

    def _method(self, copy: Copy, data: Data) -> str | None:
        """Where the durations come from; None if there are none."""
        if data.phones == "text":
            return None
        return ("mfa" if copy.textgrids else "hmm") if data.durations == "auto" else data.durations

    def _variant(self, path: Path, copy: Copy) -> str:
        """`official` and `allison` are recognised by their digests; clips of the latter have theirs in clips.tsv."""
        if path.is_file() and path.stat().st_size == ARCHIVE.size and hash_file(path) == ARCHIVE.sha256:
            return "official"
        found = {name: hashlib.sha256(copy.tables[name]).hexdigest() for name in ALLISON if name in copy.tables}
        return "allison" if found == ALLISON else "imported"

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Any]:
        return split_up(arrays, data.phones, {split: getattr(data, split) for split in SPLITS}, longest=data.longest)

    def _viewed(self, arrays: Mapping[str, np.ndarray], manifest: dict, data: Data) -> Splits:
        if wrong := _lacks(manifest, data):
            raise DataMissing(f"{self.meta.title} on disk {wrong}; run longspan data import {self.name} PATH again.")
        return super()._viewed(arrays, manifest, data)

    def range_faults(self, arrays: Mapping[str, np.ndarray], manifest: dict) -> Iterator[str]:
        try:
            yield from range_faults(arrays, classes=0, vocabulary=0)
            yield from store.faults(arrays)
        except (KeyError, IndexError) as error:
            yield f"arrays are missing or empty ({error})"

    def status(self, data: Any = None, *, root: Path | str | None = None) -> Status:
        data = self._settings(data)
        try:
            found = super().status(data, root=root)
        except DataMissing as error:
            return Status(self.name, self._whole(root), False, problem=str(error))
        return found if found.ready else replace(found, shards=len(list(self._work(root).glob("*.npz"))))

    def _has(self, data: Data, root: Path | str | None) -> bool:
        return (self._whole(root) / "manifest.json").exists() and not _lacks(self._claims(self._whole(root)), data)

    def _fetch(self, downloads: Path, data: Data, progress: bool) -> Path:
        if data.phones == "aligned" and data.durations in ("auto", "mfa"):
            fetch(ALIGNMENTS, downloads / self.name, progress=progress)
        return self.obtain(downloads, progress=progress)

    def _work(self, root: Path | str | None) -> Path:
        whole = self._whole(root)
        return whole.with_name(f"{whole.name}.work")

    @contextmanager
    def _at_work(self, root: Path | str | None) -> Iterator[Path]:
        """The folder of finished clips, for one process at a time; removed when the corpus is complete."""
        work = self._work(root)
        litter.sweep(work.parent)
        with storage_errors(work):
            work.mkdir(parents=True, exist_ok=True)
        with only_one(work / "lock", f"{self.name} in {work}"):
            litter.sweep(work)
            yield work
            shutil.rmtree(work, ignore_errors=True)

    # Stand-ins

    def shard_size(self, data: Data) -> int:
        return 1

    def make_shard(self, data: Data, index: int) -> Shard:
        """The text of a synthetic clip."""
        return Shard.of_texts([self._invented(data, index).text.encode()])

    def _invented(self, data: Data, index: int) -> MadeUp:
        return make_clip(np.random.Generator(np.random.PCG64(derive(data.seed, self.name, "standin", index))))

    def _made(self, data: Data, root: Path | str | None) -> Splits:
        def fill(folder: Path) -> dict:
            counts, speaker = self.counts(data), Phonemes(LEXICON)
            splits = [split for split in SPLITS for _ in range(counts[split])]
            made = [self._invented(data, index) for index in range(len(splits))]
            utterances = [
                Utterance(
                    id=f"made-up-{index:04d}",
                    text=one.text,
                    split=split,
                    spoken=speaker.spoken(one.text),
                    frames=len(one.mel),
                    mel=partial(np.asarray, one.mel),
                    aligned=Phones(one.phones, one.durations, one.pitch, one.energy),
                )
                for index, (one, split) in enumerate(zip(made, splits, strict=True))
            ]
            arrays = store.write(folder, utterances, LEXICON, aligned=True)
            return self._manifest(data, "standin", counts, {}, arrays, phonemes="made up", durations="made up")

        return self._made_once(data, root, fill)

    # What people see

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """A few training clips by number: what is said, how long it is, and its phones with their frames."""
        speech = self._shown(data)
        return [Sample(_in_words(speech, i), i) for i in self._drawn(len(speech), count, seed)]

    def draw_samples(self, data: Data | None, count: int, path: Path | str, seed: int = 0) -> Path:
        """The log mels of a few clips with the edges of their phones, as a PNG file."""
        from matplotlib.figure import Figure

        speech = self._shown(data)
        chosen = self._drawn(len(speech), count, seed)
        figure = Figure(figsize=(10, 2.2 * len(chosen)), layout="constrained")
        for axes, i in zip(np.ravel(figure.subplots(len(chosen), 1, squeeze=False)), chosen, strict=True):
            _draw(axes, speech, i)
        figure.savefig(path, format="png", dpi=100)
        return Path(path)

    def _shown(self, data: Data | None) -> Speech:
        """The training clips; nothing is written for stand-ins."""
        data = self._settings(data)
        with tempfile.TemporaryDirectory() as scratch:
            speech: Any = self.load(data, root=scratch if self.invents(data) else None).train
            return replace(speech, mel=np.array(speech.mel))  # the file is gone afterwards


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `ljspeech.load(ljspeech.Data(phones="text"))`."""
    return LJSpeech().load(data, root=root)


def _lacks(manifest: dict, data: Data) -> str:
    """What the settings ask for and the corpus on disk lacks, in words."""
    there = manifest.get("durations")
    if data.phones == "text" or manifest["variant"] == "standin" or there == data.durations:
        return ""
    if there is None:
        return "was prepared with phones=text and has no durations"
    return "" if data.durations == "auto" else f"has durations={there}, and durations={data.durations} was asked for"


def _in_words(speech: Speech, i: int) -> str:
    names, (tokens, mel) = speech.names(i), speech.example(i)
    if speech.durations is not None:
        first = int(speech.token_edges[i])
        durations = speech.durations[first : first + len(tokens)].tolist()
        names = [f"{name}:{frames}" for name, frames in zip(names, durations, strict=True)]
    seconds = len(mel) * speech.hop / speech.rate
    return f"{speech.ids[i]}, {seconds:.2f} s, {len(mel)} frames: {speech.texts[i]}\n    {' '.join(names)}"


def _draw(axes: Any, speech: Speech, i: int) -> None:
    tokens, mel = speech.example(i)
    axes.imshow(np.asarray(mel, np.float32).T, origin="lower", aspect="auto", interpolation="nearest")
    axes.set_title(f"{speech.ids[i]}: {speech.texts[i]}"[:110], fontsize=8, loc="left")
    axes.tick_params(labelsize=6)
    if speech.durations is not None:
        first = int(speech.token_edges[i])
        edges = np.cumsum(speech.durations[first : first + len(tokens)])
        axes.vlines(edges[:-2] - 0.5, 0, mel.shape[1] - 1, color="white", linewidth=0.5)
        for name, right, frames in zip(speech.names(i), edges, speech.durations[first:], strict=False):
            axes.text(right - frames / 2, 72, name, color="white", fontsize=5, ha="center") if frames else None
