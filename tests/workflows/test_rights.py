"""docs/reference/rights.md and the rights that `perfdag render --base` prints are the same."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.benchmark import registry
from tests.conftest import CommandLine

pytest.importorskip("hera")
PAGE = Path(__file__).parents[2] / "docs/reference/rights.md"
Right = tuple[str, str, str, str]
"""Account, place, resource (with its group and name) and verb."""


def documented() -> dict[Right, str]:
    """The rights of the page, and why they are there."""
    rights = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        accounts = section.splitlines()[0].split(", ")
        for row in re.findall(r"^\| (?!where|---)(.+) \|$", section, re.M):
            where, resources, verbs, why = row.split(" | ")
            names = re.findall(r"`([^`]+)`(?: named `([^`]+)`)?", resources)
            for account, (resource, name), verb in product(
                accounts, names, re.findall(r"`([^`]+)`", verbs)
            ):
                right = account, where, f"{resource} {name}".strip(), verb
                assert right not in rights, "twice on the page"
                rights[right] = why
    return rights


def place_of(binding: dict[str, Any]) -> str:
    if binding["kind"] == "ClusterRoleBinding":
        return "cluster"
    namespace = binding["metadata"]["namespace"]
    return {"bench": "namespace", "default": "default"}.get(namespace, "named")


def rights_of(bodies: list[dict[str, Any]]) -> set[Right]:
    """The rights that objects grant to each account, by their bindings."""
    roles = {
        (body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]): body["rules"]
        for body in bodies
        if body["kind"].endswith("Role")
    }
    rights = set()
    for binding in bodies:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        reference, namespace = binding["roleRef"], binding["metadata"].get("namespace")
        for subject, rule in product(
            binding["subjects"], roles[reference["kind"], namespace, reference["name"]]
        ):
            resources = [
                f"{resource}.{group}".strip(".")
                for resource, group in product(rule.get("resources", ()), rule.get("apiGroups", ()))
            ] + rule.get("nonResourceURLs", [])
            for resource, name, verb in product(
                resources, rule.get("resourceNames", [""]), rule["verbs"]
            ):
                rights.add((subject["name"], place_of(binding), f"{resource} {name}".strip(), verb))
    return rights


def test_the_page_has_each_right_with_its_reason_and_no_other(
    cli: CommandLine,
) -> None:
    declaring = (name for name in registry.working() if registry.get(name).api.named)
    allow = [word for name in declaring for word in ("--allow", f"{name}=objects")]
    granted = rights_of(
        list(
            yaml.safe_load_all(
                cli(["render", "--base", "--namespace", "bench", "--store", "s3://b/r", *allow]).out
            )
        )
    )
    reasons = documented()
    assert granted - reasons.keys() == set(), "no reason on the page"
    assert reasons.keys() - granted == set(), "on the page alone"
    assert all(len(why) > 5 for why in reasons.values())
    assert not {verb for _, _, _, verb in granted} & {"*", "deletecollection"}
    token = "secrets perfdag-queue-token"
    assert not [
        right
        for right in granted
        if right[2].startswith("secrets") and right[2] != token and right[3] != "create"
    ]
