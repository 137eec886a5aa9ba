"""Plug-ins that do harm, each in its own way, and one that is harmless."""

HONEST = """
import torch
from longspan import AttentionMeta, HeadwiseAttention, Pattern
{at_import}

class Mine(HeadwiseAttention):
    meta = AttentionMeta("Mine", "none", "own", "n", tuple(Pattern))

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        {in_attend}
        seen = torch.ones_like(v) if key_mask is None else key_mask[:, None, :, None].expand_as(v)
        return ((v * seen).sum(dim=2, keepdim=True) / seen.sum(dim=2, keepdim=True)).expand_as(q)
"""

EATER = "kept = []\n        while True: kept.append(torch.ones(2**22)); torch.relu(kept[-1])"
FORKS = (
    "import os, time\n        for _ in range(8):\n            if os.fork() == 0: x = bytearray(2**26); time.sleep(600)"
)
FORKS += "\n        time.sleep(600)"
PATCHES = """
torch.softmax = torch.nn.functional.softmax = lambda x, *a, **k: x * 0
torch.nn.functional.scaled_dot_product_attention = lambda q, k, v, **kw: v * 0
torch.set_default_dtype(torch.float64)
torch.manual_seed = lambda seed: None
torch.set_num_threads(1)
import os
os.environ.clear()
"""

# An update of eight rows takes a second until there is a file `go`: hundreds of updates outlast a waiting test.
HELD = "import pathlib, time; time.sleep(self.training and len(q) == 8 and not pathlib.Path('go').exists())"
# The same, but only after forty updates, when there is a checkpoint.
HELD_LATER = "import pathlib, time; Mine.seen = getattr(Mine, 'seen', 0) + (self.training and len(q) == 8)"
HELD_LATER += "; time.sleep(Mine.seen > 40 and not pathlib.Path('go').exists())"
MOVES = "import os; os.chdir('/'); exit(3)"


def write(folder, name, *, at_import="", in_attend="pass"):
    """Write a plug-in; returns how to name it."""
    (folder / f"{name}.py").write_text(HONEST.format(at_import=at_import, in_attend=in_attend))
    return f"{name}.py:Mine"
