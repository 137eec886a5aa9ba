"""Many checks at once, each in a process of its own: a check runs on one core, and a GPU has room for several."""

import inspect
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from longspan.attentions import Mechanism, Pattern
from longspan.conformance.check import check
from longspan.conformance.report import Report
from longspan.core.errors import CheckFailed
from longspan.core.spec import Spec
from longspan.core.threads import share_compilers


def check_each(
    asked: Sequence[tuple[Mechanism, Pattern]], *, jobs: int = 1, **how: Any
) -> Iterator[tuple[int, Report]]:
    """Yield reports as they finish, each with its index in `asked`; `how` are the keyword arguments of `check`."""
    if jobs == 1 or len(asked) <= 1:
        for place, (mechanism, pattern) in enumerate(asked):
            (report,) = check(mechanism, [pattern], **how)
            yield place, report
        return
    context = multiprocessing.get_context("spawn")  # a process that has used a GPU cannot be forked
    count = min(jobs, len(asked))
    with ProcessPoolExecutor(count, context, _begin, (share_compilers(count),)) as pool:
        # Pattern by pattern: the patterns of a mechanism share kernels, which would be compiled in several processes.
        order = sorted(range(len(asked)), key=lambda place: list(Pattern).index(asked[place][1]))
        waiting = {pool.submit(check, _named(asked[i][0]), [asked[i][1]], **how): i for i in order}
        try:
            for future in as_completed(waiting):
                try:
                    (report,) = future.result()
                except BrokenProcessPool as error:
                    mechanism, pattern = asked[min(waiting.values(), key=order.index)]
                    raise CheckFailed(
                        f"A process ended while {mechanism} as {pattern} or one after it was checked; "
                        "check them with --jobs 1 to see which."
                    ) from error
                yield waiting.pop(future), report
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def _named(mechanism: Mechanism) -> str:
    """The name by which another process finds it: a file with its folder, which the plain name leaves out."""
    if ".py:" not in mechanism.target:
        return str(mechanism)
    return str(Spec(f"{inspect.getfile(mechanism.cls)}:{mechanism.cls.__name__}", mechanism.options))
