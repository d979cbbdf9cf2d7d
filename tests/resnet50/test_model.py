"""The real model on this CPU. Needs torch: `pip install 'perfdag[torch]'`."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfdag.benchmark.contract import Skip
from perfdag.hosts import facts as host_facts
from perfdag.steps.resnet50.workload import Workload

torch: Any = pytest.importorskip(
    "torch", reason="torch is not installed: pip install 'perfdag[torch]'"
)
model: Any = pytest.importorskip(
    "perfdag.steps.resnet50.torch_backend",
    reason="torchvision is not installed: pip install 'perfdag[torch]'",
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def net() -> Any:
    return model.build(0)


def spec(**more: Any) -> dict[str, Any]:
    return Workload.model_validate({"fast": True, **more}).spec()


def system(weights_of: Any, **more: Any) -> Any:
    return model.Resnet50(spec(**more), copy.deepcopy(weights_of))


def test_threads_keep_within_the_cpu_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = {"cpus_allowed": 64, "cpu_limit": 2.5, "memory_limit_bytes": 1 << 29}
    monkeypatch.setattr(host_facts, "limits", lambda *root: limited)
    facts = model.torch_system(spec()).facts
    assert (facts["model"]["threads"], facts["device"]["memory"]) == (2, 1 << 29)
    assert model.torch_system(spec(threads=1)).facts["model"]["threads"] == 1


def fake_cuda(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """A module torch whose `cuda` is composed, as no GPU was at hand."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_capability=lambda at: (7, 5),
        get_device_name=lambda at: "Tesla T4",
    )
    cuda.__dict__.update(more)
    fake = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8"))
    monkeypatch.setattr(model, "torch", fake)


def test_tf32_on_a_gpu_without_it_is_refused_and_the_capability_is_in_the_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(name="Tesla T4", uuid="1b2c", major=7, minor=5)
    cuda = {
        "get_device_properties": lambda at: properties,
        "mem_get_info": lambda at: (1, 2),
        "device_count": lambda: 1,
    }
    fake_cuda(monkeypatch, **cuda)
    with pytest.raises(
        Skip,
        match=r"^device: precision tf32: Tesla T4 has none \(Ampere or newer has\); use fp32 or",
    ):
        model.torch_system(spec(device="cuda", precision="tf32"))
    assert (
        model.device_facts("cuda").items()
        >= {"name": "Tesla T4", "uuid": "GPU-1b2c", "capability": "7.5"}.items()
    )


def test_a_gpu_that_pytorch_cannot_use_is_told_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = "The NVIDIA driver on your system is too old (found version 11040)."

    def init() -> None:
        raise RuntimeError(f"{old}\nPlease update it")

    fake_cuda(monkeypatch, is_available=lambda: False, init=init)
    with pytest.raises(Skip) as caught:
        model.torch_system(spec(device="cuda"))
    assert str(caught.value) == f"device cuda: {old} Please update it"


def test_images_are_the_same_in_any_set() -> None:
    assert np.array_equal(model.images(3, [5])[0], model.images(3, [1, 5])[1])
    assert not np.array_equal(model.images(3, [5]), model.images(4, [5]))


def test_preprocessing_is_the_published_one() -> None:
    raw = np.zeros((1, 224, 224, 3), dtype=np.uint8)
    raw[..., 0] = 255
    pixels = model.preprocess(raw)
    assert pixels.shape == (1, 3, 224, 224)
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]
    assert pixels[0, :, 0, 0] == pytest.approx(expected, rel=1e-5)


def test_classes_do_not_depend_on_the_batch(net: Any) -> None:
    network = system(net, batch=4, samples=4, scenario="server", target_rate=5)
    together = list(network.infer([0, 1, 2, 3], 0.0))
    assert together == [network.infer([index], 0.0)[0] for index in range(4)]
    assert len(network.infer([2, 1, 0], 0.0)) == 3


def test_batches_are_padded_to_what_was_warmed(net: Any) -> None:
    network = system(net, batch=6, samples=4, scenario="server", target_rate=5)
    assert list(network.sizes()) == [1, 2, 4, 6]
    assert [len(network.gather([0] * count)) for count in (1, 2, 3, 5, 6)] == [1, 2, 4, 6, 6]
    assert len(network.infer([0, 0, 0], 0.0)) == 3


class Tiny(torch.nn.Module):  # type: ignore[misc]
    """A net that compiles at once."""

    def forward(self, batch: Any) -> Any:
        return batch.sum(1) * 2


def test_every_size_is_compiled_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import config

    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    compiling = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda net, dynamic: compiling(net, dynamic=dynamic, backend=backend)
    )
    monkeypatch.setattr(config, "recompile_limit", 8)
    net = model.compiled(Tiny(), 12)
    with torch.inference_mode():
        for size in range(1, 13):
            assert len(net(torch.ones(size, 3))) == size
        assert len(calls) == 12
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            net(torch.ones(13, 3))
