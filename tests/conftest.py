"""Every test executes the shapes in the signatures it meets: an annotation that lies fails the test."""

from itertools import chain

from hypothesis import settings

from tests.executed_shapes import execute_shapes

execute_shapes(["longspan.attentions", "longspan.backbones", "longspan.kernels", "longspan.metrics", "longspan.probes"])

settings.register_profile("longspan", deadline=None)  # a test never times anything
settings.load_profile("longspan")


def pytest_terminal_summary(terminalreporter):
    """The figures of the fuzzers, a line each. Here, since the process that prints loads no conftest of a subfolder."""
    from tests.fuzz.figures import lines

    if found := lines(chain.from_iterable(terminalreporter.stats.values())):
        terminalreporter.section("figures")
        for line in sorted(found):
            terminalreporter.write_line(line)
