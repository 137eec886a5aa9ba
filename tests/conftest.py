"""Every test executes the shapes in the signatures it meets: an annotation that lies fails the test."""

import signal
from itertools import chain

from hypothesis import settings

from tests.executed_shapes import execute_shapes

execute_shapes(["longspan.attentions", "longspan.backbones", "longspan.kernels", "longspan.metrics", "longspan.probes"])

# A shell makes background jobs ignore Ctrl-C, and every process started by the tests would inherit that; some of them
# send Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test never times anything. `make test` draws the same examples each time, so what passed once passes again;
# `make test-full` draws `fresh` ones, and what they find becomes a test of its own.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("same")


def pytest_terminal_summary(terminalreporter):
    """The counts of the fuzzers, a line each. Here, since the process that prints loads no conftest of a subfolder."""
    from tests.fuzz.figures import lines

    if found := lines(chain.from_iterable(terminalreporter.stats.values())):
        terminalreporter.section("figures")
        for line in sorted(found):
            terminalreporter.write_line(line)
