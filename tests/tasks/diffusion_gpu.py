"""On a GPU: sampling with a recorded step gives the same pictures as launching steps one by one, in every batch.

python -m pytest tests/tasks/diffusion_gpu.py --noconftest -q
"""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.slots import Slots
from longspan.backbones.sr3 import SR3, Sizes
from longspan.tasks.diffusion import Batch, Diffusion, Sampler, normal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
SIZES = Sizes(side=32, dim=64, multipliers=(1, 2), blocks=1, attn_res=(16, 32), groups=8)
DIFFUSION = Diffusion(sampled=12)


def one_by_one(network, condition, numbers):
    batch = Batch.begin(condition, numbers, DIFFUSION.sampling)
    for _ in range(len(DIFFUSION.sampling)):
        batch.advance(network)
    return batch.x


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "local", "abc", "performer", "s4d", "nystromformer"])
def test_recorded_sampling_gives_the_same_pictures(mechanism):
    torch.manual_seed(0)
    slots = Slots(attentions.get(mechanism), frozenset({Pattern.NONCAUSAL_SELF}))
    network = SR3(slots, SIZES).cuda().eval()
    condition, numbers = torch.rand(5, 3, 32, 32, device="cuda") * 2 - 1, torch.arange(5, device="cuda")
    sampler = Sampler(network, DIFFUSION)
    with torch.no_grad():
        for part in (slice(0, 2), slice(2, 4), slice(4, 5)):  # the second replays what the first recorded
            expected = one_by_one(network, condition[part], numbers[part])
            torch.testing.assert_close(sampler(condition[part], numbers[part]), expected, atol=2e-3, rtol=0)
    assert len(sampler._recorded) == 2


def test_noise_on_a_gpu_is_that_of_a_cpu():
    found = normal(torch.tensor([7], device="cuda"), torch.arange(3, device="cuda"), (3, 8, 8))
    torch.testing.assert_close(found.cpu(), normal(7, torch.arange(3), (3, 8, 8)))
