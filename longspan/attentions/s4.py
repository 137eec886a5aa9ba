"""S4: a state space that remembers the past as HiPPO does, a diagonal plus a matrix of rank one in place of attention.

    x'(t) = (Lambda - P P*) x(t) + B u(t)      y(t) = 2 Re C x(t) + D u(t)      Lambda = -exp(log_decay) + i frequency

sampled by the bilinear rule at steps Delta of each channel's own. The part of rank one is then a feedback: a diagonal
state space, driven by u and by a number w that it reads from itself. While decoding this takes O(N) operations a token:

    x_t = a x_{t-1} + b u_t - p w_t      w_t = Re P* (x_t + x_{t-1})      y_t = 2 Re C x_t + D u_t

    g = 2 Delta / (2 - Delta Lambda)     a = (2 + Delta Lambda) / (2 - Delta Lambda)     b = g B     p = g P

While training, the loop is closed in generating functions. With Cauchy sums [C b](z) = sum_n C_n b_n / (1 - a_n z) over
all N states, and with h = (1 + z) / 2, Woodbury's identity gives

    w(z) = h [P*b] / (1 + h [P*p]) u(z)      K(z) = [C b] - [C p] h [P*b] / (1 + h [P*p])      y = K * u + D u

K is read off on a circle |z| < 1 by an inverse Fourier transform. There a Cauchy sum is itself the transform of a sum
of damped waves, which needs no matrix of states by frequencies, and nothing is singular. On a GPU there is no kernel:
the closed loop is a matrix A~ on pairs of real numbers, and its powers take a row chunk by chunk (`filter_chunks`).

Then GELU, a linear map to twice the width and a gate (GLU). Non-causal self attention has a second C for a convolution
from the right, which begins at the next token, so that the present is seen once; `bidirectional=False` leaves it out.
Only half of the `state` numbers are kept, the rest being their conjugates. Lambda, P and B start as those of HiPPO-LegS
and are shared by all channels (`tied`). It mixes along the sequence, channel by channel: `heads` and `inner` have no
effect. Padding is not time: a hidden token neither enters the state nor lets it fade. Lambda, P, B and Delta want a
learning rate of at most 1e-3 and no weight decay; they say so in their attribute `optim`. Paper: arXiv:2111.00396.

Departs from the paper in: C itself is the parameter, for every length the same; the paper stores C (I - A^L), which
belongs to one length, and evaluates on the unit circle.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, DecodeState, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.long_convolution import long_convolution
from longspan.kernels.long_convolution.fourier import fast_length
from longspan.kernels.packing import left_align
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.state_space import (
    chunk_type,
    chunks,
    filter_chunks,
    filter_tokens,
    gently_trained,
    impulse_response,
    last_state,
)
from longspan.kernels.state_space.chunks import Chunk, as_pairs, as_reading
from longspan.kernels.state_space.doubling import powers

# On a circle, what comes round once more is damped by |z|^points, while rounding at the end of the kernel is magnified
# by |z|^-length. With `rounds` times as many points as the kernel is long both are the same where the first is
# eps^(rounds / (rounds + 1)): 1e-8 for one, less than single precision keeps, and 4e-11 for two.
EPS = torch.finfo(torch.float64).eps


class Sampled(NamedTuple):
    """The letters of the recurrence, in double precision, since phases add up over thousands of steps."""

    log_a: Complex[Tensor, "d n"]
    b: Complex[Tensor, "d n"]
    p: Complex[Tensor, "d n"]
    reading: Complex[Tensor, "d n"]  # P*
    c: Complex[Tensor, "c d n"]


@dataclass
class Memory(DecodeState):
    """The state x of every channel, as pairs of real and imaginary part."""

    x: Float[Tensor, "b d n 2"]


class S4(Attention):
    meta = AttentionMeta(
        title="S4",
        paper="arXiv:2111.00396",
        family="state space",
        cost="n log n",
        patterns=SELF_PATTERNS,
        positions=True,
        remark="Brings its own output map (GELU, linear, GLU); heads have no effect.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        state: int = 64,
        channels: int = 1,
        tied: bool = True,
        bidirectional: bool = True,
        step_min: float = 1e-3,
        step_max: float = 1e-1,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if state < 2 or state % 2:
            raise UsageError(f"The state consists of conjugate pairs, got state={state}; choose an even number.")
        if not 0 < step_min <= step_max:
            raise UsageError(f"Steps need 0 < step_min <= step_max, got step_min={step_min} and step_max={step_max}.")
        if channels < 1:
            raise UsageError(f"Every feature needs at least one channel, got channels={channels}.")
        self.directions = 2 if bidirectional and self.pattern is Pattern.NONCAUSAL_SELF else 1
        frequency, p = hippo(state)
        owners, spread = 1 if tied else dim, math.log(step_max) - math.log(step_min)
        self.log_decay = gently_trained(torch.full((owners, state // 2), math.log(0.5)))
        self.frequency = gently_trained(frequency.expand(owners, -1))
        self.p = gently_trained(_as_pairs(p.expand(owners, -1)))
        self.b = gently_trained(_as_pairs(math.sqrt(2) * p.expand(owners, -1)))
        self.log_step = gently_trained(torch.rand(dim) * spread + math.log(step_min))
        c = torch.randn(self.directions * channels, dim, state // 2, dtype=torch.complex64)
        self.c = nn.Parameter(torch.view_as_real(c))  # the second half of the channels runs backwards, if there is one
        self.skip = nn.Parameter(torch.randn(channels, dim))
        self.out = nn.Linear(channels * dim, 2 * dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        dtype = chunk_type(x, 2 * self.frequency.shape[1])
        with without_autocast(x):
            if dtype is not None:
                y = filter_chunks(x, self.chunk(chunks.LENGTH, dtype), mask, gelu=True)
            else:
                y = F.gelu(self.mix(x, mask))
        return self._map_out(y)

    def mix(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n cd"]:
        """All channels of all features, before GELU."""
        with without_autocast(x):
            kernel = self.kernel(x.shape[1])
            forth, back = (kernel, None) if self.directions == 1 else kernel.chunk(2)
            return filter_tokens(x, forth, back, self.skip, mask)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memory]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        with without_autocast(x):
            u, lengths = left_align(at_least_single(x), mask)
            s = self.sampled()
            pulses = last_state(s.log_a, u, lengths)
            memory = s.b.to(pulses.dtype) * pulses
            if x.shape[1]:
                w = long_convolution(rearrange(u, "b n d -> b d n"), self.feedback(x.shape[1]))
                w = rearrange(w, "b d n -> b n d")
                memory = memory - s.p.to(pulses.dtype) * last_state(s.log_a, w, lengths)
            return y, Memory(torch.view_as_real(memory))

    def step(self, x_t: Float[Tensor, "b d"], state: Memory) -> tuple[Float[Tensor, "b d"], Memory]:
        self._needs_decoding()
        with without_autocast(x_t):
            u, before = at_least_single(x_t), torch.view_as_complex(state.x)
            log_a, b, p, reading, c = (letter.to(before.dtype) for letter in self.sampled())
            x = log_a.exp() * before + b * u[..., None]  # without the feedback w, which reads itself too
            w = (reading * (x + before)).sum(dim=-1).real / (1 + (reading * p).sum(dim=-1).real)
            x = x - p * w[..., None]
            y = 2 * einsum(c, x, "c d n, b d n -> b c d").real + self.skip * u[:, None]
        return self._map_out(F.gelu(rearrange(y, "b c d -> b (c d)"))), Memory(torch.view_as_real(x))

    def sampled(self) -> Sampled:
        """The bilinear rule."""
        decay, frequency, step = self.log_decay.double().exp(), self.frequency.double(), self.log_step.double().exp()
        drift = step[:, None] * torch.complex(-decay, frequency)
        b, p, c = (torch.view_as_complex(pairs.double().contiguous()) for pairs in (self.b, self.p, self.c))
        gain = 2 * step[:, None] / (2 - drift)
        return Sampled(((2 + drift) / (2 - drift)).log(), gain * b, gain * p, p.conj().expand_as(drift), c)

    def chunk(self, length: int, dtype: torch.dtype) -> Chunk:
        """The recurrence over `length` tokens at once, a power of two: the loop closed, and its powers by doubling.

        A~ never lengthens a state, whatever the parameters, so that rounding does not grow with the powers.
        """
        log_a, b, p, reading, c = self.sampled()
        a, c, forth = log_a.exp(), rearrange(2 * c, "c d n -> d c n"), self.skip.shape[0]
        gain = 1 / (1 + (reading * p).sum(dim=-1, keepdim=True).real)
        felt = gain * as_reading(reading * (a + 1))  # w without a new token
        closed = _rotations(a) - as_pairs(p)[..., :, None] * felt[..., None, :]  # A~, on pairs
        b = as_pairs(b - p * (gain * (reading * b).sum(dim=-1, keepdim=True).real))
        later = as_reading(c * a[:, None]) - (c * p[:, None]).sum(dim=-1, keepdim=True).real * felt[:, None]  # C A~
        c = as_reading(c)
        rows, across = powers(closed, torch.cat([b[:, None], later[:, :forth], c[:, forth:]], dim=1), length)
        ahead, reads = rows.split([1, c.shape[1]], dim=1)
        return chunks.lift(ahead[:, 0], c, reads, self.skip, across, dtype)

    def kernel(self, length: int) -> Float[Tensor, "c d n"]:
        """K_l = 2 Re C A~^l B~ for l < length."""
        (cb, cp, pb, pp), h = self._cauchy_sums(length)
        return self._read_off(cb - cp * (h * pb / (1 + h * pp)), length)

    def feedback(self, length: int) -> Float[Tensor, "1 d n"]:
        """What w is l steps after a pulse, for l < length."""
        (_, _, pb, pp), h = self._cauchy_sums(length)
        return self._read_off(h * pb / (1 + h * pp), length)

    def _cauchy_sums(self, length: int) -> tuple[tuple[Complex[Tensor, "_ d f"], ...], Complex[Tensor, " f"]]:
        """[C b], [C p], [P*b] and [P*p] at the points z of the circle, and h = (1 + z) / 2.

        With M points of modulus r, sum_l (a z)^l over all l is the transform of its first M terms over 1 - (a r)^M.
        """
        log_a, b, p, reading, c = self.sampled()
        points, log_radius = self._circle(length)
        log_a = log_a + log_radius
        pulses = torch.cat([c * b, c * p, (reading * b)[None], (reading * p)[None]]) / (1 - (points * log_a).exp())
        sums = torch.fft.rfft(impulse_response(log_a, pulses, points)).split([len(c), len(c), 1, 1])
        turn = -2 * math.pi / points * torch.arange(points // 2 + 1, device=c.device, dtype=torch.float64)
        return sums, (1 + torch.polar(torch.full_like(turn, math.exp(log_radius)), turn)) / 2

    def _read_off(self, spectrum: Complex[Tensor, "c d f"], length: int) -> Float[Tensor, "c d n"]:
        """The first coefficients of a power series, from its values on the circle."""
        points, log_radius = self._circle(length)
        times = torch.arange(length, device=spectrum.device, dtype=torch.float64)
        series = torch.fft.irfft(spectrum, n=points)[..., :length] * (-log_radius * times).exp()
        return series.to(at_least_single(self.c).dtype)

    def _circle(self, length: int) -> tuple[int, float]:
        """How many points it has, and the logarithm of its radius."""
        rounds = 2 if self.c.dtype == torch.float64 else 1
        points = fast_length(rounds * length)
        return points, math.log(EPS) * rounds / (rounds + 1) / points

    def _map_out(self, y: Float[Tensor, "*n cd"]) -> Float[Tensor, "*n d"]:
        return F.glu(self.out(y.to(self.out.weight.dtype)), dim=-1)


def hippo(state: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The frequencies of HiPPO-LegS and its P in the basis of eigenvectors, one of each pair of conjugates.

    HiPPO-LegS is -1/2 plus a skew-symmetric matrix, less P P^T with P_k = sqrt(k + 1/2); its B is sqrt(2) P. The phase
    of an eigenvector is free and chosen such that P is real.
    """
    p = (torch.arange(state, dtype=torch.float64) + 0.5).sqrt()
    skew = (p[:, None] * p).triu(1)
    frequencies, vectors = torch.linalg.eigh(-1j * (skew - skew.mT))
    return frequencies[state // 2 :].float(), (vectors.mH @ p.to(vectors.dtype)).abs()[state // 2 :].float()


def _rotations(a: Complex[Tensor, "d n"]) -> Float[Tensor, "d two_n two_n"]:
    """The matrices that multiply pairs by complex numbers."""
    blocks = torch.stack([torch.stack([a.real, -a.imag]), torch.stack([a.imag, a.real])])
    return rearrange(torch.diag_embed(blocks), "i j d n m -> d (n i) (m j)")


def _as_pairs(real: Float[Tensor, "d n"]) -> Float[Tensor, "d n 2"]:
    return torch.stack([real, torch.zeros_like(real)], dim=-1)
