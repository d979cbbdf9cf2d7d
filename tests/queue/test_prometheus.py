"""The metrics' text and the dashboard's queries against a real Prometheus."""

import asyncio
import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.steps.queue.backend.processes import Processes
from perfdag.steps.queue.client.load import ClosedLoop
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.client.wires import KeptWire, Work
from perfdag.steps.queue.manifests.deployments import FRONTEND
from perfdag.steps.queue.manifests.model import Queues
from perfdag.steps.queue.manifests.objects import manifests
from tests.queue.conftest import Start, clients, workers

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "queue.json"


def need(program: str) -> str:
    result = shutil.which(program)
    if result is None:
        pytest.skip(f"{program} is not here (Debian: apt install prometheus)")
    return result


def expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5s").replace("$queue", ".*")


def adapter_queries() -> Iterator[str]:
    """Return the queries of prometheus-adapter's rules for a Service and a namespace."""
    queue = {"name": "sleep", "command": ["sleep", "1"], "autoscale": {"by": "custom"}}
    objects = manifests(Queues.model_validate({"queues": [queue]}))
    rules = yaml.safe_load(
        next(body for body in objects if body["metadata"]["name"] == "perfdag-queue-adapter-rules")[
            "data"
        ]["config.yaml"]
    )
    for kind, by in (("rules", f'service="{FRONTEND}",'), ("externalRules", "")):
        for rule in rules[kind]:
            yield rule["seriesQuery"][:-1] + ',name="sleep"}'
            matchers = f'{by}namespace="perfdag-queue",name="sleep"'
            yield (
                rule["metricsQuery"]
                .replace("<<.LabelMatchers>>", matchers)
                .replace("<<.GroupBy>>", "namespace,name")
            )


async def test_promtool_accepts_the_text(start: Start) -> None:
    frontend = await start('odd "name"\n\\', "sleep")
    done = subprocess.run(
        [need("promtool"), "check", "metrics"],
        input=frontend.metrics().encode(),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr


@pytest.mark.slow
async def test_a_real_prometheus_scrapes_and_answers_the_dashboard(
    start: Start, tmp_path: Path
) -> None:
    program = need("prometheus")
    frontend = await start("sleep", "media")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: queue\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{frontend.ports[2]}'], labels: {{namespace: perfdag-queue, service: {FRONTEND}}}}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    prometheus = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    backends = Processes(workers(frontend), "sleep", ["sleep", "0.05"])
    client_stats = ClientStats()
    loop = ClosedLoop(KeptWire(clients(frontend), Work("sleep")), client_stats, 4)

    def query(expression: str) -> Any:
        url = (
            f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        )
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    try:
        await backends.scale(2)
        loop.set_parallel(4)
        for _ in range(150):
            await asyncio.sleep(0.2)
            try:
                result = await asyncio.to_thread(
                    query, "count_over_time(hpa_queue_success_total{name='sleep'}[10s])"
                )
            except OSError:
                continue
            if result and int(result[0]["value"][1]) >= 8:
                break
        else:
            pytest.fail("Prometheus has no samples of the frontend")
        for expression in expressions():
            result = await asyncio.to_thread(
                query, expression
            )  # a query that does not parse raises
            if "kube_" not in expression:
                assert result, expression
        for expression in adapter_queries():
            result = await asyncio.to_thread(query, expression)
            assert [body["metric"].get("name") for body in result] == ["sleep"], expression
        rate = await asyncio.to_thread(
            query, "sum(rate(hpa_queue_success_total{name='sleep'}[6s]))"
        )
        assert float(rate[0]["value"][1]) == pytest.approx(client_stats.steady_rate, rel=0.25)
        assert (await asyncio.to_thread(query, "up"))[0]["value"][1] == "1"
    finally:
        await loop.stop()
        await backends.stop()
        prometheus.terminate()
        prometheus.wait()
