"""The pipeline on CUDA, whose streams, events and graphs are played: no GPU was at hand.

The played graph records the operations of its capture and repeats them on the same memory, as a
real one does.
"""

import copy
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from perfdag.steps.resnet50.params import Workload

torch: Any = pytest.importorskip(
    "torch", reason="torch is not installed: pip install 'perfdag[torch]'"
)
model: Any = pytest.importorskip(
    "perfdag.steps.resnet50.inference.model",
    reason="torchvision is not installed: pip install 'perfdag[torch]'",
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from perfdag.steps.resnet50.errors import OutOfMemoryError  # noqa: E402
from perfdag.steps.resnet50.inference import device  # noqa: E402
from perfdag.steps.resnet50.inference.warming import warm_all  # noqa: E402

pytestmark = pytest.mark.slow


class Played:
    """`torch.cuda`: what is enqueued runs at once, and `log` has it as (stream, what)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, Any]] = []
        self.current = threading.local()
        self.streams = 0
        self.held = threading.Event()
        self.held.set()
        self.waiting = threading.Semaphore(0)

    def note(self, what: str, on: Any = None) -> None:
        self.log.append((getattr(self.current, "name", "default"), what, on))

    def Stream(self) -> Any:  # noqa: N802
        name = ("copying", "computing")[self.streams]
        self.streams += 1

        def wait_event(event: Any) -> None:
            self.log.append((name, "wait", event))
            time.sleep(0.002)  # another thread may launch here if nothing prevents it

        return SimpleNamespace(name=name, wait_event=wait_event)

    def stream(self, stream: Any) -> Any:
        outer = self

        class Current:
            def __enter__(self) -> None:
                self.before = getattr(outer.current, "name", "default")
                outer.current.name = stream.name

            def __exit__(self, *raised: object) -> None:
                outer.current.name = self.before

        return Current()

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        event = SimpleNamespace(elapsed_time=lambda end: 2.0)
        event.record = lambda: self.note("record", event)

        def synchronize() -> None:
            self.waiting.release()
            assert self.held.wait(20)
            self.note("waited", event)

        event.synchronize = synchronize
        return event

    def CUDAGraph(self) -> Any:  # noqa: N802
        graph = SimpleNamespace(operations=[])

        def replay() -> None:
            self.note("replay", graph)
            with torch.inference_mode():
                for function, args, more, out in graph.operations:
                    out.copy_(function(*args, **more))

        graph.replay = replay
        return graph

    def graph(self, graph: Any, pool: Any, stream: Any) -> Any:
        self.note("capture", stream.name)

        class Capture(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                out = function(*args, **(kwargs or {}))
                graph.operations.append((function, args, kwargs or {}, out))
                return out

        return Capture()

    def synchronize(self, at: Any) -> None:
        self.note("synchronize")


class Small(torch.nn.Module):  # type: ignore[misc]
    """A net of few operations whose class depends on the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = torch.nn.Conv2d(3, 8, 16, stride=16), torch.nn.Linear(8, 1000)

    def forward(self, batch: Any) -> Any:
        return self.fc(torch.relu(self.conv(batch)).mean((2, 3)) * 50)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    for name in ("Stream", "stream", "Event", "CUDAGraph", "graph", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(played, name))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    return played


def spec(**more: Any) -> dict[str, Any]:
    chosen = {"batch": 4, "samples": 16, "fast": True, "device": "cuda", **more}
    return Workload.model_validate(chosen).spec() | {"device": "cpu"}


def systems(**more: Any) -> tuple[Any, Any]:
    """The pipeline with played streams, and the CPU's, with the same weights and images."""
    net = Small().eval()
    both = (
        device.DeviceResnet50(spec(**more), copy.deepcopy(net)),
        model.Resnet50(spec(**more), net),
    )
    for system in both:
        system.load(range(16))
    return both


BATCHES = [[3, 1, 2, 9], [0, 0, 5, 7], [15, 14, 13, 12], [8, 4, 6, 10]]


@pytest.mark.parametrize("more", [{}, {"graphs": False}, {"resident": True}])
def test_its_answers_are_those_of_the_cpu(more: dict[str, Any], cuda: Played) -> None:
    on_device, on_cpu = systems(**more)
    expected = [list(on_cpu.infer(batch)) for batch in BATCHES]
    assert len({tuple(answer) for answer in expected}) == len(BATCHES)
    assert [list(on_device.infer(batch)) for batch in BATCHES] == expected
    with ThreadPoolExecutor(2) as pool:  # and with two lanes in flight
        assert [list(answer) for answer in pool.map(on_device.infer, BATCHES * 8)] == expected * 8
    assert ("replay" in {what for _, what, _ in cuda.log}) is more.get("graphs", True)
    actual, wanted = on_device.fixed_logits(4), on_cpu.fixed_logits(4)
    assert np.allclose(actual, [*wanted, *wanted], atol=1e-4)  # by each lane


def test_a_batch_is_copied_while_the_one_before_it_is_computed(cuda: Played) -> None:
    on_device, _ = systems()
    on_device.infer(BATCHES[0])
    cuda.log.clear()
    cuda.held.clear()  # the device computes until the end of the block
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(on_device.infer, batch) for batch in BATCHES[:3]]
        for _ in range(3):  # one is of the batch before the block
            assert cuda.waiting.acquire(timeout=20)
        assert not any(what == "waited" for _, what, _ in cuda.log)
        first, second = (
            event for stream, what, event in cuda.log if (stream, what) == ("computing", "wait")
        )
        assert first is not second
        cuda.held.set()
        assert len({id(future.result()) for future in sent}) == 3


