"""`perfdag queue manifests`: the file of queues, and the Kubernetes objects that serve them.

The objects are the YAML of `templates/queues.yaml.j2`.
"""

import hashlib
import secrets
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from perfdag import IMAGES
from perfdag.problems import Form
from perfdag.steps.queue import render
from perfdag.steps.queue.backend import check_program
from perfdag.suite.document import Document, Model, validated

NAMESPACE = Form(
    "the name of a namespace: 1 to 63 of a-z, 0-9 and -, a letter or digit at both ends",
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
)
NAME = Form(
    "a name: at most 40 letters, digits and -, a letter or digit at both ends",
    r"^[A-Za-z0-9]([-A-Za-z0-9]{0,38}[A-Za-z0-9])?$",
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Autoscale(_Model):
    """The autoscaling of a queue's backends.

    `wait`: target of the waiting time in seconds (custom). `items`: target of open items a
    backend (external); below 1, so that backends start before items wait.
    """

    by: Literal["none", "custom", "external", "cron"] = "none"
    least: int = Field(1, ge=1, description="custom, external: least backends")
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

    name: Annotated[str, NAME]
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
        check_program(self.command[0])
        return self


class Queues(_Model):
    """All queues of one namespace, and their shared settings."""

    namespace: Annotated[str, NAMESPACE] = "perfdag-queue"
    image: str = IMAGES.replace("{name}", "queue")
    longest: int = Field(
        9999, ge=0, description="requests that may wait in a queue, 0 for no bound"
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
    open: bool = Field(
        False,
        description=(
            "clients' control ports need no token, so that Intel's validate-scaling.sh drives them"
        ),
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


def load(file: str | None, lines: list[str], **shared: Any) -> Queues:
    """Load queues from a YAML file and `NAME=COMMAND` lines.

    Raises ValueError with the file and the reason, BadDocument with the place of each error.
    """
    if not file and not lines:
        raise ValueError("no queues: name a YAML file with `queues`, or add --queue NAME=COMMAND")
    try:
        data = yaml.safe_load(Path(file).read_text()) if file else {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: {' '.join(str(error).split())}") from None
    if isinstance(data, dict):
        data |= {key: value for key, value in shared.items() if value is not None}
        for line in lines:
            name, _, command = line.partition("=")
            queue = {"name": name, "command": shlex.split(command)}
            data["queues"] = [*data.get("queues", []), queue]
    return checked(Queues, data, file or "queues")


def checked(model: type[Model], data: Any, source: str) -> Model:
    """Return data as a model. Raises BadDocument with each error, of a file or a command."""
    document = Document(source, "", lines={(): 0})  # a merge key hides the lines
    return validated(document, data, model)


def manifests(queues: Queues, token: str | None = None) -> list[dict[str, Any]]:
    """Return all objects, in the order to apply them.

    `token`: of the clients (None: a new random one). Queues may share a volume. Raises ValueError
    if other objects have the same name.
    """
    token = token or secrets.token_urlsafe(24)
    text = render(
        "queues.yaml.j2",
        shared=queues,
        token=token,
        token_digest=hashlib.sha256(token.encode()).hexdigest()[:8],
        digest=hashlib.sha256(queues.namespace.encode()).hexdigest()[:8],
    )
    objects = dict[tuple[str, str], dict[str, Any]]()
    for body in yaml.load_all(text, yaml.CSafeLoader):
        identity = (body["kind"], body["metadata"]["name"])
        if objects.setdefault(identity, body) != body:
            raise ValueError(
                f"two queues define {' '.join(identity)}: rename one, or give its data another "
                "claim"
            )
    return list(objects.values())
