"""The real model on this CPU. Needs torch: `pip install 'perfdag[torch]'`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdag.steps.resnet50.params import Workload

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'perfdag[torch]'")
model: Any = pytest.importorskip("perfdag.steps.resnet50.model", reason="torchvision is not installed: pip install 'perfdag[torch]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def net() -> Any:
    return model.build("random", 0)[0]


@pytest.fixture(scope="module")
def wanted(net: Any) -> Any:
    return model.reference(net, 0)


def spec(**more: Any) -> dict[str, Any]:
    return Workload.model_validate({"fast": True, **more}).spec()


def system(weights_of: Any, **more: Any) -> Any:
    import copy

    return model.Resnet50(spec(**more), copy.deepcopy(weights_of))


def test_threads_keep_within_the_cpu_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfdag import cgroups
    from perfdag.steps.resnet50.subject import ModelSubject

    monkeypatch.setattr(cgroups, "limits", lambda: {"cpus_allowed": 64, "cpu_limit": 2.5})
    assert ModelSubject(spec(), 1).facts["model"]["threads"] == 2
    assert ModelSubject(spec(threads=1), 1).facts["model"]["threads"] == 1


def test_images_are_the_same_in_any_set() -> None:
    assert np.array_equal(model.images(3, [5])[0], model.images(3, [1, 5])[1])
    assert not np.array_equal(model.images(3, [5]), model.images(4, [5]))


def test_preprocessing_is_the_published_one() -> None:
    raw = np.zeros((1, 224, 224, 3), dtype=np.uint8)
    raw[..., 0] = 255
    pixels = model.preprocess(raw)
    assert pixels.shape == (1, 3, 224, 224)
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]
    assert [float(pixels[0, channel, 0, 0]) for channel in range(3)] == pytest.approx(expected, rel=1e-5)


def test_eager_fp32_agrees_with_the_reference(net: Any, wanted: Any) -> None:
    found = model.compare_logits(system(net).fixed_logits(), wanted, "fp32")
    assert found["ok"]
    assert found["error"] < 1e-4
    assert found["same_class"] == 4


def test_half_precision_is_within_its_tolerance_and_really_differs(net: Any, wanted: Any) -> None:
    found = model.compare_logits(system(net, precision="bf16").fixed_logits(), wanted, "bf16")
    assert found["ok"]
    assert found["error"] > 1e-4
    assert not model.compare_logits(system(net, precision="bf16").fixed_logits(), wanted, "fp32")["ok"]


def test_corrupted_weights_are_caught(net: Any, wanted: Any) -> None:
    broken = system(net)
    with torch.no_grad():
        weight = next(module for name, module in broken._net.named_modules() if name == "layer3.2.conv2").weight
        weight[:8, ::3] *= -64.0
    assert not model.compare_logits(broken.fixed_logits(), wanted, "fp32")["ok"]


def test_one_weight_that_is_not_a_number_is_caught(net: Any, wanted: Any) -> None:
    broken = system(net)
    with torch.no_grad():
        broken._net.fc.weight[3, 5] = float("nan")
    found = model.compare_logits(broken.fixed_logits(), wanted, "fp32")
    assert (found["ok"], found["finite"], found["error"]) == (False, False, None)


def test_classes_do_not_depend_on_the_batch(net: Any) -> None:
    made = system(net, batch=4, samples=4)
    made.load(range(4))
    together = list(made.infer([0, 1, 2, 3], 0.0))
    assert together == [made.infer([index], 0.0)[0] for index in range(4)]
    assert len(made.infer([2, 1, 0], 0.0)) == 3


def test_phases_are_positive_and_compute_dominates(net: Any) -> None:
    made = system(net)
    made.load(range(2))
    found = made.phases(1, 3)
    assert {len(each) for each in found.values()} == {3}
    assert min(min(each) for each in found.values()) > 0
    assert sorted(found["compute"])[1] > sorted(found["copy"])[1]


def test_weights_from_a_file_and_its_digest(tmp_path: Path, net: Any) -> None:
    import hashlib

    path = tmp_path / "w.pth"
    torch.save(net.state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    loaded, facts = model.build(str(path), 9, digest)
    assert (facts["weights_sha256"], facts["trained"]) == (digest, True)
    assert torch.equal(loaded.fc.weight, net.fc.weight)
    assert facts["weights_verified"]
    assert not model.build(str(path), 9)[1]["weights_verified"]  # nothing says what they should be
    named = tmp_path / f"resnet50-{digest[:8]}.pth"
    path.rename(named)
    assert model.build(str(named), 0)[1]["trained"]
    data = bytearray(named.read_bytes())
    data[len(data) // 2] ^= 1
    named.write_bytes(data)
    with pytest.raises(model.UnusableError, match="not what they claim"):
        model.build(str(named), 0)


def test_weights_that_are_missing_or_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(model.UnusableError, match="No such file or directory; give a file"):
        model.build(str(tmp_path / "gone.pth"), 0)
    other = tmp_path / "other.pth"
    torch.save({"conv.weight": torch.zeros(3)}, other)
    with pytest.raises(model.UnusableError, match="no state dict of torchvision's ResNet-50"):
        model.build(str(other), 0)
    other.write_text("not a file of torch")
    with pytest.raises(model.UnusableError, match="no state dict"):
        model.build(str(other), 0)


def test_a_cut_image_is_named(tmp_path: Path) -> None:
    from PIL import Image

    file = tmp_path / "cut.png"
    Image.new("RGB", (300, 300), (9, 200, 7)).save(file)
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(model.UnusableError, match=r"cut\.png: not an image"):
        model.decode(file)


def test_compiled_batches_are_padded_to_what_was_warmed(net: Any) -> None:
    made = system(net, batch=6, backend="eager")
    made.compiled = True  # only the padding is tested here: compiling takes a minute
    made.load([0])
    assert list(made.buckets(6)) == [1, 2, 4, 6]
    assert [len(made.gather([0] * count)) for count in (1, 2, 3, 5, 6)] == [1, 2, 4, 6, 6]
    assert len(made.infer([0, 0, 0], 0.0)) == 3
