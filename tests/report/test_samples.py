"""The page of samples and the sheets of `show CARD`, tested without a browser."""

import io
import subprocess
import sys
import wave

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from typer.testing import CliRunner

from longspan.cli import app
from longspan.report import sample_media, sample_panels
from longspan.report.build import build
from longspan.report.sample_sheet import draw
from longspan.results import examples
from longspan.results.card import read as read_card
from longspan.results.examples import of_file
from longspan.results.store import Store
from tests.report.example import HOSTILE, HOSTILE_TITLE, example_cards
from tests.report.sample_cards import add, clouds, fill, pictures, speech
from tests.results.test_examples import written


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("store"), HOSTILE, HOSTILE_TITLE)


@pytest.fixture(scope="module")
def site(store, tmp_path_factory):
    return build(store, tmp_path_factory.mktemp("report") / "site").parent


def collected(store):
    entries = list(store.entries())
    folders = {card["sha256"]: path.parent for path, card in entries}
    return sample_panels.collect([card for _, card in entries], folders)


def test_the_page_has_every_cell_and_no_word_of_a_card_becomes_markup(site):
    text = (site / "samples.html").read_text(encoding="utf-8")
    assert text.count('<article class="made">') == 6
    assert HOSTILE not in text
    assert HOSTILE_TITLE not in text
    assert "<img src=x" not in text
    assert "stand-in data" in text


def test_every_file_that_the_page_names_is_there_and_no_other(site):
    text = (site / "samples.html").read_text(encoding="utf-8")
    stored = {f"samples/{path.name}" for path in (site / "samples").iterdir()}
    assert stored
    assert {name for name in stored if f'src="{name}"' in text} == stored
    assert text.count('src="samples/') == 22 + 10  # images, spectrograms and sounds


def test_true_speech_behind_two_cards_is_stored_once(store):
    section = next(section for section in collected(store).sections if section.task == "tts_fastspeech2")
    one, other = (panel.items for panel in section.panels)
    assert [item["true"] for item in one] == [item["true"] for item in other]
    assert all(mine["made"]["wave"] != its["made"]["wave"] for mine, its in zip(one, other, strict=True))


def test_a_site_without_samples_has_no_page_of_them(tmp_path):
    index = build(example_cards(), tmp_path / "site")
    assert not (index.parent / "samples.html").exists()
    assert "samples.html" not in index.read_text(encoding="utf-8")


def test_the_newest_card_of_a_cell_is_shown_and_kinds_of_data_stay_apart(tmp_path):
    store = Store(tmp_path / "cards")
    for day, variant, text in ((1, "imported", "old"), (3, "imported", "new"), (2, "official", "other data")):
        moment = f"2026-01-0{day}T00:00:00Z"
        add(store, tmp_path, "softmax", "tts", speech((text,), 0.2), seed=day, variant=variant, created=moment)
    found = collected(Store(tmp_path / "cards"))
    items = [(section.variant, item["text"]) for section in found.sections for item in section.panels[0].items]
    assert items == [("imported", "new"), ("official", "other data")]
    assert [len(section.panels) for section in found.sections] == [1, 1]


def test_broken_samples_are_a_problem_and_not_a_panel(tmp_path):
    store = Store(tmp_path / "cards")
    path = add(store, tmp_path, "softmax", "tts", speech(("one",), 0.2) | {"rate": np.array(1)}, variant="imported")
    site = build(store, tmp_path / "site").parent
    assert not (site / "samples.html").exists()
    problems = (site / "problems.html").read_text(encoding="utf-8")
    assert read_card(path)["files"]["samples"] in problems
    assert "rate must be one integer" in problems


def test_spectrograms_share_one_scale_and_have_low_mels_at_the_bottom(tmp_path):
    (clip,) = of_file(written(tmp_path, speech(("one",))))
    made, true = (Image.open(io.BytesIO(content)) for content in sample_media.mel_pngs(clip))
    assert true.size == (len(clip.true_mel), 80)
    assert made.size == (len(clip.made_mel), 80)
    places = np.asarray(true)
    assert places[::-1].T.argmax(axis=1)[0] == clip.true_mel[0].argmax()
    assert np.asarray(made)[:, 0].tolist() == places[:, 0].tolist()  # equal mels, equal colours


def test_louder_is_brighter():
    brightness = sample_media.palette().astype(int) @ [299, 587, 114]
    assert (np.diff(brightness) >= 0).all()
    assert len(brightness) == 256


