"""A client of Prometheus."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdag.kube.config import KubeError, tls_context

QUERY_REFUSED = "Refused"
"""The reason of a KubeError where Prometheus refuses a query, which no second try changes."""


@dataclass(frozen=True)
class Prometheus:
    """The address of a Prometheus, with optional files of a bearer token and a CA certificate."""

    url: str
    token_file: str | None = None
    ca_file: str | None = None

    async def query(
        self, queries: Mapping[str, Mapping[str, str]], path: str = "query_range"
    ) -> dict[str, Any]:
        """Return the `data` of the answers by query name. Raises KubeError."""
        import aiohttp

        data: dict[str, Any] = {}
        try:
            token = Path(self.token_file).read_text().strip() if self.token_file else ""
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connector = (
                aiohttp.TCPConnector(ssl=tls_context(file=self.ca_file)) if self.ca_file else None
            )
            timeout = aiohttp.ClientTimeout(total=60)
            async with aiohttp.ClientSession(
                timeout=timeout, headers=headers, connector=connector
            ) as session:
                for name, params in queries.items():
                    async with session.get(
                        f"{self.url.rstrip('/')}/api/v1/{path}", params=params
                    ) as answer:
                        if answer.status in (401, 403):
                            hint = "it needs a token, which `scale` takes (--prometheus-token-file)"
                            raise KubeError(
                                answer.status,
                                "Prometheus",
                                f"Prometheus at {self.url} answers {answer.status}",
                                hint,
                            )
                        body: dict[str, Any] = await answer.json(content_type=None)
                    if body.get("status") != "success":
                        raise KubeError(
                            0,
                            QUERY_REFUSED,
                            f"Prometheus at {self.url} refuses the query {name}: "
                            f"{body.get('error', answer.status)}",
                        )
                    data[name] = body["data"]
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            raise KubeError(
                0,
                "Unreachable",
                f"no answer from Prometheus at {self.url}: {error}",
                "check --prometheus",
            ) from None
        return data

    async def probe(self) -> None:
        """Check URL and token with a trivial query. Raises KubeError."""
        await self.query({"a probe": {"query": "vector(1)"}}, "query")
