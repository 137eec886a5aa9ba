"""A cell has the requested number of processes, wherever its command was started."""

from longspan.runs.fabric import make_fabric


def test_in_a_job_of_slurm_a_cell_has_as_many_processes_as_were_asked_for(monkeypatch):
    """The job has a single task; the processes are started within it."""
    for name, value in {"JOB_ID": "7", "JOB_NAME": "longspan", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert make_fabric("cpu", "fp32", 2).world_size == 2
