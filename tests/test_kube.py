"""The Kubernetes client: configuration offline, retries and watches against a fake API server,
the rest against a real one.
"""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from perfdag.kube.client import Kube, KubeError, Resource
from perfdag.kube.config import Cluster, Credentials, load_config
from tests.fakes.api_server import ApiServer, Handle, client, served
from tests.fakes.files import write_programs

PODS = Resource("v1", "Pod", "pods", True)
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def kubeconfig(
    path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None, name: str = "one"
) -> str:
    document = {
        "current-context": name,
        "clusters": [
            {"name": name, "cluster": {"server": "https://127.0.0.1:1/", **(cluster or {})}}
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": "here"}}
        ],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def config_of(kubeconfig: str) -> Cluster:
    """Return the cluster of kubeconfig files."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBECONFIG", kubeconfig)
        return load_config()


class TestConfig:
    async def test_files_are_relative_to_the_kubeconfig(self, tmp_path: Path) -> None:
        for name, text in (("ca", PEM), ("crt", "C"), ("key", "K"), ("token", "t1\n")):
            (tmp_path / name).write_text(text)
        user = {"client-certificate": "crt", "client-key": "key", "tokenFile": "token"}
        cluster = config_of(kubeconfig(tmp_path / "c", user, {"certificate-authority": "ca"}))
        assert cluster.credentials.certificate == ("C", "K")
        assert cluster.ca == PEM
        assert await cluster.credentials.header() == {"Authorization": "Bearer t1"}
        (tmp_path / "token").write_text("t2")
        assert await cluster.credentials.header() == {"Authorization": "Bearer t2"}

    async def test_exec_plugin_gets_its_arguments_and_is_asked_once(self, tmp_path: Path) -> None:
        status = '{"token":"%s","expirationTimestamp":"2999-01-01T00:00:00Z"}'
        answer = f'{{"kind":"ExecCredential","status":{status}}}'
        script = f'echo x >> "$COUNT"\nprintf \'{answer}\' "$1"'
        write_programs(tmp_path, {"plugin": script})
        spec = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "args": ["a b;c"],
            "env": [{"name": "COUNT", "value": str(tmp_path / "count")}],
        }
        cluster = config_of(kubeconfig(tmp_path / "c", {"exec": spec}))
        assert await cluster.credentials.header() == {"Authorization": "Bearer a b;c"}
        assert await cluster.credentials.header() == {"Authorization": "Bearer a b;c"}
        assert (tmp_path / "count").read_text() == "x\n"

    async def test_exec_plugin_that_is_missing_or_fails(self, tmp_path: Path) -> None:
        spec = {"apiVersion": "v1", "command": "no-such-plugin", "installHint": "get it there"}
        with pytest.raises(KubeError, match=r"no-such-plugin.*get it there"):
            await config_of(kubeconfig(tmp_path / "c", {"exec": spec})).credentials.header()
        with pytest.raises(KubeError, match=r"exit status 1"):
            await config_of(
                kubeconfig(tmp_path / "c", {"exec": {**spec, "command": "false"}})
            ).credentials.header()

    def test_several_files_merge_and_the_first_wins(self, tmp_path: Path) -> None:
        ca = {"certificate-authority-data": base64.b64encode(PEM.encode()).decode()}
        both = os.pathsep.join(
            (
                kubeconfig(tmp_path / "a", {"token": "a"}, ca),
                kubeconfig(tmp_path / "b", {"token": "b"}, name="two"),
            )
        )
        first = config_of(both)
        assert (first.server, first.ca, first.credentials.token) == (
            "https://127.0.0.1:1",
            PEM,
            "a",
        )
        (tmp_path / "a").write_text("current-context: two")
        assert config_of(both).credentials.token == "b"
        (tmp_path / "a").write_text("current-context: three")
        with pytest.raises(KubeError, match=r"has no 'context three'"):
            config_of(both)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "cannot read the kubeconfig"),
            ("[1]", "cannot read the kubeconfig"),
            ("{}", "no current-context"),
            ("current-context: x", "has no 'context x'"),
        ],
    )
    def test_a_bad_file_is_one_clear_line(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "c").write_text(text)
        with pytest.raises(KubeError, match=message) as error:
            config_of(str(tmp_path / "c"))
        assert "\n" not in str(error.value)
        assert (error.value.status, error.value.reason) == (0, "Config")

    def test_bad_base64_and_missing_file_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(KubeError, match=r"base64"):
            config_of(kubeconfig(tmp_path / "c", {}, {"certificate-authority-data": "%%%"}))
        with pytest.raises(KubeError, match=r"/nowhere"):
            config_of(kubeconfig(tmp_path / "c", {"client-certificate": "nowhere"}))

    def test_no_cluster_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.delenv("KUBECONFIG", raising=False)
        with pytest.raises(KubeError, match=r"set KUBECONFIG"):
            load_config()
        with pytest.raises(KubeError, match=r"no kubeconfig at"):
            config_of(str(tmp_path / "none"))

    async def test_in_a_pod(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, text in (("token", "pod"), ("namespace", "mine"), ("ca.crt", PEM)):
            (tmp_path / name).write_text(text)
        monkeypatch.setattr("perfdag.kube.config.SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        cluster = load_config()
        assert (cluster.server, cluster.namespace) == ("https://[fd00::1]:443", "mine")
        assert await cluster.credentials.header() == {"Authorization": "Bearer pod"}

    def test_proxy_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "192.0.2.0/24")
        for server, proxy in (
            ("https://192.0.2.7", None),
            ("https://198.51.100.7", "http://127.0.0.1:9"),
        ):
            assert config_of(kubeconfig(tmp_path / "c", {}, {"server": server})).proxy == proxy


@pytest.fixture
async def fake() -> AsyncIterator[Callable[[Handle], Awaitable[Cluster]]]:
    """Serve one handler for every path on loopback; gives the Cluster to reach it."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda answer: stack.enter_async_context(served(answer))


def pod(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": metadata}


class TestRetries:
    async def test_429_waits_as_told_and_is_counted(self, fake: Any) -> None:
        times: list[float] = []

        async def answer(_: web.Request) -> web.Response:
            times.append(time.monotonic())
            if len(times) == 1:
                return web.json_response(
                    {"kind": "Status"}, status=429, headers={"Retry-After": "1"}
                )
            return web.json_response({"ok": 1})

        async with Kube(await fake(answer)) as kube:
            assert await kube.request("GET", "/x") == {"ok": 1}
            assert kube.counts["retry 429"] == 1
        assert times[1] - times[0] >= 1.0

    async def test_5xx_and_timeouts_are_retried_then_told(self, fake: Any) -> None:
        async def broken(request: web.Request) -> web.Response:
            if request.path == "/slow":
                await asyncio.sleep(1)
            return web.Response(status=503, text="overloaded\nline two")

        async with Kube(await fake(broken), retries=2, timeout=0.1) as kube:
            with pytest.raises(KubeError, match=r"HTTP 503 overloaded line two") as error:
                await kube.request("GET", "/x")
            assert error.value.status == 503
            assert kube.counts["retry 503"] == 2
            with pytest.raises(KubeError, match=r"no answer.*: none in 0.1 s"):
                await kube.request("GET", "/slow")
            assert kube.counts["retry Timeout"] == 2

    async def test_nobody_listens(self) -> None:
        cluster = Cluster("http://127.0.0.1:1", "gone", "default", Credentials())
        async with Kube(cluster, retries=0) as kube:
            with pytest.raises(KubeError, match=r"is the cluster up.*'gone'"):
                await kube.request("GET", "/x")

    async def test_a_plugin_is_asked_again_once_for_a_refused_token(
        self, fake: Any, tmp_path: Path
    ) -> None:
        async def answer(request: web.Request) -> web.Response:
            good = request.headers["Authorization"] == "Bearer xx"
            return web.json_response({}, status=200 if good and request.path == "/x" else 401)

        answer_of = 'printf \'{"status":{"token":"%s"}}\' "$(cat token)"'
        script = f"cd {tmp_path}; printf x >> token; {answer_of}"
        write_programs(tmp_path, {"plugin": script})
        cluster = await fake(answer)
        cluster.credentials.plugin = {"command": str(tmp_path / "plugin")}
        async with Kube(cluster) as kube:
            assert await kube.request("GET", "/x") == {}
            with pytest.raises(KubeError, match="log in again"):
                await kube.request("GET", "/y")

    async def test_a_create_whose_answer_was_lost_is_not_a_conflict(self, fake: Any) -> None:
        posts = 0

        async def answer(request: web.Request) -> web.Response:
            nonlocal posts
            if request.method == "GET" and request.path == "/api/v1":
                return web.json_response(
                    {"resources": [{"name": "pods", "kind": "Pod", "namespaced": True}]}
                )
            if request.method == "GET":
                return web.json_response({"metadata": {"name": "a"}})
            posts += 1
            if posts == 1:
                await asyncio.sleep(0.5)
            return web.json_response(
                {"kind": "Status", "reason": "AlreadyExists", "message": "there"}, status=409
            )

        async with Kube(await fake(answer), timeout=0.2) as kube:
            pod_body = await kube.create(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
            )
            assert pod_body["metadata"]["name"] == "a"
            with pytest.raises(KubeError, match=r"there"):
                await kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})