def test_a_wave_file_holds_the_samples():
    samples_ = np.array([0, 1, -1, 32767, -32768], np.int16)
    with wave.open(io.BytesIO(sample_media.wav(samples_, 22_050))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (22_050, 1, 2)
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == samples_.tolist()


def test_a_cloud_keeps_its_shape_in_the_box_of_the_page(tmp_path):
    import base64

    (cloud,) = of_file(written(tmp_path, clouds(("chair",), noise=3.0)))
    partial, completed, truth = (
        np.frombuffer(base64.b64decode(text), "<i2").reshape(-1, 3) / 32767 for text in sample_media.points(cloud)
    )
    centre, size = sample_media.box(cloud)
    np.testing.assert_allclose(truth * size + centre, sample_media.few(cloud.truth), atol=1e-3)
    np.testing.assert_allclose(partial * size + centre, sample_media.few(cloud.partial), atol=1e-3)
    assert len(truth) == 2048
    assert np.abs(completed).max() <= 1  # points outside the box are clamped to it


@pytest.mark.parametrize("content", [speech((HOSTILE_TITLE, "$", "")), clouds(("$x^2$",)), pictures(2)])
def test_a_sheet_is_drawn_of_each_kind(tmp_path, content):
    found = of_file(written(tmp_path, content))
    image = Image.open(draw(found, tmp_path / "x.png", title=HOSTILE_TITLE))
    assert image.format == "PNG"
    assert len(image.convert("RGB").getcolors(2**24)) > 50


def test_a_long_text_stays_above_its_own_spectrogram(tmp_path, monkeypatch):
    ends, save = [], Figure.savefig

    def look(sheet, *args, **kwargs):
        sheet.canvas.draw()
        (text,) = (found for found in sheet.findobj(Text) if found.get_text().startswith("made"))
        ends.append((text.get_window_extent().x1, sheet.axes[1].get_window_extent().x0))
        save(sheet, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", look)
    prose = "Please enter your agent number, followed by the pound key, and wait for the tone of the machine. " * 3
    draw(of_file(written(tmp_path, speech((prose,)))), tmp_path / "x.png")
    ((end, next_column),) = ends
    assert end < next_column


def test_nothing_said_is_drawn_too(tmp_path):
    content = speech(("one",))
    content |= {"made_wave": np.zeros(0, np.int16), "made_wave_edges": np.array([0, 0])}
    content |= {"made_mel": np.zeros((0, 80), np.float16), "made_mel_edges": np.array([0, 0])}
    store = Store(tmp_path / "cards")
    add(store, tmp_path, "softmax", "tts", content, variant="imported")
    site = build(store, tmp_path / "site").parent
    assert "made <span" in (site / "samples.html").read_text(encoding="utf-8")
    assert draw(of_file(tmp_path / "samples.npz"), tmp_path / "x.png").exists()


def test_show_card_says_what_was_run_draws_the_samples_and_writes_the_speech(tmp_path, store):
    path = next(path for path, card in store.entries() if card["mechanism"] == "local")
    clips = examples.read(path.parent, read_card(path))
    options = ["-o", str(tmp_path / "x.png"), "--audio", str(tmp_path / "heard")]
    said = CliRunner().invoke(app, ["show", str(path), *options])
    assert said.exit_code == 0, said.output
    assert "tts_fastspeech2" in said.output
    assert "And a second one." in said.output
    assert Image.open(tmp_path / "x.png").format == "PNG"
    heard = sorted(file.name for file in (tmp_path / "heard").iterdir())
    assert heard == ["clip1-made.wav", "clip1-true.wav", "clip2-made.wav", "clip2-true.wav"]
    with wave.open(str(tmp_path / "heard" / "clip2-made.wav")) as file:
        assert file.getnframes() == len(clips[1].made)


@pytest.mark.parametrize(
    "mechanism, options, sentence",
    [
        ("guest", ["--samples", "3"], "--samples and --set are for tasks and datasets"),
        ("abc", ["--audio", "heard"], "are not speech; leave --audio out"),
    ],
)
def test_what_a_card_cannot_show_is_said(store, mechanism, options, sentence):
    path = next(path for path, card in store.entries() if card["mechanism"] == mechanism)
    result = CliRunner().invoke(app, ["show", str(path), *options])
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_cards_and_their_samples_are_shown_without_torch(store, tmp_path):
    path = next(path for path, card in store.entries() if card["task"] == "super_resolution")
    code = "import sys; sys.modules['torch'] = None; from longspan.cli import main; main()"
    command = [sys.executable, "-c", code, "show", str(path), "-o", str(tmp_path / "x.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "16 x 16 enlarged to 128 x 128" in done.stdout
    assert (tmp_path / "x.png").exists()
