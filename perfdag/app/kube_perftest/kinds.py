"""The benchmarks of kube-perftest, by the fields and defaults of their CRDs, and what each becomes.

Source: python/perftest of stackhpc/kube-perftest, at commit 28e2db3: the models, and the templates
of the pods.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from perfdag.app.kube_perftest.values import (
    FioSize,
    FioTime,
    arguments,
    bytes_text,
)
from perfdag.units import parse_quantity

Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """A part of a resource, with the fields of its CRD alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ContainerResources(Strict):
    """Resources of the containers of a benchmark."""

    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}

    def shape(self) -> dict[str, Any]:
        """Return the shape's resources. Kubernetes takes a limit without a request for both."""
        apart = {
            name: amount
            for name, amount in self.requests.items()
            if parse_quantity(amount) != parse_quantity(self.limits.get(name, 0))
        }
        both = {name: amount for name, amount in self.limits.items() if name not in apart}
        limits = {name: self.limits[name] for name in apart if name in self.limits}
        return (
            both | ({"requests": apart} if apart else {}) | ({"limits": limits} if limits else {})
        )


class Benchmark(Strict):
    """What all benchmarks share. Each pod is on a node that no other benchmark uses."""

    benchmark: ClassVar[str]
    several: ClassVar[bool] = True
    """Whether it measures several pods, each on a node of its own."""
    exclusive: ClassVar[bool] = False
    """Whether the template keeps all pods apart, and not only those of other benchmarks."""

    hostNetwork: bool = False
    networkName: Text | None = None
    resources: ContainerResources = ContainerResources()
    mtu: Positive | None = None
    image: Text | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"

    def params(self) -> dict[str, Any]:
        """Return the parameters of perfdag's benchmark."""
        raise NotImplementedError

    def shape(self) -> dict[str, Any]:
        """Return the keys of the shape, with dots."""
        keys: dict[str, Any] = {"hosts.exclusive": True}
        if self.several:
            keys |= {"hosts.placement": "spread", "network.host": self.hostNetwork}
            if self.networkName and not self.hostNetwork:
                keys |= {"network.name": self.networkName, "network.default": True}
            if self.mtu and not self.hostNetwork:
                keys |= {"network.mtu": self.mtu, "privileges": ["mtu"]}
        if resources := self.resources.shape():
            keys["resources"] = resources
        return keys

    def lost(self) -> list[str]:
        """Return what perfdag does not keep of this resource, each with what it does instead."""
        texts = []
        if self.image:
            texts.append("image: a pod runs perfdag's image, or one built on it")
        if self.imagePullPolicy != "IfNotPresent":
            policy = f"--pull-policy {self.imagePullPolicy}"
            texts.append(f"imagePullPolicy: `perfdag install {policy}` sets it for all runs")
        if self.several and self.mtu and self.hostNetwork:
            texts.append("mtu: with hostNetwork it would change the interface of the node")
        if not self.exclusive:
            texts.append("nodes of the control plane are not left out; a taint does that")
        return texts


class IPerf(Benchmark):
    """Throughput with iperf."""

    benchmark: ClassVar[str] = "iperf"
    exclusive: ClassVar[bool] = True
    duration: Positive
    streams: Positive

    def params(self) -> dict[str, Any]:
        return {"streams": self.streams, "duration": f"{self.duration}s"}

    def lost(self) -> list[str]:
        return [*super().lost(), "iperf 2: iperf3 measures instead; do not compare their figures"]


class _Mpi(Benchmark):
    sshPort: Positive = 2222
    transport: Literal["TCP", "RDMA"] = "TCP"

    def lost(self) -> list[str]:
        rdma, port = self.transport == "RDMA", self.sshPort != 2222
        tls = "transport RDMA: UCX chooses among rc, dc and ud, and is not held to rc_x"
        return [*super().lost(), *[tls] * rdma, *["sshPort: perfdag chooses the port"] * port]


class MPIPingPong(_Mpi):
    """PingPong of IMB-MPI1 with Open MPI."""

    benchmark: ClassVar[str] = "imb"
    maxlog: Positive = 22

    def params(self) -> dict[str, Any]:
        transport = self.transport.lower()
        return {
            "benchmark": "PingPong",
            "mpi": "openmpi",
            "transport": transport,
            "max_log": self.maxlog,
        }

    def lost(self) -> list[str]:
        privileged = "privileged pods with hostNetwork: pods get IPC_LOCK with RDMA, and no more"
        return [*super().lost(), *[privileged] * self.hostNetwork]


