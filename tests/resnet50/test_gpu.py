"""nvidia-smi's output read.

No GPU was here: the lines are composed from its documented fields, not recorded.
"""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Gang, Measurement, Output
from perfdag.commands.main import main
from perfdag.hosts import gpu_use
from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost, allowed_cpus
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.workload import Result, Workload, read
from tests.conftest import CommandLine, SuiteWriter
from tests.fakes.files import write_programs
from tests.resnet50.harness import gang, needs_loadgen, recorded

T4 = (
    "0, Tesla T4, GPU-1b2c, 550.90.07, 90.04.38.00.03, 15360, 70.00, 1590, 5001, Enabled, "
    "Default, Enabled, 0, 2, [N/A], 3, 16\n"
    "1, Tesla T4, GPU-2b2c, 550.90.07, 90.04.38.00.03, 15360, 70.00, 1590, 5001, Enabled, "
    "Default, [N/A], [N/A], [N/A], [N/A], 3, 16\n"
)


def test_static_facts_have_units() -> None:
    first, second = gpu_use.parse(T4, gpu_use.STATIC)
    assert (first["name"], first["driver"], first["memory"]) == (
        "Tesla T4",
        "550.90.07",
        15360 * 2**20,
    )
    assert (first["sm_clock_max"], first["power_limit"]) == (1.59e9, 70.0)
    assert (first["ecc"], first["ecc_uncorrected"]) == ("Enabled", 2)
    assert "mig" not in first
    assert "ecc" not in second


NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def samples(*masks: int) -> str:
    """Two a second from NOON on, the clock 10 MHz lower in each."""
    times = [
        f"{NOON + i * timedelta(seconds=0.5):%Y/%m/%d %H:%M:%S.%f}"[:-3] for i in range(len(masks))
    ]
    return "".join(
        f"0, {1500 - 10 * i}, 5000, {60 + i}.50, 7{i}, 99, 1024, 0x{mask:016x}, {time}\n"
        for i, (mask, time) in enumerate(zip(masks, times, strict=True))
    )


def span(start: float, end: float) -> gpu_use.Span:
    return NOON.timestamp() + start, NOON.timestamp() + end


def test_what_the_gpu_did_meanwhile() -> None:
    cut = samples(4, 4, 0, 0) + "0, 1500, 50"
    (result,) = gpu_use.during(cut, gpu_use.DYNAMIC)
    assert result["samples"] == 4
    assert result["sm_clock"] == {"low": 1.47e9, "median": pytest.approx(1.485e9), "high": 1.5e9}
    assert result["utilisation"]["high"] == pytest.approx(0.99)
    assert result["throttled"] == {"software power cap": 0.5}


def test_set_up_and_idle_time_are_no_part_of_it() -> None:
    """58 samples before the run and two in it: as one, a slowdown throughout would be 3 % of the
    samples.
    """
    text = samples(*[1] * 29, *[0] * 29, 0x40, 0x41, 0x40)
    whole = gpu_use.during(text, gpu_use.DYNAMIC)
    assert (whole[0]["samples"], whole[0]["slowed"]) == (
        31,
        (
            "GPU 0 was slowed down (hardware thermal slowdown) in 6 % of the sample: mend "
            "cooling or power"
        ),
    )
    (result,) = gpu_use.during(text, gpu_use.DYNAMIC, [span(29, 30)])
    assert (result["samples"], result["throttled"], result["sm_clock"]["high"]) == (
        2,
        {"hardware thermal slowdown": 1.0},
        0.92e9,
    )
    assert "in 100 % of the sample" in result["slowed"]
    # a driver without times, and a run between two samples, are judged by all that there is
    assert gpu_use.during(text, gpu_use.DYNAMIC, [span(900, 901)]) == whole
    assert gpu_use.during(samples(1, 1), gpu_use.DYNAMIC)[0]["samples"] == 2


RUNS = [span(0.5, 2), span(4, 6)]


