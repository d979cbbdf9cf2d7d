"""Whether hosts have CPUs enough for the ranks that they get: pods with CPUs of their own, pods
that share a node's, quotas.
"""

from contextlib import nullcontext

import pytest

from perfdag.hosts import facts
from perfdag.hosts.base import CommandResult, Host
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Skip
from perfdag.steps.mpi import openmpi

STATUS = "Name:\tcat\nPid:\t77\nCpus_allowed:\tff\nCpus_allowed_list:\t{}\nMems_allowed:\t1\n"


class Pod:
    """A pod on a node as it tells of itself: the CPUs it may run on, and the text of its
    cgroup's quota.
    """

    def __init__(self, name: str, cpus: str, quota: str = "max 100000\n") -> None:
        self.name, self.text = name, STATUS.format(cpus) + quota

    def run(self, argv: list[str], **_: object) -> CommandResult:
        assert argv[:2] == ["cat", "/proc/self/status"]
        return CommandResult(
            argv,
            1,
            self.text,
            "cat: /sys/fs/cgroup/cpu/cpu.cfs_quota_us: No such file or directory",
            0.0,
        )


def pods(*requested: tuple[str, ...]) -> list[Host]:
    return [Pod(*item) for item in requested]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ([("a", "0-3"), ("a", "4-7")], None),  # CPUs of their own
        ([("a", "0-3"), ("a", "0-3")], "a has 4 CPUs for 8 processes"),  # the node's, shared
        ([("a", "0-7"), ("a", "0-7")], None),
        ([("a", "0-7"), ("a", "6-7")], "a pod on a has 2 CPUs for 4 processes"),
        ([("a", "0-1,4-5"), ("a", "2-3,6-7")], None),
        ([("a", "0-3"), ("b", "0-3")], None),
        ([("a", "0-3"), ("b", "0-2")], "a pod on b has 3 CPUs for 4 processes"),
        ([("a", "0-63", "400000 100000\n"), ("b", "0-63")], None),
        (
            [("a", "0-63"), ("b", "0-63", "350000 100000\n")],
            "b has a CPU quota of 3.5 for 4 processes, which would throttle them",
        ),
        (
            [("a", "0-63", "200000\n100000\n"), ("b", "0-63")],
            "a has a CPU quota of 2 for 4 processes",
        ),  # cgroups of version 1
        ([("a", "0-63", "-1\n100000\n"), ("b", "0-63")], None),
    ],
)
def test_each_pod_and_each_node_has_cpus_for_its_ranks(
    requested: list[tuple[str, ...]], message: str | None
) -> None:
    """Two pods get 8 ranks."""
    with pytest.raises(Skip, match=message) if message else nullcontext():
        openmpi.need_cpus(pods(*requested), 8)


def test_this_machine_several_times_has_its_cpus_once(monkeypatch: pytest.MonkeyPatch) -> None:
    has = facts.limits()["cpus_allowed"]
    openmpi.need_cpus([LocalHost()] * has, has)
    with pytest.raises(
        Skip, match=f"has {has} CPUs for {2 * has} processes; use fewer, or set oversubscribe: true"
    ):
        openmpi.need_cpus([LocalHost()] * 2, 2 * has)
    monkeypatch.setattr(facts, "limits", lambda: {"cpu_limit": 0.5})
    with pytest.raises(Skip, match=r"a CPU quota of 0\.5 for 1 processes"):
        openmpi.need_cpus([LocalHost()], 1)


def test_a_host_that_does_not_tell_its_cpus_fails() -> None:
    with pytest.raises(Failed, match="a does not say on which CPUs it may run"):
        openmpi.need_cpus(pods(("a", "")), 1)
