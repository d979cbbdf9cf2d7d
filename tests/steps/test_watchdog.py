"""What the watchdog gives up, and what it waits for."""

import asyncio
import base64
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from perfdag.kube.client import KubeError
from perfdag.kube.patch import WATCHDOG
from perfdag.kube.pods import Pod, nodes_of, pod_trouble, read_pod, with_events
from perfdag.results.samples import as_annotation, from_annotations
from perfdag.steps.pods.context import EXIT_RETRYABLE
from perfdag.steps.pods.watchdog import (
    Standstill,
    Watchdog,
    end_of,
    finished,
    owner,
    watch_pods,
)
from tests.fakes.api_server import ApiServer

from .objects import gang_pod, workflow_of
from .test_plan_step import place


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfdag.steps.pods.watchdog.LOOK_SECONDS", 0.01)


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(60.0)


def pod(
    trouble: str | None,
    *,
    unrecoverable: bool = False,
    attempt: int = 0,
    phase: str = "Pending",
    uid: str = "u",
) -> Pod:
    return Pod("p", 0, attempt, 0, phase, None, None, trouble, unrecoverable, None, uid)


def notes(watchdog: Watchdog) -> list[str]:
    return [*watchdog.reasons.values()]


LONG_AGO = time.time() - 500
NO_IMAGE = pod("ImagePullBackOff on n: no such image")
NEVER = pod("ErrImageNeverPull: x", unrecoverable=True)
RETRY = pod("ImagePullBackOff: x", attempt=1, uid="v")
FULL = pod("Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")
CROWDED = pod("Unschedulable: didn't match pod anti-affinity rules", uid="v")
DEADLINE = "DeadlineExceeded: Pod was active on the node longer than the specified deadline"
OUT_OF_MEMORY = pod("OOMKilled: container main passed its memory limit of 64Mi", phase="Failed")
UNPACKS = replace(
    pod(
        'CreateContainerError: failed to reserve container name "main_x": name "main_x" is '
        'reserved for "4f3a" (container main, image i)'
    ),
    created=LONG_AGO,
)
ENDED_LATE = replace(UNPACKS, phase="Failed", trouble=DEADLINE)
SILENT = replace(pod(None), created=time.time() - 61)
BEFORE = pod("ImagePullBackOff on n: no", uid="u0")
NOW = pod(None, attempt=1, phase="Running", uid="v")


@pytest.mark.parametrize(
    ("looks", "unrecoverable"),
    [
        pytest.param(
            [
                (0, [NO_IMAGE], [], None),
                (4, [NO_IMAGE], [], "no such image"),
                (8, [pod(None)], [], "no such image"),
                (21, [NO_IMAGE], [NO_IMAGE], "no such image"),
            ],
            True,
            id="a missing image is noted at once and given up after 20 s",
        ),
        pytest.param(
            [(0, [NEVER], [], None), (4, [NEVER], [NEVER], "NeverPull")],
            True,
            id="an image that is never pulled is given up after 4 s",
        ),
        pytest.param(
            [
                (0, [NEVER], [], None),
                (4, [NEVER], [NEVER], "NeverPull"),
                (10, [RETRY], [], None),
                (14, [RETRY], [RETRY], "PullBackOff"),
            ],
            True,
            id="the retry of a gang given up is given up at once",
        ),
        pytest.param(
            [
                (0, [FULL], [], None),
                (59, [FULL], [], "Insufficient cpu"),
                (61, [FULL], [FULL], "Insufficient cpu"),
                (64, [pod("GivenUp: x", phase="Failed", uid="w")], [], "Insufficient cpu"),
            ],
            True,
            id="a full cluster is waited for until pending_limit, and keeps its reason",
        ),
        pytest.param(
            [
                (0, [CROWDED], [], None),
                (61, [CROWDED], [CROWDED], "anti-affinity"),
                (64, [pod(DEADLINE, phase="Failed"), CROWDED], [CROWDED], "anti-affinity"),
            ],
            True,
            id="the reason outlives the deadline that ends the gang",
        ),
        pytest.param(
            [(0, [OUT_OF_MEMORY], [], "OOMKilled")], False, id="OOM is noted and left to the gang"
        ),
        pytest.param(
            [
                (0, [UNPACKS], [], None),
                (59, [UNPACKS], [], "is reserved for"),
                (60, [UNPACKS], [UNPACKS], "is reserved for"),
                (63, [ENDED_LATE], [], "is reserved for"),
            ],
            False,
            id="a large image is unpacked until pending_limit; a retry may find it unpacked",
        ),
        pytest.param(
            [(0, [pod(None)], [], None), (55, [SILENT], [], "no event says why")],
            False,
            id="a pod of which nothing is known is noted before Argo ends it",
        ),
        pytest.param(
            [
                *((moment, [BEFORE, NOW], [], None) for moment in range(0, 20, 4)),
                (20, [BEFORE, NOW], [BEFORE], None),
            ],
            False,
            id="a pod that waits of an attempt before, on a node that died, is ended unnoted",
        ),
    ],
)
def test_what_is_given_up_when_and_what_is_noted(
    watchdog: Watchdog,
    looks: list[tuple[float, list[Pod], list[Pod], str | None]],
    unrecoverable: bool,
) -> None:
    for moment, pods, given_up, noted in looks:
        assert watchdog.look({}, pods, moment) == given_up, moment
        assert [str(noted) in text for text in notes(watchdog)] == [True] * bool(noted), moment
    assert watchdog.unrecoverable == ({0} if unrecoverable else set())


