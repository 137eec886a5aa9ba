"""Several processes that train one model: copies of it whose gradients are averaged (DDP), or shares of it (FSDP2)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


def several_processes(**how: Any) -> Any:
    """The strategy of Fabric for DDP, which takes a model that is sharded already as it is."""
    from lightning.fabric.strategies.ddp import DDPStrategy, _DDPBackwardSyncControl

    class SyncControl(_DDPBackwardSyncControl):
        """Gradients stay in their process until the last part of a batch."""

        def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager:
            if isinstance(module, FSDPModule):
                return _unreduced(module, enabled)
            return super().no_backward_sync(module, enabled)

    class Processes(DDPStrategy):
        def __init__(self) -> None:
            super().__init__(**how)
            self._backward_sync_control = SyncControl()

        def setup_module(self, module: nn.Module) -> Any:
            return module if isinstance(module, FSDPModule) else super().setup_module(module)

    return Processes()


@contextmanager
def _unreduced(module: FSDPModule, enabled: bool) -> Iterator[None]:
    module.set_requires_gradient_sync(not enabled)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)