class OpenFOAM(_Mpi):
    """The lid-driven cavity of OpenFOAM's committee for HPC."""

    benchmark: ClassVar[str] = "openfoam"
    problemSize: Literal["S", "M", "XL", "XXL"] = "S"
    iterativeMethod: Literal[
        "fixedITER",
        "fixedNORM",
        "FOAM-DIC-PCG.fixedNORM",
        "FOAM-GAMG-PCG.fixedNORM",
        "PETSc-AMG-CG.fixedNORM",
        "PETSc-AMG-CG.fixedNORM.caching",
        "PETSc-ICC-CG.fixedNORM",
    ] = "fixedNORM"
    numProcs: Positive = 1
    numNodes: Positive = 1

    def params(self) -> dict[str, Any]:
        if self.iterativeMethod.startswith("PETSc"):
            raise ValueError(f"{self.iterativeMethod} needs an OpenFOAM built with PETSc")
        return {
            "transport": self.transport.lower(),
            "size": self.problemSize,
            "stop": "iterations" if self.iterativeMethod == "fixedITER" else "tolerance",
            "solver": "GAMG" if "GAMG" in self.iterativeMethod else "PCG",
            "procs": self.numProcs,
            "nodes": self.numNodes,
        }

    def lost(self) -> list[str]:
        within = self.numProcs > self.numNodes
        gamg = "GAMG" in self.iterativeMethod
        return [
            *super().lost(),
            *["processes of one pod use shared memory, whatever the transport"] * within,
            *["--map-by node: neighbouring ranks share a pod as far as possible"] * within,
            *["FOAM-GAMG-PCG: multigrid solves here, and does not precondition PCG"] * gamg,
        ]


class _Rdma(Benchmark):
    exclusive: ClassVar[bool] = True
    mode: Literal["read", "write"] = "read"
    iterations: Annotated[int, Field(ge=5)] = 1000
    extraArgs: list[Text] = []

    def params(self) -> dict[str, Any]:
        params = {"mode": self.mode, "iterations": self.iterations, "rdma_cm": True}
        return params | arguments(self.extraArgs)


class RDMABandwidth(_Rdma):
    """Bandwidth with perftest."""

    benchmark: ClassVar[str] = "rdma-bandwidth"
    qps: Positive = 1

    def params(self) -> dict[str, Any]:
        return super().params() | {"qps": self.qps}


class RDMALatency(_Rdma):
    """Latency with perftest."""

    benchmark: ClassVar[str] = "rdma-latency"


class Fio(Benchmark):
    """fio on a volume of each worker."""

    benchmark: ClassVar[str] = "fio"
    fioPort: Annotated[int, Field(ge=1024)] = 8765
    volumeClaimTemplate: dict[str, Any] = {}
    numWorkers: Positive = 1
    rw: Literal["read", "write", "randread", "randwrite", "rw,readwrite", "randrw"] = "read"
    bs: FioSize = 4 << 20
    iodepth: Positive = 1
    ioengine: Literal["libaio"] = "libaio"
    nrfiles: Positive = 1
    rwmixread: Annotated[int, Field(ge=0, le=100)] = 50
    percentageRandom: Annotated[int, Field(ge=0, le=100)] = 100
    direct: Literal[0, 1] = 1
    runtime: FioTime = 30.0
    numJobs: Positive = 1
    size: FioSize = 10 << 30
    thread: bool = False

    def params(self) -> dict[str, Any]:
        # fio uses percentage_random with random patterns only.
        percentage = self.percentageRandom if self.rw.startswith("rand") else 100
        return {
            "rw": self.rw.partition(",")[0],
            "rwmixread": self.rwmixread,
            "percentage_random": percentage,
            "bs": bytes_text(self.bs),
            "size": bytes_text(self.size),
            "iodepth": self.iodepth,
            "ioengine": self.ioengine,
            "direct": bool(self.direct),
            "numjobs": self.numJobs,
            "nrfiles": self.nrfiles,
            "thread": self.thread,
            "runtime": f"{self.runtime:g}s",
        }

    def shape(self) -> dict[str, Any]:
        keys = super().shape() | {"hosts.count": self.numWorkers}
        if self.volumeClaimTemplate:
            keys["volume"] = {"claim_template": self.volumeClaimTemplate}
        return keys

    def lost(self) -> list[str]:
        port = self.fioPort != 8765
        evenly = "with fewer nodes than workers no pod starts; the original shares nodes evenly"
        empty = "no volumeClaimTemplate: fio uses a scratch folder; the original has no pod then"
        return [
            *super().lost(),
            *["fioPort: perfdag chooses the port"] * port,
            *[evenly] * (self.numWorkers > 1),
            *[empty] * (not self.volumeClaimTemplate),
        ]


class PyTorch(Benchmark):
    """One model of pytorch/benchmark. Its template has no network fields."""

    benchmark: ClassVar[str] = "torchbench"
    several: ClassVar[bool] = False
    device: Literal["cpu", "cuda"] = "cpu"
    model: Literal["alexnet", "resnet50", "llama"]
    benchmarkType: Literal["train", "eval"] = "eval"
    inputBatchSize: Annotated[int, Field(ge=2, multiple_of=2)] = 64

    def params(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "model": self.model,
            "test": self.benchmarkType,
            "batch_size": self.inputBatchSize,
        }


KINDS: dict[str, type[Benchmark]] = {
    kind.__name__: kind
    for kind in (IPerf, MPIPingPong, OpenFOAM, RDMABandwidth, RDMALatency, Fio, PyTorch)
}