@pytest.mark.parametrize(
    ("code", "message", "over", "noted"),
    [
        (2, "a.yaml:1: no", True, "exit code 2: a.yaml:1: no"),
        (1, "", False, "exit code 1"),
        (137, "", False, "exit code 137"),
        (EXIT_RETRYABLE, "the peer on n is gone", False, "rank 0: the peer on n is gone"),
        (EXIT_RETRYABLE, "", False, None),
    ],
)
def test_what_ended_a_lead_decides_whether_there_is_another_attempt(
    watchdog: Watchdog, code: int, message: str, over: bool, noted: str | None
) -> None:
    """A crash is tried again: the sample under way goes last then, and the others are measured."""
    why = f": {message}" if message else ""
    ended = pod(f"main ended with exit code {code}{why}", unrecoverable=over, phase="Failed")
    peer = replace(pod(None, phase="Running", uid="v"), rank=1)
    assert watchdog.look({}, [ended, peer], 0) == ([peer] if over else [])
    assert [str(noted) in each for each in notes(watchdog)] == [True] * bool(noted)
    assert watchdog.unrecoverable == ({0} if over else set())
    assert watchdog.look({}, [ended, peer], 2.9) == ([peer] if over else [])
    assert watchdog.look({}, [ended, peer], 3) == [peer], "it would wait for its lead"


def test_the_pod_that_ended_its_gang_is_the_reason_and_not_who_noticed(watchdog: Watchdog) -> None:
    lead = pod("main ended with exit code 75: the peer on n is gone", phase="Failed")
    peer = replace(pod("OOMKilled: main", phase="Failed", uid="v"), rank=1)
    for pods in ([lead], [lead, peer], [peer, lead]):
        watchdog.look({}, pods, 0)
    assert ["OOMKilled" in each for each in notes(watchdog)] == [True]


def test_the_rest_of_a_gang_ends_with_a_pod_that_was_deleted_or_refused(watchdog: Watchdog) -> None:
    """As by a drain. Argo creates a pod again only if it never ran."""
    lead = pod(None, phase="Running")
    gone = {"n": node("pod deleted", rank="1", attempt="0")}
    assert watchdog.look(gone, [lead], 0) == []
    assert watchdog.look(gone, [lead], 3) == [lead]
    assert watchdog.look(gone, [replace(lead, attempt=1)], 6) == [], "of another attempt"


OURS, COPIED, RETRIED = (
    "u-1 2026-01-02T00:00:00Z",
    "u-0 2026-01-01T00:00:00Z",
    "u-1 2026-01-01T00:00:00Z",
)
"""What marks of a Workflow begin with; of the one that `argo resubmit` copied it from; of the
same before `argo retry`.
"""


