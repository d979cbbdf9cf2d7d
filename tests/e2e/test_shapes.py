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

from perfdag.kube.client import run_with_client
from perfdag.results.collect import gather
from perfdag.results.runs import load_plan
from perfdag.store.open import open_store

from .conftest import Namespace, installed

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
        self.bench, self.root, self.storage_class = bench, root, bench.name
        self.loops: list[str] = []

    def make(self, name: str, access: str) -> Path:
        """A volume, and the folder it is."""
        folder = self.root / name
        folder.mkdir()
        folder.chmod(0o777)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": [access],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": self.storage_class,
            "hostPath": {"path": str(folder)},
        }
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{self.bench.name}-{name}"},
            "spec": spec,
        }
        run_with_client(lambda client: client.create(body))
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
        spec = {
            "capacity": {"storage": "64Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": self.storage_class,
            "volumeMode": "Block",
            "local": {"path": self.loops[-1]},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        }
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{self.bench.name}-{name}"},
            "spec": spec,
        }
        run_with_client(lambda client: client.create(body))
        return self.loops[-1]

    def claim(self, name: str, access: str) -> None:
        """A claim of that class."""
        spec = {
            "accessModes": [access],
            "storageClassName": self.storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": spec,
        }
        run_with_client(lambda client: client.create(body, self.bench.name))


@contextmanager
def disks_of(bench: Namespace) -> Iterator[Disks]:
    root = Path(tempfile.mkdtemp(prefix="perfdag-e2e-", dir="/var/tmp"))
    root.chmod(0o755)
    made = Disks(bench, root)
    try:
        yield made
    finally:
        for each in root.iterdir():
            bench.delete("PersistentVolume", f"{bench.name}-{each.name}")
        for loop in made.loops:
            subprocess.run(["losetup", "--detach", loop], check=False)
        shutil.rmtree(root)


@pytest.fixture
def disks(bench: Namespace) -> Iterator[Disks]:
    with disks_of(bench) as made:
        yield made


def _suite(folder: Path, name: str, *entries: dict[str, Any]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump({"name": name, "pending_limit": "180s", "entries": list(entries)})
    )
    return path


def test_a_claim_that_one_node_mounts_serves_as_the_store(
    bench: Namespace, disks: Disks, tmp_path: Path
) -> None:
    folder = disks.make("store", "ReadWriteOnce")
    disks.claim("results", "ReadWriteOnce")
    sleep = {"benchmark": "command", "params": {"argv": ["sleep", "0.1"]}}
    good = {**sleep, "name": "good", "repetitions": 3, "hosts": {"count": 2}}
    suite = _suite(
        tmp_path, "claimed", good, {**sleep, "name": "bad", "image": "localhost/no-such-image:1"}
    )
    result = bench.perfdag("submit", str(suite), "--store", "claim://results", "--watch")
    assert result.returncode == 1, result.stdout + result.stderr
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
    table, _ = gather(store, load_plan(store, run_id))
    rows = [row for row in table.to_pylist() if row["benchmark"] == "command"]
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
    bench: Namespace, disks: Disks, tmp_path: Path
) -> None:
    own = [disks.make(name, "ReadWriteOnce") for name in ("own-a", "own-b")]
    shared = disks.make("shared", "ReadWriteMany")
    params = {"rw": "randwrite", "bs": "4KiB", "size": "8MiB", "runtime": "3s", "direct": False}
    volume = {"storage_class": disks.storage_class, "size": "1GiB"}
    hosts = {"count": 2, "placement": bench.spread()}
    both = {"benchmark": "fio", "params": params, "hosts": hosts}
    suite = _suite(
        tmp_path,
        "volumes",
        {**both, "name": "own", "volume": {**volume, "access": "ReadWriteOnce"}},
        {**both, "name": "shared", "volume": {**volume, "access": "ReadWriteMany"}},
    )
    before = {each["metadata"]["name"] for each in bench.objects("PersistentVolumeClaim")}
    name = bench.submit(suite)
    said = bench.watch(name)
    run_id = bench.run_id(name)
    rows = bench.rows(run_id)
    assert said.returncode == 0, [row["error"] for row in rows]
    for entry in ("own", "shared"):
        own_rows = [row for row in rows if row["entry"] == entry]
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
    claims = bench.objects("PersistentVolumeClaim", labels=f"perfdag/run={run_id}")
    assert all(each["metadata"].get("deletionTimestamp") for each in claims), (
        "kept until the workflow is deleted"
    )
    assert not bench.objects("Secret", labels=f"perfdag/run={run_id}"), "the key pair"
    assert bench.perfdag("rm", run_id).returncode == 0
    left = {each["metadata"]["name"] for each in bench.objects("PersistentVolumeClaim")}
    assert left == before, "all are looked at: claims of single pods carry no label of the run"


