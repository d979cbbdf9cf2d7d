"""A namespace of our own with PodSecurity `restricted` enforced, perfdag installed in it, deleted
at the end.

Images are those of PERFDAG_TEST_IMAGES (default `localhost/perfdag-{name}:1`, built with
images/build and loaded into the cluster's nodes).
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.pods import nodes_of
from perfdag.results.collect import gather
from perfdag.results.run_store import stored_plan
from perfdag.results.samples import stored_samples
from perfdag.runs.cluster import ClusterRun
from perfdag.store.s3 import open_store

IMAGES = os.environ.get("PERFDAG_TEST_IMAGES", "localhost/perfdag-{name}:1")


def _missing() -> str | None:
    if not os.environ.get("KUBECONFIG"):
        return "no cluster: KUBECONFIG is not set"
    if not os.environ.get("AWS_ENDPOINT_URL"):
        return "no S3: AWS_ENDPOINT_URL is not set"

    async def argo(client: Kube) -> None:
        await client.path("argoproj.io/v1alpha1/Workflow")
        nodes = await client.list("v1/Node")
        real = [
            node
            for node in nodes
            if "kwok.x-k8s.io/node" not in node["metadata"].get("annotations", {})
        ]
        if not real:
            raise KubeError(0, "NoNode", "no real node runs pods here")

    try:
        run_with_client(argo, retries=0)
    except KubeError as error:
        return str(error)
    return None


@dataclass
class EndedRun:
    """A run that is over: its Workflow, the exit code and the output of its watch, and its rows."""

    workflow: str
    id: str
    exit_code: int
    output: str
    rows: list[Object]

    def errors(self) -> list[str]:
        """The errors of its rows, with their entries."""
        return [f"{row['entry']}: {row['error']}" for row in self.rows if row["error"]]

    def by_entry(self) -> dict[str, Object]:
        """One row of each entry."""
        return {row["entry"]: row for row in self.rows}

    def assert_ok(self) -> None:
        """All rows are ok, and so is the run."""
        assert {row["status"] for row in self.rows} == {"ok"}, self.errors()
        assert self.exit_code == 0, self.output


def samples_of(rows: Sequence[Object]) -> list[Object]:
    """One row of each sample, which has one for each of its metrics."""
    samples = {(row["run_id"], row["point"], row["repetition"]): row for row in rows}
    return [*samples.values()]


class Namespace:
    """perfdag in a namespace: run the command line, look at objects."""

    def __init__(self, name: str, store: str) -> None:
        self.name, self.store = name, store

    def perfdag(
        self, *words: str, timeout: float = 300, check: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """The command line, with this namespace."""
        argv = [sys.executable, "-m", "perfdag", *words, "--namespace", self.name]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=check)

    def install(self, *options: str) -> None:
        """Install perfdag."""
        # a lock of its own: what else is measured on the cluster is not waited for
        own = ("--store", self.store, "--images", IMAGES, "--lock-namespace", self.name)
        done = self.perfdag("install", *own, *options)
        assert done.returncode == 0, done.stderr

    def check(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """`perfdag check` on the store."""
        argv = [sys.executable, "-m", "perfdag", "check", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    def submit(self, suite: Path | str, *more: str) -> str:
        """Submit a file, or the text of a suite; returns the Workflow's name."""
        file = suite if isinstance(suite, Path) else Path("suite.yaml")
        if isinstance(suite, str):
            file.write_text(suite)
        result = self.perfdag("submit", str(file), *more)
        assert result.returncode == 0, result.stderr
        return result.stdout.split("workflow ")[1].split()[0]

    def measure(self, suite: Path | str, *more: str, timeout: float = 300) -> EndedRun:
        """Submit a file, or the text of a suite, and wait for the end of the run."""
        return self.finish(self.submit(suite, *more), timeout)

    def finish(self, workflow: str, timeout: float = 300) -> EndedRun:
        """Wait for the end of a run."""
        watched = self.watch(workflow, timeout)
        run_id = self.run_id(workflow)
        output = watched.stdout + watched.stderr
        return EndedRun(workflow, run_id, watched.returncode, output, self.rows(run_id))

    def watch(self, name: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        """Follow a Workflow to its end."""
        return self.perfdag("status", name, "--watch", timeout=timeout)

    def objects(self, kind: str, api: str = "v1", labels: str = "") -> list[Object]:
        """Objects of a kind."""

        async def work(client: Kube) -> list[Object]:
            return await client.list(f"{api}/{kind}", self.name, labels=labels)

        return run_with_client(work)

    def nodes(self) -> list[str]:
        """The names of the nodes that run pods, in order."""
        return sorted(
            node["metadata"]["name"]
            for node in self.objects("Node")
            if "kwok.x-k8s.io/node" not in node["metadata"].get("annotations", {})
        )

    def spread(self) -> str:
        """The placement that gives each host a node of its own, if the cluster has two nodes."""
        return "spread" if len(self.nodes()) > 1 else "any"

    def create_volume(self, name: str, access: str, source: Object, size: str = "1Gi") -> None:
        """Create a PersistentVolume of a storage class of the namespace's name."""
        spec = {
            "capacity": {"storage": size},
            "accessModes": [access],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": self.name,
            **source,
        }
        metadata = {"name": f"{self.name}-{name}"}
        body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}
        run_with_client(lambda client: client.create(body))

    def create_claim(self, name: str, access: str) -> None:
        """Create a claim of that storage class."""
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": [access],
                "storageClassName": self.name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        run_with_client(lambda client: client.create(body, self.name))

    def delete(self, kind: str, name: str, api: str = "v1") -> None:
        """Delete an object at once."""

        async def work(client: Kube) -> None:
            await client.delete(f"{api}/{kind}", name, self.name, grace=0)

        run_with_client(work)

    def until(self, check: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait for a truth; fails the test after `seconds`."""
        deadline = time.monotonic() + seconds
        while not (value := check()):
            assert time.monotonic() < deadline, f"no {what} within {seconds:g} s"
            time.sleep(1)
        return value

    def pod(self, workflow: str, rank: int, phase: str = "Running", seconds: float = 90) -> Object:
        """The pod of a rank, once it is in that phase."""

        def running() -> Object | None:
            labels = f"workflows.argoproj.io/workflow={workflow},perfdag/rank={rank}"
            pods = [
                pod
                for pod in self.objects("Pod", labels=labels)
                if pod["status"].get("phase") == phase
            ]
            return pods[0] if pods else None

        pod: Object = self.until(running, seconds, f"{phase} pod of rank {rank}")
        return pod

    def attempts(self, workflow: str) -> set[str]:
        """The attempts at its batches for which a lead was made, or was to be."""
        pods = [
            each for each in nodes_of(self.workflow(workflow)).values() if each.get("type") == "Pod"
        ]
        inputs = [
            {
                parameter["name"]: parameter.get("value")
                for parameter in (each.get("inputs") or {}).get("parameters") or []
            }
            for each in pods
        ]
        return {str(each["attempt"]) for each in inputs if each.get("attempt") is not None}

    def workflow(self, name: str) -> Object:
        """The Workflow of that name."""
        [workflow] = [
            each
            for each in self.objects("Workflow", "argoproj.io/v1alpha1")
            if each["metadata"]["name"] == name
        ]
        return workflow

    def rows(self, run_id: str) -> list[Object]:
        """All rows of a run's samples, canaries left out."""
        store = open_store(self.store)
        table, _ = gather(store, stored_plan(store, run_id))
        return [row for row in table.to_pylist() if row["benchmark"] != "canary"]

    def run_id(self, workflow: str) -> str:
        """The run id of a Workflow."""

        def own_id() -> str | None:
            return next(
                (
                    ClusterRun(each).run_id
                    for each in self.objects("Workflow", "argoproj.io/v1alpha1")
                    if each["metadata"]["name"] == workflow
                ),
                None,
            )

        return str(self.until(own_id, 60, "run id"))

    def stored(self, run_id: str) -> set[str]:
        """Names of the samples stored."""
        return {
            name
            for name in stored_samples(open_store(self.store), run_id)
            if not name.startswith("canary")
        }

    def under_way(self, run_id: str, at_least: int = 2) -> set[str]:
        """Names of the samples stored, once there are so many."""
        stored: set[str] = self.until(
            lambda: len(result := self.stored(run_id)) >= at_least and result,
            300,
            "sample in the store",
        )
        return stored

    def assert_complete(self, run_id: str, samples: int) -> None:
        """Rows equal the plan: every sample once, all ok."""
        rows = self.rows(run_id)
        keys = [(row["point"], row["repetition"], row["metric"]) for row in rows]
        assert len(keys) == len(set(keys)), "a sample is there twice"
        assert len({key[:2] for key in keys}) == samples
        assert {row["status"] for row in rows} == {"ok"}, [
            row["error"] for row in rows if row["error"]
        ]


@contextlib.contextmanager
def installed(security: str, *options: str) -> Iterator[Namespace]:
    """A namespace of its own with that PodSecurity level enforced and perfdag installed, deleted
    at the end.
    """
    if reason := _missing():
        pytest.skip(reason)
    name = f"perfdag-e2e-{uuid.uuid4().hex[:6]}"
    namespace = Namespace(
        name, f"s3://{os.environ.get('PERFDAG_TEST_BUCKET', 'perfdag')}/tests/{name}"
    )
    try:
        namespace.install("--create-namespace", "--pod-security", security, *options)
        yield namespace
    finally:
        asyncio.run(_remove(name))


@pytest.fixture(scope="session")
def restricted() -> Iterator[Namespace]:
    """A namespace with PodSecurity `restricted` and perfdag installed."""
    with installed("restricted") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def privileged() -> Iterator[Namespace]:
    """A namespace where a suite may ask for the host's network and for capabilities."""
    with installed("privileged") as namespace:
        yield namespace


@pytest.fixture
def bench(restricted: Namespace) -> Iterator[Namespace]:
    """The namespace, in which a run that a failed test leaves behind keeps no lock of the runs
    of the next.
    """
    yield restricted
    for each in restricted.objects(
        "Workflow", "argoproj.io/v1alpha1", labels="workflows.argoproj.io/completed!=true"
    ):
        with contextlib.suppress(KubeError):  # a test's own deletion was under way
            restricted.delete("Workflow", each["metadata"]["name"], "argoproj.io/v1alpha1")


async def _remove(name: str) -> None:
    async with Kube() as client:
        with contextlib.suppress(KubeError):
            workflows = "argoproj.io/v1alpha1/Workflow"
            for workflow in await client.list(workflows, name, labels="perfdag/suite"):
                await client.delete(workflows, workflow["metadata"]["name"], name)
        await client.delete("v1/Namespace", name)
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            resource = f"rbac.authorization.k8s.io/v1/{kind}"
            for each in await client.list(resource, labels="app.kubernetes.io/managed-by=perfdag"):
                if name in each["metadata"]["name"]:
                    await client.delete(resource, each["metadata"]["name"])


def sleeps(
    folder: Path,
    points: int = 8,
    seconds: float = 1.0,
    hosts: int = 2,
    extra: str = "",
    shape: str = "",
) -> Path:
    """A suite of `points` sleeps over a gang of `hosts`."""
    variants = ", ".join(f"{{POINT: '{number}'}}" for number in range(points))
    path = folder / "sleeps.yaml"
    path.write_text(
        f"name: sleeps\npending_limit: 180s\n{extra}entries:\n  - benchmark: command\n"
        f"    hosts: {{count: {hosts}}}\n{shape}"
        f"    params: {{argv: [sleep, '{seconds}'], expected: {seconds}}}\n"
        f"    permutations: {{product: {{env: [{variants}]}}}}\n"
    )
    return path


@contextlib.contextmanager
def quota(bench: Namespace) -> Iterator[None]:
    """Less room for disks in the namespace than one pod of the suite asks for."""
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"requests.ephemeral-storage": "3Gi"}},
    }
    run_with_client(lambda client: client.create(body, bench.name))
    try:
        yield
    finally:
        bench.delete("ResourceQuota", "small")
