"""Audio: hand-checked frames and energies, comparisons with other libraries, and rows unaffected by their padding."""

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.spectrogram import (
    HOP,
    RATE,
    as_stored,
    energy,
    griffin_lim,
    log_mel,
    log_mel_power,
    mel_basis,
    mfcc,
    to_pcm16,
)

CEPSTRUM = [-88.7100, 44.8482, 33.6061, 19.6069, 7.1345]
POWERS = [-2.6380, -0.9799, -13.8042, -13.8119]


def hum(samples, seed=0):
    """Two tones and a little noise."""
    at = torch.arange(samples) / RATE
    noise = 0.02 * torch.randn(samples, generator=torch.Generator().manual_seed(seed))
    return 0.3 * torch.sin(2 * math.pi * 220 * at) + 0.1 * torch.sin(2 * math.pi * 1900 * at) + noise


def seeded():
    return torch.Generator().manual_seed(0)


def test_a_second_has_87_mel_frames_and_81_cepstral_frames():
    wave = hum(RATE)
    assert log_mel(wave).shape == (87, 80)
    assert energy(wave).shape == (87,)
    assert mfcc(wave).shape == (81, 13)
    assert log_mel_power(wave).shape == (81, 80)


def test_the_energy_of_a_constant_wave_is_1024_in_every_frame():
    frames = energy(torch.ones(RATE))
    torch.testing.assert_close(frames, torch.full((87,), 1024.0))
    assert (frames + 1).log()[3].item() == pytest.approx(6.932448, abs=1e-6)


def test_silence_lies_at_the_floor():
    assert torch.equal(log_mel(torch.zeros(1000)), torch.full((4, 80), 1e-5).log())
    torch.testing.assert_close(log_mel_power(torch.zeros(1000)), torch.full((4, 80), 1e-6).log())


@pytest.mark.parametrize("scale, norm, librosas", [("slaney", "area", "slaney"), ("htk", "none", None)])
@pytest.mark.parametrize("rate, n_fft, mels, low, high", [(22050, 1024, 80, 20, 8000), (22050, 1102, 80, 20, 11025)])
def test_mel_filters_are_librosas(scale, norm, librosas, rate, n_fft, mels, low, high):
    librosa = pytest.importorskip("librosa")
    theirs = librosa.filters.mel(
        sr=rate, n_fft=n_fft, n_mels=mels, fmin=low, fmax=high, htk=scale == "htk", norm=librosas
    )
    ours = mel_basis(rate, n_fft, mels, low, high, scale=scale, norm=norm)
    np.testing.assert_allclose(ours.numpy().T, theirs, atol=1e-6)


def test_mel_filters_beyond_half_the_rate_are_refused():
    with pytest.raises(ValueError, match=r"between 0 and 4000 Hz, half the rate, got 20 to 8000 Hz\."):
        mel_basis(8000, 256, 80, 20, 8000, scale="slaney", norm="area")


def test_log_mels_are_librosas():
    librosa = pytest.importorskip("librosa")
    wave = hum(5000)
    magnitude = np.abs(librosa.stft(wave.numpy(), n_fft=1024, hop_length=256, pad_mode="reflect"))
    filters = librosa.filters.mel(sr=RATE, n_fft=1024, n_mels=80, fmin=20, fmax=8000)
    np.testing.assert_allclose(log_mel(wave).T, np.log(np.maximum(filters @ magnitude, 1e-5)), atol=1e-4)


def test_cepstra_are_torchaudios():
    """The numbers are those of torchaudio 2.11's MFCC and MelSpectrogram on this wave."""
    ramp = torch.arange(2000) / 2000
    wave = torch.sin(40 * ramp.square() * math.pi) * ramp
    np.testing.assert_allclose(mfcc(wave)[4, :5], CEPSTRUM, atol=2e-4)
    np.testing.assert_allclose(log_mel_power(wave)[4, [0, 1, 40, 79]], POWERS, atol=2e-4)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=20)
