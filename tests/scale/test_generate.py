"""Templates, and submissions on a schedule."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale.generate import (
    Batch,
    Schedule,
    Submission,
    Submit,
    api_submitter,
    generate,
    plan,
    program_submitter,
)
from perfdag.steps.scale.objects import (
    Document,
    Template,
    built_in,
    load,
    now_ns,
)
from perfdag.steps.scale.rows import rows_of
from tests.fakes.api_server import Answer, ApiServer, Request, failure
from tests.fakes.files import write_programs


@pytest.mark.parametrize("name", sorted(built_in()))
def test_built_in_ones_render_to_json_with_their_name(name: str) -> None:
    template = load(name, "r1", {"workers": 7, "gpus": 4})
    body = orjson.loads(template.documents[-1].render("j-1", "ns", 5))
    meta = body["metadata"]
    assert (meta["name"], meta["namespace"]) == ("j-1", "ns")
    assert meta["labels"]["perfdag/run"] == "r1"
    assert b"0name0" not in orjson.dumps(body)
    assert b"${" not in orjson.dumps(body)


def test_gpus_workers_and_claims_reach_the_objects() -> None:
    job = orjson.loads(load("job", "r", {"workers": 3, "gpus": 2}).documents[0].render("a", "n", 0))
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (3, 3)
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    work = orjson.loads(
        load("distributed", "r", {"workers": 7, "gpus": 8}, pvc=True)
        .documents[0]
        .render("a", "n", 0)
    )
    assert (work["spec"]["workers"]["value"], work["spec"]["gpu"]["value"]) == (7, "8")
    assert work["spec"]["pvcs"]["items"]["pvc-new-0"]["value"]["size"] == "1Mi"


def test_any_field_of_the_user_passes_through(tmp_path: Path) -> None:
    text = (
        "apiVersion: x.example.com/v1\nkind: Thing\nmetadata: {name: 'a-${name}'}\n"
        "spec: {unheard: [1, '${index}', ${index}], mine: ${mine}}\n"
    )
    (tmp_path / "t.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '${name}'}\n---\n" + text
    )
    template = load(str(tmp_path / "t.yaml"), "r", {"mine": 7})
    assert [document.kind for document in template.documents] == ["ConfigMap", "Thing"]
    body = orjson.loads(template.documents[-1].render("z", "n", 12))
    assert body["metadata"]["name"] == "a-z"
    assert body["spec"] == {"unheard": [1, "12", 12], "mine": 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: fixed}",
            r"metadata.name must contain \$\{name\}",
        ),
        ("apiVersion: v1\nkind: Pod", "metadata.name must contain"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: 'of-${run}'}",
            "metadata.name must contain",
        ),
        ("kind: Pod\nmetadata: {name: '${name}'}", "no apiVersion"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: '${nmae}'}",
            r"unknown placeholder \$\{nmae\}; there are .*name",
        ),
        ("a: [", "is not YAML"),
        ("", "holds no object"),
        ("just text", "no apiVersion"),
    ],
)
def test_a_bad_one_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load(str(tmp_path / "t.yaml"), "r")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "members"),
    [
        *(
            (f"{{apiVersion: {text}, metadata: {{name: '${{name}}'}}}}\n", members)
            for text, members in (
                ("apps/v1, kind: Deployment, spec: {replicas: 3}", 3),
                ("apps/v1, kind: StatefulSet, spec: {}", 1),
                ("batch/v1, kind: Job, spec: {parallelism: 2, completions: 6}", 6),
                ("kubeflow.org/v1, kind: PyTorchJob, spec: {}", None),
                ("ray.io/v1, kind: RayCluster", None),
            )
        ),
        ("vmirs", 4),
        ("job", 4),
        ("distributed", 5),
        ("pytorchjob", 5),
    ],
)
def test_how_many_pods_there_shall_be_is_read_from_the_template(
    template: str, members: int | None
) -> None:
    assert load(template, "r", {"workers": 4}).members == members


class Slow:
    """A submitter that takes its time, and refuses every `refuse`-th object."""

    def __init__(self, seconds: float, refuse: int = 0) -> None:
        self.seconds, self.refuse, self.names = seconds, refuse, list[str]()

    async def submit(self, bodies: Sequence[bytes], namespace: str) -> str:
        await asyncio.sleep(self.seconds)
        name = str(orjson.loads(bodies[-1])["metadata"]["name"])
        if self.refuse and int(name.rpartition("-")[2]) % self.refuse == 0:
            raise KubeError(
                403,
                "Forbidden",
                (
                    f'pods "{name}" is forbidden: exceeded quota: q, requested: pods=1, used: '
                    f"pods=95, limited: pods=95"
                ),
            )
        self.names.append(f"{namespace}/{name}")
        return name


def refusal(status: int, reason: str) -> Answer:
    return replace(failure(status, reason, reason), headers={"Retry-After": "0"})


OURS = {"uid": "there", "managedFields": [{"manager": "perfdag"}]}
CREATED = Answer(201, {"metadata": {"uid": "made"}})


@pytest.mark.parametrize(
    ("answers", "uid", "retries", "error"),
    [
        (
            [refusal(429, "TooManyRequests"), CREATED],
            "made",
            {"429": 1},
            "",
        ),
        ([None, refusal(409, "AlreadyExists")], "there", {"TimeoutError": 1}, ""),
        ([refusal(429, "TooManyRequests")] * 3, "", {"429": 2}, "TooManyRequests"),
        ([refusal(409, "AlreadyExists")], "", {}, "AlreadyExists"),
    ],
    ids=["throttled", "an answer lost", "throttled for ever", "taken"],
)
async def test_retries_are_counted_by_cause_also_of_what_fails_in_the_end(
    answers: list[Answer | None],
    uid: str,
    retries: dict[str, int],
    error: str,
    server: ApiServer,
) -> None:
    coming = iter(answers)

    async def answer(_: Request) -> Answer | None:
        if (reply := next(coming)) is None:
            await asyncio.sleep(5.0)
        return reply

    server.on("POST", answer)
    server.on("GET .*/pods/", lambda _: {"metadata": OURS})
    kube = server.client(retries=2, timeout=0.2)
    submitted = await sent(await api_submitter(kube, TEMPLATE), 1, Schedule(), 1)
    (item,) = submitted.submissions
    assert item.uid == uid
    assert error in item.error
    assert bool(item.error) == bool(error)
    assert kube.counts == {f"retry {cause}": count for cause, count in retries.items()}


BARE = "perfdag-0name0"
BODY = b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"perfdag-0name0"}}'
TEMPLATE = Template((Document("v1", "Pod", BARE, BODY),))


async def sent(
    submit: Submit, count: int, schedule: Schedule, parallel: int, namespaces: Sequence[str] = "n"
) -> Batch:
    batch = plan("r", count, namespaces, schedule)
    await generate(submit, TEMPLATE, batch, parallel)
    return batch


async def test_a_remainder_is_not_dropped_and_namespaces_take_turns() -> None:
    slow = Slow(0.0)
    submitted = await sent(slow.submit, 10, Schedule(), 4, "ab")
    assert sorted(slow.names) == sorted(f"{'ab'[i % 2]}/r-{i}" for i in range(10))
    assert submitted.summary()["created"] == 10


async def test_an_open_loop_holds_its_rate_over_a_slow_server() -> None:
    submitted = await sent(Slow(0.3).submit, 150, Schedule("constant", 100), 60)
    summary = submitted.summary()
    assert summary["rate_share"] > 0.9
    assert summary["held"] is True
    gaps = [
        submission.intended_ns - submitted.submissions[0].intended_ns
        for submission in submitted.submissions
    ]
    assert gaps[-1] == pytest.approx(1.49e9, rel=1e-6)


@pytest.mark.parametrize(("took", "share"), [(50.0, 0.01), (0.5, 1.0)])
def test_a_schedule_that_was_cut_off_was_not_held_and_what_was_never_sent_has_no_rate(
    took: float, share: float
) -> None:
    """Of 1,000 due at 10/s 6 were sent by the deadline: over `took` seconds, of the 0.5 s
    that they were due in.
    """
    schedule, second = Schedule("constant", 10.0), 1_000_000_000
    items = [
        Submission(i, f"r-{i}", "n", 1 + round(at * second))
        for i, at in enumerate(schedule.offsets(1000))
    ]
    for i, item in enumerate(items[:6]):
        item.started_ns = 1 + round(i * took / 5 * second)
        item.answered_ns = item.started_ns + 1
    summary = Batch(schedule, items).summary()
    assert summary["rate_share"] == pytest.approx(share)
    assert (summary["held"], summary["not_sent"]) == (False, 994)


@pytest.mark.parametrize(("seconds", "parallel", "held"), [(0.001, 20, True), (0.2, 2, False)])
async def test_a_single_batch_is_judged_by_its_lag(
    seconds: float, parallel: int, held: bool
) -> None:
    schedule = Schedule("batch", size=20, delay=60.0)
    summary = (await sent(Slow(seconds).submit, 20, schedule, parallel)).summary()
    assert summary["held"] is held
    assert summary["rate_share"] is None, "all at once has no rate"


async def test_refused_objects_are_kept_and_counted() -> None:
    submitted = await sent(Slow(0.0, refuse=20).submit, 100, Schedule(), 8)
    summary = submitted.summary()
    assert (summary["created"], summary["failed"]) == (95, 5)
    cause = (
        'pods "NAME" is forbidden: exceeded quota: q, requested: pods=1, used: pods=95, '
        "limited: pods=95"
    )
    assert summary["errors"] == {cause: 5}, "the whole sentence, once"
    rows = rows_of(submitted.submissions, {}, run="r", kind="Pod", until_ns=now_ns())
    created = [row for row in rows if row.stage == "created"]
    assert len(created) == 100
    assert sum(row.status == "failed" for row in created) == 5


JOB = orjson.dumps({"metadata": {"name": "j-7", "namespace": "runai-p one"}})


async def test_a_program_gets_an_argument_list(tmp_path: Path) -> None:
    write_programs(tmp_path, {"fake": f'printf "%s\\n" "$@" >> "{tmp_path}/said"'})
    argv = [f"{tmp_path}/fake", "submit", "{name}", "-p", "{project}", "{namespace}", "{x}"]
    assert await program_submitter(argv)([JOB], "runai-p one") == ""
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["submit", "j-7", "-p", "p one", "runai-p one", "{x}"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'no such project' >&2; exit 3", "fake: no such project"),
        ("sleep 60", r"did not end in 0\.5 s"),
        (None, "cannot be run: No such file.*--submitter api"),
    ],
)
async def test_what_a_program_refuses_and_when_it_hangs_is_told(
    script: str | None, message: str, tmp_path: Path
) -> None:
    write_programs(tmp_path, {"fake": script} if script else {})
    with pytest.raises(KubeError, match=message):
        await program_submitter([f"{tmp_path}/fake"], timeout=0.5)([JOB], "n")
