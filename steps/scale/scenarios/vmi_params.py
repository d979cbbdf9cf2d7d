"""Parameters and cluster rights that the benchmarks of VMIs share."""

from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from perfdag.benchmark.contract import Params, Rights
from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.cluster import rights
from perfdag.steps.scale.model.gates import check_gates, parse_gate, with_slo
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.templates import inlined
from perfdag.steps.scale.scenarios import run_vmi, vmi_spec
from perfdag.units import Duration, PositiveDuration

API_RULES = Rights(
    named=(
        *rights.OWN_NAMESPACE,
        {
            "apiGroups": ["kubevirt.io", "instancetype.kubevirt.io"],
            "resources": ["*"],
            "verbs": ["list", "watch", "create", "delete"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ),
    default=rights.PERFORMANCE_RUN,
    cluster=(
        *rights.WHOLE_CLUSTER,
        {
            "apiGroups": ["kubevirt.io"],
            "resources": ["virtualmachineinstances", "kubevirts"],
            "verbs": ["list"],
        },
    ),
)


class VmiParams(Params):
    """The parameters that VMI scenarios share."""

    template: Annotated[str, AfterValidator(inlined)] = Field(
        "vmi", description="vmi, vm, vmirs, or a YAML file (its text is kept in the plan)"
    )
    variables: dict[str, str | int | float] = Field(
        {}, description="placeholders of a template of your own"
    )
    replicas: int = Field(1, ge=1, description="VMIs of one object (template vmirs)")
    namespace: str | list[str] = Field(
        "perfdag-vmi",
        description="namespace of the VMIs, or several in turn; missing ones are created",
    )
    parallel: int = Field(20, ge=1, le=run_vmi.MOST, description="creations in flight")
    arrival: Literal["closed", "constant", "poisson", "burst", "ramp"] = Field(
        "closed", description="closed (as fast as possible), constant, poisson, burst or ramp"
    )
    rate: float = Field(0.0, ge=0, description="creations a second of an open loop")
    seed: int = Field(0, ge=0, description="seed of Poisson arrivals")
    per_node: int = Field(200, ge=1, description="VMIs a node at most, checked before starting")
    primer: bool = Field(True, description="one VMI before the clock starts")
    timeout: PositiveDuration = Field(
        900.0, description="seconds for all to run, and for all to be gone"
    )
    lock_timeout: Duration = Field(
        3600.0, description="seconds to wait for another performance run to end"
    )
    gates: Annotated[list[str], AfterValidator(check_gates)] = Field(
        [],
        description="METRIC < VALUE, or METRIC < RATIO * METRIC; replaces an equal metric of "
        "`api_gates`",
    )
    api_gates: bool = Field(True, description="api_p99 < 1 and api_list_p99 < 30 beside `gates`")
    prometheus: str | None = Field(None, description="URL of a Prometheus that scrapes KubeVirt")
    prometheus_token_file: str | None = Field(None, description="file with a bearer token for it")
    prometheus_ca_file: str | None = Field(
        None, description="file with the certificate authority of its TLS"
    )

    def spec(self) -> vmi_spec.Spec:
        """Convert to a spec. Raises ValueError for an invalid combination."""
        vmi_spec.load_template(self.template, "check", self.replicas, self.variables)
        own = [parse_gate(text) for text in self.gates]
        return vmi_spec.Spec(
            template=self.template,
            namespaces=[self.namespace] if isinstance(self.namespace, str) else self.namespace,
            schedule=Schedule(self.arrival, self.rate, self.parallel, seed=self.seed),
            parallel=self.parallel,
            replicas=self.replicas,
            per_node=self.per_node,
            primer=self.primer,
            timeout=self.timeout,
            variables=dict(self.variables),
            gates=with_slo(own) if self.api_gates else own,
            prometheus=Prometheus(
                self.prometheus, self.prometheus_token_file, self.prometheus_ca_file
            )
            if self.prometheus
            else None,
        )

    @abstractmethod
    def request(self) -> run_vmi.VmiRequest:
        """Return the scenario, and its figures."""
