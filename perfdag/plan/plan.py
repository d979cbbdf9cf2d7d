"""The plan of a run: points, shapes, the order of samples, and their batches, as plan.json."""

import contextlib
import random
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson

import perfdag
from perfdag.digest import digest
from perfdag.no_gc import gc_paused
from perfdag.plan.names import check_names
from perfdag.plan.order import concurrent_groups, order
from perfdag.shape import Shape
from perfdag.suite.enumerate import enumerate_points
from perfdag.suite.host_pairs import Pair
from perfdag.suite.model import LoadedSuite, Until
from perfdag.suite.point import Point, SuitePoints
from perfdag.suite.yaml_document import BadDocument

MAX_BATCHES = 1000
MAX_SAMPLES = 1_000_000
SAMPLE_OVERHEAD = 0.3  # seconds the lead needs around a sample; only for expected times


@dataclass
class Batch:
    """Samples of one entry and shape that the same pods measure: positions in the plan's order."""

    shape: int
    samples: list[int]
    seconds: float


@dataclass
class Plan:
    """One run of a suite.

    `order` holds (point index, repetition). Negative repetitions are warm-up rounds.
    """

    run_id: str
    suite: str
    seed: int
    points: list[Point]
    shapes: list[dict[str, Any]]
    order: list[tuple[int, int]]
    batches: list[Batch]
    merged: int = 0
    budget: float | None = None
    trigger: str = "manual"
    variant: str | None = None
    suite_text: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    where: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def seconds(self) -> float:
        """Return the expected wall time on one machine in seconds, without additions of `until`.

        Pairs that are measured at once count once.
        """
        certain = [
            at
            for at, (index, repetition) in enumerate(self.order)
            if repetition <= self.points[index].repetitions
        ]
        return sum(
            self.group_seconds(group)
            for group in concurrent_groups(self.points, self.order, certain)
        )

    def group_seconds(self, group: list[int]) -> float:
        """Return the expected wall time in seconds of samples that are measured at once."""
        return max(self.point_at(position).seconds for position in group) + SAMPLE_OVERHEAD

    def point_at(self, position: int) -> Point:
        """Return the point of the sample at a position of the order."""
        return self.points[self.order[position][0]]

    def key(self, position: int) -> str:
        """Name of a sample in the store, `<point>-<repetition>`; a warm-up is `<point>-w<n>`."""
        index, repetition = self.order[position]
        return self.points[index].key(repetition)

    def shape_of(self, batch: int) -> Shape:
        """Return the shape of a batch's pods."""
        return Shape.model_validate(self.shapes[self.batches[batch].shape])

    def kind(self, batch: Batch) -> tuple[int, str]:
        """Return the shape and the entry of a batch."""
        return batch.shape, self.point_at(batch.samples[0]).entry

    def kinds(self) -> list[tuple[int, str]]:
        """Return the distinct shapes and entries of batches."""
        return sorted({self.kind(batch) for batch in self.batches})

    def dump(self) -> bytes:
        """Return plan.json."""
        # orjson writes dataclasses itself; dataclasses.asdict copies every value of every point
        with gc_paused():
            return orjson.dumps(
                {"schema": 1, **vars(self)},
                option=orjson.OPT_SORT_KEYS,
                default=lambda model: model.model_dump(),
            )


def read_plan(data: bytes) -> Plan:
    """Return a plan from plan.json. Raises ValueError for damage, bad names or another schema."""
    raw = orjson.loads(data)
    if not isinstance(raw, dict) or raw.pop("schema", None) != 1:
        raise ValueError("plan.json is of another schema; use the perfdag version that wrote it")
    check_names(raw)
    try:
        for point in raw["points"]:
            point["until"] = Until(**point["until"]) if point["until"] else None
            point["pair"] = Pair(**point["pair"]) if point.get("pair") else None
        raw["points"] = [Point(**point) for point in raw["points"]]
        raw["batches"] = [Batch(**batch) for batch in raw["batches"]]
        raw["order"] = [tuple(sample) for sample in raw["order"]]
        return Plan(**raw)
    except (KeyError, TypeError) as error:
        wrote = (raw.get("versions") or {}).get("perfdag", "?")
        raise ValueError(
            f"plan.json was written by another perfdag ({wrote}): {error}; "
            "use that version, images included"
        ) from None


def new_run_id(now: datetime | None = None, uid: str | None = None) -> str:
    """Return a sortable and unique id: `20261120T020000Z-<8 hexadecimal digits>`.

    The digits come from `uid`, that of a Workflow, if there is one.
    """
    moment = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    return f"{moment}-{digest(uid)[:8] if uid else secrets.token_hex(4)}"


