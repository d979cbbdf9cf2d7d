"""The shape of a point: what its pods, or this machine, look like.

An entry names these keys beside `params`, and a permutation with dots (`network.host`). Points of
one shape may share pods. The JSON schema describes the keys (`perfdag plan --schema`).
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from perfdag.identity import merge
from perfdag.problems import Form, Problem
from perfdag.units import CpuList, Quantity, Size, parse_quantity

_PART = r"[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*"
IMAGE = Form(
    "an image: HOST:PORT/name:tag or name@sha256:64 digits, at most 512 characters, "
    "the name of a-z, 0-9 and . _ / -",
    r"^(?=.{1,512}$)([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?/)?"
    rf"{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?$",
)
"""A reference as containerd reads it, without other digests."""
Image = Annotated[str, IMAGE]
_NAMES = r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
ObjectName = Annotated[
    str,
    Form(
        "the name of an object of Kubernetes: at most 253 of a-z, 0-9, - and ., "
        "a letter or digit at both ends",
        f"^{_NAMES}$",
    ),
]
NetworkName = Annotated[
    str,
    Form(
        "a Multus network: NAME or NAMESPACE/NAME, each of a-z, 0-9 and -",
        rf"^([a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?/)?{_NAMES}$",
    ),
]
Folder = Annotated[
    str,
    Form(
        "an absolute path: at most 1024 of a-z, A-Z, 0-9, space and . _ / : @ + = , ~ -",
        r"^/[A-Za-z0-9._/:@+=,~ -]{0,1023}$",
    ),
]
_LABEL = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)"
_DOMAIN = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/"
LabelKey = Annotated[
    str,
    Form(
        "a label's key: at most 63 letters, digits, - _ ., which may follow a DNS name and a /",
        rf"^({_DOMAIN})?{_LABEL}$",
    ),
]
LabelValue = Annotated[
    str,
    Form(
        "a label's value: at most 63 letters, digits, - _ ., a letter or digit at both ends",
        rf"^{_LABEL}?$",
    ),
]
NAME = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?"
Name = Annotated[
    str,
    Form(
        "a name: at most 253 letters, digits, . _ / -, a letter or digit at both ends",
        f"^{NAME}$",
    ),
]
_REPLACED = re.compile(r"\{\{|\$\(|@[A-Z]+@")
"""What Argo, the kubelet or the template of a batch replaces."""


class Strict(BaseModel):
    """Settings of a suite: no unknown keys, no change, and no truth value read as a number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_truth_as_number(cls, raw: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Refuse `yes`, `on` and `true` where a number is meant: pydantic reads them as 1."""
        value = validate(raw)
        if isinstance(raw, list) and isinstance(value, list | tuple):
            pairs = list(zip(raw, value, strict=False))
        else:
            pairs = [(raw, value)]
        for written, number in pairs:
            if isinstance(written, bool) and type(number) in (int, float):
                raise PydanticKnownError("int_type" if type(number) is int else "float_type")
        return value


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of all texts, those of keys and lists too."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield path, key
            yield from _texts(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, path)


Interface = Annotated[
    str,
    Form(
        "the name of a network interface: 1 to 15 letters, digits, and _ . : - after the first",
        r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,14}$",
    ),
]


class Network(Strict):
    """The network that is measured."""

    host: bool | None = Field(
        None,
        description="true: the host's network; false: the pod network; unset: "
        "the pod network on a cluster, the host's here",
    )
    path: Literal["pod", "service", "nodeport", "host"] | None = Field(
        None,
        description="how the client reaches the server: at its pod, through a Service, at a port "
        "of its node, or both on the networks of their nodes; gives `host`",
    )
    name: NetworkName | None = Field(None, description="a Multus network, `namespace/name`")
    also: list[NetworkName] = Field(
        [], description="further Multus networks, which are the interfaces net2, net3 ..."
    )
    default: bool = Field(
        False,
        description="the Multus network replaces the default one "
        "instead of being an extra interface",
    )
    interface: Interface | None = Field(
        None,
        description="interface whose address is measured, where the network is an extra one",
    )
    mtu: int | None = Field(
        None,
        ge=576,
        le=65535,
        description="MTU in bytes, set inside the pod (needs privileges: [mtu])",
    )
    family: Literal["ipv4", "ipv6"] = Field("ipv4", description="address family that is measured")

    @model_validator(mode="before")
    @classmethod
    def _host_of_path(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("path") is not None:
            return {"host": raw["path"] == "host", **raw}
        return raw

    @property
    def attachments(self) -> list[str]:
        """The Multus networks, in the order of their interfaces."""
        return [self.name, *self.also] if self.name else self.also

    @property
    def forwarded(self) -> bool:
        """Whether a Service forwards what is measured."""
        return self.path in ("service", "nodeport")

    def problems(self) -> Iterator[Problem]:
        """Yield the keys that contradict one another."""
        if self.path is not None and self.host != (self.path == "host"):
            yield Problem(
                "host-and-path",
                f"host: {self.host} contradicts path: {self.path}; leave host out",
                "network",
            )
        if self.mtu is not None and self.host:
            # The interface is the node's own, which would keep the MTU after the run.
            yield Problem(
                "mtu-of-node",
                "with network.host: true it would change the node's own interface; "
                "leave out one of them",
                "network.mtu",
            )
        if self.name is not None and self.host:
            yield Problem(
                "host-and-name",
                "a pod on the host's network (network.host: true) gets no other; "
                "leave out one of them",
                "network.name",
            )
        if self.also and (self.name is None or self.default):
            yield Problem(
                "also-without-name",
                "are networks beside network.name; set it, without network.default",
                "network.also",
            )
        if self.forwarded and self.name is not None:
            yield Problem(
                "service-and-name",
                "a Service forwards to the pod network alone; leave out network.name",
                "network.path",
            )


NATIVE = ("cpu", "memory", "ephemeral-storage")
"""Resources that every node has."""
_HUGEPAGES = Form(
    "a kind of hugepages: write hugepages-2Mi or hugepages-1Gi", r"^hugepages-[1-9][0-9]*[KMG]i$"
)


def check_resource(name: str) -> str:
    """Return the name of a resource that a container can request. Raises ValueError."""
    if "/" not in name and name not in NATIVE and not _HUGEPAGES.regex.search(name):
        raise ValueError(
            f"no container can request {name!r}: there are {', '.join(NATIVE)} "
            "and devices such as nvidia.com/gpu"
        )
    if "/" in name and not re.fullmatch(_DOMAIN + _LABEL, name):
        raise ValueError(f"{name!r} is no device: write DOMAIN/NAME, such as nvidia.com/gpu")
    return name


def check_amounts(amounts: "Amounts") -> "Amounts":
    """Return amounts that Kubernetes takes. Raises ValueError for a part of what is whole."""
    for name, value in amounts.items():
        amount = parse_quantity(value)
        if name == "cpu" and amount * 1000 % 1:
            raise ValueError(f"cpu: {value}: the smallest part is 1m, 0.001 cores")
        if name in ("memory", "ephemeral-storage") and amount % 1:
            raise ValueError(
                f"{name}: {value}: bytes are whole, and m is a thousandth; write 100Mi"
            )
        if _HUGEPAGES.regex.search(name) and amount % parse_quantity(name.partition("-")[2]):
            raise ValueError(f"{name}: {value}: must be a multiple of the size of a page")
    return amounts


Amounts = dict[Annotated[Name, AfterValidator(check_resource)], Quantity]
WholeAmounts = Annotated[Amounts, AfterValidator(check_amounts)]


class Resources(BaseModel):
    """Requests and limits of a container. A name beside `requests` and `limits` is in both."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: Amounts = Field(init=False)

    requests: WholeAmounts = Field({}, description="requested, without a limit")
    limits: WholeAmounts = Field({}, description="limits, where they differ from the requests")

    @model_validator(mode="after")
    def _whole(self) -> "Resources":
        check_amounts(self.both)
        return self

    @property
    def both(self) -> Amounts:
        """What is requested and also the limit."""
        return self.__pydantic_extra__ or {}

    def amounts(self, part: Literal["requests", "limits"]) -> Amounts:
        """Return what the container requests, or its limits."""
        return {**self.both, **getattr(self, part)}

    def problems(self) -> Iterator[Problem]:
        """Yield the amounts that a container cannot have."""
        for name, value in self.both.items():
            if "/" in name and parse_quantity(value) % 1:
                yield Problem(
                    "part-device",
                    f"{name}: {value}: devices are whole; request 1 or more",
                    "resources",
                )
        for name in (*self.requests, *self.limits):
            if "/" in name or name.startswith("hugepages-"):
                yield Problem(
                    "one-amount",
                    f"{name} has one amount: write it beside requests and limits",
                    "resources",
                )
        requests = self.amounts("requests")
        for name, limit in self.amounts("limits").items():
            request = requests.get(name, 0)
            if parse_quantity(request) > parse_quantity(limit):
                yield Problem(
                    "request-above-limit",
                    f"{name}: the request {request} is above the limit {limit}",
                    "resources",
                )


Access = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]


