"""Packing: a padded batch [b n ...] as the sequence of its real tokens [t ...], so that padding costs nothing."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


@dataclass  # not frozen: Fabric moves inputs of a module to the device by copying them, which frozen ones do not allow
class Rows:
    """The lengths of the rows of a batch, on the device, and what the host must know of them.

    Rows beyond `count` are filler: they bring the number of tokens to a round number, so that batches of many lengths
    come in few shapes.
    """

    lengths: Int[Tensor, " b"]
    total: int
    max_seqlen: int
    count: int

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str = "cpu") -> "Rows":
        on_device = torch.tensor(lengths).to(device, non_blocking=True)
        return cls(on_device, sum(lengths), max(lengths), len(lengths))

    def longer(self, by: int) -> "Rows":
        """The same rows with `by` more tokens each."""
        return Rows(self.lengths + by, self.total + by * len(self.lengths), self.max_seqlen + by, self.count)


@dataclass(frozen=True)
class Layout:
    """Where the real tokens of a padded batch lie.

    >>> layout = Layout.of_lengths([1, 3])
    >>> layout.pack(torch.tensor([[1, 0, 0], [2, 3, 4]]))
    tensor([1, 2, 3, 4])
    """

    mask: Bool[Tensor, "b n"]
    index: Int[Tensor, " t"]  # of each real token in the flattened batch
    cu_seqlens: Int[Tensor, " b_plus_1"]  # row i holds tokens cu_seqlens[i] to cu_seqlens[i + 1]; int32
    max_seqlen: int
    together: bool = True  # whether the real tokens of every row are contiguous

    @classmethod
    def of_lengths(cls, lengths: list[int], width: int | None = None, device: torch.device | str = "cpu") -> "Layout":
        """From row lengths known on the host: right padding, no device synchronisation."""
        return cls.of_rows(Rows.of(lengths, device), width)

    @classmethod
    def of_rows(cls, rows: Rows, width: int | None = None) -> "Layout":
        width, device = rows.max_seqlen if width is None else width, rows.lengths.device
        cu_seqlens = F.pad(rows.lengths.cumsum(0), (1, 0))
        shift = torch.arange(len(rows.lengths), device=device) * width - cu_seqlens[:-1]
        shifts = shift.repeat_interleave(rows.lengths, output_size=rows.total)
        index = torch.arange(rows.total, device=device) + shifts
        return cls(real(rows.lengths, width), index, cu_seqlens.int(), rows.max_seqlen)

    @classmethod
    def of_mask(cls, mask: Bool[Tensor, "b n"], rows: Rows | None = None) -> "Layout":
        """From the mask alone, which synchronises with the device, or with row lengths known on the host."""
        if rows is not None:
            cu_seqlens = F.pad(rows.lengths.cumsum(0), (1, 0)).int()
            return cls(mask, _true_places(mask.flatten(), rows.total), cu_seqlens, rows.max_seqlen, together=False)
        lengths = mask.sum(dim=1)
        cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).int()
        begins = mask & ~F.pad(mask[:, :-1], (1, 0))  # of runs of real tokens
        together = not (begins.sum(dim=1) > 1).any()
        return cls(mask, mask.flatten().nonzero()[:, 0], cu_seqlens, int(lengths.max()), together)

    @property
    def firsts(self) -> Int[Tensor, " b"]:
        """The index of the first token of each row among all tokens; that of some other token if a row has none."""
        return self.cu_seqlens[:-1].long().clamp(max=len(self.index) - 1)

    def places(self, apart: int) -> Int[Tensor, " t"]:
        """The position of each real token in the flattened batch, with a gap of `apart` between rows."""
        return self.index + self.index // self.mask.shape[1] * apart

    def pack(self, x: Shaped[Tensor, "b n *rest"]) -> Shaped[Tensor, " t *rest"]:
        return x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, x: Shaped[Tensor, " t *rest"]) -> Shaped[Tensor, "b n *rest"]:
        """The padded batch, zeros where there is no token."""
        flat = x.new_zeros(self.mask.numel(), *x.shape[1:]).index_copy(0, self.index, x)
        return flat.unflatten(0, self.mask.shape)


def _true_places(mask: Bool[Tensor, " n"], count: int) -> Int[Tensor, " count"]:
    """Where a mask is True, known to be in `count` places; no device synchronisation.

    >>> _true_places(torch.tensor([False, True, False, True]), 2)
    tensor([1, 3])
    """
    place = torch.arange(len(mask), device=mask.device)
    rank = torch.where(mask, mask.cumsum(0) - 1, count)  # places that are False share one extra slot
    return place.new_zeros(count + 1).scatter(0, rank, place)[:count]


def real_first(mask: Bool[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """The places of the real tokens of each row in order, then those of padding.

    Counted, not sorted: torch.compile makes a sorting network of a sort, which takes minutes at a thousand tokens.

    >>> real_first(torch.tensor([[False, True, False, True]]))
    tensor([[1, 3, 0, 2]])
    """
    place, so_far = torch.arange(mask.shape[1], device=mask.device), mask.cumsum(dim=1)
    rank = torch.where(mask, so_far - 1, so_far[:, -1:] + place - so_far)
    return torch.zeros_like(rank).scatter(1, rank, place.expand_as(rank))


def last_before(
    x: Shaped[Tensor, "b n d"], mask: Bool[Tensor, "b n"], ends: Int[Tensor, "b s"], size: int
) -> tuple[Shaped[Tensor, "b s size d"], Int[Tensor, "b s size"]]:
    """The last `size` of the first `ends` real tokens of each row, right-aligned, and their indices among these.

    Where there are fewer, the index is negative and the token arbitrary.
    """
    rank = ends[..., None] + torch.arange(-size, 0, device=x.device)
    place = real_first(mask).gather(1, rank.flatten(1).clamp(min=0))
    return x.gather(1, place[..., None].expand(-1, -1, x.shape[2])).unflatten(1, rank.shape[1:]), rank


def left_align(
    x: Shaped[Tensor, "b n *rest"], mask: Bool[Tensor, "b n"] | None
) -> tuple[Shaped[Tensor, "b n *rest"], Int[Tensor, " b"]]:
    """Move the real tokens of each row to its front, in order, zeros after them; also the row lengths."""
    if mask is None:
        return x, x.new_full((x.shape[0],), x.shape[1], dtype=torch.long)
    lengths = mask.sum(dim=1)
    aligned = x[torch.arange(x.shape[0], device=x.device)[:, None], real_first(mask)]
    return aligned * unsqueeze_like(real(lengths, x.shape[1]), aligned), lengths


def turn(x: Shaped[Tensor, "b ..."], by: Int[Tensor, " b"], dim: int) -> Shaped[Tensor, "b ..."]:
    """Roll each row along an axis, so that its element at `by` comes first.

    >>> turn(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([0, 1]), dim=1)
    tensor([[1, 2, 3],
            [5, 6, 4]])
    """
    place = (torch.arange(x.shape[dim], device=x.device) + by[:, None]) % max(x.shape[dim], 1)
    shape = [len(x)] + [1] * (x.ndim - 1)
    shape[dim] = x.shape[dim]
    return x.take_along_dim(place.view(shape), dim=dim)


def real(lengths: Int[Tensor, " b"], width: int) -> Bool[Tensor, "b n"]:
    """True for the first `lengths` positions of each row."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def unsqueeze_like(mask: Shaped[Tensor, "..."], x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Add trailing axes of size one until `mask` broadcasts against `x`."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))


def fill_up(x: Float[Tensor, "b h n c"], length: int) -> Float[Tensor, "b h length c"]:
    """Zeros appended after the last token, up to `length` tokens."""
    # Contiguous first: where nothing is missing, padding only copies and keeps the strides, while a graph compiled for
    # any length expects a contiguous result.
    return F.pad(x.contiguous(), (0, 0, 0, length - x.shape[2]))