def make_plan(
    loaded: LoadedSuite,
    *,
    only: Sequence[str] = (),
    run_id: str | None = None,
    trigger: str = "manual",
    variant: str | None = None,
) -> Plan:
    """Enumerate a suite and order its samples. Raises BadDocument.

    A run by hand of a part of a suite (`only`) has the trigger `part`.
    """
    suite = loaded.suite
    with gc_paused():
        enumeration: SuitePoints = enumerate_points(loaded, only)
        count = sum(point.rounds + suite.warmup for point in enumeration.points)
        if count > MAX_SAMPLES:
            text = (
                f"{count:,} samples are more than {MAX_SAMPLES:,}; lower repetitions, or split it"
            )
            raise BadDocument([loaded.document.problem(("repetitions",), text)])
        samples = order(enumeration.points, suite.seed, suite.warmup)
    plan = Plan(
        run_id=run_id or new_run_id(),
        suite=suite.name,
        seed=suite.seed,
        points=enumeration.points,
        shapes=enumeration.shapes,
        order=samples,
        batches=[],
        merged=enumeration.merged,
        budget=suite.budget,
        trigger="part" if only and trigger == "manual" else trigger,
        variant=variant,
        suite_text=loaded.document.text,
        versions=_versions(),
        options={
            "pending_limit": suite.pending_limit,
            "priority": suite.priority,
        },
    )
    with gc_paused():
        plan.batches = cut_batches(
            plan, suite.batch_time, suite.rounds_per_batch, suite.isolation == "pod"
        )
    if (
        suite.budget is not None
        and any(point.pair for point in plan.points)
        and plan.seconds() > suite.budget
    ):
        excess = (
            f"the suite measures pairs of hosts and is expected to take {_hours(plan.seconds())}, "
            f"over its budget of {_hours(suite.budget)}"
        )
        knobs = "raise budget, set hosts.pairs to ring or `random N`, or hosts.parallel_pairs"
        raise BadDocument([loaded.document.problem(("budget",), f"{excess}; {knobs}")])
    return plan


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 360 else f"{seconds / 60:.1f} min"


def cut_batches(
    plan: Plan, batch_time: float, rounds_per_batch: int | None, pod_per_sample: bool
) -> list[Batch]:
    """Group the order into batches of one kind: a shape and entry, and a point with its own claim.

    Take the rounds in blocks of `rounds_per_batch`: by default 1 with several kinds, else all.
    Within a block, order the kinds by seed. Begin a new batch where the expected time passes
    `batch_time` seconds. With `pod_per_sample`, each sample is a batch, or the pairs at once.
    """
    if pod_per_sample:
        groups = concurrent_groups(plan.points, plan.order, range(len(plan.order)))
        return [
            Batch(plan.point_at(group[0]).shape, group, plan.group_seconds(group) - SAMPLE_OVERHEAD)
            for group in groups
        ]
    volumes = [Shape.model_validate(shape).volume for shape in plan.shapes]
    # what one permutation wrote to a volume would disturb the next
    kind_of = [
        (
            point.shape,
            point.entry,
            index if (volume := volumes[point.shape]) and volume.created else -1,
        )
        for index, point in enumerate(plan.points)
    ]
    used = set(kind_of)
    block_of: dict[int, int] = {}
    for _, repetition in plan.order:
        block_of.setdefault(repetition, len(block_of))
    per_block = rounds_per_batch or (1 if len(used) > 1 else max(len(block_of), 1))
    blocks: dict[int, dict[tuple[int, str, int], list[int]]] = {}
    for position, (index, repetition) in enumerate(plan.order):
        blocks.setdefault(block_of[repetition] // per_block, {}).setdefault(
            kind_of[index], []
        ).append(position)
    batches: list[Batch] = []
    for number, by_kind in blocks.items():
        kinds = sorted(by_kind)
        random.Random(f"{plan.seed}:block:{number}").shuffle(kinds)
        for kind in kinds:
            batches += _cut(plan, kind[0], by_kind[kind], batch_time)
    return batches


def _cut(plan: Plan, shape: int, positions: list[int], batch_time: float) -> list[Batch]:
    batches: list[Batch] = []
    for group in concurrent_groups(plan.points, plan.order, positions):
        seconds = plan.group_seconds(group)
        if not batches or batches[-1].seconds + seconds > batch_time:
            batches.append(Batch(shape, [], 0.0))
        batches[-1].samples += group
        batches[-1].seconds += seconds
    return batches


@cache
def _versions() -> dict[str, str]:
    """Return the version of perfdag, and as `git` the commit of the checkout that it runs from.

    The commit has the suffix `-dirty` if files differ. An installed package has no commit.
    """
    versions = {"perfdag": perfdag.__version__}
    checkout = Path(perfdag.__file__).resolve().parents[1]
    if (checkout / ".git").exists():
        argv = [
            "git",
            "-C",
            str(checkout),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ]
        # no git here, or a checkout of somebody else, which git does not read
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            versions["git"] = subprocess.run(
                argv, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
    return versions
