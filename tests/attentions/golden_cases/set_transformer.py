"""Vectors of the Set Transformer: the authors' blocks, whole (isab, pma) or without projections (mab_core)."""

from collections.abc import Mapping

from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.released.authors_set_transformer import MAB, AuthorsSetTransformer
from tests.attentions.parity import Contradiction, Replay, Vector, agree, call_with


def replay(vector: Vector) -> Replay | str:
    of, arrays = vector.meta["hyperparameters"], vector.arrays
    if of["kind"] == "mab_core":
        heads, width = arrays["q"].shape[1], arrays["q"].shape[3] * arrays["q"].shape[1]
        block = MAB(width, width, width, heads).to(vector.dtype)
        return Replay("authors_set_transformer", lambda a: block.attend(a["q"], a["k"], a["v"], vector.key_mask))
    agree(vector, dim_in=arrays["x"].shape[2], dim_out=arrays["out"].shape[2])
    heads, points, norm = of["heads"], of["num_inds_or_seeds"], of["ln"]
    spec = f"authors_set_transformer(points={points}, norm={norm})"
    if of["kind"] == "isab":
        layer = attentions.get(spec)(of["dim_in"], heads, vector.pattern, inner=of["dim_out"])
        assert isinstance(layer, AuthorsSetTransformer)
        names, whole = {"I": "inducing"}, _Induced(layer)
    elif of["kind"] == "pma":
        if arrays["param_S"].shape[1] != points:
            raise Contradiction(f"its meta says {points} seeds, its arrays have {arrays['param_S'].shape[1]}")
        names, whole = {}, _Pooled(MAB(of["dim_out"], of["dim_in"], of["dim_out"], heads, norm=norm))
    else:
        return f"set_transformer knows isab, pma and mab_core, not {of['kind']}"

    def run(a: Mapping[str, Tensor]) -> Tensor:
        own = {name.removeprefix("param_"): tensor for name, tensor in a.items() if name.startswith("param_")}
        seeds = own.pop("S", None)
        places = {name: names.get(name, name).removeprefix("mab__").replace("__", ".") for name in own}
        parameters = {f"layer.{place}": own[name] for name, place in places.items()}
        inputs = (a["x"], vector.key_mask) if seeds is None else (seeds, a["x"], vector.key_mask)
        return call_with(whole.to(vector.dtype), parameters, inputs)

    return Replay(spec, run)


class _Induced(nn.Module):
    """The layer before its output is projected to the width of the tokens."""

    def __init__(self, layer: AuthorsSetTransformer):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.layer.induced(x, x, mask)


class _Pooled(nn.Module):
    """A few seeds that pool a set."""

    def __init__(self, layer: MAB):
        super().__init__()
        self.layer = layer

    def forward(self, seeds: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.layer(seeds.expand(len(x), -1, -1), x, mask)
