"""Cells on a cluster: the simulation starts each one once, where there is room, and as early as possible."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.analysis.cluster import Job, simulate
from longspan.core.errors import UsageError

RECORDED = Path(__file__).parents[2] / "results" / "h200" / "cards"


def gpus_in_use(schedule, jobs, start_seconds=0.0):
    """The peak number of GPUs in use at once, per node."""
    changes = []
    for start, node, job in zip(schedule.starts, schedule.nodes, jobs, strict=True):
        changes += [(start, 1, node, job.gpus), (start + start_seconds + job.seconds, 0, node, -job.gpus)]
    used, most = {}, {}
    for _, _, node, change in sorted(changes):  # at equal times, ends sort before starts
        used[node] = used.get(node, 0) + change
        most[node] = max(most.get(node, 0), used[node])
    return most


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 4)), min_size=1, max_size=25),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_no_node_is_ever_asked_for_more_gpus_than_it_has(drawn, nodes, start):
    jobs = [Job(float(seconds), gpus) for seconds, gpus in drawn]
    found = simulate(jobs, nodes, 4, start_seconds=start)
    assert max(gpus_in_use(found, jobs, start).values()) <= 4
    assert set(found.nodes) <= set(range(nodes))
    assert found.makespan == max(s + start + job.seconds for s, job in zip(found.starts, jobs, strict=True))
    assert found.busy == sum((start + job.seconds) * job.gpus for job in jobs)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 6))
def test_cells_of_one_gpu_start_as_in_a_queue_before_several_counters(seconds, workers):
    counters = [0.0] * workers
    expected = []
    for own in seconds:  # the first free worker takes the next cell
        first = counters.index(min(counters))
        expected.append(counters[first])
        counters[first] += own
    found = simulate([Job(float(own)) for own in seconds], workers, 1)
    assert list(found.starts) == expected
    assert found.makespan == max(counters)


def test_smaller_cells_go_before_one_that_does_not_fit_yet():
    found = simulate([Job(10.0), Job(5.0, gpus=2), Job(3.0)], nodes=1, gpus=2)
    assert found.starts == (0.0, 10.0, 0.0)
    assert found.makespan == 15.0


def test_a_driver_that_hands_out_one_cell_a_second_starts_them_one_by_one():
    found = simulate([Job(0.5)] * 4, nodes=4, gpus=1, per_second=1.0)
    assert found.starts == (1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    "jobs, size, sentence",
    [([Job(1.0, gpus=9)], (2, 8), "needs 9 GPUs of one node, which has 8"), ([], (0, 8), "at least 1 node of 1 GPU")],
)
def test_a_cluster_that_cannot_run_the_cells_is_refused(jobs, size, sentence):
    with pytest.raises(UsageError, match=sentence):
        simulate(jobs, *size)


def test_ten_thousand_cells_of_recorded_durations_on_a_thousand_workers():
    """Within Graham's bound for list scheduling (1966), and all GPUs stay busy until the last cell has started."""
    cards = [json.loads(path.read_text()) for path in sorted(RECORDED.glob("*/*.json"))]
    recorded = [card["timing"]["wall_seconds"] for card in cards if card["kind"] == "run"]
    assert len(recorded) > 50
    jobs = [Job(seconds) for seconds in itertools.islice(itertools.cycle(recorded), 10_000)]
    found = simulate(jobs, nodes=125, gpus=8)
    total, longest = sum(job.seconds for job in jobs), max(recorded)
    assert max(longest, total / 1000) <= found.makespan <= total / 1000 + longest * (1 - 1 / 1000)
    assert max(found.starts) <= total / 1000
    assert max(gpus_in_use(found, jobs).values()) == 8
    assert found.utilisation(1000) == pytest.approx(total / 1000 / found.makespan)
