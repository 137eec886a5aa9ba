"""A thread can have a lower priority than the others of its process."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from longspan.core.threads import lower_priority


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have the priority of their process")
def test_only_the_thread_itself_gets_a_lower_priority():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1, initializer=lower_priority) as threads:
        lower = threads.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
    assert lower == min(before + 10, 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
