"""What runs a suite by the installed templates: a Workflow, a schedule, a task in a Workflow.

The task creates a Workflow of its own. So it has its lock, exit handler and store, can stand more
than once in a Workflow, and the rest of that Workflow stays as it is.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import orjson
import yaml
from hera.workflows import (
    Artifact,
    CronWorkflow,
    Parameter,
    RawArtifact,
    Resource,
    Workflow,
    models as m,
)

from perfdag.kube.client import Object
from perfdag.kube.patch import RUN, SUITE, hardened, pod_security
from perfdag.plan import make_plan
from perfdag.suite.document import BadDocument, Problem, dump
from perfdag.suite.load import load_model, parse_suite
from perfdag.suite.model import Entry, LoadedSuite, Suite
from perfdag.units import seconds
from perfdag.workflows.templates import AGE, NAME

MAX_BYTES = 256 * 1024
"""Limit of an object that `kubectl apply` takes, since it keeps the object in an annotation."""
MAX_SUITE_BYTES = 1_000_000
"""Limit of the text in a ConfigMap, which etcd keeps as one value."""
_REWRITTEN = ("{{", "$(", "$$")
"""What Argo, or the kubelet in an environment variable, replaces."""


AnySuite = Suite | Entry | str | Path
"""A suite, one entry as a suite of its own, or a suite file."""


def workflow(
    suite: AnySuite | LoadedSuite,
    *,
    namespace: str | None = None,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Object:
    """Return the Workflow of one run of a suite, which carries the suite, for `kubectl create`.

    `settings` and `only` are what `perfdag submit` takes as --set and --only. Those with an
    expression of Argo, such as `iperf.streams={{workflow.parameters.streams}}`, are checked when
    the run is planned.

    Raises BadDocument for a wrong suite, setting or pattern, and for a suite that is too large.
    """
    loaded = suite if isinstance(suite, LoadedSuite) else load_model(suite)
    plain_settings = [setting for setting in settings if "{{" not in setting]
    plain_patterns = [pattern for pattern in only if "{{" not in pattern]
    chosen = parse_suite(loaded.document.text, loaded.document.file, plain_settings)
    make_plan(chosen, only=plain_patterns)
    return workflow_of_template(
        namespace,
        loaded.suite.name,
        options_parameter({"settings": settings, "only": only}),
        artifacts=[RawArtifact(name="suite", data=inline(loaded))],
        priority=chosen.suite.priority,
    )


def options_parameter(options: Mapping[str, Sequence[str] | str]) -> dict[str, str]:
    """Return what a run is told beside its suite as a parameter; none where that is nothing."""
    set_options = {name: value for name, value in options.items() if value}
    if not set_options:
        return {}
    # the kubelet replaces variables
    return {"options": orjson.dumps(set_options).decode().replace("$", r"\u0024")}


def workflow_of_template(
    namespace: str | None,
    name: str,
    parameters: dict[str, str],
    *,
    run_id: str = "",
    priority: int = 0,
    artifacts: Sequence[Artifact] = (),
) -> Object:
    """Return the Workflow of one run of the suite `name`, with the parameters of the template."""
    labels = {SUITE: name, RUN: run_id} if run_id else {SUITE: name}
    resource = Workflow(
        generate_name=f"{NAME}-{name}-",
        namespace=namespace,
        labels=labels,
        priority=priority or None,
        arguments=[*_parameters(parameters), *artifacts],
        workflow_template_ref=m.WorkflowTemplateRef(name=NAME),
    )
    return cast(Object, resource.to_dict())


def inline(loaded: LoadedSuite) -> str:
    """Return a suite as text for a manifest: as written, unless Argo would replace parts of it.

    Then those are escaped. Raises BadDocument if it is too large.
    """
    text = loaded.document.text
    if any(sequence in text for sequence in _REWRITTEN):
        data = yaml.safe_load(text)
        text = yaml.dump(data, Dumper=_Escaping, sort_keys=False, width=10**9, allow_unicode=True)
        text = text.replace("{{", r"\u007b\u007b").replace("$", r"\u0024")
        assert yaml.safe_load(text) == data
    if len(text.encode()) > MAX_BYTES // 2:  # Argo keeps it in several places
        raise _too_large(loaded, len(text.encode()), MAX_BYTES // 2, "submit it")
    return text


class _Escaping(yaml.SafeDumper):
    """Writes in double quotes what has to be escaped, for only these have escapes."""


def _escaping(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if "{{" in text or "$" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Escaping.add_representer(str, _escaping)


def config_map(namespace: str, name: str, loaded: LoadedSuite, limit: int = MAX_BYTES) -> Object:
    """Return the ConfigMap that holds a suite. Raises BadDocument if it has more than `limit` B."""
    meta = {"name": name, "namespace": namespace, "labels": {SUITE: loaded.suite.name}}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "data": {"suite.yaml": loaded.document.text},
    }
    size = len(json.dumps(body, ensure_ascii=False).encode())
    if size > limit:
        raise _too_large(loaded, size, limit, "write permutations instead of entries")
    return body


def _too_large(loaded: LoadedSuite, size: int, limit: int, advice: str) -> BadDocument:
    text = f"{size:,} bytes are more than one object may have ({limit:,}); {advice}, or split it"
    return BadDocument([Problem("too-large", text, "", loaded.document.file, 1)])


def schedule(
    suite: AnySuite | LoadedSuite,
    *schedules: str,
    namespace: str,
    max_age: str | None = None,
) -> list[Object]:
    """Return the manifests of a suite on a schedule, for `kubectl apply`.

    They are the ConfigMap with the suite, and two CronWorkflows. `schedules` have five fields, in
    UTC. The second CronWorkflow fails daily while the newest run is older than `max_age`, such as
    `26h` (default for a daily schedule: 26 h plus twice the expected length of a run).

    Raises BadDocument, and ValueError for a schedule that is not daily without `max_age`, and for
    what Kubernetes would refuse.
    """
    loaded = suite if isinstance(suite, LoadedSuite) else load_model(suite)
    name = loaded.suite.name
    expected = make_plan(loaded).seconds()
    if name.endswith("-age"):
        raise ValueError(
            f"{NAME}-{name}: the CronWorkflow that checks the age of suite "
            f"{name.removesuffix('-age')} has this name; rename the suite"
        )
    for text in schedules:
        check_schedule(text)
    age_limit = seconds(max_age) if max_age else _default_max_age(schedules, expected)
    suite_map = config_map(namespace, f"perfdag-suite-{name}", loaded)
    age = _cron(
        f"{NAME}-{name}-age",
        namespace,
        name,
        AGE,
        {"suitename": name, "maxage": f"{age_limit:.0f}s"},
        schedules=["17 12 * * *"],
        successful_jobs_history_limit=1,
        failed_jobs_history_limit=3,
    )
    run = _cron(
        f"{NAME}-{name}",
        namespace,
        name,
        NAME,
        {"suite": suite_map["metadata"]["name"]},
        schedules=list(schedules),
        successful_jobs_history_limit=3,
        failed_jobs_history_limit=5,
        priority=loaded.suite.priority or None,
    )
    run["spec"]["workflowMetadata"] = {"labels": {SUITE: name}}
    return [suite_map, age, run]


def _cron(
    name: str,
    namespace: str,
    suite: str,
    template: str,
    parameters: dict[str, str],
    **fields: Any,
) -> Object:
    """Return a CronWorkflow of an installed template, in UTC and never two of a suite at once.

    It skips a start that is an hour late.
    """
    resource = CronWorkflow(
        name=name,
        namespace=namespace,
        labels={SUITE: suite},
        timezone="Etc/UTC",
        concurrency_policy="Forbid",
        starting_deadline_seconds=3600,
        arguments=_parameters(parameters),
        workflow_template_ref=m.WorkflowTemplateRef(name=template),
        **fields,
    )
    return cast(Object, resource.to_dict())


def _parameters(values: dict[str, str]) -> list[Parameter]:
    return [Parameter(name=name, value=value) for name, value in values.items()]


_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 6),
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_NUMBERS = {name: number for number, name in enumerate(_MONTHS, 1)} | {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}
_SHORTHANDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def check_schedule(schedule: str) -> None:
    """Raise ValueError for a text that Argo cannot read as a schedule.

    Kubernetes takes any text, and the CronWorkflow then never starts a run.
    """
    if schedule in _SHORTHANDS:
        return
    texts = schedule.lower().split()
    if len(texts) != len(_FIELDS):
        raise ValueError(
            f"schedule {schedule!r}: write five fields, minute, hour, day of month, month and day"
            " of week, for example '41 4 * * *'"
        )
    for text, (name, lowest, highest) in zip(texts, _FIELDS, strict=True):
        for part in text.split(","):
            if not _is_part(part, lowest, highest):
                how = f"write {lowest} to {highest}, *, */2, 1-5 or 1,3"
                raise ValueError(f"schedule {schedule!r}: {name} {part!r}: {how}")


def _is_part(part: str, lowest: int, highest: int) -> bool:
    """Return whether a text is a part of a field, such as `*/2` or `1-5`."""
    match = re.fullmatch(r"(?:[*?]|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/[1-9][0-9]*)?", part)
    if match is None:
        return False
    if match[1] is None:  # * or ?
        return True
    first = _number(match[1])
    last = _number(match[2] or match[1])
    return lowest <= first <= last <= highest


def _number(text: str) -> int:
    """Return the number of a text such as `7` or `sun`, -1 of any other word."""
    return int(text) if text.isdecimal() else _NUMBERS.get(text, -1)


def _default_max_age(schedules: Sequence[str], expected: float) -> float:
    """Return the seconds after which the newest run of a daily schedule is too old.

    `expected` is the length of a run in seconds. Rows are stored when a run ends, and a run may
    wait two hours for the lock. Raises ValueError for a schedule that is not daily.
    """
    for schedule in schedules:
        if schedule in ("@daily", "@midnight") or schedule.split()[2:] == ["*"] * 3:
            return 26 * 3600 + 2 * expected
    raise ValueError(
        f"schedule {', '.join(schedules)}: does not run daily; "
        "set the maximum age of the newest run with --max-age"
    )


def _restricted(*containers: str) -> str:
    """Return the podSpecPatch with which these containers satisfy Pod Security `restricted`."""
    secured = [{"name": name, "securityContext": hardened()} for name in ("init", *containers)]
    patch = {"securityContext": pod_security(), "initContainers": secured[:1]}
    return dump([{**patch, "containers": secured[1:]}])


RESTRICTED = _restricted("wait", "main")
"""The podSpecPatch with which a container satisfies Pod Security `restricted`, Argo's own too."""


