"""A client of the Open Inference Protocol (v2) over HTTP or gRPC, one tensor in and one out.

Source: kserve/open-inference-protocol (inference_rest.md, inference_grpc.md), and the extension
for binary tensors of Triton (docs/protocol/extension_binary_data.md), which KServe and OVMS speak.
"""

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import numpy as np
import orjson

from perfdag.steps.resnet50.errors import UnusableError

PATIENCE = 60.0
"""Seconds that an answer may take."""
_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Tensor:
    """Name, datatype (FP32) and shape of a model's input or output; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ServerMetadata:
    """The metadata of a server and of one of its models."""

    server: str
    version: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


class Client(Protocol):
    """One model of one server. Every method raises UnusableError and serves several threads.

    `error_kind` is the kind of those errors.
    """

    error_kind: str

    @property
    def wire(self) -> str: ...

    def served(self) -> ServerMetadata: ...

    def infer(self, batch: np.ndarray, source: Tensor, sink: str) -> np.ndarray:
        """Return the output `sink` for a float32 batch in the input `source`."""
        ...


def connect(url: str, model: str) -> Client:
    """Return a client for http://, https:// or grpc://HOST:PORT; it connects at its first call."""
    if url.startswith("grpc://"):
        return GrpcClient(url, model)
    return HttpClient(url, model)


class HttpClient:
    """HTTP with a connection for each thread; tensors are binary until `binary` is set to False."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model, self.binary, self.error_kind = url, model, True, "endpoint"
        self._parts = urlsplit(url)
        self._base = self._parts.path.rstrip("/")
        self._thread = threading.local()

    @property
    def wire(self) -> str:
        return "http, binary tensors" if self.binary else "http, JSON"

    def served(self) -> ServerMetadata:
        server = json.loads(self._call("GET", "/v2")[0])
        model = json.loads(self._call("GET", f"/v2/models/{quote(self.model)}")[0])
        return ServerMetadata(
            str(server.get("name", "unknown")),
            str(server.get("version", "unknown")),
            *(
                [
                    Tensor(one["name"], one["datatype"], tuple(map(int, one["shape"])))
                    for one in model.get(side) or ()
                ]
                for side in ("inputs", "outputs")
            ),
        )

    def infer(self, batch: np.ndarray, source: Tensor, sink: str) -> np.ndarray:
        tensor: dict[str, Any] = {
            "name": source.name,
            "shape": batch.shape,
            "datatype": source.datatype,
        }
        output: dict[str, Any] = {"name": sink}
        path = f"/v2/models/{quote(self.model)}/infer"
        if not self.binary:
            tensor["data"] = batch.reshape(-1)
            request = {"inputs": [tensor], "outputs": [output]}
            body = orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY)
            return self._output(sink, *self._call("POST", path, [body]))
        tensor["parameters"] = {"binary_data_size": batch.nbytes}
        output["parameters"] = {"binary_data": True}
        head = orjson.dumps({"inputs": [tensor], "outputs": [output]})
        pixels = memoryview(batch.data).cast("B")
        return self._output(
            sink, *self._call("POST", path, [head, pixels], {_LENGTH: str(len(head))})
        )

    def _output(self, sink: str, body: bytes, headers: Mapping[str, str]) -> np.ndarray:
        try:
            cut = int(headers.get(_LENGTH.lower()) or len(body))
            at = cut
            for output in orjson.loads(body[:cut])["outputs"]:
                size = (output.get("parameters") or {}).get("binary_data_size")
                if output["name"] == sink and output["datatype"] == "FP32":
                    data = (
                        np.array(output["data"], np.float32)
                        if size is None
                        else np.frombuffer(body, np.float32, size // 4, at)
                    )
                    return data.reshape(output["shape"])
                at += size or 0
        except (KeyError, TypeError, ValueError) as error:
            raise _unusable(self, f"its answer is not of the protocol: {error}") from None
        raise _unusable(self, f"its answer has no FP32 output {sink!r}")

    def _call(
        self,
        method: str,
        path: str,
        body: Sequence[Any] = (),
        headers: Mapping[str, str] | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return body and headers of an answer. Raises UnusableError."""
        connection = getattr(self._thread, "connection", None)
        if connection is None:
            secure = self._parts.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            connection = kind(self._parts.netloc, timeout=PATIENCE)
            self._thread.connection = connection
        is_idle = connection.sock is not None
        length = str(sum(len(part) for part in body))
        try:
            connection.request(
                method,
                self._base + path,
                iter(body) if body else None,
                {"Content-Type": "application/json", **(headers or {})}
                | ({"Content-Length": length} if body else {}),
            )
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            if is_idle and isinstance(error, ConnectionError):  # the server closed it meanwhile
                connection.close()
                return self._call(method, path, body, headers)
            connection.close()
            raise _unusable(self, f"no answer: {error or type(error).__name__}") from None
        if answer.status != 200:
            raise _unusable(self, f"{method} {path} answers {answer.status}: {_message(data)}")
        return data, {name.lower(): value for name, value in answer.headers.items()}


class GrpcClient:
    """gRPC through tritonclient, with raw tensors."""

    wire = "grpc, raw tensors"

    def __init__(self, url: str, model: str) -> None:
        from tritonclient import grpc

        self.url, self.model, self._grpc, self.error_kind = url, model, grpc, "endpoint"
        self._client = grpc.InferenceServerClient(url.removeprefix("grpc://").rstrip("/"))

    def served(self) -> ServerMetadata:
        try:
            server = self._client.get_server_metadata(client_timeout=PATIENCE)
            model = self._client.get_model_metadata(self.model, client_timeout=PATIENCE)
        except self._grpc.InferenceServerException as error:
            raise _unusable(self, str(error.message())) from None
        return ServerMetadata(
            server.name,
            server.version,
            *(
                [Tensor(one.name, one.datatype, tuple(one.shape)) for one in side]
                for side in (model.inputs, model.outputs)
            ),
        )

    def infer(self, batch: np.ndarray, source: Tensor, sink: str) -> np.ndarray:
        tensor = self._grpc.InferInput(source.name, list(batch.shape), source.datatype)
        tensor.set_data_from_numpy(batch)
        wanted = [self._grpc.InferRequestedOutput(sink)]
        try:
            answer = self._client.infer(
                self.model, [tensor], outputs=wanted, client_timeout=PATIENCE
            )
        except self._grpc.InferenceServerException as error:
            raise _unusable(self, str(error.message())) from None
        logits: np.ndarray | None = answer.as_numpy(sink)
        if logits is None or logits.dtype != np.float32:
            raise _unusable(self, f"its answer has no FP32 output {sink!r}")
        return logits


def _unusable(client: HttpClient | GrpcClient, text: str) -> UnusableError:
    return UnusableError(client.error_kind, f"endpoint {client.url}, model {client.model}: {text}")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])[:200]
    except (ValueError, KeyError, TypeError):
        return " ".join(body.decode(errors="replace").split())[:200] or "no message"
