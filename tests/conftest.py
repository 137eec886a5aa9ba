"""Every test executes the shapes in the signatures it meets: an annotation that lies fails the test."""

from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook(
    ["longspan.attentions", "longspan.backbones", "longspan.kernels", "longspan.metrics", "longspan.probes"],
    "beartype.beartype",
)

settings.register_profile("longspan", deadline=None)  # a test never times anything
settings.load_profile("longspan")
