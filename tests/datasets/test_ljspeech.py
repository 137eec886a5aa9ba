"""LJSpeech: every layout gives the same clips, counts match those made by hand, and errors name what is wrong."""

import hashlib
import io
import json
import lzma
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from longspan.core import remote
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.datasets import get, ljspeech
from longspan.datasets.base import SPLITS
from longspan.datasets.ljspeech import Data
from longspan.datasets.speech import aligner, extraction
from longspan.datasets.speech.features import Clip, extract
from longspan.datasets.speech.layout import by_hash
from longspan.datasets.speech.pitch import fit, interpolate, is_voiced, phone_means
from longspan.datasets.speech.store import EOS, gcmvn
from tests.datasets.test_textgrid import textgrid
from tests.loopback import Page, serving

RATE = 22_050
TEXT, ALIGNED = Data("text"), Data("aligned")
BOOKS = {"LJ001-0001": "test", "LJ003-0001": "valid", "LJ004-0001": "train", "LJ050-0002": "train"}
SAID = ["Hello, you.", "See the moon", "Moon; see you!", "The sea: you see?"]


def tone(seconds=0.5, hertz=150.0, rate=RATE):
    """A harmonic tone in place of a voice."""
    time = np.arange(int(seconds * rate)) / rate
    return 0.1 * sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 9))


def sound(wave, rate=RATE, kind="WAV", **how):
    content = io.BytesIO()
    soundfile.write(content, wave, rate, format=kind, **how)
    return content.getvalue()


def files(rows=None):
    rows = rows or list(zip(BOOKS, SAID, strict=True))
    lines = "".join(f"{name}|{text}|{text}\n" for name, text in rows)
    written = {"metadata.csv": lines.encode()}
    for number, (name, _) in enumerate(rows):
        written[f"wavs/{name}.wav"] = sound(tone(0.5 + 0.05 * number))
    return written


def write(place, written, inside=""):
    for name, content in written.items():
        path = place / inside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return place