@pytest.mark.parametrize(("earlier", "believed"), [(OURS, True), (COPIED, False), (RETRIED, False)])
async def test_argo_is_told_before_the_pods_end_and_an_earlier_watchdog_of_this_run_is_believed(
    monkeypatch: pytest.MonkeyPatch, earlier: str, believed: bool
) -> None:
    waiting = [waits("InvalidImageName", "no")]
    pod = gang_pod({"phase": "Pending", "containerStatuses": waiting})
    marks = as_annotation(earlier, {7: "full"}, {7})
    here = replace(place(), workflow_uid="u-1")
    server = ApiServer(workflow_of(here, marks))
    server.on("GET .*/pods", lambda _: {"metadata": {}, "items": [pod]})
    server.on(
        "PATCH .*/pods", lambda _: server.of("Workflow")[0]["status"].update(phase="Failed") or {}
    )

    monkeypatch.setattr("perfdag.steps.pods.watchdog.UNRECOVERABLE_SECONDS", 0.0)
    await watch_pods(server.client(), here, 60.0, 3600.0)
    done = [
        (each.path.split("/namespaces/")[1].split("/")[1], each.body)
        for each in server.requests
        if each.method == "PATCH"
    ]
    assert [kind for kind, _ in done] == ["workflows", "pods", "workflows"]
    assert done[1][1]["status"]["message"].startswith("InvalidImageName on node-1"), (
        "what its node in Argo says"
    )
    expected = {0, 7} if believed else {0}
    for (_, patch), final in ((done[0], expected), (done[2], set[int]())):
        notes = from_annotations(OURS, patch["metadata"]["annotations"])
        assert (set(notes[0]), notes[1]) == (expected, final), "`argo retry` makes other attempts"


def test_a_watchdog_that_came_late_still_gives_up_before_argo_does(watchdog: Watchdog) -> None:
    """Argo counts the limit from the pod's creation, and would wait for it once more in its
    retry.
    """
    full = replace(pod("Unschedulable: 1 Insufficient cpu."), created=time.time() - 50)
    assert watchdog.look({}, [full], 0) == []
    older = replace(full, created=time.time() - 61)
    assert watchdog.look({}, [older], 5) == [older]
    pulling = replace(pod("ImagePullBackOff on n: x", uid="v"), batch=1, created=time.time() - 55)
    assert watchdog.look({}, [pulling], 6) == [], "that its image is pulled has only begun"


def node(message: str, phase: str = "Error", **inputs: str) -> dict[str, Any]:
    """A node of a Workflow: a pod of batch 0."""
    parameters = [{"name": name, "value": value} for name, value in inputs.items()]
    return {
        "type": "Pod",
        "phase": phase,
        "message": message,
        "inputs": {"parameters": [{"name": "batch", "value": "0"}, *parameters]},
    }


def test_a_quota_is_noted(watchdog: Watchdog) -> None:
    over = node('pods "x" is forbidden: exceeded quota: tight', "Pending", rank="0")
    watchdog.look({"n": over}, [], 0)
    assert "exceeded quota" in notes(watchdog)[0]
    assert watchdog.unrecoverable == set()
    watchdog.look({"n": over}, [], 60)
    assert watchdog.unrecoverable == {0}, "Argo is about to give it up, and would wait as long"


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"message": 'Pod "x" is invalid: spec.containers[0].resources.requests[gpu]'}, True),
        (
            {"message": 'violates PodSecurity "restricted"', "before": 'pods "x" is forbidden: '},
            True,
        ),
        ({"message": "pod deleted"}, False),
        ({"message": "main: Error (exit code 137)", "hostNodeName": "node-1"}, False),
        ({"message": "waits for its turn", "phase": "Pending"}, False),
    ],
)
def test_whatever_a_pod_was_not_made_for_is_noted(
    watchdog: Watchdog, fields: dict[str, str], noted: bool
) -> None:
    body = node(fields.pop("before", "") + fields["message"], rank="1") | fields
    watchdog.look({"n": body}, [], 0)
    assert watchdog.unrecoverable == set(), "Argo itself makes no other attempt"
    assert [fields["message"] in each for each in notes(watchdog)] == [True] * noted


