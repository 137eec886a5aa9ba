"""The attention function and the mask function that transformers calls, for one mechanism.

Queries, keys and values arrive projected, with rotary embeddings applied, and with the cache in front of the keys.
A mechanism lives in its layer as `longspan_core`, so that its own state (random projections, parameters) is trained,
moved and saved with the model.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions import HeadwiseAttention, Mechanism, Pattern
from longspan.core.errors import UnsupportedPattern, UsageError

PREFIX = "longspan_"
CORE = "longspan_core"
PROJECTIONS = ("query", "key", "value", "out")
REFUSED = {  # arguments of the interface that no mechanism here honours, and what they are
    "softcap": "scores that are capped",
    "sliding_window": "a window of the model's own",
    "position_bias": "a bias on scores",
    "s_aux": "attention sinks",
    "cache": "a paged cache",
}


def register(mechanism: str) -> str:
    """Make a mechanism known to transformers and return its name there, for `attn_implementation`.

    A mechanism with parameters of its own needs `use`, since otherwise they would be created after the optimizer.
    """
    transformers = _transformers()
    found = _headwise(mechanism)
    name = f"{PREFIX}{found}"
    transformers.AttentionInterface.register(name, _function(found))
    transformers.AttentionMaskInterface.register(name, _mask)
    return name


def use(model: nn.Module, mechanism: str) -> nn.Module:
    """Put a mechanism into every layer of self attention of a model, its own parameters included; returns the model."""
    name, found = register(mechanism), _headwise(mechanism)
    layers = [module for module in model.modules() if _is_self_attention(module)]
    if not layers:
        raise UsageError(
            f"{type(model).__name__} has no layer that asks transformers' attention interface, where {mechanism} was "
            "to go; use a model that takes attn_implementation."
        )
    weight = next(model.parameters())
    for layer in layers:
        heads, width = _heads(layer)
        setattr(layer, CORE, _core(found, layer, heads, width, _pattern(layer, None)).to(weight.device))
    model.set_attn_implementation(name)  # pyright: ignore[reportCallIssue]
    return model


# ------------------------------------------------------------------------------------------------ as transformers calls


def _function(mechanism: Mechanism) -> Callable[..., tuple[Tensor, None]]:
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        _refuse(mechanism, attention_mask, more)
        pattern = _pattern(module, is_causal)
        heads, width = query.shape[1], query.shape[-1]
        core = getattr(module, CORE, None)
        if core is None or core.made_from != str(mechanism) or core.pattern is not pattern:
            core = _core(mechanism, module, heads, width, pattern, lazily=True).to(query.device)
            setattr(module, CORE, core)
        core.train(module.training)
        core.dropout = dropout
        if scaling is not None:
            query = query * (scaling * width**0.5)  # mechanisms divide by the root of the width themselves
        key, value = (u.repeat_interleave(heads // u.shape[1], dim=1) for u in (key, value))
        return _attended(core, query, key, value, attention_mask).transpose(1, 2).contiguous(), None

    return attend


def _attended(core: Any, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
    """The mechanism's output; queries that follow a cache are the last ones of their row."""
    n, m = q.shape[2], k.shape[2]
    if core.pattern.cross or n == m:
        return core.attend(q, k, v, key_mask=real, query_mask=None if core.pattern.cross else real).to(q.dtype)
    if not core.pattern.causal or n > m:
        raise UsageError(f"{core.made_from} as {core.pattern} has as many queries as keys, got {n} and {m}.")
    if (state := _state(core, k[:, :, : m - n], v[:, :, : m - n], real, m - n)) is not None:
        rows = []
        for t in range(n):
            y, state = core.advance(q[:, :, t], k[:, :, m - n + t], v[:, :, m - n + t], state)
            rows.append(y)
        return torch.stack(rows, dim=2).to(q.dtype)
    if not core.meta.rowwise:
        raise UsageError(
            f"{core.made_from} needs more of the past than the keys and values that a cache holds; set use_cache=False."
        )
    padded = F.pad(q, (0, 0, m - n, 0))  # rows are independent, so that earlier queries may hold anything
    return core.attend(padded, k, v, key_mask=real, query_mask=real)[:, :, m - n :].to(q.dtype)


