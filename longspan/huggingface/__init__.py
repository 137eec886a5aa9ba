"""Mechanisms of this package inside models of Hugging Face's transformers, through its attention interface.

    from transformers import AutoModelForCausalLM
    from longspan import huggingface

    model = AutoModelForCausalLM.from_pretrained(...)
    huggingface.use(model, "performer(features=64)")            # in every layer of self attention
    AutoModel.from_config(config, attn_implementation=huggingface.register("linear"))   # or by name

Any mechanism that works between projected queries, keys and values can be used, in the patterns it declares. Padding
and dynamic caches work; what a mechanism cannot honour is refused with a sentence. Needs `longspan[huggingface]`.
"""

from longspan.huggingface.attention import register, use

__all__ = ["register", "use"]
