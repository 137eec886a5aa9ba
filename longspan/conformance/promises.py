"""All promises in the order in which they are shown."""

from longspan.conformance import (
    causality,
    cost,
    declarations,
    decoding,
    empty,
    extremes,
    gradients,
    lengths,
    limits,
    padding,
    parameters,
    persistence,
    precision,
    reach,
    shapes,
)
from longspan.conformance.promise import Promise

FIRST: Promise = shapes.construction  # without a layer there is nothing else to test

PROMISES: tuple[Promise, ...] = (
    shapes.shape_and_dtype,
    shapes.batch_independence,
    shapes.first_row_alone,
    declarations.undeclared_patterns,
    declarations.dropout_declaration,
    gradients.gradient_flow,
    gradients.gradcheck,
    gradients.reference_agreement,
    causality.no_future_leak,
    causality.no_future_gradient,
    causality.prefix_equals_full,
    reach.past_is_used,
    reach.context_is_used,
    padding.padding_content,
    padding.appended_padding,
    padding.packed_equals_padded,
    empty.empty_rows,
    decoding.step_equals_parallel,
    decoding.masked_prefix,
    decoding.decode_state,
    persistence.save_and_load,
    persistence.evaluation_determinism,
    lengths.odd_lengths,
    lengths.length_independence,
    extremes.extreme_inputs,
    precision.bfloat16,
    limits.exact_limit,
    cost.declared_cost,
    parameters.parameter_overhead,
)
