"""`perfdag install` again: what is left out goes, what is not of the installation stays; the
Secret holds the keys of this shell alone.
"""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfdag.commands.cluster import STORE_KEYS, store_secret
from perfdag.kube.client import Object
from tests.conftest import CommandLine, Printed
from tests.fakes.api_server import ApiServer, kubeconfig

pytest.importorskip("hera")
RBAC, ARGO = "rbac.authorization.k8s.io/v1", "argoproj.io/v1alpha1"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An API server of its own that KUBECONFIG names; no key of S3 in the environment."""
    server = ApiServer()
    no_keys(monkeypatch)
    with kubeconfig(server, tmp_path, monkeypatch):
        yield server


def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for names in STORE_KEYS.values() for name in names}:
        monkeypatch.delenv(name, raising=False)


Install = Callable[..., Printed]


@pytest.fixture
def install(cli: CommandLine) -> Install:
    """Run `perfdag install` in a namespace with these options."""

    def run(namespace: str, *options: str, code: int = 0) -> Printed:
        return cli(["install", "--namespace", namespace, "--store", "s3://b/r", *options], code)

    return run


def names(api: ApiServer) -> set[tuple[str, str]]:
    return {(item["kind"], item["metadata"]["name"]) for item in api.objects.values()}


SITE = ("--site", "--site-host", "bench.example")
EVERY = (*SITE, "--allow", "vmi-burst=perfdag-vmi")
OF_EVERY = {
    ("ServiceAccount", "perfdag-measure-vmi-burst"),
    ("Role", "perfdag-measure-vmi-burst"),
    ("RoleBinding", "perfdag-measure-vmi-burst"),
    *((kind, "perfdag-site") for kind in ("ServiceAccount", "Deployment", "Service")),
}


def wide(namespace: str) -> set[tuple[str, str]]:
    """What `EVERY` adds outside of the installation's namespace."""
    name = f"perfdag-measure-vmi-burst-{namespace}"
    return {
        *((kind, name) for kind in ("ClusterRole", "ClusterRoleBinding")),
        *((kind, name) for kind in ("Role", "RoleBinding")),
        *((kind, f"{name}-default") for kind in ("Role", "RoleBinding")),
    }


def test_what_is_left_out_goes_and_other_objects_stay(api: ApiServer, install: Install) -> None:
    api.add({"kind": "ServiceAccount", "metadata": {"name": "mine", "namespace": "bench"}})
    install("bench")
    plain = names(api)
    # the cluster-wide names of a-bench end in that of the other namespace
    for namespace in ("bench", "a-bench"):
        assert "delete" not in install(namespace, *EVERY).out
    whole = names(api)
    lines = install("bench", "--dry-run").out.splitlines()
    assert names(api) == whole
    obsolete = {tuple(line.split()[-2:]) for line in lines if line.startswith("would delete ")}
    assert obsolete == OF_EVERY | wide("bench")
    lines = install("bench").out.splitlines()
    assert {tuple(line.split()[-2:]) for line in lines if line.startswith("deleted ")} == obsolete
    remaining = {
        (item["kind"], item["metadata"]["name"])
        for at, item in api.objects.items()
        if "/a-bench" not in at and "-a-bench" not in at
    }
    assert plain <= remaining
    assert not OF_EVERY & remaining
    assert wide("a-bench") <= names(api)
    assert not wide("bench") & names(api)


def test_objects_are_only_created_in_the_namespaces_that_allow_names(
    api: ApiServer, install: Install
) -> None:
    api.add({"kind": "Namespace", "metadata": {"name": "mine", "labels": {"own": "label"}}})
    install("bench", "--allow", "scale=mine,made", "--allow", "scale=third")
    spaces = {item["metadata"]["name"]: item["metadata"]["labels"] for item in api.of("Namespace")}
    assert spaces["mine"] == {"own": "label"}, "an existing namespace stays as it is"
    assert spaces["made"]["pod-security.kubernetes.io/enforce"] == "baseline"
    name = "perfdag-measure-scale-bench"
    bound = {
        item["metadata"]["namespace"]
        for item in api.of("RoleBinding")
        if item["metadata"]["name"] == name
    }
    assert bound == {"mine", "made", "third"}
    [cluster] = [item for item in api.of("ClusterRole") if item["metadata"]["name"] == name]
    assert not {
        (resource, verb)
        for rule in cluster["rules"]
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
        if resource in ("pods", "jobs", "configmaps", "namespaces", "*")
        and verb in ("create", "patch", "delete")
    }
    install("bench", "--allow", "scale=mine")
    places = [
        item["metadata"]["namespace"] for item in api.of("Role") if item["metadata"]["name"] == name
    ]
    assert places == ["mine"], "the rights in the other namespaces are gone"
    assert {"made", "third"} <= set(api.names("Namespace")), "what is in them stays"


