"""The reasons why a golden vector is not matched, is matched only in part, or has a setting that nothing reads."""

# vectors that no mechanism here reproduces, by name
NOT_MATCHED = {
    "bigbird__ns_eval_mode": "a slip of that package: outside training all random blocks are block 0, counted again",
}

# vectors compared without some rows of their output
NO_KEY = "rows that see no key: `rows_valid` says that their value depends on the precision"
IN_PART = {
    "local_lra__ns_pad": NO_KEY,
    "sinkhorn_lra__ns_softmax_pad": NO_KEY,
    "sparse_transformer__cs_lra_strided_pad": NO_KEY,
    "synthesizer__ns_factorized_plus_dot_pad": NO_KEY,
}

# settings that do not affect the computation, by mechanism, or by vector where only that one ignores it
NOT_READ = {
    ("lara", "alpha_coeff"): "belongs to the optimal weighting",
    ("lara__ns_2d_noparam_biased", "antithetics"): "evaluation draws nothing",
    ("lara__ns_2d_noparam_biased", "multisample"): "evaluation draws nothing",
    ("nystromformer__ns_exact", "iterations"): "with a landmark for each token it is softmax attention",
    ("nystromformer_cab__ns_short", "iterations"): "with fewer tokens than landmarks it is softmax attention",
    ("nystromformer_cab__ns_short", "landmarks"): "with fewer tokens than landmarks it is softmax attention",
    ("s4", "init"): "how the recorded parameters were drawn",
    ("s4d", "init"): "how the recorded parameters were drawn",
    ("sinkhorn", "iterations"): "top-k does not normalise",
    ("sinkhorn", "temperature"): "the package does not pass it on to top-k where it is not causal",
    ("sinkhorn", "top_blocks"): "the Gumbel form sorts all blocks, SortCut as many as `sortcut` says",
    ("sparse_transformer", "block"): "a stride counts tokens; blocks are how its mask was laid out",
    ("sparse_transformer", "num_verts"): "belongs to the fixed pattern",
    ("sparse_transformer", "vertsize"): "belongs to the fixed pattern",
    ("synthesizer", "k"): "the rank of factorised scores, which the dense kind does not have",
}
