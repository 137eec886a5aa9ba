"""Discrete linear systems, one for each channel: convolution kernels, states, steps, and chunks of tokens as one step.

    Diagonal              s_t = A s_{t-1} + u_t                y_t = 2 Re C s_t
    DiagonalPlusRankOne   s_t = A s_{t-1} + B u_t - P w_t      y_t = 2 Re C s_t      w_t = Re Q (s_t + s_{t-1})

A is diagonal and comes as its logarithm, so that a power is the exponential of a product. Of each pair of conjugate
states one is kept. If C has twice as many rows as outputs, the second half sees the tokens after the current one.

A chunk of T tokens is one step of a larger system, so that a recurrence becomes a few matrix products:

    y_i = W u_i + R z_i      z_{i+1} = M z_i + V u_i      u_i, y_i: tokens of chunk i, z_i: the state before it
    W_ts = C A^(t-s) B, and D more where t = s      V_s = A^(T-1-s) B      R_t = C A^(t+1)      M = A^T

W is 0 for s > t, unless a second C fills that half with C A^(s-t-1) B; its state goes from right to left, with
V_s = A^s B and R_t = C A^(T-1-t). States are real numbers: of a complex one, its two parts.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Complex, Float, Int, Shaped
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.kernels.packing import real
from longspan.kernels.state_space import operator

LENGTH = 128  # tokens of a chunk, about as many as a state has numbers: W takes T products a token, V and R take S each
# On a circle, what wraps around is damped by |z|^points, while rounding at the end of the kernel is magnified by
# |z|^-length. With `rounds` times as many points as the kernel is long both are the same where the first is
# eps^(rounds / (rounds + 1)): 1e-8 for one, less than single precision keeps, and 4e-11 for two.
EPS = torch.finfo(torch.float64).eps


class Chunk(NamedTuple):
    """One matrix pair for each channel; `across` is complex where states do not mix."""

    read: Float[Tensor, "d ct t_plus_s"]  # W beside R
    write: Float[Tensor, "d t s"]  # V, transposed
    across: Float[Tensor, "d k k"] | Complex[Tensor, "d n"]  # M, the same in both directions


class Diagonal(NamedTuple):
    log_a: Complex[Tensor, "d n"]
    c: Complex[Tensor, "c d n"]

    def kernel(self, length: int) -> Float[Tensor, "c d t"]:
        return impulse_response(self.log_a, self.c, length)

    def chunk(self, skip: Float[Tensor, "c d"], length: int, dtype: torch.dtype) -> Chunk:
        log_a, c = self.log_a, rearrange(2 * self.c, "c d n -> d c n")
        powers = (log_a[:, None] * torch.arange(length, device=log_a.device)[:, None]).exp()  # [d t n]
        later = torch.cat([c[:, : len(skip)] * log_a.exp()[:, None], c[:, len(skip) :]], dim=1)  # C A, from the left
        reads = as_reading(later[:, :, None] * powers[:, None])
        return lift(as_pairs(powers), as_reading(c), reads, skip, (length * log_a).exp(), dtype)

    def state(self, u: Float[Tensor, "b t d"], lengths: Int[Tensor, " b"]) -> Complex[Tensor, "b d n"]:
        """After the first `lengths` tokens of each row."""
        return last_state(self.log_a, u, lengths)

    def step(
        self, u: Float[Tensor, "b d"], s: Complex[Tensor, "b d n"]
    ) -> tuple[Float[Tensor, "b c d"], Complex[Tensor, "b d n"]]:
        s = self.log_a.exp() * s + u[..., None]
        return 2 * einsum(self.c, s, "c d n, b d n -> b c d").real, s


class DiagonalPlusRankOne(NamedTuple):
    """With Cauchy sums [C B](z) = sum_n C_n B_n / (1 - A_n z) over all states and h = (1 + z) / 2, by Woodbury

        w(z) = h [Q B] / (1 + h [Q P]) u(z)      K(z) = [C B] - [C P] h [Q B] / (1 + h [Q P])

    read off on a circle |z| < 1 by an inverse Fourier transform. There a Cauchy sum is itself the transform of a sum of
    damped waves, which needs no matrix of states by frequencies, and nothing is singular. Letters are in double
    precision, since phases add up over thousands of steps; kernels are in `dtype`.
    """

    log_a: Complex[Tensor, "d n"]
    b: Complex[Tensor, "d n"]
    p: Complex[Tensor, "d n"]
    q: Complex[Tensor, "d n"]
    c: Complex[Tensor, "c d n"]
    dtype: torch.dtype

    def kernel(self, length: int) -> Float[Tensor, "c d t"]:
        (cb, cp, qb, qp), h = self._cauchy_sums(length)
        return self._series(cb - cp * (h * qb / (1 + h * qp)), length)

    def feedback(self, length: int) -> Float[Tensor, "1 d t"]:
        """The impulse response of w."""
        (_, _, qb, qp), h = self._cauchy_sums(length)
        return self._series(h * qb / (1 + h * qp), length)

    def chunk(self, skip: Float[Tensor, "c d"], length: int, dtype: torch.dtype) -> Chunk:
        """The closed loop, a matrix A~ on pairs of real numbers, and its powers by doubling; `length` a power of two.

        For S4 A~ never lengthens a state, whatever the parameters, so that rounding does not grow with the powers.
        """
        a, p, q, c = self.log_a.exp(), self.p, self.q, rearrange(2 * self.c, "c d n -> d c n")
        gain = 1 / (1 + (q * p).sum(dim=-1, keepdim=True).real)
        felt = gain * as_reading(q * (a + 1))  # w without a new token
        closed = _rotations(a) - as_pairs(p)[..., :, None] * felt[..., None, :]  # A~
        b = as_pairs(self.b - p * (gain * (q * self.b).sum(dim=-1, keepdim=True).real))
        later = as_reading(c * a[:, None]) - (c * p[:, None]).sum(dim=-1, keepdim=True).real * felt[:, None]  # C A~
        c = as_reading(c)
        rows = torch.cat([b[:, None], later[:, : len(skip)], c[:, len(skip) :]], dim=1)
        rows, across = operator.matrix_powers(closed, rows, length)
        ahead, reads = rows.split([1, c.shape[1]], dim=1)
        return lift(ahead[:, 0], c, reads, skip, across, dtype)

    def state(self, u: Float[Tensor, "b t d"], lengths: Int[Tensor, " b"]) -> Complex[Tensor, "b d n"]:
        """After the first `lengths` tokens of each row."""
        pulses = last_state(self.log_a, u, lengths)
        s = self.b.to(pulses.dtype) * pulses
        if u.shape[1] == 0:
            return s
        w = rearrange(long_convolution(rearrange(u, "b n d -> b d n"), self.feedback(u.shape[1])), "b d n -> b n d")
        return s - self.p.to(pulses.dtype) * last_state(self.log_a, w, lengths)

    def step(
        self, u: Float[Tensor, "b d"], s: Complex[Tensor, "b d n"]
    ) -> tuple[Float[Tensor, "b c d"], Complex[Tensor, "b d n"]]:
        a, b, p, q, c = (letter.to(s.dtype) for letter in (self.log_a.exp(), self.b, self.p, self.q, self.c))
        new = a * s + b * u[..., None]  # without w, which reads itself too
        w = (q * (new + s)).sum(dim=-1).real / (1 + (q * p).sum(dim=-1).real)
        new = new - p * w[..., None]
        return 2 * einsum(c, new, "c d n, b d n -> b c d").real, new

    def _cauchy_sums(self, length: int) -> tuple[tuple[Complex[Tensor, "_ d f"], ...], Complex[Tensor, " f"]]:
        """[C B], [C P], [Q B] and [Q P] at the points z of the circle, and h.

        With M points of modulus r, sum_l (a z)^l over all l is the transform of its first M terms over 1 - (a r)^M.
        """
        b, p, q, c = self.b, self.p, self.q, self.c
        points, log_radius = self._circle(length)
        log_a = self.log_a + log_radius
        pulses = torch.cat([c * b, c * p, (q * b)[None], (q * p)[None]]) / (1 - (points * log_a).exp())
        sums = torch.fft.rfft(impulse_response(log_a, pulses, points)).split([len(c), len(c), 1, 1])
        turn = -2 * math.pi / points * torch.arange(points // 2 + 1, device=c.device, dtype=torch.float64)
        return sums, (1 + torch.polar(torch.full_like(turn, math.exp(log_radius)), turn)) / 2

    def _series(self, spectrum: Complex[Tensor, "c d f"], length: int) -> Float[Tensor, "c d t"]:
        """The first coefficients of a power series, from its values on the circle."""
        points, log_radius = self._circle(length)
        times = torch.arange(length, device=spectrum.device, dtype=torch.float64)
        return (torch.fft.irfft(spectrum, n=points)[..., :length] * (-log_radius * times).exp()).to(self.dtype)

    def _circle(self, length: int) -> tuple[int, float]:
        """How many points it has, and the logarithm of its radius."""
        rounds = 2 if self.dtype == torch.float64 else 1
        points = fast_length(rounds * length)
        return points, math.log(EPS) * rounds / (rounds + 1) / points


def impulse_response(log_a: Complex[Tensor, "d n"], c: Complex[Tensor, "c d n"], length: int) -> Float[Tensor, "c d t"]:
    """K_l = 2 Re sum_n C_n A_n^l for l < length, without ever storing all powers of A.

    With l = i block + j the power splits into A^(i block) A^j, so that sqrt(length) powers of each kind suffice and
    their products are summed over the states by one matrix product.
    """
    coarse, fine = _powers(log_a, length)
    coarse = (2 * c)[..., None] * coarse
    left = torch.cat([coarse.real, -coarse.imag], dim=2)  # Re(x y) = Re x Re y - Im x Im y
    right = torch.cat([fine.real, fine.imag], dim=1)
    response = einsum(left, right, "c d n i, d n j -> c d i j")
    return rearrange(response, "c d i j -> c d (i j)")[..., :length]


def last_state(
    log_a: Complex[Tensor, "d n"], u: Float[Tensor, "b t d"], lengths: Int[Tensor, " b"]
) -> Complex[Tensor, "b d n"]:
    """s = sum_l A^l u_(last - l) over the first `lengths` tokens of each row."""
    length, dtype = u.shape[1], torch.promote_types(u.dtype, torch.complex64)
    if length == 0:
        return torch.zeros(u.shape[0], *log_a.shape, dtype=dtype, device=u.device)
    rows = torch.arange(u.shape[0], device=u.device)[:, None]
    newest_first = (lengths[:, None] - 1 - torch.arange(length, device=u.device)).clamp(min=0)
    u = u[rows, newest_first] * real(lengths, length)[..., None]
    coarse, fine = (power.to(dtype) for power in _powers(log_a, length))
    blocks = F.pad(u, (0, 0, 0, coarse.shape[2] * fine.shape[2] - length))
    blocks = rearrange(blocks, "b (i j) d -> b d i j", j=fine.shape[2])
    within = einsum(blocks, torch.view_as_real(fine), "b d i j, d n j two -> b d n i two")
    return (torch.view_as_complex(within.contiguous()) * coarse).sum(dim=-1)


def long_convolution(
    u: Float[Tensor, "*u t"], kernel: Float[Tensor, "*k t"], reverse: Float[Tensor, "*k t"] | None = None
) -> Float[Tensor, "*y t"]:
    """y_t = sum_{s <= t} kernel_(t-s) u_s, and with a reverse kernel also sum_{s > t} reverse_(s-t-1) u_s.

    By the fast Fourier transform in O(n log n): a circle of at least 2n points keeps the ends apart, and the reverse
    kernel lies on it counting back from the last point, which is lag -1.
    """
    length = u.shape[-1]
    if length == 0:
        return u * kernel
    circle = fast_length(2 * length)
    whole = F.pad(kernel, (0, circle - length))
    if reverse is not None:
        whole = whole + F.pad(reverse.flip(-1), (circle - length, 0))
    spectrum = torch.fft.rfft(u, n=circle) * torch.fft.rfft(whole, n=circle)
    return torch.fft.irfft(spectrum, n=circle)[..., :length]


def fast_length(least: int) -> int:
    """The smallest length of the form 2^a, 3 * 2^a or 5 * 2^a that is at least this; transforms of such are fast.

    Found by comparing, so that a graph compiled for one length holds for all that share its answer.

    >>> fast_length(2000)
    2048
    """
    power = 1
    while power < least:
        power *= 2
    return next(length for length in (power * 5 // 8, power * 3 // 4, power) if length >= least)


def lift(
    ahead: Float[Tensor, "d t k"],
    c: Float[Tensor, "d cg k"],
    reads: Float[Tensor, "d cg t k"],
    skip: Float[Tensor, "c d"],
    across: Shaped[Tensor, " d *k"],
    dtype: torch.dtype,
) -> Chunk:
    """A chunk from A^t B, C and, for each t, C A^(t+1), or C A^t for the second half of C.

    W, V and R are rounded to `dtype`. M is not: its powers decide what is remembered.
    """
    channels = len(skip)
    taps = einsum(c.to(ahead.dtype), ahead, "d c k, d t k -> d c t")
    past, future = taps[:, :channels], taps[:, channels:]
    now = past[..., :1] + rearrange(skip, "c d -> d c 1")
    later = future[..., :-1] if future.shape[1] else torch.zeros_like(past[..., 1:])
    line = torch.cat([past[..., 1:].flip(-1), now, later, torch.zeros_like(now)], dim=-1).to(dtype)  # [d c 2t]
    ahead, reads = ahead.to(dtype), reads.to(dtype)
    maps, writes = [_toeplitz(line), reads[:, :channels]], [ahead.flip(1)]
    if future.shape[1]:
        writes.append(ahead)
        maps.append(reads[:, channels:].flip(2))
    return Chunk(rearrange(torch.cat(maps, dim=-1), "d c t s -> d (c t) s"), torch.cat(writes, dim=-1), across)


def conjugate_pairs(state: int) -> int:
    if state < 2 or state % 2:
        raise UsageError(f"The state consists of conjugate pairs, got state={state}; choose an even number.")
    return state // 2


def hippo(state: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The frequencies of HiPPO-LegS and its P in the basis of eigenvectors, one of each pair of conjugates.

    HiPPO-LegS is -1/2 plus a skew-symmetric matrix, less P P^T with P_k = sqrt(k + 1/2); its B is sqrt(2) P. The phase
    of an eigenvector is free and chosen such that P is real.
    """
    half, p = conjugate_pairs(state), (torch.arange(state, dtype=torch.float64) + 0.5).sqrt()
    skew = (p[:, None] * p).triu(1)
    frequencies, vectors = torch.linalg.eigh(-1j * (skew - skew.mT))
    return frequencies[half:].float(), (vectors.mH @ p.to(vectors.dtype)).abs()[half:].float()