@pytest.mark.parametrize(
    ("allow", "why"),
    [
        ("scale", "scale: name the namespaces of its objects: scale=NAMESPACE,NAMESPACE"),
        ("scale=", "scale=: name the namespaces"),
        ("scale=a,B", "'B' is no name in Kubernetes"),
        ("scale=*", "'*' is no name in Kubernetes"),
        ("scale=bench", "scale creates pods there, which may use the accounts and Secrets"),
        ("scale=default", "scale creates pods there"),
        ("vmi-burst=kube-system", "vmi-burst creates pods there"),
    ],
)
def test_namespaces_that_objects_may_not_share_are_refused(
    allow: str, why: str, api: ApiServer, install: Install
) -> None:
    assert why in install("bench", "--allow", allow, code=2).err
    assert api.requests == []


def test_without_rights_on_the_cluster_its_roles_go_and_the_classes_stay(
    api: ApiServer, install: Install
) -> None:
    install("bench")
    install("bench", "--namespaced")
    assert not any(kind.startswith("ClusterRole") for kind, _ in names(api))
    assert ("PriorityClass", "perfdag") in names(api)
    api.fail("GET .*/clusterrolebindings[?]", 403)
    text = "may not list ClusterRoleBinding: obsolete ones may still exist"
    assert text in install("bench", "--namespaced").err


def opened(secret: Object | None) -> dict[str, str]:
    assert secret is not None
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


@pytest.mark.parametrize(
    ("shell", "data"),
    [
        (
            {"AWS_DEFAULT_REGION": "eu", "AWS_ENDPOINT_URL_S3": "http://s3"},
            {"AWS_REGION": "eu", "AWS_ENDPOINT_URL": "http://s3"},
        ),
        ({"AWS_DEFAULT_REGION": "eu", "AWS_REGION": "us"}, {"AWS_REGION": "us"}),
        (
            {"AWS_ENDPOINT_URL_S3": "http://s3", "AWS_ENDPOINT_URL": "http://all"},
            {"AWS_ENDPOINT_URL": "http://s3"},
        ),
        ({"AWS_ENDPOINT_URL": "http://all", "AWS_REGION": ""}, {"AWS_ENDPOINT_URL": "http://all"}),
    ],
)
def test_the_secret_has_what_the_store_takes_here(
    shell: dict[str, str], data: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_keys(monkeypatch)
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "se cret"}
    for name, value in (keys | shell).items():
        monkeypatch.setenv(name, value)
    secret, note = store_secret("keys", "bench")
    assert (opened(secret), note) == (keys | data, "")


def test_that_no_secret_was_made_or_that_its_keys_end_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_keys(monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    secret, note = store_secret("keys", "bench")
    assert secret is None
    assert note.startswith("Secret keys was not created: this shell has no AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    _, note = store_secret("keys", "bench")
    assert note.startswith("the keys in Secret keys are temporary (AWS_SESSION_TOKEN)")


def test_only_an_s3_store_without_keep_secret_gets_a_secret(
    api: ApiServer, install: Install
) -> None:
    assert "Secret perfdag-store was not created" in install("bench").err
    for options in (["--keep-secret"], ["--store", "claim://c"]):
        assert "was not created" not in install("bench", *options).err


def test_keys_of_before_are_not_in_the_secret(
    api: ApiServer, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that another field manager set would stay: server-side apply leaves them."""
    before = {
        "AWS_SESSION_TOKEN": "b2xk",
        "AWS_ENDPOINT_URL_S3": "b2xk",
        "PERFDAG_WEBHOOK": "aHR0cA==",
    }
    metadata = {"name": "perfdag-store", "namespace": "bench"}
    api.add({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": before})
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in (keys | {"AWS_REGION": "eu"}).items():
        monkeypatch.setenv(name, value)
    install("bench")
    [secret] = api.of("Secret")
    assert opened(secret) == keys | {"AWS_REGION": "eu", "PERFDAG_WEBHOOK": "http"}
    monkeypatch.delenv("AWS_REGION")
    install("bench")
    assert opened(api.of("Secret")[0]) == keys | {"PERFDAG_WEBHOOK": "http"}


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_an_absent_namespace_is_one_line_with_the_option_that_creates_it(
    options: list[str], api: ApiServer, install: Install
) -> None:
    api.fail("PATCH /.*/namespaces/bench/", 404, 'namespaces "bench" not found')
    message = "namespace bench does not exist: add --create-namespace, or create it\n"
    assert install("bench", *options, code=2).err == f"perfdag install: {message}"
    if options:
        install("bench", "--create-namespace", *options)


@pytest.mark.parametrize("level", ["restricted", "privileged"])
def test_a_new_namespace_enforces_its_level_and_an_old_one_gets_a_command(
    level: str, api: ApiServer, install: Install
) -> None:
    option = ["--pod-security", level] if level != "restricted" else []
    install("bench", "--create-namespace", *option)
    [space] = [item for item in api.of("Namespace") if item["metadata"]["name"] == "bench"]
    assert space["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": level}
    assert "kubectl label" not in install("bench", "--create-namespace", *option).err
    other = install("bench", "--create-namespace", "--pod-security", "baseline").err
    label = "pod-security.kubernetes.io/enforce=baseline"
    assert f"kubectl label --overwrite namespace bench {label}" in other
