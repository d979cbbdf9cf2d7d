"""The shape of a point: what its pods, or this machine, look like.

An entry names these keys beside `params`, and a permutation with dots (`network.host`). Points of
one shape may share pods. The JSON schema describes the keys (`perfdag plan --schema`).
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from perfdag.network import Network
from perfdag.pod_text import IMAGE, LabelKey, LabelValue, Name, ObjectName, Strict, replaced_texts
from perfdag.quantities import CpuList, Quantity
from perfdag.resource_names import Resources, check_hugepages
from perfdag.units import Size
from perfdag.volume import Volume

Placement = Literal["any", "spread", "packed"]
FEWEST_HUNTED = 8
"""Hosts of a hunt. Below, a slow one is in over a quarter of the pairs and hides in the spread."""
_Text = TypeVar("_Text", bound=str)


def _distinct(values: list[_Text]) -> list[_Text]:
    return sorted(set(values))


ACROSS = "across-zones"
PAIRS, PAIR_KINDS = (
    r"^(all|ring|across-zones|random [1-9][0-9]*|hunt)$",
    "all, ring, across-zones, `random N`, hunt",
)


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
    placement: Placement | None = Field(
        None,
        description="spread: each host on a node of its own; packed: all on one node; "
        "unset: the benchmark's default on a cluster",
    )
    exclusive: bool = Field(
        False, description="no other measuring pod of the cluster on the nodes used"
    )
    pairs: str | None = Field(
        None,
        pattern=PAIRS,
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

    @model_validator(mode="after")
    def _check_pairs(self) -> "Hosts":
        if self.pairs is None and self.parallel_pairs > 1:
            raise ValueError(f"parallel_pairs belongs to pairs ({PAIR_KINDS})")
        if self.pairs is not None and self.count < 2:
            raise ValueError(f"pairs need a count of 2 hosts or more, not {self.count}")
        if self.pairs == "hunt" and self.count < FEWEST_HUNTED:
            raise ValueError(
                f"a hunt needs a count of {FEWEST_HUNTED} hosts or more, not {self.count}; "
                "use pairs: all"
            )
        if self.pairs is not None and self.parallel_pairs > self.count // 2:
            raise ValueError(
                f"parallel_pairs: {self.parallel_pairs}, "
                f"but {self.count} hosts have {self.count // 2} disjoint pairs"
            )
        return self


class Toleration(Strict):
    """A toleration of a pod, as in Kubernetes."""

    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _check_operator(self) -> "Toleration":
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no value; leave out value, or use Equal")
        if self.operator == "Equal" and not self.key:
            raise ValueError(
                "operator Equal (the default) needs a key; give one, "
                "or operator: Exists, which tolerates any"
            )
        return self


class Shape(Strict):
    """One kind of pod. Two points of equal shape can be measured in the same pods."""

    image: str | None = Field(
        None, pattern=IMAGE, description="image of the pods; unset: the benchmark's own"
    )
    hosts: Hosts = Field(Hosts(), description="how many hosts, and on which nodes")
    network: Network = Field(Network(), description="the network that is measured")
    resources: Resources = Field(
        Resources(), description="requests and limits of a measuring pod, device resources included"
    )
    hugepages: dict[Annotated[Name, AfterValidator(check_hugepages)], Quantity] = Field(
        {}, description="size of a page and amount, such as {2Mi: 512Mi}"
    )
    shm: Size | None = Field(None, description="size of /dev/shm, a tmpfs")
    volume: Volume | None = Field(None, description="the storage that is measured")
    node_selector: dict[LabelKey, LabelValue] = Field(
        {}, description="labels of the nodes to measure"
    )
    zones: list[LabelValue] = Field([], description="zones of the nodes to measure")
    tolerations: list[Toleration] = Field(
        [], description="taints of nodes that keep no measuring pod away"
    )
    privileges: Annotated[list[Literal["block", "mtu", "rdma"]], AfterValidator(_distinct)] = Field(
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

    def problems(self) -> list[tuple[str, str]]:
        """Return (dotted key, text) of keys that contradict one another or would be replaced.

        This is no validator, since an entry and its defaults may each hold a part of what belongs
        together.
        """
        network, volume, count = self.network, self.volume, self.hosts.count
        problems = replaced_texts(self.model_dump(mode="json", exclude_defaults=True))
        if network.mtu is not None and "mtu" not in self.privileges:
            problems.append(
                (
                    "network.mtu",
                    "is set by a container of uid 0 with NET_ADMIN in the pod; "
                    "allow it with privileges: [mtu]",
                )
            )
        if network.mtu is not None and network.host:
            problems.append(
                (
                    "network.mtu",
                    "with network.host: true it would change the node's own interface; "
                    "leave out one of them",
                )
            )
        if network.name is not None and network.host:
            problems.append(
                (
                    "network.name",
                    "a pod on the host's network (network.host: true) gets no other; "
                    "leave out one of them",
                )
            )
        if network.also and (network.name is None or network.default):
            text = "are networks beside network.name; set it, without network.default"
            problems.append(("network.also", text))
        if network.forwarded and network.name is not None:
            text = "a Service forwards to the pod network alone; leave out network.name"
            problems.append(("network.path", text))
        hosts = self.hosts
        if hosts.roles is not None and (count != 2 or hosts.pairs):
            text = "are a client and a server: leave pairs out, and set hosts.count to 2"
            problems.append(("hosts.roles", text))
        if hosts.pairs == ACROSS and self.zones and len(set(self.zones)) < count:
            text = f"count is {count}, and zones names {len(set(self.zones))}; name more, or fewer"
            problems.append(("hosts.pairs", text))
        if hosts.pairs == ACROSS and hosts.placement == "packed":
            text = "across-zones needs several nodes, and packed is one; leave placement out"
            problems.append(("hosts.placement", text))
        if volume is not None and volume.kind == "hostPath" and volume.path is None:
            problems.append(
                (
                    "volume.path",
                    "kind hostPath needs the folder on the node, for example path: /mnt/data",
                )
            )
        if volume is not None and volume.mode == "Block" and volume.common and count > 1:
            text = (
                f"the {count} hosts would write the same blocks; "
                "use ReadWriteOnce without `claim` (a claim each), or hosts.count: 1"
            )
            problems.append(("volume.mode", text))
        if volume is not None and volume.mode == "Block" and volume.kind != "claim":
            problems.append(
                (
                    "volume.mode",
                    f"kind {volume.kind} has no block device; use kind: claim, or leave out mode",
                )
            )
        if self.hugepages and not {"cpu", "memory"} & self.resources.all_requests().keys():
            problems.append(
                (
                    "hugepages",
                    "a container that asks for hugepages asks for cpu or memory too; "
                    "add resources: {memory: ...}",
                )
            )
        return problems

    def pair(self) -> "Shape":
        """Return the shape that a benchmark sees for one pair of hosts: this one with two hosts."""
        hosts = self.hosts.model_copy(update={"count": 2, "pairs": None, "parallel_pairs": 1})
        return self.model_copy(update={"hosts": hosts})


SHAPE_KEYS = frozenset(Shape.model_fields)


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below` with the values of `above`.

    Mappings are merged key by key; any other value, lists included, replaces.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = (
            merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def overlay(own: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark's own shape keys with the suite's keys over them.

    The benchmark's privileges stay beside the suite's, unless the suite has `privileges: []`.
    """
    merged, privileges = merge(own, keys), keys.get("privileges")
    if privileges and isinstance(privileges, list):
        merged["privileges"] = [
            *privileges,
            *(name for name in own.get("privileges", ()) if name not in privileges),
        ]
    return merged