def _check_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec whose texts Kubernetes can take, none of which anything replaces in a pod."""
    for _, text in _texts(spec, ""):
        if text and not re.fullmatch(NAME, text):
            raise ValueError(
                f"{text[:200]!r} is no name or label: at most 253 letters, digits, and . _ / -"
            )
    return spec


class ClaimTemplate(BaseModel):
    """The spec of a PersistentVolumeClaim. The API server knows its other keys."""

    model_config = ConfigDict(extra="allow", frozen=True)

    accessModes: Annotated[list[Access], Field(min_length=1, max_length=1)] | None = None
    resources: dict[str, dict[str, Quantity]] | None = None
    storageClassName: LabelValue | None = None
    volumeMode: Literal["Filesystem", "Block"] | None = None

    def keys(self) -> dict[str, Any]:
        """Return the keys of a volume that say the same as this spec."""
        access = self.accessModes and self.accessModes[0].replace("OncePod", "Once")
        size = (self.resources or {}).get("requests", {}).get("storage")
        keys = {
            "storage_class": self.storageClassName,
            "access": access,
            "mode": self.volumeMode,
            "size": size and int(parse_quantity(size)),
        }
        return {key: value for key, value in keys.items() if value}


def _at_least_1mib(size: int) -> int:
    if size < 1 << 20:
        raise ValueError(f"{size} bytes hold nothing; write at least 1MiB, such as 5GiB")
    return size


class Volume(Strict):
    """The measured storage: a claim for each pod (RWO) or all (RWX), hostPath or emptyDir."""

    kind: Literal["claim", "hostPath", "emptyDir"] = Field("claim", description="kind of volume")
    storage_class: ObjectName | None = Field(
        None, description="StorageClass of a new claim; unset: the default of the cluster"
    )
    size: Annotated[Size, AfterValidator(_at_least_1mib)] = Field(
        1 << 30, description="bytes, or text such as 5GiB; at least 1MiB"
    )
    access: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        "ReadWriteOnce", description="ReadWriteMany: all hosts share one claim"
    )
    mode: Literal["Filesystem", "Block"] = Field(
        "Filesystem", description="Block: a raw device; needs privileges: [block]"
    )
    path: Folder | None = Field(
        None,
        description="hostPath: the folder on the node, writable for uid 1000 "
        "(one that is absent is made for root alone); recorded as reused",
    )
    medium: Literal["", "Memory"] = Field("", description="emptyDir: Memory for a tmpfs")
    claim: ObjectName | None = Field(
        None,
        description="an existing claim, used and not deleted; "
        "recorded as reused (env.sample.volume_reused)",
    )

    claim_template: Annotated[ClaimTemplate, BeforeValidator(_check_spec)] | None = Field(
        None,
        description="the spec of a PersistentVolumeClaim, for what the other keys cannot say; "
        "a claim for each pod, or for all (ReadWriteMany)",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_keys(cls, raw: Any) -> Any:
        template = raw.get("claim_template") if isinstance(raw, dict) else None
        try:
            return {**ClaimTemplate.model_validate(template).keys(), **raw} if template else raw
        except ValidationError:
            return raw  # reported at its own path

    @property
    def known_size(self) -> int | None:
        """The size in bytes, or None for an existing claim or folder without a `size`."""
        existing = self.kind == "hostPath" or self.claim is not None
        return None if existing and "size" not in self.model_fields_set else self.size

    @property
    def batch_claim(self) -> bool:
        """Whether the pods of a batch share a claim that is created for them."""
        return self.common and not self.claim

    @property
    def created(self) -> bool:
        """Whether each batch has claims of its own."""
        return self.kind == "claim" and self.claim is None

    @property
    def common(self) -> bool:
        """Whether all pods of a gang share the volume, on whatever nodes they are."""
        return self.kind == "claim" and (self.claim is not None or self.access == "ReadWriteMany")

    def problems(self) -> Iterator[Problem]:
        """Yield the keys that contradict one another."""
        if self.claim_template is not None:
            if not self.created:
                yield Problem(
                    "new-claim",
                    "claim_template makes a new claim; leave out kind and claim",
                    "volume",
                )
            for key, value in self.claim_template.keys().items():
                if getattr(self, key) != value:
                    yield Problem(
                        "template-differs",
                        f"claim_template has another {key}: {value}; leave out {key}",
                        "volume",
                    )
        elif self.mode == "Block" and self.kind != "claim":
            yield Problem(
                "no-block-device",
                f"kind {self.kind} has no block device; use kind: claim, or leave out mode",
                "volume.mode",
            )
        if self.kind == "hostPath" and self.path is None:
            yield Problem(
                "no-folder",
                "kind hostPath needs the folder on the node, for example path: /mnt/data",
                "volume.path",
            )


# nvidia.com/gpu, nvidia.com/gpu.shared, amd.com/gpu, nvidia.com/mig-1g.5gb, gpu.intel.com/i915
_GPU = re.compile(r"/gpu(\.|$)|/mig-|^gpu\.")


RDMA_WANTED = (
    "needs an RDMA network: `network.name`, `network.host: true`,"
    " or a device resource such as `resources: {rdma/hca: 1}`"
)


FEWEST_HUNTED = 8
"""Hosts of a hunt. Below, a slow one is in over a quarter of the pairs and hides in the spread."""


ACROSS = "across-zones"


PAIR_KINDS = "all, ring, across-zones, `random N`, hunt"


Pairs = Annotated[
    str, Form(f"one of {PAIR_KINDS}", r"^(all|ring|across-zones|random [1-9][0-9]*|hunt)$")
]


class Cpus(Strict):
    """CPU lists as taskset takes them, for example `0` or `2-3`.

    A benchmark that does not pin this side refuses it.
    """

    server: CpuList | None = None
    client: CpuList | None = None


class Role(Strict):
    """The nodes of a role."""

    node_selector: dict[LabelKey, LabelValue] = {}


class Roles(Strict):
    """The nodes of the first host, the client, and of the second, the server."""

    client: Role = Role()
    server: Role = Role()


class Hosts(Strict):
    """How many hosts a sample uses, and on which nodes."""

    count: int = Field(1, ge=1, le=4096, description="hosts; each is a pod on a cluster")
    placement: Literal["any", "spread", "packed"] | None = Field(
        None,
        description="spread: each host on a node of its own; packed: all on one node; "
        "unset: the benchmark's default on a cluster",
    )
    exclusive: bool = Field(
        False, description="no other measuring pod of the cluster on the nodes used"
    )
    pairs: Pairs | None = Field(
        None,
        description="measure node pairs inside one gang: all, ring or `random N`; "
        "across-zones: one host in each of `count` zones, and all of their pairs; "
        "hunt: random pairs until every slow host is found",
    )
    parallel_pairs: int = Field(
        1,
        ge=1,
        description="disjoint pairs measured at once; more than 1 is labelled concurrent; "
        "a hunt measures all disjoint pairs at once if this is 1",
    )
    cpus: Cpus = Field(Cpus(), description="CPUs that commands of a host are pinned to")
    roles: Roles | None = Field(
        None, description="the nodes of client and server, where they differ; 2 hosts, no pairs"
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the keys that contradict one another."""
        if self.pairs is None:
            if self.parallel_pairs > 1:
                yield Problem(
                    "pairs-missing", f"parallel_pairs belongs to pairs ({PAIR_KINDS})", "hosts"
                )
        elif self.count < 2:
            yield Problem(
                "few-hosts", f"pairs need a count of 2 hosts or more, not {self.count}", "hosts"
            )
        elif self.pairs == "hunt" and self.count < FEWEST_HUNTED:
            yield Problem(
                "few-hunted",
                f"a hunt needs a count of {FEWEST_HUNTED} hosts or more, not {self.count}; "
                "use pairs: all",
                "hosts",
            )
        # At once, a host is in one pair alone.
        if self.pairs is not None and self.parallel_pairs > max(1, self.count // 2):
            yield Problem(
                "many-parallel-pairs",
                f"parallel_pairs: {self.parallel_pairs}, "
                f"but {self.count} hosts have {self.count // 2} disjoint pairs",
                "hosts",
            )
        if self.roles is not None and (self.count != 2 or self.pairs):
            yield Problem(
                "two-hosts",
                "are a client and a server: leave pairs out, and set hosts.count to 2",
                "hosts.roles",
            )
        if self.pairs == ACROSS and self.placement == "packed":
            yield Problem(
                "packed-zones",
                "across-zones needs several nodes, and packed is one; leave placement out",
                "hosts.placement",
            )


class Toleration(Strict):
    """A toleration of a pod, as in Kubernetes."""

    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Toleration":
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no value; leave one of them out")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("operator Equal needs a key; Exists without a key tolerates all")
        return self


class Shape(Strict):
    """One kind of pod. Two points of equal shape can be measured in the same pods."""

    image: Image | None = Field(None, description="image of the pods; unset: the benchmark's own")
    hosts: Hosts = Field(Hosts(), description="how many hosts, and on which nodes")
    network: Network = Field(Network(), description="the network that is measured")
    resources: Resources = Field(
        Resources(), description="requests and limits of a measuring pod, device resources included"
    )
    hugepages: Annotated[
        dict[Annotated[str, _HUGEPAGES], Quantity],
        AfterValidator(check_amounts),
    ] = Field({}, description="amount of each kind, such as {hugepages-2Mi: 512Mi}")
    shm: Annotated[Size, AfterValidator(_at_least_1mib)] | None = Field(
        None, description="size of /dev/shm, a tmpfs; at least 1MiB"
    )
    volume: Volume | None = Field(None, description="the storage that is measured")
    node_selector: dict[LabelKey, LabelValue] = Field(
        {}, description="labels of the nodes to measure"
    )
    avoid_nodes: list[LabelKey] = Field(
        [], description="labels, of which a node to measure has none, whatever their values"
    )
    zones: list[LabelValue] = Field([], description="zones of the nodes to measure")
    tolerations: list[Toleration] = Field(
        [], description="taints of nodes that keep no measuring pod away"
    )
    privileges: Annotated[
        list[Literal["block", "mtu", "rdma"]], AfterValidator(lambda names: sorted(set(names)))
    ] = Field(
        [],
        description="what the pods may do beyond `restricted`; only these pods run as uid 0 "
        "(block: to open a device that the node leaves to root)."
        " RDMA adds rdma by itself, unless this is []",
    )
    scheduler: Literal["default", "volcano"] = Field(
        "default", description="volcano: a gang is placed whole, or not at all"
    )
    runtime_class: ObjectName | None = Field(
        None, description="RuntimeClass of the pods, for example kata"
    )
    secret: ObjectName | None = Field(
        None, description="Secret whose keys are variables of the commands in a pod"
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the keys that contradict one another or would be replaced.

        This is no validator, since an entry and its defaults may each hold a part of what belongs
        together.
        """
        for key, text in _texts(self.data(), ""):
            if _REPLACED.search(text):
                yield Problem(
                    "replaced",
                    f"{text[:200]!r} has {{{{, $( or a placeholder such as @BATCH@, "
                    "which would be replaced in a pod; write the value out",
                    key,
                )
        yield from self.network.problems()
        yield from self.hosts.problems()
        yield from self.resources.problems()
        if self.volume is not None:
            yield from self.volume.problems()
        yield from self._problems_between()

    def _problems_between(self) -> Iterator[Problem]:
        """Yield the keys that contradict those of another part."""
        if self.network.mtu is not None and "mtu" not in self.privileges:
            yield Problem(
                "mtu-privilege",
                "is set by a container of uid 0 with NET_ADMIN in the pod; "
                "allow it with privileges: [mtu]",
                "network.mtu",
            )
        count = self.hosts.count
        zones = len({*self.zones})
        if self.hosts.pairs == ACROSS and 0 < zones < count:
            yield Problem(
                "other-zones",
                f"count is {count}, and zones names {zones}; name more, or fewer",
                "hosts.pairs",
            )
        volume = self.volume
        if volume is not None and volume.mode == "Block" and volume.common and count > 1:
            yield Problem(
                "shared-blocks",
                f"the {count} hosts would write the same blocks; "
                "use ReadWriteOnce without `claim` (a claim each), or hosts.count: 1",
                "volume.mode",
            )
        if self.hugepages and not {"cpu", "memory"} & self.resources.amounts("requests").keys():
            yield Problem(
                "hugepages-alone",
                "a container that asks for hugepages asks for cpu or memory too; "
                "add resources: {memory: ...}",
                "hugepages",
            )

    def gpus(self) -> list[str]:
        """Return the pods' GPU resources, by the names of NVIDIA's, AMD's and Intel's plugins."""
        return [name for name in self.resources.both if _GPU.search(name)]

    def has_rdma(self) -> bool:
        """Whether the suite names a network or a device that RDMA may use.

        Any extended resource except a GPU counts.
        """
        device = any("/" in name and not _GPU.search(name) for name in self.resources.both)
        return bool(self.network.name or self.network.host or device)

    def data(self) -> dict[str, Any]:
        """Return the shape as plain data, without defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def pair(self) -> "Shape":
        """Return the shape that a benchmark sees for one pair of hosts: this one with two hosts."""
        hosts = self.hosts.model_copy(update={"count": 2, "pairs": None, "parallel_pairs": 1})
        return self.model_copy(update={"hosts": hosts})


SHAPE_KEYS = frozenset(Shape.model_fields)


def overlay(needs: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return the shape keys that a benchmark needs with the suite's keys over them.

    The benchmark's privileges stay beside the suite's, unless the suite has `privileges: []`.
    """
    merged = merge(needs, keys)
    privileges = keys.get("privileges")
    if privileges and isinstance(privileges, list):
        needed = [name for name in needs.get("privileges", ()) if name not in privileges]
        merged["privileges"] = [*privileges, *needed]
    return merged
