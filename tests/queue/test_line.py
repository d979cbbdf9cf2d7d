"""The gauges of a Deployment's queue, read from its frontend."""

from typing import Any

import pytest

from perfdag.steps.queue.autoscale.queue_gauges import find_frontend, parse_gauges, queue_gauges
from perfdag.steps.queue.autoscale_benchmark import QueueAutoscale
from perfdag.steps.queue.frontend.dispatcher import Item, clock
from perfdag.steps.queue.frontend.frontend import Frontend
from perfdag.steps.queue.manifests.model import Queues
from perfdag.steps.queue.manifests.objects import manifests
from tests.fakes.api_server import Answer, ApiServer, failure


def waiting(*names: str) -> str:
    """Metrics of a frontend in whose last queue two items wait, one of them for 5 s."""
    frontend = Frontend(names)
    for seconds in (5.0, 1.0):
        frontend.queues[names[-1]].put(Item(lambda _: None, None, 0.0, 0, clock() - seconds))
    return frontend.metrics()


def containers(name: str) -> list[dict[str, Any]]:
    """Those of the backends that the manifests have."""
    objects = manifests(
        Queues.model_validate({"queues": [{"name": name, "command": ["sleep", "1"]}]})
    )
    [backend] = [
        body
        for body in objects
        if body["kind"] == "Deployment"
        and body["metadata"]["name"] == f"perfdag-queue-{name.lower()}"
    ]
    return list(backend["spec"]["template"]["spec"]["containers"])


def test_the_gauges_of_one_queue_are_read() -> None:
    text = waiting("sleep", 'a "b"', "sleep-2")
    depth, wait = parse_gauges(text, "sleep-2")
    assert depth == 2
    assert wait == pytest.approx(5, abs=0.5)
    assert parse_gauges(text, "sleep") == parse_gauges(text, 'a "b"') == (0, 0.0)
    assert parse_gauges(text, "nothing") == (None, None)


@pytest.mark.parametrize(
    ("command", "frontend"),
    [
        (
            [
                "perfdag",
                "queue",
                "backend",
                "--faddr",
                "front:9999",
                "--name",
                "q",
                "--",
                "sleep",
                "1",
            ],
            ("front", "q"),
        ),
        (["backend", "-faddr=front:9999", "-name=q"], ("front", "q")),
        (
            ["backend", "--faddr", "front.elsewhere:9999", "--name", "q"],
            None,
        ),  # its namespace is none of the rights given
        (["backend", "--faddr", "front:9999"], None),
        (["sleep", "1"], None),
    ],
)
def test_the_frontend_is_that_of_the_backends_command(
    command: list[str], frontend: tuple[str, str] | None
) -> None:
    assert (
        find_frontend([{"name": "sidecar"}, {"command": command[:1], "args": command[1:]}])
        == frontend
    )
    assert find_frontend(containers("Sleep")) == ("perfdag-queue-frontend", "Sleep")


async def test_it_is_asked_through_the_proxy_and_left_out_where_that_does_not_lead_there(
    server: ApiServer,
) -> None:
    text = waiting("Sleep")
    answers = iter(
        [
            Answer(200, text.encode()),
            failure(503, "no endpoints"),
            Answer(200, text.encode()),
            failure(0),
        ]
    )
    server.on("/proxy/metrics", lambda _: next(answers))
    kube = server.client(retries=6)
    line = queue_gauges(kube, "ns", containers("Sleep"))
    assert [(await line())[0] for _ in range(6)] == [2, None, 2, None, None, None]
    assert [str(body) for body in server.requests] == [
        "GET /api/v1/namespaces/ns/services/perfdag-queue-frontend:9998/proxy/metrics"
    ] * 4
    assert {
        "apiGroups": [""],
        "resources": ["services/proxy"],
        "verbs": ["get", "create"],
    } in QueueAutoscale.api.named
    assert await queue_gauges(kube, "ns", [])() == (None, None)
