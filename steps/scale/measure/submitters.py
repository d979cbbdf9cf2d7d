"""Ways to create objects: the API server, or a program that reads manifests."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import orjson

from perfdag.kube.client import Kube, KubeError, Resource
from perfdag.steps.scale.model.templates import Template


class Submitter(Protocol):
    """A way to create the documents of one object, in order."""

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """Create them and return the UID of the last, or an empty string if it is unknown.

        Counts retries by cause in `tally`. Raises KubeError.
        """
        ...


class ApiSubmitter:
    """POST to the API server. `paths` are the collections of the template's documents."""

    def __init__(self, kube: Kube, resources: Sequence[Resource]) -> None:
        self._kube, self._resources = kube, resources
        self._paths: dict[str, list[str]] = {}

    @classmethod
    async def open(cls, kube: Kube, template: Template) -> "ApiSubmitter":
        """Look up the kinds of the template. Raises KubeError for an unknown kind."""
        return cls(
            kube,
            [
                await kube.resource(document.api_version, document.kind)
                for document in template.documents
            ],
        )

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """See Submitter. A conflict after a retry is our own create whose answer was lost."""
        paths = self._paths.get(namespace) or [
            resource.path(namespace) for resource in self._resources
        ]
        self._paths[namespace] = paths
        uid = ""
        for path, body in zip(paths, bodies, strict=True):
            before = tally.total()
            try:
                _, _, data = await self._kube.raw("POST", path, body=body, tally=tally)
            except KubeError as error:
                if error.reason != "AlreadyExists" or tally.total() == before:
                    raise
                name = orjson.loads(body)["metadata"]["name"]
                _, _, data = await self._kube.raw("GET", f"{path}/{name}")
            uid = uid_of(data)
        return uid


def uid_of(data: bytes) -> str:
    """metadata.uid of an object's JSON."""
    uid: str = orjson.loads(data)["metadata"]["uid"]
    return uid


class CommandSubmitter:
    """A program that reads manifests on standard input, such as kubectl.

    Its start-up is part of the submission time, as in Run:ai's scale test tool.
    """

    def __init__(
        self, kube: Kube, argv: Sequence[str], timeout: float = 60.0, reads_input: bool = True
    ) -> None:
        self._kube, self.argv, self._timeout, self._reads = kube, list(argv), timeout, reads_input

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        """See Submitter. Placeholders in argv: {name}, {namespace}, {project}."""
        last = orjson.loads(bodies[-1])
        fields = {
            "name": last["metadata"]["name"],
            "namespace": namespace,
            "project": namespace.removeprefix("runai-"),
        }
        argv = [_fill(word, fields) for word in self.argv]
        text = orjson.dumps(
            {"apiVersion": "v1", "kind": "List", "items": [orjson.loads(body) for body in bodies]}
        )
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise KubeError(
                0,
                "Submitter",
                f"{argv[0]} cannot be run: {error.strerror}",
                "install it, or use --submitter api",
            ) from None
        try:
            _, err = await asyncio.wait_for(
                process.communicate(text if self._reads else None), self._timeout
            )
        except TimeoutError:
            raise KubeError(0, "Timeout", f"{argv[0]} did not end in {self._timeout:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started holds its pipes
                await process.wait()
        if process.returncode:
            raise KubeError(
                0,
                "Submitter",
                f"{argv[0]}: {' '.join(err.decode(errors='replace').split())[-300:]}",
            )
        return ""


def _fill(word: str, fields: dict[str, str]) -> str:
    for key, value in fields.items():
        word = word.replace("{" + key + "}", value)
    return word
