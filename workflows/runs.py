"""A run as a Workflow, and a schedule as CronWorkflows; all refer to the installed templates."""

import json
from typing import Any

import yaml
from hera.workflows import Artifact, CronWorkflow, Parameter, RawArtifact, Workflow, models as m

from perfdag.kube.client import Object
from perfdag.kube.patch import RUN, SUITE
from perfdag.suite.document import BadDocument, Problem
from perfdag.suite.load import suite_text
from perfdag.suite.model import LoadedSuite
from perfdag.workflows.templates import AGE, NAME

MAX_BYTES = 256 * 1024
"""Limit of an object that `kubectl apply` takes, since it keeps the object in an annotation."""
MAX_SUITE_BYTES = 1_000_000
"""Limit of the text in a ConfigMap, which etcd keeps as one value."""
AGE_SCHEDULE = "17 12 * * *"
_REWRITTEN = ("{{", "$(", "$$")
"""What Argo, or the kubelet in an environment variable, replaces."""


def workflow(
    namespace: str | None,
    suite: LoadedSuite | str,
    parameters: dict[str, str],
    *,
    run_id: str = "",
    priority: int = 0,
) -> Object:
    """Return the Workflow of one run, with the parameters of the template.

    `suite` is the name of the suite, or a suite for the Workflow to carry inside. Raises
    BadDocument if that is too large.
    """
    artifacts = list[Artifact]()
    if isinstance(suite, LoadedSuite):
        artifacts.append(RawArtifact(name="suite", data=inline(suite)))
    name = suite if isinstance(suite, str) else suite.suite.name
    resource = Workflow(
        generate_name=f"{NAME}-{name}-",
        namespace=namespace,
        labels={SUITE: name} | ({RUN: run_id} if run_id else {}),
        priority=priority or None,
        arguments=[*_parameters(parameters), *artifacts],
        workflow_template_ref=m.WorkflowTemplateRef(name=NAME),
    )
    document: Object = resource.to_dict()
    return document


def inline(loaded: LoadedSuite) -> str:
    """Return a suite as text for a manifest: as written, unless Argo would replace parts of it.

    Then those are escaped. Raises BadDocument if it is too large.
    """
    text = suite_text(loaded)
    if any(each in text for each in _REWRITTEN):
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
    text = suite_text(loaded)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"suite.yaml": text}}
    if (size := len(json.dumps(body, ensure_ascii=False).encode())) > limit:
        raise _too_large(loaded, size, limit, "write permutations instead of entries")
    return body


def _too_large(loaded: LoadedSuite, size: int, limit: int, advice: str) -> BadDocument:
    text = f"{size:,} bytes are more than one object may have ({limit:,}); {advice}, or split it"
    return BadDocument([Problem("too-large", text, "", loaded.document.file, 1)])


def cron(
    namespace: str,
    suite: str,
    config_map: str,
    schedules: list[str],
    *,
    priority: int = 0,
) -> Object:
    """Return a CronWorkflow of the suite in a ConfigMap.

    Raises ValueError for a name that is too long, or that of another CronWorkflow.
    """
    name = f"{NAME}-{suite}"
    if suite.endswith("-age"):
        raise ValueError(
            f"{name}: the CronWorkflow that checks the age of suite {suite.removesuffix('-age')} "
            "has this name; rename the suite"
        )
    if len(name) > 52:
        raise ValueError(f"{name}: a CronWorkflow's name has at most 52 characters")
    document = _cron_workflow(
        name,
        namespace,
        suite,
        NAME,
        {"suite": config_map},
        schedules=schedules,
        successful_jobs_history_limit=3,
        failed_jobs_history_limit=5,
        priority=priority or None,
    )
    document["spec"]["workflowMetadata"] = {"labels": {SUITE: suite}}
    return document


def age_cron(namespace: str, suite: str, max_age: int) -> Object:
    """Return a CronWorkflow that fails daily while the newest run is older than `max_age` s."""
    return _cron_workflow(
        f"{NAME}-{suite}-age",
        namespace,
        suite,
        AGE,
        {"suitename": suite, "maxage": f"{max_age}s"},
        schedules=[AGE_SCHEDULE],
        successful_jobs_history_limit=1,
        failed_jobs_history_limit=3,
    )


def _cron_workflow(
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
    document: Object = resource.to_dict()
    return document


def _parameters(values: dict[str, str]) -> list[Parameter]:
    return [Parameter(name=name, value=value) for name, value in values.items()]