@pytest.mark.parametrize(("parent", "stops"), [({}, 0), ({"shutdown": "Stop"}, 1)])
async def test_a_run_stops_with_the_workflow_that_has_it_as_a_task(
    parent: dict[str, str], stops: int
) -> None:
    above = workflow_of(replace(place(), workflow="above")) | {"spec": parent}
    own = workflow_of(place())
    own["metadata"]["ownerReferences"] = [{"kind": "Workflow", "name": "above", "uid": "a"}]
    server, bodies = ApiServer(above, own), []

    def patched(request: Any) -> dict[str, Any]:
        bodies.append(request.body)
        own["spec"] |= request.body.get("spec", {})
        return own

    looks = iter((own, own, own, own | {"status": {"phase": "Failed"}}))
    server.on("GET .*/workflows/wf", lambda _: next(looks))
    server.on("PATCH .*/workflows/wf", patched)
    await watch_pods(server.client(), place(), 60.0, 3600.0)
    assert bodies.count({"spec": {"shutdown": "Stop"}}) == stops


async def test_a_run_that_stands_still_is_stopped_and_says_why() -> None:
    """Its pods end first. Where Argo does not go on then, the Workflow is shut down."""
    nodes = {
        "f": {"templateName": "batches", "phase": "Running", "inputs": ONE_BATCH},
        "n": node("", "Running", rank="0"),
    }
    server = ApiServer(workflow_of(place(), phase="Running", nodes=nodes))
    server.on("GET .*/pods", lambda _: {"metadata": {}, "items": [gang_pod({"phase": "Running"})]})
    server.on("PATCH .*/pods/p0", lambda _: {})
    async with asyncio.timeout(10):
        unmeasured = await watch_pods(server.client(), place(), 0.0, 0.0)
    assert unmeasured == [0], "`argo retry` measures it"
    ends = [patch.path.rpartition("/")[2] for patch in server.requests if patch.method == "PATCH"]
    assert ends == ["wf", "p0", "wf", "p0", "wf"], "the batch is final before its pod ends"
    [workflow] = server.of("Workflow")
    assert workflow["spec"] == {"shutdown": "Stop"}
    assert end_of(workflow, time.time()) == "was stopped: it did not go on for 0 ms"
    workflow["status"]["startedAt"] = "2026-01-03T00:00:00Z"
    assert end_of(workflow, time.time()) == "was ended by `argo stop`", "after `argo retry`"


def test_a_run_goes_on_while_a_sample_or_a_step_of_it_ends() -> None:
    standstill, lead = Standstill(60.0), node("", "Running", rank="0")
    workflow = workflow_of(place(), nodes={"n": lead})
    looks = [({}, 0, False), ({}, 59, False), ({"progress": "1/9"}, 60, False), ({}, 119, False)]
    looks += [({}, 120, True), ({"phase": "Succeeded"}, 121, False), ({}, 181, True)]
    for change, now, lasts in looks:
        lead |= change
        assert standstill.lasts(workflow, now) == lasts, now


async def test_argo_creates_no_other_watchdog_until_it_retries_the_workflow() -> None:
    """An expression of its retryStrategy reads the annotation, which the next watchdog removes."""
    nodes = {"f": {"templateName": "batches", "phase": "Running", "inputs": ONE_BATCH}}
    before = {WATCHDOG: f"{RETRIED} ended"}
    server = ApiServer(workflow_of(place(), before, phase="Running", nodes=nodes))
    patches: list[Any] = []

    def patched(request: Any) -> dict[str, Any]:
        patches.append(request.body["metadata"]["annotations"][WATCHDOG])
        server.of("Workflow")[0]["status"]["nodes"]["f"]["phase"] = "Failed"
        return {}

    server.on("PATCH .*/workflows/wf", patched)
    assert await watch_pods(server.client(), place(), 60.0, 3600.0) == [0]
    assert patches == [None, f"{OURS} ended"]


def waits(reason: str, message: str) -> dict[str, Any]:
    """The status of a container that has not started."""
    return {
        "name": "main",
        "image": "i",
        "state": {"waiting": {"reason": reason, "message": message}},
    }


