"""The parameter rule: a mechanism may have ten per cent more parameters than softmax attention in the same network."""

PARAMETER_RULE = 1.10  # of Long Range Arena


def within_rule(parameters: int, baseline: int) -> bool:
    """Whether a network has at most ten per cent more parameters than with softmax in the same slots."""
    return parameters <= PARAMETER_RULE * baseline