def test_mtu_host_network_and_host_path_where_the_namespace_allows_them(tmp_path: Path) -> None:
    with (
        installed("privileged") as bench,
        tempfile.TemporaryDirectory(prefix="perfdag-e2e-", dir="/var/tmp") as node_folder,
    ):
        suite = _suite(
            tmp_path,
            "asked",
            {
                "benchmark": "command",
                "name": "mtu",
                "params": {"argv": ["grep", "-x", "1300", "/sys/class/net/eth0/mtu"]},
                "network": {"mtu": 1300},
                "privileges": ["mtu"],
            },
            {
                "benchmark": "command",
                "name": "plain",
                "params": {"argv": ["grep", "-v", "-x", "1300", "/sys/class/net/eth0/mtu"]},
            },
            {
                "benchmark": "iperf",
                "name": "host",
                "params": {"duration": "1s"},
                "network": {"host": True},
                "hosts": {"count": 2},
            },
            {
                "benchmark": "fio",
                "name": "path",
                "params": {"rw": "read", "size": "4MiB", "runtime": "1s", "direct": False},
                "volume": {"kind": "hostPath", "path": node_folder},
                "privileges": ["mtu"],
            },
        )
        name = bench.submit(suite)
        result = bench.watch(name, timeout=400)
        rows = bench.rows(bench.run_id(name))
        assert result.returncode == 0, [
            (row["entry"], row["error"]) for row in rows if row["error"]
        ]
        assert {row["entry"] for row in rows} == {"mtu", "plain", "host", "path"}


def test_an_mtu_that_cannot_be_set_and_a_folder_of_root_say_so_in_the_row(tmp_path: Path) -> None:
    with (
        installed("privileged") as bench,
        tempfile.TemporaryDirectory(prefix="perfdag-e2e-", dir="/var/tmp") as node_folder,
    ):
        absent = str(Path(node_folder) / "made-by-the-kubelet")
        large = {"benchmark": "command", "params": {"argv": ["true"]}, "privileges": ["mtu"]}
        suite = _suite(
            tmp_path,
            "refused",
            {**large, "name": "mtu", "network": {"mtu": 9000, "interface": "absent0"}},
            {
                **large,
                "name": "mtus",
                "network": {"mtu": 9000, "interface": "absent0"},
                "hosts": {"count": 2},
            },
            {
                "benchmark": "fio",
                "name": "path",
                "params": {"rw": "write", "size": "4MiB", "runtime": "1s", "direct": False},
                "volume": {"kind": "hostPath", "path": absent},
            },
        )
        name = bench.submit(suite)
        result = bench.watch(name, timeout=400)
        errors = {row["entry"]: str(row["error"]) for row in bench.rows(bench.run_id(name))}
        assert result.returncode == 1, result.stdout + result.stderr
        for entry in ("mtu", "mtus"):
            assert re.search(
                r"network\.mtu: mtu ended with exit code \d+: .*absent0", errors[entry]
            ), errors
        assert f"chown 1000 {absent} on the node" in errors["path"], errors
        pods = bench.objects(
            "Pod", labels=f"workflows.argoproj.io/workflow={name},perfdag/measuring=true"
        )
        tried = {
            pod["metadata"]["labels"]["perfdag/attempt"]
            for pod in pods
            if any(each["name"] == "mtu" for each in pod["spec"]["initContainers"])
        }
        assert tried <= {"0", "1"}, (
            "Argo may begin a second attempt before the watchdog says that none is of use"
        )


def test_fio_on_a_block_device_that_the_node_leaves_to_root(tmp_path: Path) -> None:
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
                "storage_class": disks.storage_class,
                "size": "64MiB",
            },
        }
        suite = _suite(
            tmp_path,
            "devices",
            {**entry, "name": "barred"},
            {**entry, "name": "allowed", "privileges": ["block"]},
        )
        name = bench.submit(suite)
        result = bench.watch(name)
        rows = bench.rows(bench.run_id(name))
        assert result.returncode == 0, [
            (row["entry"], row["error"]) for row in rows if row["error"]
        ]
        by = {
            entry: [row for row in rows if row["entry"] == entry] for entry in ("barred", "allowed")
        }
        assert {row["status"] for row in by["allowed"]} == {"ok"}
        assert {row["status"] for row in by["barred"]} == {"skipped"}
        assert "add privileges: [block]" in by["barred"][0]["error"]
