"""What `doctor --cluster` reads from nodes and shapes; the rest of it wants a cluster."""

from pathlib import Path

import pytest

from perfdag import suite
from perfdag.cli.doctor_cluster import holds, no_gpu
from perfdag.plan import make_plan
from perfdag.shape import Shape


@pytest.mark.parametrize(("amount", "there"), [("1k", True), ("8", True), ("0", False), ("2Ki", True), ("500m", False)])
def test_a_quantity_of_a_device_is_read_as_kubernetes_writes_it(amount: str, there: bool) -> None:
    assert holds({"status": {"allocatable": {"gpu.intel.com/millicores": amount}}}, "gpu.intel.com/millicores") is there


def test_cuda_in_pods_without_a_gpu_is_found(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    entry = "  - {name: %s, benchmark: resnet50, params: {device: cuda, fast: true}%s}\n"
    file.write_text("name: s\nentries:\n" + entry % ("without", "") + entry % ("with", ", resources: {nvidia.com/gpu: 1}"))
    plan = make_plan(suite.load(str(file)))
    found = no_gpu(plan, [Shape.model_validate(each) for each in plan.shapes])
    assert [each.what for each in found] == ["entry without: device is cuda, but its pods ask for no GPU"]
    assert found[0].do == "resources: {nvidia.com/gpu: 1}"
