"""How alike two pictures are: PSNR and SSIM of 8-bit colour pictures, one value each (CAB, arXiv:2210.07661).

    PSNR = 20 log10(255 / sqrt(MSE))      over all pixels and colours together, in decibels; infinite for equal pictures
    SSIM = mean of (2 m n + C1) (2 cov + C2) / ((m^2 + n^2 + C1) (var + var' + C2))

with means m, n, variances and covariance under a Gaussian window of 11 x 11 (sigma 1.5), for each colour separately, at
the pixels whose window lies inside the picture; C1 = (0.01 * 255)^2, C2 = (0.03 * 255)^2. Variances are weighted means,
not unbiased. No border is cropped and no luminance computed. NumPy in double precision.
"""

import numpy as np

WINDOW, SIGMA = 11, 1.5
C1, C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def psnr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Decibels of each pair of pictures [count height width 3] in bytes.

    >>> black, dark = np.zeros((1, 2, 2, 3), np.uint8), np.full((1, 2, 2, 3), 16, np.uint8)
    >>> psnr(black, dark).round(6).tolist()
    [24.048404]
    """
    error = ((a.astype(np.float64) - b) ** 2).mean(axis=(1, 2, 3))
    with np.errstate(divide="ignore"):
        return 10 * np.log10(255**2 / error)


def ssim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Structural similarity, at most 1, of each pair of pictures [count height width 3], at least 11 pixels a side."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    mean_a, mean_b = _windowed(a), _windowed(b)
    squares, product = mean_a**2 + mean_b**2, mean_a * mean_b
    variances = _windowed(a * a + b * b) - squares
    covariance = _windowed(a * b) - product
    alike = (2 * product + C1) * (2 * covariance + C2) / ((squares + C1) * (variances + C2))
    return alike.mean(axis=(1, 2, 3))


def window() -> np.ndarray:
    """The weights of one row of the window."""
    distance = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(distance**2) / (2 * SIGMA**2))
    return weights / weights.sum()


def _windowed(x: np.ndarray) -> np.ndarray:
    """The weighted mean around every pixel whose window fits, one axis after the other."""
    for axis in (1, 2):
        places = x.shape[axis] - WINDOW + 1
        shifted = [weight * x.take(range(i, i + places), axis=axis) for i, weight in enumerate(window())]
        x = np.sum(shifted, axis=0)
    return x


def to_bytes(x: np.ndarray) -> np.ndarray:
    """Colours from -1 to 1 as bytes: clipped to that range, rounded half to even.

    >>> to_bytes(np.array([-1.2, -1, 0, 0.5, 1])).tolist()
    [0, 0, 128, 191, 255]
    """
    return np.rint((np.clip(x, -1, 1) + 1) / 2 * 255).astype(np.uint8)