PULL = 'failed to pull and unpack image "i": failed to resolve reference "i": '
RESERVED = 'failed to reserve container name "main_x": name "main_x" is reserved for "4f3a"'
NO_PROGRAM = 'failed to generate container "1": exec: "nothing": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("status", "trouble", "unrecoverable"),
    [
        pytest.param(
            {
                "phase": "Pending",
                "containerStatuses": [waits("ErrImageNeverPull", "not present")],
            },
            "ErrImageNeverPull on node-1: image i of main: not present",
            True,
            id="the container rather than the condition",
        ),
        *(
            pytest.param(
                {"containerStatuses": [waits("CreateContainerError", message)]},
                f"CreateContainerError on node-1: image i of main: {message}",
                unrecoverable,
                id=message.partition(":")[0],
            )
            for message, unrecoverable in (
                ("context deadline exceeded", False),
                (RESERVED, False),
                (NO_PROGRAM, True),
            )
        ),
        *(
            pytest.param(
                {"containerStatuses": [waits(reason, message)]},
                "ImagePullBackOff on node-1: image i of main: i: not found",
                False,
                id=reason,
            )
            for reason, message in (
                ("ErrImagePull", f"{PULL}i: not found"),
                (
                    "ImagePullBackOff",
                    f'Back-off pulling image "i": ErrImagePull: {PULL}i: not found',
                ),
            )
        ),
        pytest.param(
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {
                        "name": "mtu",
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ],
            },
            "OOMKilled: container mtu passed its memory limit of 128Mi",
            False,
            id="the memory limit of an init container",
        ),
    ],
)
def test_the_trouble_of_a_pod(status: dict[str, Any], trouble: str, unrecoverable: bool) -> None:
    limited = {"name": "mtu", "resources": {"limits": {"memory": "128Mi"}}}
    spec = {"nodeName": "node-1", "initContainers": [limited], "containers": []}
    body = {"metadata": {"name": "p"}, "spec": spec, "status": status}
    assert pod_trouble(body) == (trouble, unrecoverable)


@pytest.mark.parametrize(
    ("name", "code", "message", "words", "final"),
    [
        (
            "mtu",
            2,
            "Error: mtu greater than device maximum.\n",
            "network.mtu: mtu ended with exit code 2: Error: mtu greater than device maximum.",
            True,
        ),
        ("mtu", 137, "", "network.mtu: mtu ended with exit code 137", False),
        ("init", 64, "", "init ended with exit code 64", False),
        ("init", 2, "", "init ended with exit code 2", False),
        ("main", 2, "no", "main ended with exit code 2: no", True),
    ],
)
def test_the_container_that_ended_its_pod_is_told_and_what_would_end_so_again_is_tried_once(
    watchdog: Watchdog, name: str, code: int, message: str, words: str, final: bool
) -> None:
    ended = {
        "name": name,
        "state": {"terminated": {"exitCode": code, "reason": "Error", "message": message}},
    }
    first = {"name": "done", "state": {"terminated": {"exitCode": 0}}}
    status = {
        "phase": "Failed",
        "initContainerStatuses": [first, ended],
        "containerStatuses": [waits("PodInitializing", "")],
    }
    peer = replace(pod(None, phase="Running", uid="v"), rank=1)
    assert watchdog.look({}, [read_pod(gang_pod(status)), peer], 0) == ([peer] if final else [])
    assert [words in each for each in notes(watchdog)] == [True]
    assert watchdog.unrecoverable == ({0} if final else set())


def test_finished_reads_compressed_nodes() -> None:
    nodes = {
        "a": {"name": "w.batches", "templateName": "batches", "phase": "Failed"},
        "b": {"templateName": "recheck", "phase": "Skipped"},
    }
    packed = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
    workflow: dict[str, Any] = {
        "metadata": {"name": "w"},
        "spec": {},
        "status": {"phase": "Running", "compressedNodes": packed},
    }
    assert nodes_of(workflow) == nodes
    assert finished(workflow, [])


ONE_BATCH = {"parameters": [{"name": "batches", "value": '[{"benchmark": "b", "n": "0"}]'}]}