def _state(core: Any, k: Tensor, v: Tensor, real: Tensor | None, past: int) -> Any:
    """The decoding state after the cache; None if keys and values do not determine it, or a new token is padding."""
    if type(core).prefill is not HeadwiseAttention.prefill:  # it counts something that a cache does not hold
        return None
    if real is not None and not bool(real[:, past:].all()):
        return None
    return core.begin(k, v, key_mask=None if real is None else real[:, :past])


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | None = None,
    **more: Any,
) -> Tensor | None:
    """Which keys are real, [b m]; None where all are. Any rule beyond causal and padding is refused."""
    masking_utils = import_module("transformers.masking_utils")
    known = (None, masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function)
    if mask_function not in known or more.get("local_size") is not None:
        raise UsageError(
            "The model asks for a mask beyond causality and padding (a window, packed rows, blocks), which mechanisms "
            "of longspan do not take; use full layers and one text a row."
        )
    cross = mask_function is masking_utils.bidirectional_mask_function
    if not cross and int(q_offset) + q_length != kv_length + kv_offset:
        raise UsageError(
            f"A cache of {kv_length} places with {int(q_offset) + q_length} of them filled is a static one, which a "
            "mechanism of longspan does not take; use the dynamic cache."
        )
    if attention_mask is None:
        return None
    real = attention_mask[:, -kv_length:].to(torch.bool)
    return None if bool(real.all()) else real


def _refuse(mechanism: Mechanism, mask: Tensor | None, more: dict[str, Any]) -> None:
    if mask is not None and mask.dim() != 2:
        raise UsageError(
            f"{mechanism} was given a mask of {mask.dim()} axes; it takes one flag for each key, [batch, keys]."
        )
    for name, what in REFUSED.items():
        if more.get(name) is not None:
            raise UsageError(f"The model asks for {what} ({name}={more[name]!r}), which {mechanism} cannot honour.")
    if more.get("output_attentions"):
        raise UsageError(f"{mechanism} gives no weights through this interface; leave out output_attentions.")


# -------------------------------------------------------------------------------------------------------------- making


def _core(
    mechanism: Mechanism, layer: nn.Module, heads: int, width: int, pattern: Pattern, *, lazily: bool = False
) -> Any:
    """The mechanism without its projections, which the layer has."""
    if pattern not in mechanism.meta.patterns:
        raise UnsupportedPattern(
            f"{mechanism} cannot run as {pattern}, which {type(layer).__name__} needs; it supports: "
            f"{', '.join(mechanism.meta.patterns)}."
        )
    longest = getattr(getattr(layer, "config", None), "max_position_embeddings", None)
    core: Any = mechanism(heads * width, heads, pattern, max_length=longest, max_context=longest)
    for name in PROJECTIONS:
        delattr(core, name)
    own = [name for name, _ in core.named_parameters()]
    if own and lazily:
        raise UsageError(
            f"{mechanism} has parameters of its own ({', '.join(own[:3])}), which must be there before an optimizer; "
            "call longspan.huggingface.use(model, ...) instead of naming it."
        )
    core.made_from = str(mechanism)
    return core


def _headwise(name: str) -> Mechanism:
    mechanism = attentions.get(name)
    plain = issubclass(mechanism.cls, HeadwiseAttention) and mechanism.cls.forward is HeadwiseAttention.forward
    if not plain:
        raise UsageError(
            f"{mechanism} mixes tokens before they are projected, so that it cannot stand between the projections of "
            "another model; choose a headwise one."
        )
    return mechanism


def _is_self_attention(module: nn.Module) -> bool:
    """Attention layers of transformers have `is_causal`, `scaling` and the `config` of their model."""
    asks = hasattr(module, "is_causal") and hasattr(module, "config") and hasattr(module, "scaling")
    return asks and not _is_cross(module)


def _is_cross(module: nn.Module) -> bool:
    return "CrossAttention" in type(module).__name__ or bool(getattr(module, "is_cross_attention", False))


def _pattern(module: nn.Module, is_causal: bool | None) -> Pattern:
    if _is_cross(module):
        return Pattern.NONCAUSAL_CROSS
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    return Pattern.CAUSAL_SELF if causal else Pattern.NONCAUSAL_SELF


def _heads(layer: Any) -> tuple[int, int]:
    """How many heads a layer has, and how wide they are."""
    heads = getattr(layer, "num_attention_heads", None) or getattr(layer, "num_heads", None)
    heads = heads or layer.config.num_attention_heads
    width = getattr(layer, "head_dim", None) or getattr(layer, "attention_head_size", None)
    return heads, width or layer.config.hidden_size // heads


def _transformers() -> Any:
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise UsageError(
            "Models of Hugging Face need transformers, which is not installed; run "
            "`pip install 'longspan[huggingface]'`."
        ) from None