def test_each_lane_is_copied_then_waited_for_then_computed(cuda: Played) -> None:
    on_device, _ = systems()
    on_device.infer(BATCHES[0])
    cuda.log.clear()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(on_device.infer, BATCHES * 4))
    assert len(on_device._lanes) == 2
    for lane in on_device._lanes:
        names = {id(lane.begun): "begun", id(lane.copied): "copied", id(lane.done): "done"}
        names |= {id(graph): "graph" for graph, _ in lane.graphs.values()}
        steps = [(stream, what, names[id(on)]) for stream, what, on in cuda.log if id(on) in names]
        batch = [
            ("copying", "record", "begun"),
            ("copying", "record", "copied"),
            ("computing", "wait", "copied"),
            ("computing", "replay", "graph"),
            ("computing", "record", "done"),
            ("default", "waited", "done"),
        ]
        assert steps == batch * (len(steps) // len(batch))
    launched = [what for stream, what, _ in cuda.log if stream == "computing"]
    assert launched == ["wait", "replay", "record"] * (
        len(launched) // 3
    )  # no batch within another


def test_every_size_of_server_is_captured_in_every_lane_before_the_run(cuda: Played) -> None:
    on_device, on_cpu = systems(scenario="server", target_rate=5)
    for size in on_device.buckets(4):
        on_device.infer(BATCHES[0][:size])
    captures = [what for _, what, _ in cuda.log].count("capture")
    assert captures == 2 * len(on_device.buckets(4)) == 6
    for count in (1, 2, 3, 4):
        answer = on_device.infer(BATCHES[2][:count])
        assert list(answer) == list(on_cpu.infer(BATCHES[2][:count]))
    assert [what for _, what, _ in cuda.log].count("capture") == captures


def test_the_checks_see_every_lane(cuda: Played) -> None:
    on_device, _ = systems(batch=6)
    expected = on_device.fixed_logits(6)
    del on_device._lanes[1].graphs[6][0].operations[:]  # a capture that missed everything
    with torch.inference_mode():
        on_device._lanes[1].graphs[6][1][0].zero_()
    same = np.isclose(on_device.fixed_logits(6), expected).all(1)
    assert sorted((same[:6].all(), same[6:].all())) == [False, True]


def test_phases_and_the_clock_are_the_devices(cuda: Played) -> None:
    on_device, _ = systems()
    assert on_device.phases(4, 3)["compute"] == [0.002] * 3
    check = on_device.check_clock(4)
    assert check.device == pytest.approx(5 * 0.002)


def test_the_largest_batch_that_fits_counts_every_lane(
    cuda: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with room for 10 samples, of which two lanes need their inputs at once."""
    used: list[int] = []

    class Full(device.Lane):
        def __init__(self, largest: int, *more: Any) -> None:
            if sum(used) + largest > 10:
                raise RuntimeError("CUDA error: out of memory")
            super().__init__(largest, *more)
            used.append(largest)
            weakref.finalize(self, used.remove, largest)

    monkeypatch.setattr(device, "Lane", Full)
    chosen = spec(batch=8)
    on_device = device.DeviceResnet50(chosen, Small().eval())
    on_device.load(range(16))
    for _ in range(2):
        with pytest.raises(
            OutOfMemoryError, match=r"batch 8 does not fit .* largest that fits is 5"
        ):
            warm_all(chosen, on_device, 0.0)


@pytest.mark.parametrize(
    ("params", "in_flight"),
    [
        ({}, 1),
        ({"device": "cuda"}, 2),
        ({"device": "cuda", "in_flight": 3}, 3),
        ({"device": "cuda", "scenario": "single-stream"}, 1),
    ],
)
def test_two_batches_are_in_flight_on_a_gpu(params: dict[str, Any], in_flight: int) -> None:
    assert Workload.model_validate(params).spec()["in_flight"] == in_flight


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"resident": True}, "resident and graphs are settings of device: cuda"),
        ({"graphs": False}, "resident and graphs are settings of device: cuda"),
        ({"device": "cuda", "resident": True, "mlperf": True}, "mlperf counts the copy"),
    ],
)
def test_settings_of_a_gpu_without_one_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate(params)