@pytest.mark.parametrize(
    ("masks", "spans", "held"),
    [
        pytest.param([4, 4], (), False, id="the power cap"),
        pytest.param([0x20, 0x20, 0, 0], (), True, id="software thermal slowdown"),
        pytest.param([0x80, 0x80, 0, 0], (), True, id="power brake"),
        pytest.param([0x40, *[0] * 30], (), False, id="a short spike"),
        pytest.param([0x40, *[0] * 3], (), False, id="one sample of four"),
        pytest.param([0, 0x40, *[0] * 12], RUNS, False, id="one sample of a run"),
        pytest.param([0, 0x40, 0x40, *[0] * 12], RUNS, True, id="two samples of a run"),
        # two samples among 60 in which the GPU waits
        pytest.param([0x40, 0x40, *[1] * 60], (), True, id="a tool that computes"),
    ],
)
def test_how_long_a_slowdown_lasts_to_be_held_against_the_figure(
    masks: list[int], spans: Any, held: bool
) -> None:
    (result,) = gpu_use.during(samples(*masks), gpu_use.DYNAMIC, spans)
    assert ("slowed" in result) == held


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def put(script: str) -> None:
        write_programs(tmp_path, {"nvidia-smi": script})
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


def test_a_driver_that_refuses_is_in_the_record(fake_smi: Callable[[str], None]) -> None:
    refusal = "Unable to determine the device handle for GPU0: Unknown Error"
    fake_smi(f"echo '{refusal}'; exit 255")
    assert f"does not answer: {refusal}" in (gpu_use.problem(LocalHost()) or "")
    assert gpu_use.facts(LocalHost()) == [{"error": refusal}]
    host = LocalHost()
    with gpu_use.watched([host]) as watch:
        pass
    assert (watch.hosts[host.name]["during"], watch.hosts[host.name]["error"]) == ([], refusal)
    assert watch.against == f"what the GPU's clocks did is not known: {refusal}"


@pytest.mark.parametrize(
    ("printed", "after", "why"),
    [
        ("", [{"error": "Failed to initialize NVML: Unknown Error"}], "Failed to initialize NVML"),
        ("", [], "nvidia-smi lists GPU 0 no more"),
        ("", [{"index": 0, "uuid": "GPU-b"}], "nvidia-smi lists GPU 0 no more"),
        ("Failed to initialize NVML: Unknown Error\n" * 2, None, "Failed to initialize NVML"),
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n" * 2, None, None),
    ],
)
def test_a_gpu_that_is_lost_meanwhile_is_told(
    printed: str, after: list[dict[str, Any]] | None, why: str | None
) -> None:
    used = [{"index": 0, "uuid": "GPU-a", "ecc_uncorrected": 0}]
    seen = {"gpus": used, "during": gpu_use.during(samples(4, 4) + printed, gpu_use.DYNAMIC)}
    reason = gpu_use.reason_against(seen, used if after is None else after, used)
    assert (reason is None) == (why is None)
    assert why is None or f"was lost while it was measured: {why}" in str(reason)


