"""A served model as the system under test, over both wires of the Open Inference Protocol."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from perfdag.outcome import Skip
from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.inference import endpoint, open_inference
from perfdag.steps.resnet50.inference.images import images, preprocess
from perfdag.steps.resnet50.params import Workload
from tests.fakes.open_inference import Model, grpc_server, http_server, mean_of_channels
from tests.resnet50.harness import needs_loadgen, run_resnet50


def triton(part: str) -> Any:
    return pytest.importorskip(
        f"tritonclient.{part}",
        reason="tritonclient is not installed: the wire was NOT checked with the real client",
    )


def serve(wire: str, model: Model) -> AbstractContextManager[str]:
    if wire == "grpc":
        triton("grpc")
        return grpc_server(model)
    return http_server(model)


def params(url: str, **more: Any) -> Workload:
    base = {"runtime": "endpoint", "endpoint": url, "model": "resnet50", "fast": True, "samples": 4}
    return Workload.model_validate(base | more)


def measure(url: str, folder: Path, **more: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """The program's result, and the values by metric."""
    output, rows = run_resnet50(params(url, **more), folder)
    return json.loads(output.texts["result"]), {row.metric: row.value for row in rows}


@needs_loadgen
@pytest.mark.parametrize("wire", ["http", "grpc"])
@pytest.mark.parametrize(
    ("scenario", "figure"),
    [
        ({"scenario": "offline", "batch": 4}, "throughput"),
        ({"scenario": "single-stream"}, "tail_latency"),
        (
            {"scenario": "server", "target_rate": 40, "latency_bound": "30s", "in_flight": 2},
            "completed_rate",
        ),
    ],
)
def test_a_served_model_is_measured(
    wire: str, scenario: dict[str, Any], figure: str, tmp_path: Path
) -> None:
    model = Model()
    with serve(wire, model) as url:
        result, values = measure(url, tmp_path, **scenario)
    assert values[figure] > 0
    assert result["versions"] == {"endpoint": "fake 1.0"}
    assert result["model"]["wire"].startswith(wire)
    assert result["logits"]["ok"]
    assert result["logits"]["against"].startswith("its own first answers")


@needs_loadgen
def test_requests_in_flight_meet_at_the_server_and_raise_its_rate(tmp_path: Path) -> None:
    def slow(batch: np.ndarray) -> np.ndarray:
        time.sleep(0.1)  # longer than the client needs on a busy machine
        return mean_of_channels(batch)

    rates = []
    for in_flight in (1, 4):
        model = Model(slow)
        with http_server(model) as url:
            values = measure(url, tmp_path, in_flight=in_flight, min_queries=16)[1]
        assert model.most_at_once == in_flight
        rates.append(values["throughput"])
    assert rates[1] > 2 * rates[0]


def test_a_server_without_binary_tensors_gets_json() -> None:
    model = Model(binary=False)
    with http_server(model) as url:
        subject = endpoint.subject(params(url).spec(), 1)
        assert subject.facts["model"]["wire"] == "http, JSON"
        assert subject.check_logits()["ok"]
    assert {binary for _, binary in model.requests} == {0}


def test_channels_last_and_a_fixed_batch_are_served() -> None:
    def network(batch: np.ndarray) -> np.ndarray:
        assert batch.shape == (2, 224, 224, 3)
        return mean_of_channels(batch.transpose(0, 3, 1, 2))

    with http_server(Model(network, shape=(2, 224, 224, 3))) as url:
        subject = endpoint.subject(params(url, batch=2).spec(), 1)
        assert subject.check_logits()["ok"]
        subject.system.load(range(3))
        expected = mean_of_channels(preprocess(images(0, [1]))).argmax(1)
        assert list(subject.system.infer([1], 0.0)) == list(expected)


def test_answers_that_change_are_caught() -> None:
    calls: list[int] = []

    def failing(batch: np.ndarray) -> np.ndarray:
        calls.append(1)
        return mean_of_channels(batch) * (1 if len(calls) <= 12 else 1.5)

    with http_server(Model(failing)) as url:
        subject = endpoint.subject(params(url).spec(), 1)
        assert subject.check_logits()["ok"]
        for _ in range(4):
            result = subject.check_logits()
        assert not result["ok"]