@pytest.mark.parametrize(
    ("fans", "suspects", "over"),
    [
        (["Running"], [], False),
        ([], [], False),
        (["Succeeded"], ["Skipped"], True),
        (["Succeeded", "Omitted"], ["Failed", "Failed", "Error"], True),
        (["Succeeded"], ["Running", "Failed"], False),
        (["Succeeded"], ["Succeeded", "Succeeded"], False),
        (["Succeeded", "Running"], ["Succeeded"], False),
        (["Succeeded", "Failed"], ["Succeeded"], True),
    ],
)
@pytest.mark.parametrize("root", ["w", "composed.measure"])
def test_the_batches_of_a_recheck_are_guarded_too_and_in_a_dag_of_ones_own(
    root: str, fans: list[str], suspects: list[str], over: bool
) -> None:
    nodes: list[dict[str, Any]] = [
        {"name": f"{root}.batches", "templateName": "batches", "phase": phase, "inputs": ONE_BATCH}
        for phase in fans
    ]
    nodes += [
        {
            "name": f"{root}.suspect",
            "templateRef": {"name": "perfdag", "template": "recheck"},
            "phase": phase,
        }
        for phase in suspects
    ]
    status = {"phase": "Running", "nodes": {str(number): each for number, each in enumerate(nodes)}}
    assert finished({"metadata": {"name": "w"}, "spec": {}, "status": status}, []) == over


LEAD = replace(pod(None, phase="Running"), ended_at="2026-01-02T00:00:09Z")
WENT_WELL = node("", "Succeeded", rank="0")


@pytest.mark.parametrize(
    ("batches", "nodes", "pods", "gated", "over"),
    [
        ("0", [], [LEAD], "false", True),
        ("0", [WENT_WELL], [], "false", True),
        ("01", [WENT_WELL], [replace(LEAD, batch=1)], "false", True),
        ("01", [], [LEAD], "false", False),
        ("0", [], [LEAD], "true", False),
        ("0", [], [replace(LEAD, rank=1)], "false", False),
        ("0", [], [replace(LEAD, ended_at="")], "false", False),
        ("0", [], [replace(LEAD, trouble="main ended with exit code 75")], "false", False),
        ("0", [node("", "Failed", rank="0")], [], "false", False),
        ("0", [node("", "Succeeded", rank="1")], [], "false", False),
    ],
)
def test_the_watch_ends_with_the_leads_that_measured_before_argo_looks(
    batches: str, nodes: list[dict[str, Any]], pods: list[Pod], gated: str, over: bool
) -> None:
    """A refused batch, without a number, has no lead. Others may begin where a lead failed, and
    where a gate may add rechecks.
    """
    items = [{"benchmark": "b", "n": number} for number in ("", *batches)]
    given = [{"name": "batches", "value": json.dumps(items)}]
    fan = {"templateName": "batches", "phase": "Running", "inputs": {"parameters": given}}
    said: dict[str, Any] = {"outputs": {"parameters": [{"name": "gated", "value": gated}]}}
    said["finishedAt"] = "2026-01-01T00:01:00Z"
    status: dict[str, Any] = {
        "nodes": {str(number): each for number, each in enumerate([fan, said, *nodes])}
    }
    status["startedAt"] = "2026-01-01T00:00:00Z"
    assert finished({"spec": {}, "status": status}, pods) == over
    status["startedAt"] = "2026-01-01T00:02:00Z"
    assert not finished({"spec": {}, "status": status}, pods), "after `argo retry`, Argo decides"


def event(reason: str, at: str, uid: str = "u") -> dict[str, Any]:
    return {
        "kind": "Event",
        "metadata": {"name": f"{uid}-{reason}".lower(), "namespace": "bench"},
        "involvedObject": {"kind": "Pod", "uid": uid},
        "type": "Warning",
        "lastTimestamp": at,
        "reason": reason,
        "message": f"what {reason}\n means",
    }


