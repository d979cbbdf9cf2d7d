"""A server of the Open Inference Protocol (v2): one model, over HTTP and, with tritonclient,
gRPC.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

LENGTH = "Inference-Header-Content-Length"


def mean_of_channels(batch: np.ndarray) -> np.ndarray:
    """Logits (n, 1000) of images (n, 3, 224, 224) that depend on the image, and on no other of
    the batch.
    """
    weights = np.linspace(-1, 1, 3000, dtype=np.float32).reshape(3, 1000)
    logits: np.ndarray = batch.mean((2, 3), dtype=np.float64).astype(np.float32) @ weights
    return logits


@dataclass
class Model:
    """The served model; `requests` has the JSON part and the number of binary bytes of each
    inference over HTTP.
    """

    network: Callable[[np.ndarray], np.ndarray] = mean_of_channels
    name: str = "resnet50"
    datatype: str = "FP32"
    shape: Sequence[int] = (-1, 3, 224, 224)
    binary: bool = True
    requests: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def infer(self, batch: np.ndarray) -> np.ndarray:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self.network(batch)
        finally:
            with self._lock:
                self.at_once -= 1

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": "test",
            "inputs": [{"name": "input", "datatype": self.datatype, "shape": list(self.shape)}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 1000]}],
        }


@contextlib.contextmanager
def http_server(model: Model) -> Iterator[str]:
    """Serve over HTTP on this machine; the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *words: Any) -> None:
            """Print nothing."""

        def reply(self, status: int, body: Any, binary: bytes = b"") -> None:
            head = json.dumps(body).encode()
            self.send_response(status)
            if binary:
                self.send_header(LENGTH, str(len(head)))
            self.send_header("Content-Length", str(len(head) + len(binary)))
            self.end_headers()
            self.wfile.write(head + binary)

        def do_GET(self) -> None:
            if self.path == "/v2":
                extensions = ["binary_tensor_data"] if model.binary else []
                self.reply(200, {"name": "fake", "version": "1.0", "extensions": extensions})
            elif self.path == f"/v2/models/{model.name}":
                self.reply(200, model.metadata())
            elif self.path.endswith("/ready") or self.path.endswith("/live"):
                self.reply(200, {})
            else:
                self.reply(404, {"error": f"unknown model {self.path.rsplit('/', 1)[-1]!r}"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            cut = int(self.headers.get(LENGTH) or len(body))
            if cut < len(body) and not model.binary:
                self.reply(400, {"error": "binary tensors are not supported"})
                return
            request = json.loads(body[:cut])
            model.requests.append(({**request, "path": self.path}, len(body) - cut))
            (tensor,) = request["inputs"]
            data = (
                np.frombuffer(body[cut:], np.float32)
                if "data" not in tensor
                else np.array(tensor["data"], np.float32)
            )
            logits = model.infer(data.reshape(tensor["shape"]))
            shape = list(logits.shape)
            output: dict[str, Any] = {"name": "logits", "datatype": "FP32", "shape": shape}
            expected = request.get("outputs", [{}])[0].get("parameters", {})
            if model.binary and expected.get("binary_data"):
                output["parameters"] = {"binary_data_size": logits.nbytes}
                self.reply(200, {"model_name": model.name, "outputs": [output]}, logits.tobytes())
            else:
                output["data"] = logits.reshape(-1).tolist()
                self.reply(200, {"model_name": model.name, "outputs": [output]})

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def grpc_server(model: Model) -> Iterator[str]:
    """Serve over gRPC on this machine; the URL."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
            return service_pb2.ServerMetadataResponse(name="fake", version="1.0")

        def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
            if request.name != model.name:
                context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model {request.name!r}")
            return service_pb2.ModelMetadataResponse(**model.metadata())

        def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
            (tensor,), (raw,) = request.inputs, request.raw_input_contents
            logits = model.infer(np.frombuffer(raw, np.float32).reshape(tensor.shape))
            output = {"name": "logits", "datatype": "FP32", "shape": list(logits.shape)}
            return service_pb2.ModelInferResponse(
                model_name=model.name, outputs=[output], raw_output_contents=[logits.tobytes()]
            )

    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), options=limits)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