@pytest.mark.parametrize("wire", ["http", "grpc"])
@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (Model(name="bert"), {}, r"model resnet50: .*unknown model 'resnet50'"),
        (Model(shape=(-1, 3, 299, 299)), {}, r"takes FP32 \[-1, 3, 299, 299\]: ResNet-50 takes"),
        (Model(shape=(-1, 128)), {}, r"takes FP32 \[-1, 128\]: ResNet-50 takes"),
        (Model(datatype="INT64"), {}, r"takes INT64 \[-1, 3, 224, 224\]: ResNet-50 takes"),
        (Model(shape=(8, 3, 224, 224)), {}, r"batches of 8 alone: set batch: 8"),
        (Model(lambda batch: np.zeros((1, 1000), np.float32)), {"batch": 4}, None),
        (
            Model(lambda batch: np.zeros((len(batch), 2, 500), np.float32)),
            {},
            r"answers a batch of 1 with \[1, 2, 500\]: \[1, classes\] expected",
        ),
        (
            Model(lambda batch: np.ones((len(batch), 10), np.float32)),
            {"scenario": "accuracy", "imagenet": "/nowhere"},
            r"knows 10 classes: accuracy needs ImageNet's 1000",
        ),
    ],
)
def test_another_model_is_named_in_one_line(
    wire: str, model: Model, more: dict[str, Any], message: str | None
) -> None:
    with serve(wire, model) as url:
        with pytest.raises(UnusableError) as error:
            endpoint.subject(params(url, **more).spec(), 1).system.fixed_logits(4)
        text = str(error.value)
    assert error.value.kind == "endpoint"
    assert text.startswith(f"endpoint {url}, model resnet50")
    assert "\n" not in text
    if message:
        with pytest.raises(UnusableError, match=message):
            raise error.value


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@needs_loadgen
@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_an_endpoint_that_is_not_there_skips_the_row(wire: str, tmp_path: Path) -> None:
    if wire == "grpc":
        triton("grpc")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        Skip, match=rf"^endpoint {wire}://127.0.0.1:{port}, model resnet50: "
    ) as error:
        measure(f"{wire}://127.0.0.1:{port}", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_an_endpoint_that_never_answers_is_given_up(
    wire: str, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wire == "grpc":
        triton("grpc")
    monkeypatch.setattr(open_inference, "PATIENCE", 0.3)
    with pytest.raises(UnusableError, match=rf"^endpoint {wire}://127.0.0.1:{silent}, "):
        endpoint.subject(params(f"{wire}://127.0.0.1:{silent}").spec(), 1)


def test_the_real_client_speaks_to_the_server_and_sends_what_ours_sends() -> None:
    client_library = triton("http")
    batch = np.ascontiguousarray(preprocess(images(0, [0, 1])))
    model = Model()
    with http_server(model) as url:
        client = client_library.InferenceServerClient(url.removeprefix("http://"))
        assert client.is_server_live()
        assert client.get_model_metadata("resnet50") == model.metadata()
        tensor = client_library.InferInput("input", list(batch.shape), "FP32")
        tensor.set_data_from_numpy(batch, binary_data=True)
        expected = client_library.InferRequestedOutput("logits", binary_data=True)
        theirs = client.infer("resnet50", [tensor], outputs=[expected]).as_numpy("logits")
        client.close()
        connection = open_inference.connect(url, "resnet50")
        served = connection.served()
        ours = connection.infer(batch, served.inputs[0], "logits")
    assert np.array_equal(theirs, ours)
    assert model.requests[0] == model.requests[1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"endpoint": None}, "needs endpoint, the server's URL, and model"),
        ({"model": None}, "needs endpoint, the server's URL, and model"),
        ({"endpoint": "localhost:8000"}, "match pattern"),
        ({"endpoint": "http://user:secret@host"}, "match pattern"),
        ({"runtime": "torch"}, "belong to runtime: endpoint"),
        ({"runtime": "triton"}, "'torch', 'onnxruntime', 'openvino' or 'endpoint'"),
        ({"device": "cuda"}, "is PyTorch's: leave both out with runtime endpoint"),
        ({"weights": "w.pth"}, "the server's own"),
        ({"scenario": "single-stream", "in_flight": 2}, "one query in flight"),
        ({"system": "stub"}, "system stub has no runtime"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        params("http://host:8000", **more)


def test_a_point_without_a_runtime_keeps_its_id() -> None:
    assert {"runtime", "endpoint", "model", "in_flight"}.isdisjoint(Workload().model_dump())
