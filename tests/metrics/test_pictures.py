"""PSNR and SSIM: the cases worked by hand in the specification, and scikit-image as a second opinion."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.metrics.pictures import psnr, ssim, to_bytes, window


def flat(value: int, side: int = 16) -> np.ndarray:
    return np.full((1, side, side, 3), value, np.uint8)


def patterned() -> np.ndarray:
    i, j = np.mgrid[:16, :16]
    return np.stack([(7 * i + 13 * j) % 256, (5 * i + 11 * j + 40) % 256, 3 * i * j % 256], axis=-1)[None].astype(
        np.uint8
    )


def test_black_against_dark_gray():
    assert psnr(flat(0), flat(16))[0] == pytest.approx(24.048404, abs=1e-6)


def test_one_colour_of_three_that_is_off_by_30():
    off = flat(0)
    off[..., 1] = 30
    assert psnr(flat(0), off)[0] == pytest.approx(23.359591, abs=1e-6)


def test_equal_pictures_have_infinite_psnr_and_an_ssim_of_1():
    assert psnr(patterned(), patterned())[0] == math.inf
    assert ssim(patterned(), patterned())[0] == pytest.approx(1, abs=1e-12)


def test_ssim_of_two_flat_pictures_compares_their_means_alone():
    assert ssim(flat(100), flat(120))[0] == pytest.approx(0.983611, abs=1e-6)


def test_the_worked_picture_against_its_negative():
    negative = 255 - patterned()
    assert ssim(patterned(), negative)[0] == pytest.approx(-0.798325, abs=1e-6)
    assert psnr(patterned(), negative)[0] == pytest.approx(5.028333, abs=1e-6)


def test_the_worked_picture_against_a_brighter_one():
    brighter = np.minimum(patterned().astype(int) + 10, 255).astype(np.uint8)
    assert ssim(patterned(), brighter)[0] == pytest.approx(0.997644, abs=1e-6)
    assert psnr(patterned(), brighter)[0] == pytest.approx(28.219178, abs=1e-6)


def test_the_window_is_the_published_one():
    half = [0.001028, 0.007599, 0.036001, 0.109361, 0.213006, 0.266012]
    np.testing.assert_allclose(window(), half + half[-2::-1], atol=5e-7)


def test_conversion_to_bytes_cuts_off_and_rounds_half_to_even():
    assert to_bytes(np.array([-1.2, -1, 0, 0.5, 1])).tolist() == [0, 0, 128, 191, 255]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(11, 40), st.integers(11, 40), st.integers(1, 3))
def test_scikit_image_agrees_on_any_pictures(seed, height, width, count):
    metrics = pytest.importorskip("skimage.metrics")
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    b = np.clip(a + rng.normal(0, rng.uniform(1, 80), a.shape), 0, 255).astype(np.uint8)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    theirs = [metrics.structural_similarity(x, y, channel_axis=-1, **options) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(ssim(a, b), theirs, atol=1e-9)
    theirs = [metrics.peak_signal_noise_ratio(x, y, data_range=255) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(psnr(a, b), theirs, atol=1e-9)
