"""The eleven models of Long Range Arena as its code runs them: each by its twin, with the sizes of its own file.

    presets = {"lra-released": released_models(IMAGE, block=64)}

Under `lra-released` the plain name of a model stands for what was released under that name: `local` runs as
`lra_local(block=64)`. The twins treat padding as the release does: an attention entry counts if both tokens are real,
and four models ignore the mask. A mechanism that the arena does not have runs as it is, in the Transformer's sizes, and
gets the padding mask.
"""

from collections.abc import Mapping
from typing import Any

from longspan.tasks.base import Preset

MODELS = (
    *("softmax", "local", "sparse_transformer", "longformer", "linformer", "reformer"),
    *("sinkhorn", "synthesizer", "bigbird", "linear", "performer"),
)
# Sinkhorn has no class token and a head of one layer. With the class token its files ask for, it does not start.
SINKHORN = {"model.pooling": "mean", "model.head_layers": 1}


def released_models(
    changes: Mapping[str, Mapping[str, Any]], *, block: int = 50, cls: bool = True, features: int | None = None
) -> dict[str, Preset]:
    """The presets of a task: settings by model, the block of Local and Sinkhorn, whether there is a class token.

    `features` is the number of random features of Performer, which has a ReLU instead if there are none.
    """
    options = {
        "local": f"(block={block})" if block != 50 else "",
        "sinkhorn": f"(block={block})" if block != 50 else "",
        "sparse_transformer": "" if cls else "(cls=False)",
        "performer": f"(features={features})" if features else "",
    }
    return {model: Preset(f"lra_{model}{options.get(model, '')}", changes.get(model, {})) for model in MODELS}


def sizes(layers: int, dim: int, inner: int, mlp: int, heads: int, **other: Any) -> dict[str, Any]:
    """A line of a table of sizes, as settings of the network."""
    named = {"layers": layers, "dim": dim, "inner": inner, "mlp": mlp, "heads": heads, **other}
    return {f"model.{name}": value for name, value in named.items()}
