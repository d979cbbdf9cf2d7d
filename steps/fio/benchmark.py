"""fio: throughput and latency of a file system or block device."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Tool
from perfdag.benchmark.rules import broken
from perfdag.hosts import gpu_queries
from perfdag.hosts.base import CommandResult
from perfdag.hosts.filesystems import filesystem
from perfdag.outcome import Invalid, Measurement, Skip
from perfdag.shape import Shape
from perfdag.steps.fio import files, job, report
from perfdag.steps.fio.files import Place
from perfdag.steps.fio.params import FioParams

_SKEW = 0.1
"""Share of the measured time by which the hosts may start apart.

Beyond it, the sum is not a rate that all hosts reached together."""


class Fio(Benchmark[FioParams]):
    """I/O operations, bandwidth and latency of a file system or block device, with fio.

    On several hosts, each host runs fio's server with its own files. The files lie in the shared
    volume, or in a volume of the host. The first host runs the client, which starts all jobs at
    once. Rows with a subject belong to one host and carry the name of its node. Rows without a
    subject are the total. The sample is invalid if the hosts start further apart than a tenth of
    the measured time. Files are removed after each sample.

    `direct` on a file system in memory is skipped: the kernel accepts the flag, but there is no
    disk. On overlayfs the flag reaches the lower file system, which the row cannot name.

    Clock: fio's own. A job's clock starts after its files are laid out and `ramp` is over. It
    stops at `runtime` or at the end of the size. An I/O's latency runs from its creation to its
    completion; submission and completion latency are its two parts.
    """

    name = "fio"
    image = "fio"
    canaries = ("disk",)
    tools = (Tool("fio", dict.fromkeys(("apt", "dnf", "zypper", "pacman", "brew"), "fio")),)
    pins = ("client", "server")
    Params: ClassVar[type[Params]] = FioParams
    coords = ("direction",)
    metrics = (
        Metric("iops", "1/s", "higher", "I/Os completed in a second, by direction", headline=True),
        Metric("bandwidth", "B/s", "higher", "data moved in a second, by direction", headline=True),
        Metric("latency", "s", "lower", "from creating an I/O to its completion"),
        Metric("completion_latency", "s", "lower", "from submission to completion (fio's clat)"),
        Metric(
            "submission_latency",
            "s",
            "lower",
            "time to submit (fio's slat); asynchronous engines only",
        ),
        Metric("sync_latency", "s", "lower", "time of an fsync"),
        Metric("user_cpu", "1", "lower", "share of a job's time in user code"),
        Metric("system_cpu", "1", "lower", "share of a job's time in the kernel"),
        Metric(
            "start_skew", "s", "lower", "first to last host that started, by the hosts' own clocks"
        ),
    )

    def check(self, params: FioParams, shape: Shape) -> list[str]:
        volume, several = shape.volume, shape.hosts.count > 1
        block = volume is not None and volume.mode == "Block"
        claim = volume.claim if block and volume else None
        known, needed, label = volume.known_size if volume else None, params.size, "size"
        if volume and not block:
            sharing = shape.hosts.count if volume.common else 1
            needed, label = needed * params.files * sharing, files.product(params, sharing)
        pin, unused, reason = (
            ("server", "client", "the servers do the I/O of several hosts")
            if several
            else ("client", "server", "the client does the I/O of one host")
        )
        return broken(
            (
                "trim" in params.directions
                and not block
                and not (params.file or "").startswith("/dev/"),
                f"rw {params.rw} needs a block device: volume.mode Block, or file /dev/...",
            ),
            (
                block and (params.directory or params.file or params.nrfiles > 1),
                "volume.mode is Block; leave out directory, file and nrfiles,"
                " or use mode Filesystem",
            ),
            (
                claim and params.writes and not params.overwrite,
                f"the claim {claim} exists, and the data of its device would be lost;"
                " use another, or set overwrite: true",
            ),
            (
                known is not None and needed > known and not (params.directory or params.file),
                f"{label} is {needed} B, volume.size {known} B;"
                " make the volume larger or size smaller",
            ),
            (
                getattr(shape.hosts.cpus, unused),
                f"hosts.cpus.{unused}: {reason}; pin {pin}",
            ),
            (
                params.job_file and several,
                f"job_file runs on one host, and hosts.count is {shape.hosts.count};"
                " leave hosts.count out",
            ),
            (
                params.file and several,
                "file with several hosts would have all of them write one file;"
                " use directory or a volume",
            ),
        )

    def seconds(self, params: FioParams) -> float:
        # Assume 1 GB/s for laying out the files, and for one pass through the size.
        moved = params.size * params.files / 1e9
        return (params.runtime if params.runtime is not None else moved) + params.ramp + moved + 0.2

    def least_seconds(self, params: FioParams) -> float:
        return 0.0 if params.runtime is None else params.runtime + params.ramp

    def longest(self, params: FioParams, timeout: float) -> float:
        return files.STEPS * timeout

    def provenance(self, gang: Gang, params: FioParams) -> dict[str, Any]:
        target = params.file or files.home(gang, params, gang.hosts[0])
        return {"filesystem": filesystem(gang.hosts[0], target)}

    def run(self, gang: Gang, params: FioParams) -> Output:
        with files.files(gang, params) as places, ExitStack() as stack:
            with self._laying_out(gang, params, places):
                servers = self._servers(gang, places, stack) if len(places) > 1 else {}
            if params.drop_caches:
                files.drop_caches(gang)
            return (
                self._distributed(gang, params, places, servers)
                if servers
                else self._local(gang, params, places[0])
            )

    @contextmanager
    def _laying_out(self, gang: Gang, params: FioParams, places: list[Place]) -> Iterator[None]:
        """Lay out the files apart from measuring, on all hosts at once.

        Start before the block and wait for the end after it. Nothing happens if fio may lay out
        the files itself: it does so before its clock starts.
        """
        # fio itself writes files that it only reads, but not the blocks of a device.
        if params.prefill and (
            params.directions != ("read",)
            or any(place.described.get("type") == "block" for place in places)
        ):
            fill = {
                "rw": "write",
                "bs": min(params.size // params.nrfiles, 1 << 20) // 512 * 512,
                "runtime": None,
                "ramp": 0.0,
            }
            argvs = [job.command(params.model_copy(update=fill), place) for place in places]
        elif params.drop_caches or len(places) > 1:
            # Hosts that lay out files inside the measured run start at different times.
            argvs = [job.command(params, place, ("create_only", "1")) for place in places]
        else:
            argvs = []
        with ExitStack() as stack:
            pairs = zip(places, argvs, strict=False)
            layouts = [
                (place, stack.enter_context(place.host.serve(argv, cwd=place.folder)))
                for place, argv in pairs
            ]
            yield
            for place, server in layouts:
                finished = server.wait(gang.timeout)
                # wait() stops a late command without reporting a timeout.
                late = replace(finished, timed_out=finished.seconds >= gang.timeout)
                late.check(f"fio, laying out files on {place.host.name},")

    def _servers(self, gang: Gang, places: list[Place], stack: ExitStack) -> dict[str, list[str]]:
        """Start a fio server on each host. Return each server's argv by its address and port here.

        A server runs the jobs of whoever connects. So it listens at 127.0.0.1, and the lead
        reaches it through its connection to the host.
        """
        servers = {}
        for place in places:
            host, port = place.host, place.host.free_port("tcp")
            argv = ["fio", f"--server=ip:127.0.0.1,{port}"]
            stack.enter_context(
                host.serve(argv, port=port, cwd=place.folder, cpus=gang.shape.hosts.cpus.server)
            )
            servers[f"127.0.0.1:{stack.enter_context(host.forwarded(port))}"] = argv
        return servers

    def _local(self, gang: Gang, params: FioParams, place: Place) -> Output:
        argv = job.command(params, place)
        finished = gang.hosts[0].run(
            argv, timeout=gang.timeout, cwd=place.folder, cpus=gang.shape.hosts.cpus.client
        )
        return _output(finished, [argv], {"filesystem": place.described})

    def _distributed(
        self, gang: Gang, params: FioParams, places: list[Place], servers: dict[str, list[str]]
    ) -> Output:
        lead = gang.hosts[0]
        # json+ adds the histograms, from which the percentiles of all hosts are computed.
        client = ["fio", "--output-format=json+"]
        for index, (place, server) in enumerate(zip(places, servers, strict=True)):
            path = str(PurePosixPath(gang.scratch) / f"job-{index}.fio")
            lead.put(path, job.job_file(params, place).encode())
            client += [f"--client=ip:{server.replace(':', ',')}", path]
        finished = lead.run(client, timeout=gang.timeout)
        output = _output(
            finished,
            [*servers.values(), client],
            {"filesystem": [place.described for place in places]},
        )
        output.texts["job"] = job.job_file(params, places[0])
        starts = [
            place.host.get(f"{place.folder}/{job.PRERUN}").decode().strip() for place in places
        ]
        output.facts |= {
            "started": starts,
            "workers": dict(
                zip(servers, gpu_queries.by_name([place.host for place in places]), strict=True)
            ),
        }
        return output

    def parse(self, output: Output, params: FioParams) -> list[Measurement]:
        measurements = report.parse(
            output.texts, params.directions, params.runtime, output.facts.get("workers")
        )
        if output.facts.get("started"):
            starts = [float(text) for text in output.facts["started"]]
            skew = max(starts) - min(starts)
            measurements.append(Measurement("start_skew", skew, n=len(starts)))
            rates = [
                (row.n or 0, row.value)
                for row in measurements
                if row.metric == "bandwidth" and row.subject and row.value
            ]
            duration = min((n * params.bs / rate for n, rate in rates), default=0.0)
            if skew > _SKEW * duration:
                raise Invalid(
                    f"the hosts started within {skew:.2f} s of each other, more than"
                    f" {_SKEW:.0%} of the {duration:.3g} s measured: use a longer runtime,"
                    " or synchronise their clocks",
                    output.texts,
                    measurements,
                )
        return measurements


def _output(finished: CommandResult, argv: list[list[str]], facts: dict[str, Any]) -> Output:
    """Return the output.

    Raises Skip if the kernel or the file system lacks a capability, Failed with fio's message.
    """
    if finished.timed_out:
        finished.check("fio")
    log = f"{finished.stderr}\n{finished.stdout[:2000]}"
    for pattern, reason in (
        (r"engine \S+ not loadable|failed to load engine", "this fio lacks the ioengine"),
        (
            r"file system does not support direct=1",
            "the file system refuses direct I/O; set direct: false",
        ),
        (
            r"io_uring.*(Operation not permitted|Function not implemented)"
            r"|Operation not permitted.*io_uring",
            "io_uring is off here",
        ),
    ):
        if re.search(pattern, log):
            raise Skip(f"fio: {reason}: {finished.tail(200)}", finished.texts())
    finished.check("fio")
    version = re.search(r'"fio version"\s*:\s*"fio-([^"]+)"', finished.stdout)
    return Output(
        {"client": finished.stdout, "stderr": finished.stderr},
        argv,
        f"fio {version[1]}" if version else "fio",
        facts,
    )
