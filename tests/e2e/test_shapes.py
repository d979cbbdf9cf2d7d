"""Pod shapes that ask for more than a pod: claims as store and as what is measured, and what
only a suite's privileges allow.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from perfdag.results.collect import gather
from perfdag.results.run_store import stored_plan
from perfdag.store.s3 import open_store

from .conftest import Namespace, installed, samples_of

pytestmark = [pytest.mark.argo, pytest.mark.slow]


def _node_is_here() -> bool:
    """Whether the cluster's real node is this machine, so that a folder made here is a folder of
    the node.
    """
    try:
        socket.create_server(
            (urlsplit(os.environ.get("AWS_ENDPOINT_URL", "")).hostname or "", 0)
        ).close()
    except OSError:
        return False
    return True


pytestmark.append(
    pytest.mark.skipif(not _node_is_here(), reason="the cluster's node is another machine")
)


class Disks:
    """PersistentVolumes of one storage class, each a folder of the node."""

    def __init__(self, bench: Namespace, root: Path) -> None:
        self.bench, self.root = bench, root
        self.loops: list[str] = []

    def folder(self, name: str, access: str) -> Path:
        """A volume, and the folder it is."""
        folder = self.root / name
        folder.mkdir()
        folder.chmod(0o777)
        self.bench.create_volume(name, access, {"hostPath": {"path": str(folder)}})
        return folder

    def device(self, name: str) -> str:
        """A volume that is a block device of the node, and the path of the device."""
        (self.root / name).touch()
        os.truncate(self.root / name, 64 << 20)
        looped = subprocess.run(
            ["losetup", "--find", "--show", str(self.root / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        if looped.returncode != 0:
            pytest.skip(f"no loop device can be made here: {looped.stderr}")
        self.loops.append(looped.stdout.strip())
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-0"]}
        source = {
            "volumeMode": "Block",
            "local": {"path": self.loops[-1]},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        }
        self.bench.create_volume(name, "ReadWriteOnce", source, size="64Mi")
        return self.loops[-1]


@contextmanager
def disks_of(bench: Namespace) -> Iterator[Disks]:
    root = Path(tempfile.mkdtemp(prefix="perfdag-e2e-", dir="/var/tmp"))
    root.chmod(0o755)
    disks = Disks(bench, root)
    try:
        yield disks
    finally:
        for each in root.iterdir():
            bench.delete("PersistentVolume", f"{bench.name}-{each.name}")
        for loop in disks.loops:
            subprocess.run(["losetup", "--detach", loop], check=False)
        shutil.rmtree(root)


@pytest.fixture
def disks(bench: Namespace) -> Iterator[Disks]:
    with disks_of(bench) as volumes:
        yield volumes


def _suite(name: str, *entries: dict[str, Any]) -> str:
    return yaml.safe_dump({"name": name, "pending_limit": "180s", "entries": list(entries)})


def test_a_claim_that_one_node_mounts_serves_as_the_store(bench: Namespace, disks: Disks) -> None:
    folder = disks.folder("store", "ReadWriteOnce")
    bench.create_claim("results", "ReadWriteOnce")
    sleep = {"benchmark": "command", "params": {"argv": ["sleep", "0.1"]}}
    good = {**sleep, "name": "good", "repetitions": 3, "hosts": {"count": 2}}
    suite = _suite("claimed", good, {**sleep, "name": "bad", "image": "localhost/no-such-image:1"})
    bench.install("--store", "claim://results")
    try:
        watched = bench.watch(bench.submit(suite))
    finally:
        bench.install()
    assert watched.returncode == 1, watched.stdout + watched.stderr
    pods = bench.objects("Pod", labels="perfdag/suite=claimed") + bench.objects(
        "Pod", labels="perfdag/role in (plan,watchdog,finish)"
    )
    mounted = {
        pod["metadata"]["labels"].get("perfdag/rank", pod["metadata"]["labels"]["perfdag/role"])
        for pod in pods
        if any(
            each.get("persistentVolumeClaim") == {"claimName": "results"}
            for each in pod["spec"]["volumes"]
        )
    }
    assert mounted == {"plan", "0", "finish"}, (
        "the lead's, and before and after it: never two nodes at once"
    )
    store = open_store(str(folder))
    [run_id] = [path.name for path in (folder / "runs").iterdir()]
    table, _ = gather(store, stored_plan(store, run_id))
    rows = samples_of([row for row in table.to_pylist() if row["benchmark"] == "command"])
    assert sorted((row["entry"], row["status"]) for row in rows) == [
        ("bad", "failed"),
        *[("good", "ok")] * 3,
    ]
    assert "no-such-image" in next(row["error"] for row in rows if row["entry"] == "bad"), (
        "the watchdog's word, that had no store"
    )
    assert len(list((folder / "results").rglob("*.parquet"))) == 1
    assert (folder / "runs" / run_id / "report.html").exists()


def test_fio_on_a_claim_of_each_pod_and_on_one_that_all_share(
    bench: Namespace, disks: Disks
) -> None:
    own = [disks.folder(name, "ReadWriteOnce") for name in ("own-a", "own-b")]
    shared = disks.folder("shared", "ReadWriteMany")
    params = {"rw": "randwrite", "bs": "4KiB", "size": "8MiB", "runtime": "10s", "direct": False}
    volume = {"storage_class": bench.name, "size": "1GiB"}
    hosts = {"count": 2, "placement": bench.spread()}
    both = {"benchmark": "fio", "params": params, "hosts": hosts}
    suite = _suite(
        "volumes",
        {**both, "name": "own", "volume": {**volume, "access": "ReadWriteOnce"}},
        {**both, "name": "shared", "volume": {**volume, "access": "ReadWriteMany"}},
    )
    before = {each["metadata"]["name"] for each in bench.objects("PersistentVolumeClaim")}
    run = bench.measure(suite)
    assert run.exit_code == 0, run.errors()
    for entry in ("own", "shared"):
        own_rows = [row for row in run.rows if row["entry"] == entry]
        result = {row["subject"]: row["value"] for row in own_rows if row["metric"] == "iops"}
        total = result.pop(None)
        assert len(result) == 2, "a worker each"
        assert {row["same_node"] for row in own_rows} == {bench.spread() == "any"}
        assert 0.8 * sum(result.values()) < total < 1.2 * sum(result.values())
        assert [row["n"] for row in own_rows if row["metric"] == "start_skew"] == [2]
        late = {
            row["subject"] for row in own_rows if (row["metric"], row["stat"]) == ("latency", "p99")
        }
        assert late == {None, *result}, "of all together from their histograms"
    for folder in (*own, shared):
        assert not [path for path in folder.rglob("*") if path.is_file()], "fio's files were left"
    # what a pod still uses goes with it; those of single pods are theirs anyway
    claims = bench.objects("PersistentVolumeClaim", labels=f"perfdag/run={run.id}")
    assert all(each["metadata"].get("deletionTimestamp") for each in claims), (
        "kept until the workflow is deleted"
    )
    assert not bench.objects("Secret", labels=f"perfdag/run={run.id}"), "the key pair"
    assert bench.perfdag("rm", run.id).returncode == 0
    # all are looked at: claims of single pods carry no label of the run
    bench.until(
        lambda: (
            {each["metadata"]["name"] for each in bench.objects("PersistentVolumeClaim")} == before
        ),
        60,
        "end of the claims",
    )


def test_what_only_a_privileged_namespace_allows_is_measured_or_says_in_its_row_why_not() -> None:
    with (
        installed("privileged") as bench,
        tempfile.TemporaryDirectory(prefix="perfdag-e2e-", dir="/var/tmp") as node_folder,
    ):
        absent = str(Path(node_folder) / "made-by-the-kubelet")
        mtu = {"benchmark": "command", "privileges": ["mtu"]}
        own_mtu = ["-x", "1300", "/sys/class/net/eth0/mtu"]
        fio = {"size": "4MiB", "runtime": "1s", "direct": False}
        entries: dict[str, dict[str, Any]] = {
            "mtu": {
                **mtu,
                "params": {"argv": ["grep", *own_mtu]},
                "network": {"mtu": 1300},
            },
            "plain": {"benchmark": "command", "params": {"argv": ["grep", "-v", *own_mtu]}},
            "host": {
                "benchmark": "iperf",
                "params": {"duration": "1s"},
                "network": {"host": True},
                "hosts": {"count": 2},
            },
            "path": {
                "benchmark": "fio",
                "params": {"rw": "read", **fio},
                "volume": {"kind": "hostPath", "path": node_folder},
                "privileges": ["mtu"],
            },
            "bad-mtu": {
                **mtu,
                "params": {"argv": ["true"]},
                "network": {"mtu": 9000, "interface": "absent0"},
                "hosts": {"count": 2},
            },
            "bad-path": {
                "benchmark": "fio",
                "params": {"rw": "write", **fio},
                "volume": {"kind": "hostPath", "path": absent},
            },
        }
        suite = _suite("asked", *({**each, "name": name} for name, each in entries.items()))
        run = bench.measure(suite, timeout=500)
        assert run.exit_code == 1, run.output
        states = {row["entry"]: row["status"] for row in run.rows}
        bad = ("bad-mtu", "bad-path")
        assert states == dict.fromkeys(entries, "ok") | dict.fromkeys(bad, "failed"), run.errors()
        errors = {row["entry"]: str(row["error"]) for row in run.rows}
        ended = r"network\.mtu: mtu ended with exit code \d+: .*absent0"
        assert re.search(ended, errors["bad-mtu"]), errors
        assert "Permission denied" in errors["bad-path"], errors
        assert bench.attempts(run.workflow) <= {"0", "1"}, (
            "Argo may begin a second attempt before the watchdog says that none is of use"
        )


def test_fio_on_a_block_device_that_the_node_leaves_to_root() -> None:
    with installed("privileged") as bench, disks_of(bench) as disks:
        for name in ("first", "second"):
            disks.device(name)
        entry = {
            "benchmark": "fio",
            "params": {
                "rw": "randwrite",
                "bs": "4KiB",
                "size": "16MiB",
                "runtime": "1s",
                "direct": True,
            },
            "volume": {
                "mode": "Block",
                "access": "ReadWriteOnce",
                "storage_class": bench.name,
                "size": "64MiB",
            },
        }
        allowed = {**entry, "name": "allowed", "privileges": ["block"]}
        run = bench.measure(_suite("devices", {**entry, "name": "barred"}, allowed))
        assert run.exit_code == 0, run.errors()
        states = {(row["entry"], row["status"]) for row in run.rows}
        assert states == {("allowed", "ok"), ("barred", "skipped")}
        assert "add privileges: [block]" in run.by_entry()["barred"]["error"]