def as_pairs(z: Complex[Tensor, "*axes n"]) -> Float[Tensor, "*axes two_n"]:
    """Complex states as real ones, part beside part."""
    return torch.view_as_real(z).flatten(-2)


def as_reading(c: Complex[Tensor, "*axes n"]) -> Float[Tensor, "*axes two_n"]:
    """What states in pairs are multiplied by to give Re sum_n c_n z_n."""
    return as_pairs(c.conj().resolve_conj())


def _rotations(a: Complex[Tensor, "d n"]) -> Float[Tensor, "d two_n two_n"]:
    """The matrices that multiply pairs by complex numbers."""
    blocks = torch.stack([torch.stack([a.real, -a.imag]), torch.stack([a.imag, a.real])])
    return rearrange(torch.diag_embed(blocks), "i j d n m -> d (n i) (m j)")


def _toeplitz(line: Float[Tensor, "d c two_t"]) -> Float[Tensor, "d c t t"]:
    """Row t has line_(T-1+s-t) at place s: written one below another, and read in rows that are shorter by one."""
    length = line.shape[-1] // 2
    rows = line[:, :, None].expand(-1, -1, length, -1).flatten(2)[..., : length * (2 * length - 1)]
    return rows.unflatten(-1, (length, 2 * length - 1))[..., length - 1 :]


def _powers(log_a: Complex[Tensor, "d n"], length: int) -> tuple[Complex[Tensor, "d n i"], Complex[Tensor, "d n j"]]:
    """A^(i block) and A^j, such that i block + j runs over 0 to length - 1 and perhaps a little beyond."""
    block = 1
    while block**2 < length:  # by comparing, so that a graph compiled for one length holds for others
        block *= 2
    times = torch.arange(block, device=log_a.device)
    return (log_a[..., None] * (block * times[: -(-length // block)])).exp(), (log_a[..., None] * times).exp()
