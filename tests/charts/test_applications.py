"""Charts of openfoam, rdma-bandwidth, rdma-latency and torchbench, on rows from their own
parsers where a recording is there.
"""

from typing import Any

import pytest

from perfdag.digest import canonical
from perfdag.results.samples import as_row
from perfdag.steps.torchbench.params import TorchbenchParams
from tests.charts.figures import artist, drawn, legend, medians, names, title, words
from tests.charts.rows import sample, table, value
from tests.recorded.recordings import CASES

Rows = list[dict[str, Any]]


def parsed(name: str) -> Rows:
    """The rows of a recording."""
    benchmark, params, output, parse = CASES[name].load()
    values = [as_row(benchmark, item) for item in parse(output.texts, params)]
    return sample(benchmark.name, params.model_dump(mode="json"), 1, values)


@pytest.mark.parametrize(
    "benchmark", ["latency", "openfoam", "rdma-bandwidth", "rdma-latency", "torchbench"]
)
def test_only_skips_are_drawn(benchmark: str) -> None:
    params = {"procs": 1, "nodes": 1, "batch_size": 1}
    skipped = sample(benchmark, params, 1, [], status="skipped", error="no device")
    assert drawn(benchmark, table(skipped))


def solved(
    procs: int, hosts: int, seconds: float, *more: dict[str, Any], nodes: int = 0, **options: Any
) -> Rows:
    """Rows of a sample of openfoam over hosts on so many nodes, by default one each."""
    params = {"size": "S", "procs": procs, "nodes": hosts, **options.pop("params", {})}
    values = [value("solve_time", seconds, headline=True), *more]
    shape = {"hosts": {"count": hosts}, **options.pop("shape", {})}
    outcome = sample("openfoam", params, options.pop("repetition", 1), values, shape=shape)
    placed = [f"node-{host % (nodes or hosts)}" for host in range(hosts)]
    return [{**row, "nodes": placed} for row in outcome]


def test_openfoam_scaling_has_an_ideal_line_and_efficiency() -> None:
    figures = drawn(
        "openfoam",
        table(
            *(
                solved(procs, hosts, seconds * factor, value("mesh_time", 0.5), repetition=number)
                for procs, hosts, seconds in ((1, 1, 8.0), (2, 1, 4.5), (4, 2, 2.5))
                for number, factor in enumerate((0.98, 1.0, 1.02), start=1)
            )
        ),
    )
    assert set(figures) == {"scaling", "phases"}
    output = "OpenFOAM: 3.2 times as fast with 4 processes as with 1: 80 % efficient"
    assert title(figures["scaling"]) == output
    above, below = figures["scaling"].axes
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")
    assert list(artist(above, "ideal").get_ydata()) == [8.0, 4.0, 2.0]
    assert list(artist(below, "efficiency 2 hosts").get_ydata()) == pytest.approx([0.8])
    assert below.get_xlabel() == "processes"
    assert figures["phases"].axes[0].get_xlim()[0] == 0


def test_openfoam_hosts_that_shared_a_node_are_named_so() -> None:
    figure = drawn("openfoam", table(solved(1, 1, 8.0), solved(2, 2, 4.5, nodes=1)))["scaling"]
    assert legend(figure.axes[0]) == ["1 host", "2 hosts on 1 node"]
    assert "2 hosts on 1 node" in " ".join(names(figure.texts))


def test_openfoam_scaling_is_of_the_fastest_of_the_most_processes() -> None:
    points = [(1, 1, 100), (2, 1, 55), (4, 1, 30), (4, 2, 80)]
    figure = drawn("openfoam", table(*(solved(*point) for point in points)))["scaling"]
    output = "OpenFOAM: 3.33 times as fast with 4 processes on 1 host as with 1: 83 % efficient"
    assert title(figure) == output
    efficiency = artist(figure.axes[1], "efficiency 1 host").get_ydata()
    assert efficiency[-1] == pytest.approx(0.833, abs=1e-3)


def test_openfoam_of_a_recording_draws_its_phases() -> None:
    rows = parsed("openfoam/xs-2-procs")
    figures = drawn("openfoam", table(rows))
    assert set(figures) == {"points", "phases", "steps"}
    [line] = medians(figures["steps"].axes[0])
    assert list(line.get_xdata()) == list(range(1, 21))
    assert "times as long as the fastest of a run" in title(figures["steps"])


