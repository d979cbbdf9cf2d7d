"""The Kubernetes client: configuration offline, retries and watches against a fake API server,
the rest against a real one.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from aiohttp import web

from perfdag.kube.client import Cluster, Kube, KubeError, load_config, tls_context
from tests.fakes.api_server import ApiServer, Handle, client, served
from tests.fakes.files import write_programs

PODS = "v1/Pod"
KINDS = {"resources": [{"name": "pods", "kind": "Pod", "namespaced": True}]}


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


@pytest.fixture(scope="module")
def key_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate and its key, in PEM."""
    folder = tmp_path_factory.mktemp("key_pair")
    subprocess.run(
        "openssl req -x509 -newkey ed25519 -nodes -subj /CN=perfdag\\ test -keyout key -out crt",
        shell=True,
        check=True,
        cwd=folder,
        capture_output=True,
    )
    return (folder / "crt").read_text(), (folder / "key").read_text()


def authorities(cluster: Cluster) -> list[str]:
    """Return the names of the CAs that a cluster's certificate may be of."""
    names = re.findall(r"'commonName', '([^']*)'", str(cluster.tls.get_ca_certs()))
    return list(dict.fromkeys(names))


class TestConfig:
    def test_files_are_relative_to_the_kubeconfig(
        self, tmp_path: Path, key_pair: tuple[str, str]
    ) -> None:
        certificate, key = key_pair
        for name, text in (("ca", certificate), ("crt", certificate), ("key", key)):
            (tmp_path / name).write_text(text)
        (tmp_path / "token").write_text("t1\n")
        user = {"client-certificate": "crt", "client-key": "key", "tokenFile": "token"}
        cluster = config_of(kubeconfig(tmp_path / "c", user, {"certificate-authority": "ca"}))
        assert authorities(cluster) == ["perfdag test"]
        assert cluster.header() == {"Authorization": "Bearer t1"}
        (tmp_path / "token").write_text("t2")
        assert cluster.header() == {"Authorization": "Bearer t2"}
        (tmp_path / "key").write_text("K")
        with pytest.raises(KubeError, match=r"cannot read the kubeconfig .*PEM"):
            config_of(str(tmp_path / "c"))

    def test_exec_plugin_gets_its_arguments_and_is_asked_once(self, tmp_path: Path) -> None:
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
        assert cluster.header() == {"Authorization": "Bearer a b;c"}
        assert cluster.header() == {"Authorization": "Bearer a b;c"}
        assert (tmp_path / "count").read_text() == "x\n"

    def test_exec_plugin_that_is_missing_or_fails(self, tmp_path: Path) -> None:
        spec = {"apiVersion": "v1", "command": "no-such-plugin", "installHint": "get it there"}
        with pytest.raises(KubeError, match=r"no-such-plugin.*get it there"):
            config_of(kubeconfig(tmp_path / "c", {"exec": spec})).header()
        with pytest.raises(KubeError, match=r"exit status 1"):
            config_of(kubeconfig(tmp_path / "c", {"exec": {**spec, "command": "false"}})).header()

    def test_several_files_merge_and_the_first_wins(
        self, tmp_path: Path, key_pair: tuple[str, str]
    ) -> None:
        ca = {"certificate-authority-data": base64.b64encode(key_pair[0].encode()).decode()}
        both = os.pathsep.join(
            (
                kubeconfig(tmp_path / "a", {"token": "a"}, ca),
                kubeconfig(tmp_path / "b", {"token": "b"}, name="two"),
            )
        )
        first = config_of(both)
        assert (first.server, first.token) == ("https://127.0.0.1:1", "a")
        assert authorities(first) == ["perfdag test"]
        same_name = kubeconfig(tmp_path / "c", {"token": "c"})
        assert config_of(os.pathsep.join((both, same_name))).token == "a"
        (tmp_path / "a").write_text("current-context: two")
        assert config_of(both).token == "b"
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

    def test_in_a_pod(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_pair: tuple[str, str]
    ) -> None:
        for name, text in (("token", "pod"), ("namespace", "mine"), ("ca.crt", key_pair[0])):
            (tmp_path / name).write_text(text)
        monkeypatch.setattr("perfdag.kube.client.SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        cluster = load_config()
        assert (cluster.server, cluster.namespace) == ("https://[fd00::1]:443", "mine")
        assert cluster.header() == {"Authorization": "Bearer pod"}

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
            assert kube.counts["retry TimeoutError"] == 2

    async def test_nobody_listens(self) -> None:
        cluster = Cluster("http://127.0.0.1:1", "gone", "default")
        async with Kube(cluster, retries=0) as kube:
            with pytest.raises(KubeError, match=r"is the cluster up.*'gone'"):
                await kube.request("GET", "/x")

    async def test_a_token_without_an_end_is_asked_for_again(self, tmp_path: Path) -> None:
        script = f"cd {tmp_path}; printf x >> token; "
        script += 'printf \'{"status":{"token":"%s"}}\' "$(cat token)"'
        write_programs(tmp_path, {"plugin": script})
        cluster = Cluster("", "", "", plugin={"command": str(tmp_path / "plugin")})
        assert [cluster.header()["Authorization"] for _ in range(2)] == ["Bearer x"] * 2
        cluster.expires -= 600
        assert cluster.header() == {"Authorization": "Bearer xx"}

    async def test_a_create_whose_answer_was_lost_is_not_a_conflict(self, fake: Any) -> None:
        posts = 0

        async def answer(request: web.Request) -> web.Response:
            nonlocal posts
            if request.path == "/api/v1":
                return web.json_response(KINDS)
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
    async def test_410_lists_again_and_tells_what_vanished(self) -> None:
        owned = pod("a", 1)
        owned["metadata"]["ownerReferences"] = [{"uid": "job"}]
        server = ApiServer(owned, pod("b", 2))
        seen: list[tuple[str, str, bool]] = []
        async with client(server) as kube:
            async for change, body, received in kube.watch(PODS, "default"):
                seen.append((change, body["metadata"].get("name", ""), received > 0))
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
                elif change == "DELETED":
                    assert body["metadata"]["ownerReferences"] == [{"uid": "job"}]
            assert kube.counts["watches broken"] == 1
        assert seen == [
            ("ADDED", "a", False),
            ("ADDED", "b", False),
            ("BOOKMARK", "", False),
            ("MODIFIED", "b", True),
            ("ADDED", "b", False),
            ("ADDED", "c", False),
            ("DELETED", "a", False),
            ("BOOKMARK", "", False),
            ("BOOKMARK", "", True),
            ("DELETED", "c", True),
        ]

    async def test_a_watch_that_ends_goes_on_and_one_that_breaks_lists_again(
        self, fake: Any
    ) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path == "/api/v1":
                return web.json_response(KINDS)
            version = request.query.get("resourceVersion", "")
            asked.append(version)
            if not version:
                items = [pod("p", 7)] if asked[1:] else []
                return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
            stream = web.StreamResponse()
            await stream.prepare(request)
            if version == "2" and request.transport:
                request.transport.abort()
            else:
                change = {"type": "ADDED", "object": pod("p", int(version) + 1)}
                await stream.write(json.dumps(change).encode() + b"\n")
            return stream

        asked, seen = list[str](), list[bool]()
        async with Kube(await fake(answer)) as kube:
            async for change, _, received in kube.watch(PODS):
                seen += [received > 0] if change == "ADDED" else []
                if len(seen) == 3:
                    break
            assert kube.counts == {"watches broken": 1}
        assert asked == ["", "1", "2", "", "1"]
        assert seen == [True, False, True]

    async def test_an_api_server_that_is_away_is_waited_for_by_the_clock(self) -> None:
        """It expires the watch, refuses the new list and the watch after it more often than a
        request is tried again, and is back. An object is gone meanwhile.
        """
        server, seen = ApiServer(pod("a", 1), pod("b", 7)), list[str]()
        server.fail("GET /api/v1/pods", 403)  # the user may read the namespace alone
        async with served(server) as cluster, Kube(cluster, retries=0) as kube:
            async for change, body, _ in kube.watch(PODS, "default"):
                seen.append(f"{change} {body['metadata'].get('name', '')}".strip())
                if seen == ["ADDED a", "ADDED b", "BOOKMARK"]:
                    del server.objects[server.path(pod("a", 1))]
                    server.add(pod("b", 9))
                    server.expire()
                    server.fail("/pods[?][^?]*Selector=$", 503, times=2)
                    server.fail("/pods[?].*watch", 503, times=2)
                elif seen[-1] == "DELETED a":
                    server.add(pod("c", 12))
                elif seen[-1] == "ADDED c":
                    break
        assert seen[3:] == ["ADDED b", "DELETED a", "BOOKMARK", "ADDED b", "ADDED c"]

    async def test_an_api_server_that_stays_away_is_given_up(self) -> None:
        server = ApiServer()
        server.fail("/pods", 503)
        async with served(server) as cluster, Kube(cluster, retries=0) as kube:
            with pytest.raises(KubeError) as error:
                async for _ in kube.watch(PODS, "default", patience=0.3):
                    pass
        assert error.value.status == 503

    async def test_a_second_outage_is_waited_for_as_long_as_the_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1000.0]
        clock = SimpleNamespace(monotonic=lambda: now[0], monotonic_ns=time.monotonic_ns)
        monkeypatch.setattr("perfdag.kube.client.time", clock)
        server = ApiServer(pod("a", 1))
        server.fail("/pods", 503, times=2)
        outages = 0
        async with served(server) as cluster, Kube(cluster, retries=0) as kube:
            async for change, _, _ in kube.watch(PODS, "default"):
                if change != "BOOKMARK":
                    continue
                outages += 1
                if outages == 2:
                    break
                now[0] += 90.0
                server.expire()
                server.fail("/pods", 503, times=2)
        assert outages == 2

    async def test_a_deleted_job_takes_its_pods_with_it(self) -> None:
        server = ApiServer(job := pod("a", 1))
        async with client(server) as kube:
            await kube.delete(PODS, job["metadata"]["name"], "default")
        (deletion,) = [each for each in server.requests if each.method == "DELETE"]
        assert deletion.body["propagationPolicy"] == "Background"

    async def test_a_refusal_is_raised(self) -> None:
        server = ApiServer()
        server.fail("/pods", 403, 'pods is forbidden: User "x" cannot list resource "pods"')
        async with client(server) as kube:
            with pytest.raises(KubeError, match=r"cannot list"):
                async for _ in kube.watch(PODS):
                    pass


def test_a_ca_without_key_usage_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_python_3_13(**_: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", of_python_3_13)
    assert not tls_context(None).verify_flags & ssl.VERIFY_X509_STRICT