async def test_a_silent_pod_is_told_the_last_warning_of_its_events() -> None:
    server = ApiServer(
        event("FailedMount", "2026-01-01T00:00:09Z"),
        event("Other", "2026-01-01T00:00:08Z"),
        event("X", "2026-01-02T00:00:00Z", "v"),
        event("Failed", "2026-01-01T00:00:10Z") | {"message": "Error: ErrImagePull"},
    )
    [result] = await with_events(server.client(), "bench", [pod(None)])
    assert result.trouble == "FailedMount: what FailedMount means"
    kept = [pod("Unschedulable: x"), pod(None, phase="Running")]
    assert await with_events(server.client(), "bench", kept) == kept
    assert server.count("/events") == 1


async def test_young_pods_and_those_of_which_nobody_may_read_are_left_alone() -> None:
    old = replace(pod(None), created=LONG_AGO, node="n")
    refusing = ApiServer(event("FailedMount", "2026"))
    refusing.fail("/events", 403)
    for events, waiting in (
        (ApiServer(event("FailedMount", "2026")), replace(pod(None), created=time.time() - 2)),
        (refusing, old),
        (ApiServer(event("FailedScheduling", "2026")), old),
    ):
        assert await with_events(events.client(), "bench", [waiting]) == [waiting]


def test_a_watchdog_made_anew_notes_nothing_of_an_attempt_before_the_one_that_measures(
    watchdog: Watchdog,
) -> None:
    refused = node('Pod "x" is invalid', attempt="0")
    nodes = {"n0": refused, "n1": node("", "Running", attempt="1")}
    watchdog.look({}, [OUT_OF_MEMORY, replace(NOW, phase="Pending")], 0)
    assert notes(watchdog) == [], "what starts has not ended"
    watchdog.look(nodes, [OUT_OF_MEMORY, NOW], 1)
    assert notes(watchdog) == []
    watchdog.look({}, [OUT_OF_MEMORY, replace(OUT_OF_MEMORY, attempt=1, uid="v")], 3)
    assert ["OOMKilled" in each for each in notes(watchdog)] == [True]
    for moment in (6, 12):
        watchdog.look({}, [pod("InvalidImageName: no", uid="w")], moment)
    assert ["InvalidImageName" in each for each in notes(watchdog)] == [True], (
        "`argo retry` counts from 0"
    )


def on_lost_node(
    phase: str = "Running", containers: Sequence[bool] = (True, True), ready: str = "False"
) -> dict[str, Any]:
    states = zip(("main", "wait"), containers, strict=False)
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [{"name": name, "ready": state} for name, state in states],
    }
    return gang_pod(status, rank=1)


@pytest.mark.parametrize(
    ("phase", "containers", "ready", "lost"),
    [
        ("Running", [True, True], "False", True),
        ("Running", [True, True], "True", False),
        ("Running", [True, False], "False", False),
        ("Running", [], "False", False),
        ("Pending", [True, True], "False", False),
    ],
)
def test_a_pod_whose_node_is_lost_is_noted_and_left_to_kubernetes(
    watchdog: Watchdog, phase: str, containers: list[bool], ready: str, lost: bool
) -> None:
    body = on_lost_node(phase, containers, ready)
    ended: Any = on_lost_node(phase, containers, ready)  # by its kubelet, which says so of both
    ended["status"]["conditions"].append({"type": "ContainersReady", "status": "False"})
    assert pod_trouble(ended) == (None, False)
    assert pod_trouble(body) == (("node node-1 was lost", False) if lost else (None, False))
    assert watchdog.look({}, [read_pod(body)], 0) == []
    noted = [text for text in notes(watchdog) if "pod of rank 1: node node-1 was lost" in text]
    assert bool(noted) == lost


