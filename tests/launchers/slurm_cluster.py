"""A real Slurm on this machine: a controller and two node daemons with one processor core each, under munge.

From Debian's packages: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge. Needs root.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.launchers.waiting import PATIENCE, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
# Jobs of the partition `urgent` preempt those of `usual`, which have a minute to end and are requeued. On a loaded
# machine everything in Slurm is slow: a credential that expires before a job starts, or a message that times out, would
# drain a node for good. A requeued job starts when its old credential has expired.
CONFIGURATION = """
ClusterName=longspan
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={place}/munge.socket,cred_expire=20
SlurmctldPort={port}
SlurmctldPidFile={place}/slurmctld.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdPidFile={place}/slurmd-%n.pid
SlurmdLogFile={place}/slurmd-%n.log
SlurmdSpoolDir={place}/spool-%n
StateSaveLocation={place}/state
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=60
MessageTimeout=90
TCPTimeout=60
BatchStartTimeout=120
UnkillableStepTimeout=300
MinJobAge=600
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1
PartitionName=usual Nodes=one,two Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=one,two MaxTime=60 State=UP PriorityTier=10
"""


def why_not() -> str | None:
    """Why Slurm cannot run here, in a sentence; None if it can."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    if absent := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        return f"Slurm is not installed: {', '.join(absent)}; apt-get install slurmctld slurmd slurm-client munge"
    return None if os.getuid() == 0 else "Slurm's daemons are started by root here, and this is another user"


@contextlib.contextmanager
def slurm():
    """The environment in which sbatch finds the cluster; all daemons are ended after the block."""
    place = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    place.chmod(0o755)
    ports = [_free_port() for _ in range(3)]
    settings = {"host": socket.gethostname(), "place": place, "port": ports[0], "first": ports[1], "second": ports[2]}
    (place / "slurm.conf").write_text(CONFIGURATION.format(**settings))
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for name in ("state", "spool-one", "spool-two"):
        (place / name).mkdir()
    environment = os.environ | {"SLURM_CONF": str(place / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={place}/munge.socket"]
    munge += [f"--{name}-file={place}/munge.{name}" for name in ("log", "pid", "seed")]
    commands = [munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "one"], ["slurmd", "-D", "-N", "two"]]
    daemons = []
    try:
        for number, command in enumerate(commands):
            with (place / f"daemon{number}.log").open("w") as log:
                daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            if number == 0:
                _wait(lambda: (place / "munge.socket").exists(), place)
        _wait(lambda: _idle(environment) == {"one", "two"}, place)
        yield environment
    finally:
        _end(daemons, environment)
        shutil.rmtree(place, ignore_errors=True)


def _end(daemons, environment) -> None:
    """Cancel all jobs, then end the daemons, each of which has a minute to end by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # a controller that never came up
        subprocess.run(["scancel", "--me"], env=environment, check=False, capture_output=True, timeout=60)
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        try:
            daemon.wait(timeout=60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _idle(environment) -> set[str]:
    command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    return set(done.stdout.split())


def _wait(reached, place: Path) -> None:
    try:
        wait_for(reached, "Slurm to come up")
    except AssertionError as error:
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(place.glob("*.log")))
        raise AssertionError(f"{error}:\n{logs}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
