"""Threads that give way have a priority of their own."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from longspan.core.threads import give_way


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have the priority of their process")
def test_a_thread_that_gives_way_has_a_lower_priority_than_the_others():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1, initializer=give_way) as threads:
        lower = threads.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
    assert lower == min(before + 10, 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