def benchmark(name: str, *, task: str = "", **permutations: Any) -> Any:
    """Return a task that measures one benchmark: `benchmark("iperf", streams=[1, 2, 4])`.

    A list is permuted, any other value stands in every point. The names are parameters of the
    benchmark or keys of its entry, such as `hosts={"count": 2}`; `task` is the name of the task.

    Raises BadDocument.
    """
    keys = Entry.model_fields.keys() - {"permutations", "params", "benchmark"}
    product = {key: value for key, value in permutations.items() if isinstance(value, list)}
    fixed = {key: value for key, value in permutations.items() if key not in product}
    params = {key: value for key, value in fixed.items() if key not in keys}
    fields = {key: value for key, value in fixed.items() if key in keys}
    if product:
        fields["permutations"] = {"product": product}
    entry = Entry(benchmark=name, params=params, **fields)
    return measure(entry, name=task or name.replace("_", "-"))


OUTPUTS = ("run", "summary")
"""Outputs of the Workflow of a run that a task which creates one passes on."""


def measure(
    suite: AnySuite,
    *,
    name: str = "measure",
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    **task: Any,
) -> Any:
    """Return a task that measures a suite, for the DAG or Steps whose `with` block is open.

    `suite` is a suite, a file, or one entry, and `settings` and `only` are those of `workflow`;
    `task` are further arguments of Hera's Task. The task creates a Workflow of the installation in
    its namespace and fails if that fails. Its output parameters are `workflow`, the name of it,
    `run`, the run id, and `summary`, the sentence about the run.

    Raises BadDocument.
    """
    passed_on = [Parameter(name="workflow", value_from=m.ValueFrom(json_path="{.metadata.name}"))]
    for output in OUTPUTS:
        path = f'{{.status.outputs.parameters[?(@.name=="{output}")].value}}'
        passed_on.append(Parameter(name=output, value_from=m.ValueFrom(json_path=path)))
    template = Resource(
        name=name,
        action="create",
        set_owner_reference=True,
        manifest=dump([workflow(suite, settings=settings, only=only)]),
        success_condition="status.phase == Succeeded",
        failure_condition="status.phase in (Failed, Error)",
        outputs=passed_on,
        service_account_name="perfdag-create",
        pod_spec_patch=_restricted("main"),  # a pod that creates an object has no `wait`
    )
    return template(name=name, **task)
