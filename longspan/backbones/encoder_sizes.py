"""The settings of the encoder of Long Range Arena; the defaults are those of the arena's paper and release.

The others come from its later literature: S4 and its successors (batch norm, no positions, no MLP), Nystromformer and
Skyformer (scales of the embeddings, black pixels hidden), rotary Transformers.
"""

from dataclasses import dataclass
from typing import Literal

from longspan.backbones.sizes import check_sizes
from longspan.core.errors import UsageError


@dataclass(frozen=True)
class Sizes:
    """Everything that decides the shape of the network, and its input."""

    dim: int
    heads: int
    layers: int
    mlp: int
    inner: int | None = None  # width of queries, keys and values when it is not dim
    dropout: float = 0.1
    embedding_dropout: float | None = None  # of embeddings; None is as in the blocks
    attention_dropout: float = 0.1
    # "first" and "last" are the outputs at these real tokens; "sum_visible" divides by the maximum length
    pooling: Literal["cls", "mean", "first", "last", "max", "sum_visible"] = "cls"
    positions: Literal["sinusoid", "learned", "none", "rope"] = "sinusoid"  # "rope" rotates queries and keys
    hide_zeros: bool = False  # as released: id 0 is padding, which is embedded and computed like any token
    input_mode: Literal["ids", "continuous"] = "ids"  # a symbol per intensity, or the intensity itself
    features: Literal["one", "two", "four"] = "one"  # what the head sees: a vector, [u, v], or [u, v, u * v, u - v]
    head_layers: int = 2
    norm: Literal["layer", "batch", "rms", "scale"] = "layer"
    norm_at: Literal["pre", "post"] = "pre"  # "post" norms x + y after every residual, and has no norm at the end
    final_norm: bool = True  # the one at the end, if norm_at=pre
    norm_momentum: float = 0.1  # of the running statistics of a batch norm
    block: Literal["mlp", "glu", "none"] = "mlp"  # beside the mechanism; "glu" is an MLP with a gate
    activation: Literal["gelu_tanh", "gelu", "relu", "silu"] = "gelu_tanh"  # of the MLP, or of its gate
    embedding_std: float = 1.0
    position_std: float = 0.02  # of learned positions
    projection_bias: bool = False  # of the projections around the mechanism
    dropout_tied: bool = False  # one mask for each row and channel, whatever the position
    mixer_dropout: float = 0.0  # inside a state-space model, before its output map
    pixel_scale: Literal["signed", "unit", "standard"] = "signed"  # -1..1, 0..1, or (0..1 - pixel_mean) / pixel_std
    pixel_mean: float = 0.5
    pixel_std: float = 0.5
    # "nystrom" sets hidden outputs to 0 before they are pooled, "drop" does not compute them at all
    zero_rule: Literal["release", "nystrom", "drop"] = "release"
    head_activation: Literal["relu", "gelu"] = "relu"
    head_width: Literal["mlp", "dim"] = "mlp"  # of the first hidden layer
    end_token: bool = False  # one more symbol after the last token of every row, as in S4

    def __post_init__(self):
        check_sizes(self, "dim", "heads", "layers", "mlp", "head_layers")
        if self.hide_zeros and self.input_mode == "continuous":
            raise UsageError("hide_zeros hides an id, but input_mode=continuous has no ids; choose one of the two.")
        if self.end_token and self.input_mode == "continuous":
            raise UsageError("end_token is one more id, but input_mode=continuous has no ids; choose one of the two.")
        if self.zero_rule != "release" and not self.hide_zeros:
            raise UsageError(f"zero_rule={self.zero_rule} says how zeros are hidden; add hide_zeros=True.")
        for name in ("embedding_dropout", "mixer_dropout"):
            if (rate := getattr(self, name)) is not None and not 0 <= rate < 1:
                raise UsageError(f"{name} is a rate from 0 to below 1, got {rate}.")
        for name in ("embedding_std", "position_std", "pixel_std", "norm_momentum"):
            if not (number := getattr(self, name)) > 0:
                raise UsageError(f"The network needs {name} above 0, got {number}; give a positive number.")