def test_our_helpers_answer_as_in_any_other_shell(
    fake_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """nproc prints OMP_NUM_THREADS, and preloaded libraries print what they like."""
    for name in ("LD_PRELOAD", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    fake_smi('echo "GPU 0: $OMP_NUM_THREADS$LD_PRELOAD $TZ (UUID: GPU-a)"')
    assert LocalHost().run(gpu_use.LIST, timeout=10).stdout == "GPU 0:  UTC0 (UUID: GPU-a)\n"
    assert allowed_cpus(LocalHost()) == os.sched_getaffinity(0)
    assert allowed_cpus(LocalHost(), "0") == {0}


TIME = "2026/11/22 12:00:00.000"
LINE = f"0, 1500, 5000, 60, 70, 99, 1024, 0x4, {TIME}"
DONE = ': >"$(mktemp "$(dirname "$0")/done-XXXXXX")"'
SAMPLING = f"echo '{LINE}'; case \"$*\" in *loop*) echo '{LINE}'; {DONE}; exec sleep 60;; esac"
HOT = (
    'case "$*" in -L) echo "GPU 0: T4"; exit;; *loop*) ;; *uuid*) echo '
    f'"{T4.splitlines()[0]}"; exit;; esac; {SAMPLING.replace("0x4", "0x40")}'
)


def await_lines(folder: Path, programs: int = 1) -> None:
    """Wait until so many of the fake programs that sample have printed all of their lines."""
    for _ in range(3000):
        if len(list(folder.glob("done-*"))) >= programs:
            return
        time.sleep(0.01)
    raise TimeoutError("nvidia-smi printed nothing")


def test_a_field_that_a_version_does_not_know_costs_that_field_only(
    fake_smi: Callable[[str], None], tmp_path: Path
) -> None:
    refusal = """refuse() { echo "Field \\"$1\\" is not a valid field to query."; exit 2; }
case "$*" in
*ecc.errors.corrected.volatile.total*) refuse ecc.errors.corrected.volatile.total;;
*mig.mode.current*) refuse mig.mode.current >&2;;
*clocks_throttle_reasons.active*) refuse clocks_throttle_reasons.active;;
*utilization.gpu*) refuse utilization.gpu;;
*vbios*) echo '0, Tesla T4, GPU-1, 550.90, 90.04, 15360, 70.00, 1590, 5001, Enabled, Default, Enabled, 2, 3, 16'; exit 0;;
esac
"""  # noqa: E501
    fake_smi(refusal + SAMPLING.replace(LINE, f"0, 1500, 5000, 60, 70, 1024, 0x40, {TIME}"))
    (result,) = gpu_use.facts(LocalHost())
    assert (result["name"], result["ecc_uncorrected"], result["pcie_width"]) == ("Tesla T4", 2, 16)
    assert result.keys().isdisjoint({"ecc_corrected", "mig", "error"})
    with gpu_use.watched([LocalHost()]) as watch:
        await_lines(tmp_path)
    (seen,) = watch.hosts.values()
    assert seen["untold"] == ["utilisation"]
    assert "hardware thermal slowdown" in seen["against"]  # by the field's new name


class Measured(Resnet50):
    """It measured on all hosts of a gang, with a GPU of that uuid."""

    def __init__(self, folder: Path, uuid: str = "") -> None:
        self.folder = folder
        self.result = read(json.dumps(recorded(device={"name": "Tesla T4", "uuid": uuid})))

    def measure(self, gang: Gang, params: Workload) -> list[tuple[Host, Result]]:
        await_lines(self.folder, len({id(host) for host in gang.hosts}))
        return [(host, self.result) for host in gang.hosts]

    def parse(self, output: Output, params: Workload) -> list[Measurement]:
        return []


ON_CUDA = Workload(device="cuda", system="stub")


def test_every_host_is_watched_and_what_its_gpus_did_is_held_against_the_figure(
    fake_smi: Callable[[str], None], tmp_path: Path
) -> None:
    fake_smi(HOT)
    hosts = [LocalHost(name=name) for name in ("a", "b", "a")]
    machine = gang(*hosts, hosts[0])  # two copies on one host, and two pods on node a
    Measured(tmp_path).run(machine, ON_CUDA)
    facts = machine.output.facts
    reasons = [reason.partition(" (hardware")[0] for reason in facts["against"].split("; ")]
    assert reasons == [
        f"{host}: GPU 0 was slowed down" for host in ("a (host 0)", "b", "a (host 2)")
    ]
    assert facts["peers"].keys() == {"b", "a (host 2)"}
    assert facts["gpus"][0]["name"] == "Tesla T4"


@pytest.mark.parametrize(
    ("during", "after", "against"),
    [
        ([{"index": 0}], {0: 2}, None),
        ([{"index": 0}], {0: 5}, "GPU 0 had 3 uncorrected memory error"),
        pytest.param([{"index": 0}], {0: 2, 1: 9}, None, id="another GPU's errors"),
        ([], {0: 2}, "is not known: no samples"),
    ],
)
def test_memory_errors_that_came_meanwhile_and_a_gpu_not_seen_at_all_are_held_against_it(
    during: list[dict[str, Any]], after: dict[int, int], against: str | None
) -> None:
    counts = [{"index": gpu, "ecc_uncorrected": errors} for gpu, errors in after.items()]
    before = [{"index": 0, "ecc_uncorrected": 2}]
    assert str(against) in str(gpu_use.reason_against({"during": during}, counts, before))


@pytest.mark.parametrize(
    ("uuid", "against", "used"),
    [
        ("GPU-1b2c", "None", "GPU-1b2c"),
        ("GPU-2b2c", "GPU 1 was slowed", "GPU-2b2c"),
        ("", "GPU 1 was", None),
    ],
)
def test_only_the_gpu_that_the_program_used_is_judged(
    fake_smi: Callable[[str], None], tmp_path: Path, uuid: str, against: str, used: str | None
) -> None:
    (tmp_path / "static").write_text(T4)
    (tmp_path / "sampled").write_text(f"{LINE}\n1, 1500, 5000, 60, 70, 99, 1024, 0x40, {TIME}\n")
    loop = f"cat {tmp_path}/sampled {tmp_path}/sampled; {DONE}; exec sleep 60"
    answers = f"*loop*) {loop};; *uuid*) cat {tmp_path}/static;; *) cat {tmp_path}/sampled;;"
    fake_smi(f'case "$*" in -L) echo "GPU 0: T4";; {answers} esac')
    machine = gang()
    Measured(tmp_path, uuid).run(machine, ON_CUDA)
    facts = machine.output.facts
    assert str(facts["against"]).startswith(against)
    assert facts["devices"] == [used]
    assert len(facts["gpus"]) == 2


@needs_loadgen
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "the NVIDIA driver (nvidia-smi) is not installed"),
        (
            "echo 'No devices found.'",
            (
                "device cuda: the NVIDIA driver on {host} shows no GPU: ask for nvidia.com/gpu "
                "in resources"
            ),
        ),
        (
            "echo 'NVIDIA-SMI has failed' >&2; exit 9",
            "device cuda: the NVIDIA driver on {host} does not answer: NVIDIA-SMI has failed",
        ),
    ],
)
def test_cuda_asked_where_there_is_none_is_skipped_with_what_to_do(
    script: str | None,
    message: str,
    fake_smi: Callable[[str], None],
    write_suite: SuiteWriter,
    cli: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    if script is not None:
        fake_smi(script)
    params = "{system: stub, device: cuda, fast: true}"
    suite = write_suite(f"name: s\nentries:\n  - {{benchmark: resnet50, params: {params}}}\n")
    store = tmp_path / "store"
    missing = script is None
    main(["doctor", str(suite)])
    doctor = cli.capsys.readouterr().out
    assert missing == (
        "missing  resnet50: the NVIDIA driver (nvidia-smi) is not installed" in doctor
    )
    cli(["run", str(suite), "--store", str(store), "--no-report"], 1)
    (part,) = [
        json.loads(path.read_text())
        for path in store.glob("runs/*/parts/*-1.json")
        if "canary" not in path.name
    ]
    assert part["status"] == "skipped"
    assert message.format(host=LocalHost().name) in part["error"]


TWO_GPUS = """GPU 0: Tesla T4 (UUID: GPU-1b2c)
GPU 1: NVIDIA A100 (UUID: GPU-2b2c)
  MIG 1g.5gb      Device  0: (UUID: MIG-1)
  MIG 1g.5gb      Device  1: (UUID: MIG-2)"""


@pytest.mark.parametrize(
    ("shape", "chosen", "lacking"),
    [
        ("resources: {nvidia.com/gpu: 2}", None, None),
        ("resources: {nvidia.com/gpu: 3}", None, "nvidia.com/gpu: 3 devices wanted, 2 visible"),
        ("resources: {nvidia.com/gpu: 2}, hosts: {count: 2}", None, "4 devices wanted, 2 visible"),
        ("resources: {nvidia.com/gpu: 2}", "GPU-2b, MIG-1", None),
        ("resources: {nvidia.com/gpu: 2}", "1,7,0", "2 devices wanted, 1 visible"),
        ("resources: {nvidia.com/gpu: 1}", "GPU-9,0", "1 device wanted, 0 visible"),
        ("resources: {nvidia.com/gpu: 1}", "-1", "1 device wanted, 0 visible"),
        ("resources: {nvidia.com/gpu: 1}", "0,GPU-1b", "1 device wanted, 0 visible"),
        ("resources: {nvidia.com/mig-1g.5gb: 2}", None, None),
        ("resources: {nvidia.com/mig-2g.10gb: 1}", None, "1 device wanted, 0 visible"),
        ("resources: {amd.com/gpu: 99}", None, "99 devices wanted, "),
        ("resources: {cpu: 500, memory: 9Ti}", None, None),
    ],
)
def test_a_gpu_resource_is_a_visible_device_of_one_machine(
    shape: str,
    chosen: str | None,
    lacking: str | None,
    fake_smi: Callable[[str], None],
    write_suite: SuiteWriter,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_smi(f"echo '{TWO_GPUS}'")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    entry = f"{{benchmark: command, params: {{argv: ['true'], expected: 0.01}}, {shape}}}"
    suite = str(write_suite(f"name: s\nentries:\n  - {entry}\n"))
    doctor = cli(["doctor", suite], 1 if lacking else 0).out
    printed = cli(["run", suite, "--no-report"], 1 if lacking else 0)
    for text in (doctor, printed.err) if lacking else ():
        assert f"{lacking}" in " ".join(text.split())