def test_a_wave_sounds_alone_as_it_does_in_a_batch(lengths, seed):
    waves = [hum(n, seed + i) for i, n in enumerate(lengths)]
    batch = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True, padding_value=9.0)  # audible padding
    for features, hop in (log_mel, 256), (energy, 256), (mfcc, 275), (log_mel_power, 275):
        together = features(batch, torch.tensor(lengths))
        for wave, row in zip(waves, together, strict=True):
            frames = 1 + len(wave) // hop
            torch.testing.assert_close(row[:frames], features(wave), atol=1e-4, rtol=1e-4)  # rounding in the log
            assert not row[frames:].any()


def test_frames_at_the_ends_hear_the_reflected_wave():
    wave = hum(3000)
    theirs = torch.stft(wave, 1024, 256, window=torch.ones(1024), pad_mode="reflect", return_complex=True).abs()
    torch.testing.assert_close(energy(wave), theirs.norm(dim=0))


def test_the_wave_of_a_mel_has_that_mel_the_closer_the_longer_it_is_sought():
    mel = log_mel(hum(60 * HOP))
    first, few, many = ((log_mel(griffin_lim(mel[None], n, seeded())[0]) - mel).abs().mean() for n in (0, 8, 32))
    assert first > 0.5 > 0.25 > few > many  # the mels of the wave span 9


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=20)
def test_a_clip_is_heard_alone_as_it_is_in_a_batch(frames, iterations, seed):
    mels = torch.randn(len(frames), max(frames), 80, generator=torch.Generator().manual_seed(seed)) - 3
    waves = griffin_lim(mels, iterations, seeded(), frames=torch.tensor(frames))
    assert waves.shape == (len(frames), HOP * (max(frames) - 1))
    for mel, wave, count in zip(mels, waves, frames, strict=True):
        torch.testing.assert_close(wave[: HOP * (count - 1)], griffin_lim(mel[None, :count], iterations, seeded())[0])
        assert not wave[HOP * (count - 1) :].any()


def test_griffin_lim_is_that_of_librosa():
    librosa = pytest.importorskip("librosa")
    wave = hum(40 * HOP)
    mel = log_mel(wave)
    filters = librosa.filters.mel(sr=RATE, n_fft=1024, n_mels=80, fmin=20, fmax=8000)
    magnitude = np.maximum(np.linalg.pinv(filters.astype(np.float64)) @ mel.exp().double().numpy().T, 0)
    phase = np.exp(2j * np.pi * torch.rand(41, 513, generator=seeded()).double().numpy().T)
    for _ in range(3):
        theirs = librosa.istft(magnitude * phase, hop_length=256, n_fft=1024)
        phase = np.exp(1j * np.angle(librosa.stft(theirs, n_fft=1024, hop_length=256, pad_mode="reflect")))
    theirs = librosa.istft(magnitude * phase, hop_length=256, n_fft=1024)
    np.testing.assert_allclose(griffin_lim(mel.double()[None], 3, seeded())[0], theirs, atol=1e-4)


@given(st.lists(st.floats(-1.5, 1.5, width=32), min_size=1))
@settings(max_examples=50)
def test_a_stored_wave_is_what_soundfile_reads_back(samples):
    soundfile = pytest.importorskip("soundfile")
    wave, file = torch.tensor(samples), io.BytesIO()
    soundfile.write(file, wave.numpy(), RATE, format="WAV", subtype="PCM_16")
    file.seek(0)
    read, _ = soundfile.read(file, dtype="float32")
    np.testing.assert_array_equal(as_stored(wave).numpy(), read)
    np.testing.assert_array_equal(to_pcm16(wave).numpy(), read * 2**15)


def test_what_is_not_a_number_is_never_taken_for_sound():
    wave = torch.tensor([0.5, math.nan])
    assert as_stored(wave).isnan().tolist() == [False, True]
    assert to_pcm16(wave).tolist() == [16384, 0]
