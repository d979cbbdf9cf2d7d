"""A suite, or one benchmark, as a task of your own Workflow: a Workflow of its own.

So it has its lock, exit handler and store, can stand more than once in a Workflow, and the rest of
that Workflow stays as it is.
"""

from typing import Any

from hera.workflows import Parameter, Resource, models as m

from perfdag.kube.patch import hardened, pod_security
from perfdag.plan.plan import make_plan
from perfdag.suite.load import load_model
from perfdag.suite.model import Entry
from perfdag.workflows import runs
from perfdag.workflows.cron import AnySuite
from perfdag.workflows.emit import dump


def _restricted(*containers: str) -> str:
    """Return the podSpecPatch with which these containers satisfy Pod Security `restricted`."""
    secured = [{"name": name, "securityContext": hardened()} for name in ("init", *containers)]
    patch = {"securityContext": pod_security(), "initContainers": secured[:1]}
    return dump([{**patch, "containers": secured[1:]}])


RESTRICTED = _restricted("wait", "main")
"""The podSpecPatch with which a container satisfies Pod Security `restricted`, Argo's own too."""
_CREATING = _restricted("main")
"""The same for the pod that creates an object, which has no container `wait`."""


def benchmark(name: str, *, task: str = "", **permutations: Any) -> Any:
    """Return a task that measures one benchmark: `benchmark("iperf", streams=[1, 2, 4])`.

    A list is permuted, any other value stands in every point. The names are parameters of the
    benchmark or keys of its entry, such as `hosts={"count": 2}`; `task` is the name of the task.

    Raises BadDocument.
    """
    keys = Entry.model_fields.keys() - {"permutations", "params", "benchmark"}
    product = {key: value for key, value in permutations.items() if isinstance(value, list)}
    fixed = {key: value for key, value in permutations.items() if key not in product}
    entry = Entry(
        benchmark=name,
        params={key: value for key, value in fixed.items() if key not in keys},
        **{key: value for key, value in fixed.items() if key in keys},
        **({"permutations": {"product": product}} if product else {}),
    )
    return measure(entry, name=task or name.replace("_", "-"))


def measure(suite: AnySuite, *, name: str = "measure", **task: Any) -> Any:
    """Return a task that measures a suite, for the DAG or Steps whose `with` block is open.

    `suite` is a suite, a file, or one entry; `task` are further arguments of Hera's Task. The task
    creates a Workflow of the installation in its namespace and fails if that fails; its output
    parameter `workflow` is the name of it.

    Raises BadDocument.
    """
    loaded = load_model(suite)
    make_plan(loaded)
    body = runs.workflow(None, loaded, {}, priority=loaded.suite.priority)
    template = Resource(
        name=name,
        action="create",
        set_owner_reference=True,
        manifest=dump([body]),
        success_condition="status.phase == Succeeded",
        failure_condition="status.phase in (Failed, Error)",
        outputs=[Parameter(name="workflow", value_from=m.ValueFrom(json_path="{.metadata.name}"))],
        service_account_name="perfdag-run",
        pod_spec_patch=_CREATING,
    )
    return template(name=name, **task)
