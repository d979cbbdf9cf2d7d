"""The file of queues for `perfdag queue manifests FILE`."""

import shlex
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from perfdag.steps.queue.workload import check_program

NAME = r"^[A-Za-z0-9]([-A-Za-z0-9]{0,38}[A-Za-z0-9])?$"
Scaling = Literal["none", "custom", "external", "cron"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Autoscale(_Model):
    """The autoscaling of a queue's backends.

    `wait`: target of the waiting time in seconds (custom). `items`: target of open items a
    backend (external); below 1, so that backends start before items wait.
    """

    by: Scaling = "none"
    least: int = Field(1, ge=0, description="custom, external: least backends")
    most: int = Field(64, ge=1)
    wait: float = Field(1.0, gt=0)
    items: float = Field(0.8, gt=0)
    window: int = Field(10, ge=0, le=3600, description="seconds of stable demand before scaling in")
    schedule: str = Field("* * * * *", description="cron: when to start more backends")
    parallelism: int = Field(4, ge=1, description="cron: backends that a job starts")


class Data(_Model):
    """A read-only volume of input for backends: an existing claim, or one on an NFS export."""

    claim: str = "perfdag-queue-data"
    mount: str = "/data"
    nfs_server: str | None = None
    nfs_path: str | None = None
    size: str = "1Gi"

    @model_validator(mode="after")
    def _both(self) -> "Data":
        if (self.nfs_server is None) != (self.nfs_path is None):
            raise ValueError("nfs_server and nfs_path go together")
        return self


class Queue(_Model):
    """One queue: its backends' command and pods, and its client."""

    name: str = Field(pattern=NAME)
    command: list[str] = Field(
        min_length=1, description="absolute path or built-in (sleep, usl), with arguments"
    )
    image: str | None = None
    replicas: int = Field(1, ge=0)
    limit: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description=(
            "seconds that an item may run, 0 for no limit; 30 s later its backend is dropped"
        ),
    )
    grace: int | None = Field(
        None, ge=1, description="termination grace in seconds, at least the limit"
    )
    dir: str = Field("", description="working directory of the command")
    env: dict[str, str] = Field(default_factory=dict, description="environment of the command")
    ignore: bool = Field(False, description="ignore the arguments in clients' requests")
    null_out: bool = Field(False, description="standard output and error to /dev/null")
    arguments: list[str] = Field(
        [], description="arguments that the client adds to the command of every item"
    )
    glob: str = Field("", description="device files; the first match replaces FILENAME")
    resources: dict[str, int | str] = Field(
        default_factory=dict, description="limits, for example gpu.intel.com/millicores"
    )
    requests: dict[str, int | str] = {"cpu": "20m", "memory": "32Mi"}
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    root: bool = Field(
        False,
        description=(
            "run as user 0, which some device files need; PodSecurity restricted does not admit it"
        ),
    )
    data: Data | None = None
    parallel: int = Field(0, ge=0, description="requests in parallel at the start")
    most_parallel: int = Field(512, ge=1, le=4096)
    ingress: str | None = Field(
        None, description="host name of an Ingress to the client's control port"
    )
    autoscale: Autoscale = Autoscale()

    @model_validator(mode="after")
    def _consistent(self) -> "Queue":
        if self.grace is not None and self.grace < self.limit:
            raise ValueError(
                f"grace {self.grace} s is shorter than the limit of {self.limit:g} s: "
                "scale-in would kill items"
            )
        if names := sorted({"NODE_NAME", "POD_NAME"} & self.env.keys()):
            raise ValueError(f"env {', '.join(names)}: the backend sets it to its own node or pod")
        if self.ignore and self.arguments:
            raise ValueError("the backends ignore the client's `arguments`: leave one of both out")
        check_program(self.command[0])
        return self

    @property
    def object_name(self) -> str:
        return f"perfdag-queue-{self.name.lower()}"

    @property
    def grace_seconds(self) -> int:
        """Return the grace: above the limit, so that scale-in ends no item, else a minute."""
        return self.grace or (int(self.limit) + 15 if self.limit else 60)


class Queues(_Model):
    """All queues of one namespace, and their shared settings."""

    namespace: str = Field("perfdag-queue", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    image: str = "localhost/perfdag-queue:1"
    pull: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    longest: int = Field(
        9999, ge=0, description="requests that may wait in a queue, 0 for no bound"
    )
    retries: int = Field(0, ge=0, le=100)
    reply_timeout: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds after which an item without a limit fails, 0 for never",
    )
    monitor: str | None = Field(
        None, description="namespace of Prometheus (its operator's kinds are needed then)"
    )
    monitor_labels: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "labels of the ServiceMonitor, if its operator selects by label, for example "
            "release: NAME"
        ),
    )
    monitor_account: str = Field(
        "prometheus-k8s",
        description="ServiceAccount of that Prometheus; it may discover the frontend",
    )
    ingress_class: str = "nginx"
    ingress_domain: str | None = Field(
        None,
        description="domain for queues without an `ingress` of their own: they get NAME.DOMAIN",
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="node selector of every pod; that of a queue is added"
    )
    queues: list[Queue] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct_hosts(self) -> "Queues":
        hosts = [host for queue in self.queues if (host := self.host_of(queue))]
        twice = sorted({host for host in hosts if hosts.count(host) > 1})
        if twice:
            raise ValueError(f"more than one client at the Ingress host {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _monitored(self) -> "Queues":
        fields = sorted({"monitor_labels", "monitor_account"} & self.model_fields_set)
        if fields and not self.monitor:
            raise ValueError(
                f"{' and '.join(fields)} belong to a ServiceMonitor: name the namespace "
                "of Prometheus with `monitor`"
            )
        return self

    def host_of(self, queue: Queue) -> str | None:
        """Return the host name of the Ingress to a queue's client, None without one."""
        return queue.ingress or (
            f"{queue.name.lower()}.{self.ingress_domain}" if self.ingress_domain else None
        )


def load(file: str | None, lines: list[str], **shared: Any) -> Queues:
    """Load queues from a YAML file and `NAME=COMMAND` lines.

    Raises ValueError with file, place and reason.
    """
    document: Any = {}
    if not file and not lines:
        raise ValueError("no queues: name a YAML file with `queues`, or add --queue NAME=COMMAND")
    if file:
        import yaml

        try:
            document = yaml.safe_load(Path(file).read_text())
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise ValueError(f"{file}: {' '.join(str(error).split())}") from None
        if not isinstance(document, dict):
            raise ValueError(f"{file}: not a mapping with `queues`")
    document = {**document, **{key: value for key, value in shared.items() if value is not None}}
    for line in lines:
        name, equals, command = line.partition("=")
        if not equals:
            raise ValueError(f"--queue {line!r} is not NAME=COMMAND")
        document["queues"] = [
            *document.get("queues", []),
            {"name": name, "command": shlex.split(command)},
        ]
    try:
        return Queues.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors()
        ]
        raise ValueError(f"{file or 'queues'}: {'; '.join(problems)}") from None