@pytest.mark.parametrize("ready", ["True", "False"])
async def test_a_pod_that_its_grace_period_keeps_on_a_lost_node_is_failed(ready: str) -> None:
    pod = on_lost_node(ready=ready)
    pod["metadata"]["deletionTimestamp"] = "2026-01-02T00:11:00Z"
    here = place()
    server = ApiServer(workflow_of(here))
    looks = iter(range(1, 4))

    def list_pods(_: object) -> dict[str, Any]:
        if next(looks) == 3:
            server.of("Workflow")[0]["status"].update(phase="Failed")
        return {"metadata": {}, "items": [pod]}

    def set_status(request: Any) -> dict[str, Any]:
        pod["status"] |= request.body["status"]
        return pod

    server.on("GET .*/pods", list_pods)
    server.on("PATCH .*/pods/p1/status", set_status)
    await watch_pods(server.client(), here, 60.0, 3600.0)
    patches = [
        each.body for each in server.requests if each.method == "PATCH" and "/pods/" in each.path
    ]
    if ready == "True":
        assert patches == [], "a kubelet ends its own"
        return
    [status] = [patch["status"] for patch in patches]
    [executor] = status.pop("containerStatuses")
    assert executor["name"] == "wait", "Argo waits for its report unless it was killed"
    assert executor["state"]["terminated"]["exitCode"] != 0
    assert status == {"phase": "Failed", "reason": "GivenUp", "message": "node node-1 was lost"}
    notes = server.of("Workflow")[0]["metadata"]["annotations"]
    why = "pod of rank 1: node node-1 was lost"
    assert from_annotations(owner(server.of("Workflow")[0]), notes) == ({0: why}, set())


async def test_a_peer_that_just_starts_when_its_lead_has_ended_is_ended_by_its_kubelet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Argo creates a deleted peer again. It would wait for the report of one that is failed now."""
    ended = {"name": "main", "image": "i", "state": {"terminated": {"exitCode": 75}}}
    lead = gang_pod({"phase": "Failed", "containerStatuses": [ended]})
    peer = gang_pod({"phase": "Pending"}, rank=1)
    server = ApiServer(workflow_of(place()))
    phases = iter(["Pending", "Pending"])

    def list_pods(_: object) -> dict[str, Any]:
        peer["status"]["phase"] = next(phases, "Running")
        return {"metadata": {}, "items": [lead, peer]}

    server.on("GET .*/pods", list_pods)
    server.on(
        "PATCH .*/pods", lambda _: server.of("Workflow")[0]["status"].update(phase="Failed") or {}
    )
    monkeypatch.setattr("perfdag.steps.pods.watchdog.ENDED_SECONDS", 0.0)
    await watch_pods(server.client(), place(), 60.0, 3600.0)
    [request] = [
        each for each in server.requests if each.method == "PATCH" and "/pods/" in each.path
    ]
    assert peer["status"]["phase"] == "Running", "while it starts, it has no executor to report"
    assert request.body == {"spec": {"activeDeadlineSeconds": 1}}


@pytest.mark.parametrize("end", [{}, {"shutdown": "Stop"}])
async def test_a_pod_that_ends_together_with_its_batch_tells_why(end: dict[str, str]) -> None:
    """The first look finds all batches over. Pods that `argo stop` ended have its reason."""
    here = replace(place(), workflow_uid="u-1")
    killed = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-01-02T00:00:09Z"}
    main = {"name": "main", "image": "i", "state": {"terminated": killed}}
    lead = gang_pod({"phase": "Failed", "containerStatuses": [main]}, attempt=2)
    over = {
        "b": {"templateName": "batches", "phase": "Failed"},
        "c": {"templateName": "recheck", "phase": "Succeeded"},
        "d": {"templateName": "batches", "phase": "Succeeded"},
    }
    server = ApiServer(workflow_of(here, phase="Running", nodes=over) | {"spec": end})
    server.on("GET .*/pods", lambda _: {"metadata": {}, "items": [lead]})
    await watch_pods(server.client(), here, 60.0, 3600.0)
    [workflow] = server.of("Workflow")
    notes = workflow["metadata"].get("annotations", {})
    why = (
        "its batch ended early (attempt 3 on node-1 at 2026-01-02T00:00:09Z): "
        "pod of rank 0: main ended with exit code 137"
    )
    assert from_annotations(OURS, notes) == ({} if end else {0: why}, set())


async def test_the_watchdog_ends_with_a_workflow_that_was_deleted() -> None:
    server = ApiServer()
    async with asyncio.timeout(10):
        with pytest.raises(KubeError) as error:
            await watch_pods(server.client(), place(), 60.0, 3600.0)
    assert error.value.status == 404