class TestWatch:
    async def test_410_relists_and_tells_what_vanished(self) -> None:
        owned = pod("a", 1)
        owned["metadata"]["ownerReferences"] = [{"uid": "job"}]
        server = ApiServer(owned, pod("b", 2))
        seen: list[tuple[str, str, bool]] = []
        async with client(server) as kube:
            async for event in kube.watch(PODS, "default"):
                seen.append((event.type, event.object["metadata"].get("name", ""), event.late))
                if len(seen) == 3:
                    server.add(pod("b", 3))
                elif len(seen) == 4:
                    del server.objects[server.path(pod("a", 1))]
                    server.add(pod("c", 8))
                    server.expire()
                elif len(seen) == 8:
                    server.bookmark()
                    await kube.delete(PODS, "c")
                elif len(seen) == 10:
                    break
                elif event.type == "DELETED":
                    assert event.object["metadata"]["ownerReferences"] == [{"uid": "job"}]
            assert kube.counts["watch reconnects"] == 1
        assert seen == [
            ("ADDED", "a", True),
            ("ADDED", "b", True),
            ("BOOKMARK", "", True),
            ("MODIFIED", "b", False),
            ("ADDED", "b", True),
            ("ADDED", "c", True),
            ("DELETED", "a", True),
            ("BOOKMARK", "", True),
            ("BOOKMARK", "", False),
            ("DELETED", "c", False),
        ]

    async def test_what_happened_before_the_reconnect_is_replayed(self, fake: Any) -> None:
        """The watch breaks after version 2, and comes back when the server is at version 5."""

        async def answer(request: web.Request) -> web.StreamResponse:
            if "watch" not in request.query:
                at = "5" if versions else "1"
                return web.json_response({"metadata": {"resourceVersion": at}, "items": []})
            after = int(request.query["resourceVersion"])
            versions.append(after)
            stream = web.StreamResponse()
            await stream.prepare(request)
            for version in (2,) if after == 1 else (4, 5, 6):
                change = {"type": "ADDED", "object": pod(f"p{version}", version)}
                await stream.write(json.dumps(change).encode() + b"\n")
            await asyncio.sleep(0.02)
            return stream

        seen, versions = list[tuple[str, bool]](), list[int]()
        async with Kube(await fake(answer)) as kube:
            async for event in kube.watch(PODS):
                if event.type == "BOOKMARK":
                    continue
                seen.append((event.object["metadata"]["name"], event.late))
                if len(seen) == 4:
                    break
            assert kube.counts["replayed changes"] == 2
        assert seen == [("p2", False), ("p4", True), ("p5", True), ("p6", False)]
        assert versions == [1, 2], "it goes on where it was"

    async def test_an_api_server_that_is_away_is_waited_for_by_the_clock(self) -> None:
        """It expires the watch, refuses the new list and the watch after it more often than a
        request is tried again, and is back. An object is gone meanwhile.
        """
        server, seen = ApiServer(pod("a", 1), pod("b", 7)), list[str]()
        server.fail("GET /api/v1/pods", 403)  # the user may read the namespace alone
        async with served(server) as cluster, Kube(cluster, retries=0) as kube:
            async for event in kube.watch(PODS, "default"):
                seen.append(f"{event.type} {event.object['metadata'].get('name', '')}".strip())
                if seen == ["ADDED a", "ADDED b", "BOOKMARK"]:
                    del server.objects[server.path(pod("a", 1))]
                    server.add(pod("b", 9))
                    server.expire()
                    server.fail("/pods[?]limit", 503, times=2)
                    server.fail("/pods[?]watch", 503, times=2)
                elif seen[-1] == "DELETED a":
                    server.add(pod("c", 12))
                elif seen[-1] == "ADDED c":
                    break
        assert seen[3:] == ["ADDED b", "DELETED a", "BOOKMARK", "ADDED c"]

    @pytest.mark.parametrize("path", ["/pods", "/pods[?]watch"])
    async def test_an_api_server_that_stays_away_is_given_up(self, path: str) -> None:
        server = ApiServer()
        server.fail(path, 503)
        async with served(server) as cluster, Kube(cluster, retries=0) as kube:
            with pytest.raises(KubeError) as error:
                async for _ in kube.watch(PODS, "default", patience=0.3):
                    pass
        assert error.value.status == 503

    async def test_a_refusal_is_raised(self) -> None:
        server = ApiServer()
        server.fail("/pods", 403, 'pods is forbidden: User "x" cannot list resource "pods"')
        async with client(server) as kube:
            with pytest.raises(KubeError, match=r"cannot list"):
                async for _ in kube.watch(PODS):
                    pass


async def test_lists_are_paged(fake: Any) -> None:
    async def answer(request: web.Request) -> web.Response:
        start = int(request.query.get("continue", "0"))
        end = min(start + int(request.query["limit"]), 1100)
        meta = {"resourceVersion": "1", **({"continue": str(end)} if end < 1100 else {})}
        items = [pod(f"p{number}", number) for number in range(start, end)]
        return web.json_response({"metadata": meta, "items": items})

    async with Kube(await fake(answer)) as kube:
        assert len(await kube.list(PODS)) == 1100


def test_a_ca_without_key_usage_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_python_3_13(**_: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", of_python_3_13)
    context = Cluster("https://x", "x", "default", Credentials()).tls()
    assert isinstance(context, ssl.SSLContext)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
