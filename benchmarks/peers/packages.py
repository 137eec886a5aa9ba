"""The adapters: how each package is built for a width, a number of heads and a length, and our equivalent mechanism.

An adapter imports its package when it builds, and returns a callable: a `core` takes q, k and v [b h n c], as our
`attend` does, a `layer` takes x [b n d] with projections inside, as our layers do. Options are the package's
defaults where these are sensible, and ours are set to the same sizes.
"""

# pyright: reportMissingImports=false

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

Build = Callable[[int, int, int, bool], Callable[..., Tensor]]  # width, heads, length, causal


@dataclass(frozen=True)
class Peer:
    """One thing that a package offers, and our mechanism that corresponds to it."""

    package: str  # the name under which it is installed
    offers: str  # the part of it that is timed
    ours: str
    level: Literal["core", "layer"]
    build: Build
    patterns: tuple[str, ...] = ("NS", "CS")
    gpu: bool = False  # whether its kernels need a GPU
    autocast: bool = True  # if False it cannot run under autocast, and the weights of both sides are cast
    remark: str = ""

    @property
    def name(self) -> str:
        return f"{self.package} {self.offers}"


def torch_attention(dim: int, heads: int, length: int, causal: bool) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def performer(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    _restore_distutils()
    from performer_pytorch import FastAttention

    return FastAttention(dim // heads, causal=causal)


def _restore_distutils() -> None:
    """The package reads a version with a module that Python dropped in 3.12."""
    try:
        import distutils.version  # noqa: F401
    except ModuleNotFoundError:
        from packaging.version import Version

        module = ModuleType("distutils.version")
        module.LooseVersion = Version  # pyright: ignore[reportAttributeAccessIssue]
        sys.modules.update({"distutils": ModuleType("distutils"), "distutils.version": module})


def linformer(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(dim, length, k=128, heads=heads)


def nystrom(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from nystrom_attention import NystromAttention

    return NystromAttention(dim, dim_head=dim // heads, heads=heads, num_landmarks=64, residual=False)


def local(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from local_attention import LocalAttention

    return LocalAttention(128, causal=causal, autopad=True, use_rotary_pos_emb=False)


def reformer(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    return LSHSelfAttention(dim, heads=heads, bucket_size=64, n_hashes=2, causal=causal)


def sinkhorn(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from sinkhorn_transformer import SinkhornSelfAttention

    return SinkhornSelfAttention(dim, bucket_size=64, max_seq_len=length, heads=heads, causal=causal)


def long_short(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from long_short_transformer import LongShortAttention

    sizes = {"window_size": 128, "segment_size": 16, "r": 1} if causal else {"window_size": 128, "r": 32}
    return LongShortAttention(dim=dim, heads=heads, dim_head=dim // heads, causal=causal, **sizes)


def flash_linear(dim: int, heads: int, length: int, causal: bool) -> Callable[..., Tensor]:
    from fla.ops.linear_attn import chunk_linear_attn

    def attend(
        q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n c"]
    ) -> Float[Tensor, "b h n c"]:
        q, k, v = (rearrange(u, "b h n c -> b n h c") for u in (F.elu(q) + 1, F.elu(k) + 1, v))
        return rearrange(chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0], "b n h c -> b h n c")

    return attend


def longformer(dim: int, heads: int, length: int, causal: bool) -> Callable[..., Tensor]:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=dim, num_attention_heads=heads, attention_window=[512], attention_probs_dropout_prob=0.0
    )
    return _Longformer(LongformerSelfAttention(config, layer_id=0))


class _Longformer(nn.Module):
    def __init__(self, attention: nn.Module):
        super().__init__()
        self.attention = attention

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        nothing = x.new_zeros(x.shape[:2])
        hidden = nothing.bool()
        return self.attention(x, nothing, is_index_masked=hidden, is_index_global_attn=hidden, is_global_attn=False)[0]


def bigbird(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=dim,
        num_attention_heads=heads,
        block_size=64,
        num_random_blocks=3,
        max_position_embeddings=length,
        attention_type="block_sparse",
    )
    return _BigBird(BigBirdBlockSparseAttention(config, seed=0), BigBirdModel.create_masks_for_block_sparse_attn)


class _BigBird(nn.Module):
    def __init__(self, attention: nn.Module, make_masks: Callable[[Tensor, int], tuple[Tensor, ...]]):
        super().__init__()
        self.attention, self.make_masks = attention, make_masks

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        blocked, band, rows, columns = self.make_masks(x.new_ones(x.shape[:2]), 64)
        return self.attention(x, band, rows, columns, blocked, blocked)[0]


class _First(nn.Module):
    """The output of a module that returns more than that."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.attention = attention

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return self.attention(x)[0]


def memory_compressed(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from memory_compressed_attention import MemoryCompressedAttention

    return MemoryCompressedAttention(dim, heads=heads, causal=causal, compression_factor=3)


def axial(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from axial_attention import AxialAttention

    return _Axial(AxialAttention(dim, num_dimensions=2, heads=heads))


class _Axial(nn.Module):
    def __init__(self, attention: nn.Module):
        super().__init__()
        self.attention = attention

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        columns = round(math.sqrt(x.shape[1]))
        return self.attention(rearrange(x, "b (r c) d -> b r c d", c=columns)).flatten(1, 2)


def routing(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from routing_transformer.routing_transformer import SelfAttention

    window = 2 ** (int(math.log2(length)) // 2)  # equal to the number of clusters if the length is a power of 4
    return _First(SelfAttention(dim, 1, length, heads, local_attn_heads=0, window_size=window))


def efficient(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    return SelfAttention(dim, heads)


def induced_set(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from isab_pytorch import ISAB

    return _First(ISAB(dim=dim, heads=heads, num_latents=32))


def flash(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from flash_pytorch import FLASH

    return FLASH(dim=dim, group_size=256, query_key_dim=128, expansion_factor=2.0, causal=causal)


def cross_covariance(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from vit_pytorch.xcit import XCAttention

    return XCAttention(dim, heads=heads, dim_head=dim // heads)


def compressive(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from compressive_transformer_pytorch.compressive_transformer_pytorch import SelfAttention

    return _Compressive(SelfAttention(dim, length, 512, 512, heads=heads), heads, length, dim // heads)


class _Compressive(nn.Module):
    def __init__(self, attention: nn.Module, heads: int, length: int, width: int):
        super().__init__()
        self.attention, self.places = attention, nn.Parameter(0.02 * torch.randn(heads, length, width))

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return self.attention(x, pos_emb=self.places, calc_memory=False)[0]


def flash_dpfp(dim: int, heads: int, length: int, causal: bool) -> Callable[..., Tensor]:
    from fla.modules.feature_map import DPFPFeatureMap
    from fla.ops.linear_attn import chunk_linear_attn

    phi = DPFPFeatureMap(dim // heads, nu=2)

    def attend(
        q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n c"]
    ) -> Float[Tensor, "b h n c"]:
        q, k, v = (rearrange(u, "b h n c -> b n h c") for u in (phi(q), phi(k), v))
        return rearrange(chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0], "b n h c -> b h n c")

    return attend


def funnel(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from transformers import FunnelBaseModel, FunnelConfig
    from transformers.models.funnel.modeling_funnel import upsample

    config = FunnelConfig(
        vocab_size=8,
        block_sizes=[1, 1],  # the second block pools
        d_model=dim,
        n_head=heads,
        d_head=dim // heads,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        truncate_seq=False,
    )
    encoder: Any = FunnelBaseModel(config).encoder
    return _Funnel(encoder.attention_structure, encoder.blocks[1][0].attention, upsample)


class _Funnel(nn.Module):
    def __init__(self, structure: Any, attention: nn.Module, repeat_pools: Callable[..., Tensor]):
        super().__init__()
        self.structure, self.attention, self.repeat_pools = structure, attention, repeat_pools

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        pooled, inputs = self.structure.pre_attention_pooling(x, self.structure.init_attention_inputs(x))
        y = self.attention(pooled, x, x, inputs)[0]
        return self.repeat_pools(y, stride=2, target_len=x.shape[1], separate_cls=True, truncate_seq=False)


def xlnet(dim: int, heads: int, length: int, causal: bool) -> nn.Module:
    from transformers import XLNetConfig, XLNetModel

    config = XLNetConfig(
        vocab_size=8, d_model=dim, n_layer=1, n_head=heads, dropout=0.0, attn_type="uni" if causal else "bi"
    )
    model: Any = XLNetModel(config)
    return _XLNet(model.layer[0].rel_attn, model.relative_positional_encoding, causal)


class _XLNet(nn.Module):
    def __init__(self, attention: nn.Module, make_places: Callable[..., Tensor], causal: bool):
        super().__init__()
        self.attention, self.make_places, self.causal = attention, make_places, causal

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        b, n, _ = x.shape
        hidden = x.new_ones(n, n).triu(1)[:, :, None, None] if self.causal else None
        places = self.make_places(n, n, bsz=b, device=x.device)
        return self.attention(x.transpose(0, 1), None, hidden, None, places, None)[0].transpose(0, 1)


PEERS = [
    Peer("torch", "scaled_dot_product_attention", "softmax", "core", torch_attention),
    Peer(
        "performer-pytorch",
        "FastAttention",
        "performer",
        "core",
        performer,
        remark="theirs adds 1e-4 to every feature, as ours does with eps=0.0001, without the fast kernels",
    ),
    Peer("linformer", "LinformerSelfAttention", "linformer(rank=128)", "layer", linformer, patterns=("NS",)),
    Peer("nystrom-attention", "NystromAttention", "nystromformer(landmarks=64)", "layer", nystrom, patterns=("NS",)),
    Peer("local-attention", "LocalAttention", "local(window=128, shape=blocks, overlap=128)", "core", local),
    Peer("reformer-pytorch", "LSHSelfAttention", "reformer(rounds=2, chunk=64)", "layer", reformer),
    Peer(
        "sinkhorn-transformer",
        "SinkhornSelfAttention",
        "sinkhorn(block=64, net=attention, top=1, gumbel=False)",
        "layer",
        sinkhorn,
        autocast=False,
        remark="theirs picks the best block and does not balance, as ours is told to; weights are cast",
    ),
    Peer(
        "long-short-transformer",
        "LongShortAttention",
        "longshort(window=128, landmarks=32, chunk=16, rank=1)",
        "layer",
        long_short,
        autocast=False,
        remark="theirs has one projection for keys and values, and a wider window; weights are cast",
    ),
    Peer("flash-linear-attention", "chunk_linear_attn", "linear", "core", flash_linear, patterns=("CS",), gpu=True),
    Peer(
        "transformers",
        "LongformerSelfAttention",
        "longformer(window=512, global_tokens=0)",
        "layer",
        longformer,
        patterns=("NS",),
        remark="theirs has no output map",
    ),
    Peer(
        "transformers",
        "BigBirdBlockSparseAttention",
        "bigbird(block=64, random=3)",
        "layer",
        bigbird,
        patterns=("NS",),
        autocast=False,
        remark="theirs has no output map, and in evaluation mode no random blocks; weights are cast",
    ),
    Peer(
        "memory-compressed-attention",
        "MemoryCompressedAttention",
        "mca(factor=3, inclusive=True)",
        "layer",
        memory_compressed,
        remark="theirs compresses keys and values, after the projections, and has a learned slot for the first token",
    ),
    Peer(
        "axial-attention",
        "AxialAttention",
        "axial(projections=own)",
        "layer",
        axial,
        patterns=("NS",),
        remark="on a square grid",
    ),
    Peer(
        "routing-transformer",
        "SelfAttention",
        "routing_transformer",
        "layer",
        routing,
        patterns=("NS",),
        remark="sqrt(n) clusters of sqrt(n) tokens; theirs also finds new means and its auxiliary loss while training",
    ),
    Peer(
        "linear-attention-transformer",
        "SelfAttention",
        "efficient_attention",
        "layer",
        efficient,
        patterns=("NS",),
        remark="theirs divides by the root of the width of a head",
    ),
    Peer(
        "isab-pytorch",
        "ISAB",
        "set_transformer(points=32)",
        "layer",
        induced_set,
        patterns=("NS",),
        remark="theirs projects the points and what they pool in full, not head by head",
    ),
    Peer(
        "flash-pytorch",
        "FLASH",
        "flash(group=256, features=128, expansion=2.0)",
        "layer",
        flash,
        remark="theirs has a norm before and a residual connection",
    ),
    Peer(
        "vit-pytorch",
        "XCAttention",
        "xcit",
        "layer",
        cross_covariance,
        patterns=("NS",),
        remark="theirs has a norm before, and learns the logarithm of the temperature",
    ),
    Peer(
        "compressive-transformer-pytorch",
        "SelfAttention",
        "compressive_transformer",
        "layer",
        compressive,
        patterns=("CS",),
        remark="a segment without a past; theirs learns a vector for each distance, and has neither u nor w",
    ),
    Peer(
        "flash-linear-attention",
        "DPFPFeatureMap, chunk_linear_attn",
        "dpfp(nu=2)",
        "core",
        flash_dpfp,
        patterns=("CS",),
        gpu=True,
    ),
    Peer(
        "transformers",
        "FunnelRelMultiheadAttention",
        "funnel",
        "layer",
        funnel,
        patterns=("NS",),
        remark="pools are repeated over their tokens; theirs has a residual connection and a norm after",
    ),
    Peer(
        "transformers",
        "XLNetRelativeAttention",
        "transformer_xl",
        "layer",
        xlnet,
        remark="a segment without a past; theirs has a residual connection and a norm after",
    ),
]
