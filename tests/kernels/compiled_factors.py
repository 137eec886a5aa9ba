"""Synthesizer compiled: one graph for all lengths where torch's fused kernel computes it, on a GPU if available.

python -m pytest tests/kernels/compiled_factors.py --noconftest -q
"""

import pytest
import torch

from longspan import attentions
from longspan.attentions import ALL_PATTERNS
from tests.kernels.graphs import assert_one_graph

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("masked, half", [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("pattern", ALL_PATTERNS)
def test_a_compiled_layer_is_one_graph_for_any_length(pattern, masked, half):
    torch.manual_seed(0)
    torch._dynamo.reset()  # otherwise all of these count as recompilations of one function
    layer = attentions.get("synthesizer")(32, 2, pattern, max_length=100, max_context=100).to(DEVICE).eval()

    def call(x, context, mask):
        masks = {"context_mask" if pattern.cross else "mask": mask}
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            return layer(x, context, **masks).float()

    calls = []
    for n, m in ((40, 50), (64, 90)):
        m = m if pattern.cross else n
        x = torch.randn(3, n, 32, device=DEVICE, requires_grad=not pattern.cross)  # its values are not used
        context = torch.randn(3, m, 32, device=DEVICE, requires_grad=True)
        mask = torch.rand(3, m, device=DEVICE) < 0.6 if masked else None
        calls.append((x, context if pattern.cross else None, mask))
    assert_one_graph(call, calls)