def test_rdma_bandwidth_over_sizes() -> None:
    rows = parsed("perftest/constructed-write-bw-all-26.04.txt")
    figure = drawn("rdma-bandwidth", table(rows))["sizes"]
    assert len(figure.axes) == 2
    mean = artist(figure.axes[0], "median mean")
    assert list(mean.get_xdata()) == [2**power for power in range(1, 24)]
    assert mean.get_ydata()[-1] == pytest.approx(97.5e9)
    assert figure.axes[0].get_xscale() == "log"
    assert "97.5 Gbit/s" in title(figure)


def test_rdma_latency_over_sizes() -> None:
    rows = parsed("perftest/constructed-read-lat-all-26.04.txt")
    figure = drawn("rdma-latency", table(rows))["sizes"]
    assert figure.axes[0].get_yscale() == "log"
    lines = {line.get_gid() for line in figure.axes[0].lines}
    assert lines >= {f"median {stat}" for stat in ("p50", "min", "p99", "p99.9")}
    assert "1.62 us" in title(figure)


def latencies(params: dict[str, Any], stat: str, base: float) -> Rows:
    lowest = value("lowest_latency", base, headline=True, coords={"message_bytes": 2})
    by_size = [
        value("latency", base + size * 1e-9, stat=stat, coords={"message_bytes": size})
        for size in (2, 4, 8)
    ]
    return sample("rdma-latency", params, 1, [lowest, *by_size])


def test_rdma_latency_of_timed_and_untimed_points() -> None:
    timed = latencies({"mtu": 1024, "duration": 10.0}, "mean", 1e-6)
    whole = latencies({"mtu": 4096}, "p50", 2e-6)
    figure = drawn("rdma-latency", table(timed, whole))["sizes"]
    lines = [line.get_gid() for line in medians(figure.axes[0])]
    assert [name.rpartition(" ")[2] for name in lines] == ["(mean)", "(p50)"]
    assert "2 us" in title(figure), "the best of those that have a typical latency"
    assert "mtu=4096" in title(figure)
    alone = drawn("rdma-latency", table(timed))["sizes"]
    assert artist(alone.axes[0], "median rdma-latency")
    assert "1 us" in title(alone)


def test_latency_has_rates_above_percentiles() -> None:
    rows = [parsed(f"latency/{name}") for name in ("tcp-rr", "udp-rr")]
    figure = drawn("latency", table(*rows))["points"]
    assert [len(ax.get_yticklabels()) for ax in figure.axes] == [2, 2]
    assert legend(figure.axes[1]) == ["p50", "p90", "p99"]
    assert title(figure).startswith("Highest transaction rate: ")


def test_torchbench_over_batch_sizes() -> None:
    rows = [parsed(f"torchbench/alexnet-eval-{batch}") for batch in (1, 2)]
    figures = drawn("torchbench", table(*rows))
    assert set(figures) == {"points", "batches"}
    line = artist(figures["batches"].axes[0], "median alexnet eval cpu")
    assert list(line.get_xdata()) == [1, 2]


def trained(batch: int, factor: float = 1.0, device: str = "cpu", **options: Any) -> Rows:
    """Rows of a sample of torchbench at 10 samples a second for each of its batch."""
    params: Any = {"model": "alexnet", "batch_size": batch, "device": device}
    rate = value("samples_rate", 10.0 * batch * factor, "1/s")
    params = TorchbenchParams(**params).model_dump(mode="json")
    return sample("torchbench", params, 1, [rate], **options)


def test_torchbench_marks_a_line_of_disturbed_samples_and_has_whole_batch_sizes() -> None:
    disturbed = trained(2, noise="load 4 on 2 cores before it")
    figure = drawn("torchbench", table(trained(1), disturbed))["batches"]
    assert artist(figure.axes[0], "median alexnet eval cpu ~")
    assert "~: a sample was disturbed" in words(figure)
    assert "cpu: 20 /s" in title(figure)
    assert {float(at) for at in figure.axes[0].get_xticks()} <= {0.0, 1.0, 2.0, 3.0}


def test_torchbench_names_the_precision_that_was_used_unasked() -> None:
    env = {"env": canonical({"sample": {"precision": "fp16"}})}
    rows = [{**row, **env} for batch in (1, 2) for row in trained(batch, device="cuda")]
    figures = drawn("torchbench", table(rows))
    assert artist(figures["batches"].axes[0], "median alexnet eval cuda fp16")
    assert "in fp16" in " ".join(names(figures["points"].axes[0].get_yticklabels()))
