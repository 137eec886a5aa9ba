"""Names that a shell completes: `longspan run li<Tab>`. Read from the shipped catalogue, so that it is quick."""

from collections.abc import Callable, Iterable


def _names(*kinds: str) -> Callable[[str], Iterable[str]]:
    def complete(incomplete: str) -> list[str]:
        from longspan.results import catalogue

        content = catalogue.read(catalogue.SHIPPED)
        known = {entry["name"] for kind in kinds for entry in content[kind]}
        return sorted(name for name in known if name.startswith(incomplete))

    return complete


attentions = _names("attentions")
tasks = _names("tasks")
places = _names("tasks", "suites")
everything = _names("attentions", "tasks", "backbones", "datasets", "suites", "protocols")