def tar_of(written, mode="w:bz2"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:
        for name, content in written.items():
            info = tarfile.TarInfo(f"LJSpeech-1.1/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(aligner, "EPOCHS", 3)


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "files", files())


# ---------------------------------------------------------------------------------------------------- counted by hand


def test_a_second_of_sound_has_87_frames():
    found = extract(Clip("x", sound(tone(1.0)), "x", official_rate=True))
    assert found["mel"].shape == (87, 80)
    assert found["pitch"].shape == found["energy"].shape == (87,)
    assert abs(np.median(found["pitch"]) - 150) < 2


def test_gaps_in_the_pitch_are_filled_and_phones_have_the_log_of_their_mean():
    contour = interpolate(np.array([0.0, 100, 0, 200, 0]))
    assert contour.tolist() == [100, 100, 150, 200, 200]
    means = phone_means(contour, np.array([2, 3]))
    np.testing.assert_allclose(means, [4.615121, 5.216746], atol=1e-6)
    assert phone_means(contour, np.array([2, 0, 3]))[1] == 0, "a phone without frames has the mean of nothing"


def test_a_constant_wave_has_the_energy_of_its_window():
    wave = np.full(4_096, 1.0, np.float32)
    energy = extract(Clip("x", sound(wave, subtype="FLOAT"), "x", official_rate=True))["energy"]
    np.testing.assert_allclose(phone_means(energy, np.array([len(energy)])), [6.932448], atol=1e-5)


def test_statistics_are_those_of_the_population():
    mel = np.repeat([[0.0], [2.0], [4.0]], 80, axis=1)
    mean, std = gcmvn([mel[:1], mel[1:]])
    np.testing.assert_allclose(mean, 2)
    np.testing.assert_allclose(std, 1.632993, atol=1e-6)
    assert (gcmvn([np.ones((3, 80))])[1] == np.float32(1e-5)).all(), "a variance of 0 is 1e-10"


def test_two_voiced_frames_are_the_fewest():
    assert not is_voiced(np.array([0.0, 100, 0]))
    assert is_voiced(np.array([0.0, 100, 90]))


def test_arrays_are_cut_or_padded_with_zeros():
    assert fit(np.ones((2, 3)), 3).tolist() == [[1] * 3, [1] * 3, [0] * 3]
    assert fit(np.ones(3), 2).tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------------------ layouts


def nested(place):
    return write(place, files(), "LJSpeech-1.1")


def packed(place, name, content):
    place.mkdir()
    (place / name).write_bytes(content)
    return place / name


def zipped(place):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, one in files().items():
            archive.writestr(name, one)
    return packed(place, "speech.zip", content.getvalue())


LAYOUTS = {
    "a folder": lambda place: write(place, files()),
    "a folder inside": nested,
    "the archive": lambda place: packed(place, "LJSpeech-1.1.tar.bz2", tar_of(files())),
    "clips before their table": lambda place: packed(place, "x.tar", tar_of(dict(reversed(files().items())), "w")),
    "a zip archive": zipped,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_clips_split_by_book(layout, tmp_path):
    splits = get("ljspeech").import_from(LAYOUTS[layout](tmp_path / "files"), TEXT, root=tmp_path / "data")
    assert splits.variant == "imported"
    assert splits.counts == {"train": 2, "valid": 1, "test": 1}
    assert splits.manifest["split"] == "book prefix"
    assert splits.manifest["phonemes"] == "cmudict"
    assert splits.test.ids == ["LJ001-0001"]
    assert splits.test.texts == ["Hello, you."]
    assert splits.train.ids == ["LJ004-0001", "LJ050-0002"]
    tokens, mel = splits.train.example(1)
    assert " ".join(splits.train.names(1)) == "DH AH0 | S IY1 | Y UW1 | S IY1 | ? </s>"
    assert len(mel) == 1 + int(0.65 * RATE) // 256
    assert tokens[-1] == EOS
    assert tokens.dtype == np.int16
    assert get("ljspeech").verify(TEXT, root=tmp_path / "data") == []
    assert not list((tmp_path / "data").glob("*/*.work")), "finished clips are not kept twice"


def test_the_same_files_give_the_same_bytes(folder, tmp_path):
    one, two = (get("ljspeech").import_from(folder, ALIGNED, root=tmp_path / name) for name in ("one", "two"))
    assert one.sha256 == two.sha256


def test_unknown_tokens_and_words_of_other_texts_have_numbers_too(folder, tmp_path):
    train = get("ljspeech").import_from(folder, TEXT, root=tmp_path / "data").train
    ids = train.phonemes("See zebras")
    assert [train.vocabulary[i] for i in ids[:3]] == ["S", "IY1", "|"]
    assert train.vocabulary[ids[3]] == "Z" or ids[3] == 3
    assert ids[-1] == EOS


@pytest.mark.parametrize("durations", ["hmm", "ctc"])
def test_aligned_clips_have_durations_pitch_and_energy_for_each_phone(durations, folder, tmp_path):
    splits = get("ljspeech").import_from(folder, replace(ALIGNED, durations=durations), root=tmp_path / "data")
    assert splits.manifest["durations"] == durations
    assert splits.manifest["skipped"]["unvoiced"] == 0
    for split in SPLITS:
        speech = getattr(splits, split)
        for i in range(len(speech)):
            (a, b), (c, d) = speech.token_edges[i : i + 2], speech.mel_edges[i : i + 2]
            assert speech.durations[a:b].sum() == d - c
            assert speech.durations[a : b - 1].min() >= 1
            assert speech.durations[b - 1] == speech.pitch[b - 1] == speech.energy[b - 1] == 0
            assert (np.abs(np.exp(speech.pitch[a : b - 1]) - 151) < 5).all()
            assert speech.pitch[a:b].max() <= speech.pitch_range[1]
            assert speech.energy_range[0] == 0
    assert splits.train.names(0) == ["M", "UW1", "N", "sp", "S", "IY1", "Y", "UW1", "</s>"]
    assert splits.train.phonemes("See; moon").tolist() == [
        splits.train.vocabulary.index(name) for name in ["S", "IY1", "sp", "M", "UW1", "N", "</s>"]
    ]
    text = get("ljspeech").load(TEXT, root=tmp_path / "data")
    assert text.train.durations is None, "what is aligned can be read as text too"
    assert "|" in text.train.vocabulary


def test_clips_without_a_voice_are_skipped_and_counted(tmp_path):
    written = files()
    written["wavs/LJ004-0001.wav"] = sound(np.random.default_rng(0).normal(0, 1e-4, RATE // 2))
    splits = get("ljspeech").import_from(write(tmp_path / "files", written), ALIGNED, root=tmp_path / "data")
    assert splits.manifest["skipped"]["unvoiced"] == 1
    assert splits.train.ids == ["LJ050-0002"]
    assert splits.counts["train"] == 1
    text = get("ljspeech").load(TEXT, root=tmp_path / "data")
    assert sorted(text.train.ids) == ["LJ004-0001", "LJ050-0002"]


def test_fewer_clips_are_evenly_spaced(tmp_path):
    rows = [(f"LJ0{number:02d}-0001", "See you") for number in range(1, 12)]
    whole = get("ljspeech").import_from(write(tmp_path / "files", files(rows)), TEXT, root=tmp_path / "data")
    some = get("ljspeech").load(replace(TEXT, train=3), root=tmp_path / "data")
    assert some.train.ids == [whole.train.ids[i] for i in (0, 2, 5)]
    np.testing.assert_array_equal(some.train.example(1)[1], whole.train.example(2)[1])
    np.testing.assert_array_equal(some.train.example(2)[0], whole.train.example(5)[0])


@pytest.mark.parametrize("kind", [TEXT, ALIGNED], ids=["text", "aligned"])
def test_clips_that_are_too_long_are_left_out(kind, folder, tmp_path):
    whole = get("ljspeech").import_from(folder, kind, root=tmp_path / "data")
    frames = {split: np.diff(getattr(whole, split).mel_edges) for split in SPLITS}
    longest = int(np.median(np.concatenate(list(frames.values()))))
    some = get("ljspeech").load(replace(kind, longest=longest), root=tmp_path / "data")
    for split in SPLITS:
        one, other = getattr(some, split), getattr(whole, split)
        kept = np.flatnonzero(frames[split] <= longest)
        assert one.ids == [other.ids[i] for i in kept]
        for place, i in enumerate(kept):
            np.testing.assert_array_equal(one.example(place)[1], other.example(i)[1])
    assert sum(len(getattr(some, split)) for split in SPLITS) < sum(len(row) for row in frames.values())


def test_other_voices_are_split_by_a_hash_of_the_text_and_resampled(tmp_path):
    rows = [(f"a{number}", f"See {'you ' * number}") for number in range(40)]
    written = {"metadata.csv": "".join(f"{name}|x|{text}\n" for name, text in rows).encode()}
    written |= {f"clips/{name}.ogg": sound(tone(0.2, rate=16_000), 16_000, "OGG") for name, _ in rows}
    splits = get("ljspeech").import_from(write(tmp_path / "files", written), TEXT, root=tmp_path / "data")
    assert splits.variant == "imported"
    assert splits.manifest["split"] == "hash of the normalised text"
    assert splits.manifest["file_rates"] == [16_000]
    for split in SPLITS:
        assert all(by_hash(text) == split for text in getattr(splits, split).texts)
    assert len(splits.train.example(0)[1]) == 1 + int(0.2 * RATE) // 256


# --------------------------------------------------------------------------------------------------------- TextGrids

GRIDS = {name: textgrid([(0, 0.1, "sil"), (0.1, 0.25, "AH0"), (0.25, 0.4, "T"), (0.4, 0.45, "sp")]) for name in BOOKS}


def with_textgrids(place, grids=GRIDS):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, grid in grids.items():
            archive.writestr(f"ljspeech/{name}.TextGrid", grid)
    return write(place, files() | {"ljspeech_mfa.zip": content.getvalue()})


def test_textgrids_cut_the_clips_and_give_the_durations(tmp_path):
    place = with_textgrids(tmp_path / "files")
    splits = get("ljspeech").import_from(place, Data("aligned", "mfa"), root=tmp_path / "data")
    assert splits.manifest["durations"] == "mfa"
    assert splits.train.names(0) == ["AH0", "T", "</s>"]
    assert splits.train.durations[:3].tolist() == [13, 12, 0]
    cut = tone(0.6)[int(0.1 * RATE) : int(0.4 * RATE)]
    alone = extract(Clip("x", sound(cut), "x", official_rate=True))["mel"]
    np.testing.assert_allclose(splits.train.example(0)[1], alone[:25], atol=0.01)
    assert len(get("ljspeech").load(TEXT, root=tmp_path / "data").train.example(0)[1]) == 1 + int(0.6 * RATE) // 256
    assert get("ljspeech").verify(ALIGNED, root=tmp_path / "data") == []


def test_durations_that_are_not_there_are_asked_for(folder, tmp_path):
    root = tmp_path / "data"
    with pytest.raises(DataMissing, match=r"has no TextGrids, neither ljspeech_mfa.zip nor a folder TextGrid"):
        get("ljspeech").import_from(folder, Data("aligned", "mfa"), root=root)
    get("ljspeech").import_from(folder, TEXT, root=root)
    with pytest.raises(DataMissing, match="prepared with phones=text and has no durations"):
        get("ljspeech").load(ALIGNED, root=root)
    assert "has no durations" in get("ljspeech").status(ALIGNED, root=root).problem
    get("ljspeech").import_from(folder, ALIGNED, root=root)
    with pytest.raises(DataMissing, match="has durations=hmm, and durations=mfa was asked for"):
        get("ljspeech").load(Data("aligned", "mfa"), root=root)


def test_a_textgrid_that_does_not_fit_and_one_that_is_missing_are_named(tmp_path):
    wrong = GRIDS | {"LJ004-0001": textgrid([(0, 9, "AH0")])}
    with pytest.raises(CorruptFile, match="TextGrid of LJ004-0001 is no alignment of this clip: its last phone ends"):
        get("ljspeech").import_from(with_textgrids(tmp_path / "a", wrong), ALIGNED, root=tmp_path / "data")
    some = {name: grid for name, grid in GRIDS.items() if name != "LJ003-0001"}
    with pytest.raises(DataMissing, match=r"no TextGrid of LJ003-0001 \(1 of 4 clips have none\)"):
        get("ljspeech").import_from(with_textgrids(tmp_path / "b", some), ALIGNED, root=tmp_path / "data")


# ------------------------------------------------------------------------------------------------------ what is wrong

ROW = "LJ004-0001|x|{}\n"
FAULTS = {
    "no clip": ("wavs/LJ004-0001.wav", None, DataMissing, r"no clip LJ004-0001, which metadata.csv lists \(1 of 4"),
    "no table": ("metadata.csv", None, DataMissing, "is no copy of LJSpeech: it has no metadata.csv"),
    "no sound": ("wavs/LJ004-0001.wav", b"nothing", CorruptFile, "LJ004-0001.wav is not a readable sound file"),
    "cut off": ("wavs/LJ004-0001.wav", sound(tone())[:-900], CorruptFile, "LJ004-0001.wav is cut off after"),
    "too short": ("wavs/LJ004-0001.wav", sound(tone(0.04)), CorruptFile, "has 882 samples, expected at least 1,024"),
    "too long": ("wavs/LJ004-0001.wav", sound(np.zeros(121 * RATE)), CorruptFile, "lasts more than 120 s"),
    "stereo": ("wavs/LJ004-0001.wav", sound(np.stack([tone()] * 2, 1)), CorruptFile, "has 2 channels, expected one"),
    "wrong rate": ("wavs/LJ004-0001.wav", sound(tone(), 16_000), CorruptFile, "16,000 Hz, but clips of LJSpeech have"),
    "not numbers": (
        "wavs/LJ004-0001.wav",
        sound(np.full(9_000, np.nan), subtype="FLOAT"),
        CorruptFile,
        "samples that are no numbers",
    ),
    "other rate": ("wavs/other.wav", sound(tone(), 8_000), CorruptFile, "8,000 Hz, but at least 16,000 are needed"),
    "empty text": ("metadata.csv", ROW.format("?!"), CorruptFile, r"line 1: the clip LJ004-0001 has no words \('\?!'"),
    "digits": ("metadata.csv", ROW.format("In 1910"), CorruptFile, "line 1: no rule pronounces '190'"),
    "two columns": ("metadata.csv", "LJ004-0001|See\n", CorruptFile, r"line 1: expected id\|text\|normalised text"),
    "outside": ("metadata.csv", "../x|See|See\n", CorruptFile, r"line 1: expected id\|text"),
    "twice": ("metadata.csv", ROW.format("See") * 2, CorruptFile, "line 2: the clip LJ004-0001 is listed twice"),
    "not UTF-8": ("metadata.csv", b"LJ004-0001|x|\xff\n", CorruptFile, "line 1: not UTF-8"),
    "no lines": ("metadata.csv", b"\n\n", CorruptFile, "metadata.csv has no lines"),
    "empty split": ("metadata.csv", ROW.format("See"), CorruptFile, "leaves none for valid and test; add a clips.tsv"),
    "lexicon": ("lexicon.tsv", b"see S IY1\n", CorruptFile, "lexicon.tsv, line 1: expected a word, a tab"),
    "no splits": ("clips.tsv", b"id\tseconds\n", CorruptFile, "expected the columns id and split"),
    "odd split": ("clips.tsv", b"id\tsplit\nLJ004-0001\tdev\n", CorruptFile, "line 2: expected a clip and its split"),
    "not listed": ("clips.tsv", b"id\tsplit\nLJ004-0001\ttrain\n", CorruptFile, "has no line for the clip LJ001-0001"),
    "other clip": (
        "clips.tsv",
        b"id\tsplit\tsha256\nLJ004-0001\ttrain\tab12\n",
        CorruptFile,
        "the clip LJ004-0001 is another file than listed",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_with_a_file_is_said_and_nothing_is_left(what, folder, tmp_path):
    name, content, error, sentence = FAULTS[what]
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(error, match=sentence) as raised:
        get("ljspeech").import_from(folder, TEXT, root=tmp_path / "data")
    assert raised.value.exit_code == (3 if error is DataMissing else 2)
    assert not get("ljspeech").status(TEXT, root=tmp_path / "data").ready


def test_a_lexicon_and_a_list_of_splits_beside_the_data_are_honoured(folder, tmp_path):
    (folder / "lexicon_extra.tsv").write_text("moon\tM UH1 N\n")
    order = dict(zip(BOOKS, ["train", "test", "valid", "train"], strict=True))
    (folder / "clips.tsv").write_text("id\tsplit\n" + "".join(f"{name}\t{split}\n" for name, split in order.items()))
    splits = get("ljspeech").import_from(folder, TEXT, root=tmp_path / "data")
    assert splits.valid.texts == ["Moon; see you!"]
    assert splits.train.lexicon["moon"] == "M UH1 N"
    assert splits.manifest["split"] == "clips.tsv"


@pytest.mark.parametrize(
    "wrong", [{"phones": "letters"}, {"durations": "guess"}, {"train": 0}, {"longest": 0}, {"standin": True}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        Data(**wrong)


def test_an_archive_with_names_that_lead_outside_is_refused(tmp_path):
    hostile = packed(tmp_path / "files", "x.tar", tar_of(files() | {"../../wavs/evil.wav": b"x"}, "w"))
    with pytest.raises(CorruptFile, match="points outside the archive; refused"):
        get("ljspeech").import_from(hostile, TEXT, root=tmp_path / "data")
    assert not list(tmp_path.rglob("evil.wav"))


def test_a_damaged_archive_is_named(tmp_path):
    content = tar_of(files())
    for harm in (content[: len(content) // 2], content[:900] + bytes(64) + content[964:]):
        path = tmp_path / "LJSpeech-1.1.tar.bz2"
        path.write_bytes(harm)
        with pytest.raises(CorruptFile, match=r"LJSpeech-1.1.tar.bz2"):
            get("ljspeech").import_from(path, TEXT, root=tmp_path / "data")


# ------------------------------------------------------------------------------------------ downloads and interruption


@pytest.fixture
def server(monkeypatch, tmp_path):
    archive = tar_of(files())
    grids = (with_textgrids(tmp_path / "grids") / "ljspeech_mfa.zip").read_bytes()
    published = replace(ljspeech.ARCHIVE, size=len(archive), sha256=hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(ljspeech, "ARCHIVE", published)
    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    monkeypatch.setenv("no_proxy", "*")
    with serving({"LJSpeech-1.1.tar.bz2": Page(archive), "ljspeech_mfa.zip": Page(grids)}) as running:
        monkeypatch.setenv(remote.MIRROR, running.url)
        yield running


def test_the_published_archive_and_alignments_are_downloaded_resumed_and_known(server, tmp_path):
    server.pages["LJSpeech-1.1.tar.bz2"].drops = [500]
    splits = get("ljspeech").prepare(Data("aligned", "mfa"), root=tmp_path / "data", progress=False)
    assert splits.variant == "official"
    assert splits.manifest["durations"] == "mfa"
    assert "bytes=500-" in server.asked()
    asked = len(server.seen)
    assert get("ljspeech").prepare(ALIGNED, root=tmp_path / "data", progress=False).sha256
    assert len(server.seen) == asked, "what is there is not downloaded again"


def test_a_download_with_other_bytes_is_refused(server, tmp_path):
    page = server.pages["LJSpeech-1.1.tar.bz2"]
    page.content = page.content[:-1] + b"?"
    with pytest.raises(CorruptFile, match="should have sha256"):
        get("ljspeech").prepare(TEXT, root=tmp_path / "data", progress=False)
    assert not get("ljspeech").status(TEXT, root=tmp_path / "data").ready


def test_an_interrupted_import_computes_only_what_is_missing(folder, tmp_path, monkeypatch):
    root, clip = tmp_path / "data", folder / "wavs/LJ050-0002.wav"
    good = clip.read_bytes()
    clip.write_bytes(b"broken")
    with pytest.raises(CorruptFile):
        get("ljspeech").import_from(folder, TEXT, root=root)
    assert get("ljspeech").status(TEXT, root=root).shards == 3
    clip.write_bytes(good)
    computed = []
    monkeypatch.setattr(
        extraction.features, "extract", lambda one, compute=extract: computed.append(one.name) or compute(one)
    )
    get("ljspeech").import_from(folder, TEXT, root=root)
    assert computed == ["LJ050-0002"]


@pytest.mark.full
def test_several_processes_give_the_same_arrays_as_one(tmp_path):
    rows = [(f"LJ0{number:02d}-0001", "See you") for number in range(1, 46)]
    place = write(tmp_path / "files", files(rows))
    made = {}
    for workers in (1, 2):
        work = tmp_path / str(workers)
        work.mkdir()
        found = extraction.extract_all(ljspeech.Copy(place).clips(), work, workers=workers)
        made[workers] = {name: extraction.read_features(path) for name, path in found.items()}
    for name, arrays in made[1].items():
        for part, values in arrays.items():
            np.testing.assert_array_equal(values, made[2][name][part])


def test_damaged_arrays_are_found(folder, tmp_path):
    get("ljspeech").import_from(folder, ALIGNED, root=tmp_path / "data")
    whole = tmp_path / "data/ljspeech/whole"
    content = bytearray((whole / "aligned.pitch.npy").read_bytes())
    content[-1] ^= 1
    (whole / "aligned.pitch.npy").write_bytes(content)
    assert "aligned.pitch.npy has changed" in " ".join(get("ljspeech").verify(ALIGNED, root=tmp_path / "data"))


def test_arrays_out_of_range_are_found_even_if_their_hash_is_right(folder, tmp_path):
    get("ljspeech").import_from(folder, ALIGNED, root=tmp_path / "data")
    whole = tmp_path / "data/ljspeech/whole"
    tokens = np.load(whole / "text.tokens.npy")
    tokens[0] = 900
    np.save(whole / "text.tokens.npy", tokens)
    manifest = json.loads((whole / "manifest.json").read_text())
    content = (whole / "text.tokens.npy").read_bytes()
    manifest["arrays"]["text.tokens.npy"] |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (whole / "manifest.json").write_text(json.dumps(manifest))
    assert "text.tokens should be 0 .." in " ".join(get("ljspeech").verify(TEXT, root=tmp_path / "data"))


# ---------------------------------------------------------------------------------------------------------- stand-ins

SMOKE = Data("aligned", train=64, valid=8, test=8, standin=True)


def test_stand_ins_have_the_arrays_of_real_clips_and_are_marked(tmp_path):
    made = get("ljspeech").load(SMOKE, root=tmp_path)
    assert made.variant == "standin"
    assert made.counts == {"train": 64, "valid": 8, "test": 8}
    frames = np.diff(made.train.mel_edges)
    assert frames.min() >= 20
    assert frames.max() <= 60
    assert made.train.durations.sum() == len(made.train.mel)
    assert made.train.mel.dtype == np.float16
    assert "sp" in made.train.vocabulary
    assert set(made.test.tokens.tolist()) <= set(range(len(made.train.vocabulary)))
    assert made.train.phonemes(made.train.texts[0]).tolist() == made.train.example(0)[0].tolist()
    text = get("ljspeech").load(replace(SMOKE, phones="text"), root=tmp_path)
    assert "|" in text.train.vocabulary
    assert text.train.phonemes(text.train.texts[5]).tolist() == text.train.example(5)[0].tolist()
    with pytest.raises(DataMissing, match="longspan data prepare ljspeech"):
        get("ljspeech").load(SMOKE, root=tmp_path, real=True)


def test_stand_ins_are_the_same_in_every_version(tmp_path):
    mel = np.asarray(get("ljspeech").load(SMOKE, root=tmp_path).train.mel)
    assert hashlib.sha256(mel.tobytes()).hexdigest()[:16] == "aed90d37b589cc0f"


def test_samples_are_shown_in_words_and_drawn_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    samples = get("ljspeech").samples(SMOKE, 2)
    assert all("frames: " in sample.content and "</s>:0" in sample.content for sample in samples)
    assert get("ljspeech").draw_samples(SMOKE, 2, tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "data").exists()


# ---------------------------------------------------------------------------------------------------------- real clips


def test_all_transcripts_without_their_clips_are_no_corpus(reference, tmp_path):
    shared = reference("ljspeech/metadata.csv.xz")
    place = tmp_path / "files"
    place.mkdir()
    (place / "metadata.csv").write_bytes(lzma.decompress(shared.read_bytes()))
    (place / "wavs").symlink_to(shared.parent.resolve() / "wavs")
    with pytest.raises(DataMissing, match=r"no clip LJ001-\d+, which metadata.csv lists \(13,088 of 13,100"):
        get("ljspeech").import_from(place, TEXT, root=tmp_path / "data")


def test_a_real_clip_has_the_frames_and_the_pitch_of_a_voice(reference):
    path = reference("ljspeech/wavs/LJ001-0002.wav")
    found = extract(Clip("LJ001-0002", path.read_bytes(), str(path), official_rate=True))
    assert len(found["mel"]) == 1 + (83_814 - 44) // 2 // 256
    voiced = found["pitch"][found["pitch"] > 0]
    assert len(voiced) > 60
    assert 150 < np.median(voiced) < 300


@pytest.mark.full
def test_allison_is_known_by_its_content_and_has_its_own_split(reference, tmp_path):
    splits = get("ljspeech").import_from(reference("allison"), TEXT, root=tmp_path)
    assert splits.variant == "allison"
    assert splits.counts == {"train": 462, "valid": 40, "test": 43}
    assert sum(entry["bytes"] for entry in splits.manifest["arrays"].values()) < 25e6
