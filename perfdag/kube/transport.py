"""A pooled HTTP session with the API server: requests with retries, and streamed lines."""

import asyncio
import random
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import orjson

from perfdag.kube.config import Cluster, load_config
from perfdag.kube.errors import KubeError
from perfdag.kube.resources import Object

if TYPE_CHECKING:
    import aiohttp


JSON = "application/json"
MAX_BACKOFF = 10.0
TLS_BUFFER = 2**16
"""Bytes that each TLS connection reserves for reading; asyncio's default is four times as much."""

_HINTS = {
    401: "the credentials are not accepted: log in again or choose another context",
    413: "the object is too large; etcd takes at most 1.5 MiB",
}


class Transport:
    """A session with one API server, as an async context manager.

    `connections` limits the requests in flight, apart from watches and logs. `timeout` is in
    seconds for one request. `retries` is the number of retries after 429, 5xx, a timeout or a
    broken connection. `counts` counts requests, retries by cause and relists.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        context: str | None = None,
        connections: int = 100,
        timeout: float = 30.0,
        retries: int = 6,
    ) -> None:
        self.cluster = cluster or load_config(context)
        self.namespace = self.cluster.namespace
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(connections)
        self._timeout, self._retries = timeout, retries
        self._session: aiohttp.ClientSession | None = None
        self._options: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        import aiohttp

        SSLProtocol.max_size = TLS_BUFFER
        # An exec plugin may return the client certificate that tls() loads.
        await self.cluster.credentials.header()
        connector = aiohttp.TCPConnector(ssl=self.cluster.tls(), limit=0, keepalive_timeout=60)
        headers = {"User-Agent": "perfdag", "Accept": JSON, "Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        if self.cluster.proxy:
            self._options["proxy"] = self.cluster.proxy
        if self.cluster.server_name:
            self._options["server_hostname"] = self.cluster.server_name
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def connect(self, connections: int) -> None:
        """Open this many connections before a measurement, up to the limit of the transport.

        A handshake takes longer than most requests. Raises KubeError.
        """
        await asyncio.gather(*(self.raw("GET", "/version") for _ in range(connections)))

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        retries: int | None = None,
        tally: Counter[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and return status, headers and body of a 2xx answer.

        429, 5xx, a timeout and a broken connection are retried, after the Retry-After of the
        server. `tally` counts the retries of this request by cause. `headers` are added, and the
        API server's proxy forwards them. Raises KubeError for any other answer.
        """
        import aiohttp

        limit = self._retries if retries is None else retries
        attempt, refreshed = 0, False
        while True:
            try:
                async with self._slots:
                    status, answered, data = await self._once(
                        method,
                        path,
                        params,
                        body,
                        content_type,
                        timeout or self._timeout,
                        headers or {},
                    )
            except TimeoutError:
                failure = KubeError(
                    0,
                    "Timeout",
                    f"{method} {path}: no answer in {timeout or self._timeout:g} s "
                    f"from {self.cluster.server}",
                )
                cause, wait = "timeout", 0.0
            except (aiohttp.ClientError, OSError) as error:
                failure, cause, wait = self._unreachable(error), "connection", 0.0
            else:
                if status < 300:
                    return status, answered, data
                failure, cause = self._refused(status, method, path, data), str(status)
                if status == 401 and not refreshed and self.cluster.credentials.forget():
                    refreshed = True
                    continue
                if status != 429 and status < 500:
                    raise failure
                wait = _retry_after(answered, data)
            if attempt >= limit or failure.reason == "Certificate":
                raise failure
            attempt += 1
            self.counts[f"retry {cause}"] += 1
            if tally is not None:
                tally[cause] += 1
            await asyncio.sleep(
                max(wait, min(MAX_BACKOFF, 0.1 * 2**attempt) * random.uniform(0.5, 1.0))
            )

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Object:
        """Send a request with a JSON body and return the JSON answer. Raises KubeError."""
        body = None if json is None else orjson.dumps(json)
        _, _, data = await self.raw(
            method,
            path,
            params=params,
            body=body,
            content_type=content_type,
            timeout=timeout,
            retries=retries,
        )
        answer: Object = orjson.loads(data) if data else {}
        return answer

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        timeout: float,
        more: Mapping[str, str],
    ) -> tuple[int, Mapping[str, str], bytes]:
        assert self._session is not None, "open it with `async with`"
        headers = {**await self._headers(), **more}
        if body is not None:
            headers["Content-Type"] = content_type
        self.counts["requests"] += 1
        url = self.cluster.server + path
        async with (
            asyncio.timeout(timeout),
            self._session.request(
                method,
                url,
                params=params,
                data=body,
                headers=headers,
                timeout=_unbounded(),
                **self._options,
            ) as response,
        ):
            return response.status, response.headers, await response.read()

    async def _headers(self) -> dict[str, str]:
        authorization = await self.cluster.credentials.header()
        return {"Authorization": authorization} if authorization else {}

    def _unreachable(self, error: Exception) -> KubeError:
        import aiohttp

        if isinstance(
            error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError
        ):
            hint = f"check certificate-authority in {self.cluster.source}"
            return KubeError(
                0,
                "Certificate",
                f"the certificate of {self.cluster.server} is not accepted: {error}",
                hint,
            )
        hint = f"is the cluster up, and is context {self.cluster.context!r} the right one?"
        text = str(error) or type(error).__name__
        return KubeError(0, "Unreachable", f"no answer from {self.cluster.server}: {text}", hint)

    def _refused(self, status: int, method: str, path: str, data: bytes) -> KubeError:
        try:
            details = orjson.loads(data)
        except ValueError:
            details = {}
        if not isinstance(details, dict) or details.get("kind") != "Status":
            text = data[:200].decode(errors="replace").strip()
            details = {"message": f"{method} {path}: HTTP {status} {text}"}
        message = " ".join(str(details.get("message") or f"{method} {path}: HTTP {status}").split())
        hint = _HINTS.get(status, "")
        if status == 403 and "exceeded quota" in message:
            hint = "free or raise the namespace's ResourceQuota"
        elif status == 403 and details.get("reason") == "Forbidden" and " cannot " in message:
            user = f"the user of context {self.cluster.context!r}"
            hint = f"grant it to {user} with a Role or ClusterRole"
        return KubeError(status, details.get("reason") or f"HTTP {status}", message, hint, details)

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str | None, silence: float | None
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Yield the lines of an answer as they arrive, with the monotonic time of arrival in ns."""
        import aiohttp

        assert self._session is not None, "open it with `async with`"
        self.counts["requests"] += 1
        patience = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence)
        try:
            async with self._session.get(
                self.cluster.server + path,
                params=params,
                headers=await self._headers() | ({"Accept": accept} if accept else {}),
                timeout=patience,
                read_bufsize=2**20,
                **self._options,
            ) as answer:
                if answer.status >= 300:
                    if answer.status == 401:
                        self.cluster.credentials.forget()
                    raise self._refused(answer.status, "GET", path, await answer.read())
                rest = b""
                async for chunk in answer.content.iter_any():
                    received = time.monotonic_ns()
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line, received
                if rest and silence is None:
                    yield rest, time.monotonic_ns()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from None


@cache
def _unbounded() -> Any:
    """Turn off the timeout of aiohttp: one asyncio.timeout limits the whole request for less."""
    import aiohttp

    return aiohttp.ClientTimeout(total=None)


def _retry_after(headers: Mapping[str, str], data: bytes) -> float:
    """Return the seconds of Retry-After or of the Status's retryAfterSeconds, 0 without either."""
    try:
        if "Retry-After" in headers:
            return min(60.0, float(headers["Retry-After"]))
        return min(60.0, float(orjson.loads(data)["details"]["retryAfterSeconds"]))
    except (ValueError, KeyError, TypeError):
        return 0.0
