"""The plan of a run: points, shapes, the order of samples, and their batches, as plan.json.

    plan = make_plan(load_suite("suite.yaml"))
    plan.order[0]  # the first sample: the number of its point, and its repetition
    read_plan(plan.dump()) == plan

A duet has two plans: two variants of a suite are measured in turn, in ABBA blocks.

Samples are ordered by round, shuffled from a seed, so that drift affects all points alike.
"""

import math
import random
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Strict, StringConstraints, TypeAdapter, ValidationError

import perfdag
from perfdag.benchmark import registry
from perfdag.identity import digest, grouped
from perfdag.problems import Problem
from perfdag.revision import (
    Revision,
    described_commit,
    revision_of_folder,
    revisions_of_entries,
)
from perfdag.shape import SHAPE_KEYS, Shape
from perfdag.stats.robust import FEWEST_BLOCKS, MOST_BLOCKS, blocks
from perfdag.suite.document import BadDocument
from perfdag.suite.model import LoadedSuite, SuiteName, checks_of
from perfdag.suite.points import Point, enumerate_points
from perfdag.units import parse_quantity

RUN_ID = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}[ab]?"
RunId = Annotated[str, StringConstraints(pattern=f"^{RUN_ID}$")]
"""The id of a run, which is part of the keys of a store."""
MAX_SAMPLES = 1_000_000
A_BLOCK = 2
"""Samples of each variant of a duet in a block (ABBA)."""
SAMPLE_OVERHEAD = 0.3  # seconds the lead needs around a sample; only for expected times


def is_run_id(text: str) -> bool:
    """Return whether a text has the form of a run id."""
    return re.fullmatch(RUN_ID, text) is not None


@dataclass
class Batch:
    """Samples of one entry and shape that the same pods measure: positions in the plan's order."""

    shape: int
    samples: list[int]
    seconds: float


@dataclass
class Options:
    """What the steps of a run are told beside its samples.

    `pending_limit` is in seconds. `rechecks` has the rechecks of a run. The others are of
    `perfdag ab`: the run of the other variant, the names of A and B for people, the order of the
    blocks, what B may cost, whether a cluster measures, the command that makes this variant of the
    machine, and how often the blocks are looked at.
    """

    pending_limit: float = 600.0
    priority: Annotated[int, Strict()] = 0
    rechecks: list[RunId] = field(default_factory=list)
    other: RunId | None = None
    words: tuple[str, str] = ("A", "B")
    blocks: list[str] = field(default_factory=list)
    within: float | None = None
    cluster: bool = False
    do: str = ""
    looks: int = 1


@dataclass
class Plan:
    """One run of a suite.

    `order` holds (point index, repetition). Negative repetitions are warm-up rounds. `revisions`
    are those of what the entries measure, and `suite_revision` is the commit of the suite's folder.
    `where` has the facts of the cluster that measures it, and of its Workflow; it is empty on one
    machine.
    """

    run_id: RunId
    suite: SuiteName
    seed: int
    points: list[Point]
    shapes: list[Shape]
    order: list[tuple[int, int]]
    batches: list[Batch]
    merged: int = 0
    budget: float | None = None
    trigger: str = "manual"
    variant: str | None = None
    suite_text: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    revisions: dict[str, Revision] = field(default_factory=dict)
    suite_revision: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)

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

    def keys(self) -> set[str]:
        """Return the names of all samples in the store."""
        return {self.key(position) for position in range(len(self.order))}

    def shape_of(self, batch: int) -> Shape:
        """Return the shape of a batch's pods."""
        return self.shapes[self.batches[batch].shape]

    def kind_at(self, position: int) -> tuple[int, str]:
        """Return the shape and the entry of the sample at a position of the order."""
        point = self.point_at(position)
        return point.shape, point.entry

    def kind(self, batch: Batch) -> tuple[int, str]:
        """Return the shape and the entry of a batch."""
        return self.kind_at(batch.samples[0])

    def kinds(self) -> list[tuple[int, str]]:
        """Return the distinct shapes and entries of batches."""
        return sorted({self.kind(batch) for batch in self.batches})

    def dump(self) -> bytes:
        """Return plan.json."""
        # orjson writes dataclasses itself; dataclasses.asdict copies every value of every point
        return orjson.dumps(
            {"schema": 1, **vars(self)},
            option=orjson.OPT_SORT_KEYS,
            default=lambda model: model.model_dump(mode="json", exclude_defaults=True),
        )


_reader = cache(lambda: TypeAdapter(Plan))


def read_plan(data: bytes) -> Plan:
    """Return a plan from plan.json. Raises ValueError for damage, bad names or another schema."""
    raw = orjson.loads(data)
    if not isinstance(raw, dict) or raw.pop("schema", None) != 1:
        raise ValueError("plan.json is of another schema; use the perfdag version that wrote it")
    try:
        return _reader().validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        text = f"{place} {str(first['input'])[:80]!r}: {first['msg']}"
        if first["type"] == "wrong-form":
            text = f"{place} {str(first['input'])[:80]!r}: is not {first['ctx']['words']}"
        if first["type"] == "missing":
            version = (raw.get("versions") or {}).get("perfdag", "?")
            text = (
                f"plan.json was written by another perfdag ({version}): {place} is missing; "
                "use that version, images included"
            )
        raise ValueError(text) from None


def order(points: list[Point], seed: int, warmup: int = 0) -> list[tuple[int, int]]:
    """Return (point index, repetition) of every sample in the order of measuring.

    Repetitions count from 1; warm-up rounds are -1, -2 and so on. The shuffle of a round is seeded
    from `seed` and the round, so the order of one round does not depend on the number of rounds.
    Host pairs that form one round of disjoint pairs stay together.
    """

    def unit_of(index: int) -> object:
        pair = points[index].pair
        return (pair.of, pair.round) if pair else index

    units = grouped(range(len(points)), unit_of)
    samples: list[tuple[int, int]] = []
    rounds = max((point.rounds for point in points), default=0)
    for repetition in [*range(-1, -warmup - 1, -1), *range(1, rounds + 1)]:
        due = [unit for unit in units.values() if points[unit[0]].rounds >= repetition]
        random.Random(f"{seed}:{repetition}").shuffle(due)
        samples += [(index, repetition) for unit in due for index in unit]
    return samples


def concurrent_groups(
    points: Sequence[Point], order: Sequence[tuple[int, int]], positions: Iterable[int]
) -> list[list[int]]:
    """Group positions of the order that are measured at the same time.

    A group has one position, or up to `parallel_pairs` positions of one round of host pairs.
    """

    def moment_of(position: int) -> object:
        index, repetition = order[position]
        pair = points[index].pair
        if pair is None or pair.parallel == 1:
            return position
        return pair.of, repetition, pair.round, pair.slot // pair.parallel

    return [list(group) for _, group in groupby(positions, moment_of)]


def new_run_id(now: datetime | None = None, uid: str | None = None) -> str:
    """Return a sortable and unique id: `20261120T020000Z-<8 hexadecimal digits>`.

    The digits come from `uid`, that of a Workflow, if there is one. Else the first three are the
    part of the second, so that runs of one second sort by time too.
    """
    moment = now or datetime.now(UTC)
    part = f"{moment.microsecond * 0x1000 // 1_000_000:03x}"
    digits = digest(uid)[:8] if uid else part + secrets.token_hex(3)[1:]
    return f"{moment:%Y%m%dT%H%M%SZ}-{digits}"


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
    enumeration = enumerate_points(loaded, only)
    count = sum(point.rounds + suite.warmup for point in enumeration.points)
    if count > MAX_SAMPLES:
        text = f"{count:,} samples are more than {MAX_SAMPLES:,}; lower repetitions, or split it"
        raise BadDocument([loaded.document.problem(("repetitions",), "many-samples", text)])
    plan = Plan(
        run_id=run_id or new_run_id(),
        suite=suite.name,
        seed=suite.seed,
        points=enumeration.points,
        shapes=enumeration.shapes,
        order=order(enumeration.points, suite.seed, suite.warmup),
        batches=[],
        merged=enumeration.merged,
        budget=suite.budget,
        trigger="part" if only and trigger == "manual" else trigger,
        variant=variant,
        suite_text=loaded.document.text,
        versions=_versions(),
        options=Options(pending_limit=suite.pending_limit, priority=suite.priority),
    )
    plan.batches = cut_batches(plan, suite.batch_time, suite.rounds_per_batch, suite.isolation)
    return plan


def with_revisions(plan: Plan, loaded: LoadedSuite) -> Plan:
    """Return the plan with the revisions of what this machine measures, and of the suite's file."""
    file = Path(loaded.document.file)
    suite = revision_of_folder(str(file.parent)) if file.exists() else None
    return replace(
        plan,
        revisions=revisions_of_entries(plan.points),
        suite_revision=suite.name if suite else "",
    )


def cut_batches(
    plan: Plan, batch_time: float, rounds_per_batch: int | None, isolation: str = "batch"
) -> list[Batch]:
    """Group the order into batches of one kind: a shape and entry, and a point with its own claim.

    Take the rounds in blocks of `rounds_per_batch`: by default 1 with several kinds, else all.
    Within a block, order the kinds by seed. Begin a new batch where the expected time passes
    `batch_time` seconds. The isolation `pod` makes each sample a batch, or the pairs at once. The
    isolation `point` makes the rounds of a point a batch, of all pairs of hosts in the same pods.
    """
    if isolation == "pod":
        groups = concurrent_groups(plan.points, plan.order, range(len(plan.order)))
        return [
            Batch(plan.point_at(group[0]).shape, group, plan.group_seconds(group) - SAMPLE_OVERHEAD)
            for group in groups
        ]
    kind_of = [_kind_of_point(plan, index, isolation) for index in range(len(plan.points))]
    rounds = dict.fromkeys(repetition for _, repetition in plan.order)
    round_of = {repetition: number for number, repetition in enumerate(rounds)}
    mixed = len(set(kind_of)) > 1 and isolation == "batch"
    per_block = rounds_per_batch or (1 if mixed else max(len(rounds), 1))
    if isolation == "point":
        batch_time = math.inf
    positions = range(len(plan.order))
    blocks = grouped(positions, lambda position: round_of[plan.order[position][1]] // per_block)
    batches: list[Batch] = []
    # Each block has an order of its own, so that drift within it is not always that of one kind.
    for number, block in blocks.items():
        by_kind = grouped(block, lambda position: kind_of[plan.order[position][0]])
        kinds = sorted(by_kind)
        random.Random(f"{plan.seed}:block:{number}").shuffle(kinds)
        for kind in kinds:
            full = True  # pods that measured one kind do not go on with another
            for group in concurrent_groups(plan.points, plan.order, by_kind[kind]):
                seconds = plan.group_seconds(group)
                if full or batches[-1].seconds + seconds > batch_time:
                    batches.append(Batch(kind[0], [], 0.0))
                batches[-1].samples += group
                batches[-1].seconds += seconds
                full = False
    return batches


def batches_by_kind(plan: Plan) -> list[Batch]:
    """Return one batch for each shape and entry of a plan."""
    kinds = grouped(range(len(plan.order)), plan.kind_at)
    return [
        Batch(shape, positions, sum(plan.point_at(position).seconds for position in positions))
        for (shape, _), positions in sorted(kinds.items())
    ]


def _kind_of_point(plan: Plan, index: int, isolation: str) -> tuple[int, str, int]:
    """Return what the points of a batch share: shape, entry, and the point where it is alone."""
    point = plan.points[index]
    volume = plan.shapes[point.shape].volume
    # What one permutation wrote to a volume would disturb the next.
    alone = (volume and volume.created) or (isolation == "point" and not point.pair)
    return point.shape, point.entry, index if alone else -1


@cache
def _versions() -> dict[str, str]:
    """Return the version of perfdag, and as `git` the commit of the checkout that it runs from.

    The commit has the suffix `-dirty` if files differ. An installed package has no commit.
    """
    versions = {"perfdag": perfdag.__version__}
    checkout = Path(perfdag.__file__).resolve().parents[1]
    commit = described_commit(str(checkout)) if (checkout / ".git").exists() else None
    if commit is not None:  # there is git, and it reads the checkout, even of somebody else
        versions["git"] = commit
    return versions


def place_hosts(plan: Plan) -> Plan:
    """Return the plan as a cluster runs it: several hosts are placed as their benchmark says.

    The ids of its points stay.
    """
    benchmarks = {point.shape: point.benchmark for point in plan.points}
    shapes = list(plan.shapes)
    for number, name in benchmarks.items():
        hosts = shapes[number].hosts
        if hosts.count > 1 and hosts.placement is None:
            placement = "any" if registry.get(name).network == "none" else "spread"
            placed = hosts.model_copy(update={"placement": placement})
            shapes[number] = shapes[number].model_copy(update={"hosts": placed})
    return replace(plan, shapes=shapes)


def without_gpu(plan: Plan, shapes: Sequence[Shape]) -> list[str]:
    """Return the entries that use CUDA although their pods ask for no GPU, sorted.

    A container without a GPU resource sees no GPU.
    """
    return sorted(
        {
            point.entry
            for point in plan.points
            if point.params.get("device") == "cuda" and not shapes[point.shape].gpus()
        }
    )


def idle_gpus(plan: Plan) -> list[str]:
    """Return a text for each entry whose pods ask for more GPUs than its benchmark uses, sorted."""
    texts = set[str]()
    for point in plan.points:
        shape = plan.shapes[point.shape]
        requested = sum(parse_quantity(shape.resources.both[name]) for name in shape.gpus())
        if requested <= 1:
            continue
        benchmark = registry.get(point.benchmark)
        used = benchmark.gpus(benchmark.Params.model_validate(point.params))
        if used is not None and used < requested:
            use = f"{point.benchmark} uses {used} of the {requested} GPUs that its pods ask for"
            texts.add(f"entry {point.entry}: {use}")
    return sorted(texts)


def gated(plan: Plan) -> bool:
    """Return whether the last step of a run is its gate. Raises BadDocument.

    It is where the run was scheduled, or its suite has `checks` and was measured whole. The two
    variants of a duet are compared with each other and never with the past.
    """
    if plan.trigger in ("ab", "cron", "part"):
        return plan.trigger == "cron"
    return bool(checks_of(plan.suite_text))


@dataclass
class TimeLeft:
    """The expected seconds of some samples, and the ratio of measured to expected seconds.

    The samples of an entry go by the ratio of its finished samples, until one has finished by what
    the plan expects: one that fails at once tells nothing of other entries.
    """

    _left: dict[str, float] = field(default_factory=partial(defaultdict, float))
    _expected: dict[str, float] = field(default_factory=partial(defaultdict, float))
    _took: dict[str, float] = field(default_factory=partial(defaultdict, float))

    def add(self, plan: Plan, positions: Iterable[int]) -> None:
        """Add samples of a plan."""
        for index, repetition in (plan.order[position] for position in positions):
            self._left[plan.points[index].entry] += expected_seconds(plan.points[index], repetition)

    def done(self, point: Point, repetition: int, seconds: float | None = None) -> None:
        """Remove a sample that took `seconds`, or one that is not measured."""
        self._left[point.entry] -= expected_seconds(point, repetition)
        if seconds is not None:
            self._expected[point.entry] += point.seconds + SAMPLE_OVERHEAD
            self._took[point.entry] += seconds

    def of_sample(self, point: Point) -> float:
        """Return the expected seconds of one sample."""
        return (point.seconds + SAMPLE_OVERHEAD) * self._ratio(point.entry)

    def seconds(self, point: Point | None = None, elapsed: float = 0.0) -> float:
        """Return the expected seconds to the end; `point` is measured since `elapsed` seconds."""
        remaining = sum(time * self._ratio(entry) for entry, time in self._left.items())
        return max(remaining - (min(elapsed, self.of_sample(point)) if point else 0.0), 0.0)

    def _ratio(self, entry: str) -> float:
        """Return measured over expected seconds of an entry, 1 until a sample has finished."""
        return self._took[entry] / self._expected[entry] if self._expected[entry] else 1.0


def expected_seconds(point: Point, repetition: int) -> float:
    """Return the expected seconds of a sample; 0 for a repetition that `until` may add."""
    return point.seconds + SAMPLE_OVERHEAD if repetition <= point.repetitions else 0.0


@dataclass(frozen=True)
class Duet:
    """Plans of the two variants. Point i of one is the counterpart of point i of the other.

    `blocks` holds the order ABBA or BAAB of each block.
    """

    a: Plan
    b: Plan
    blocks: list[str]

    def turns(self, batch: int | None = None) -> list[tuple[str, list[int]]]:
        """Return (variant, positions in its plan) in the order of measurement.

        Each variant's warm-up rounds come first. With `batch`, only samples of this batch.
        """
        plans = {"A": self.a, "B": self.b}
        rounds = {"A": 0, "B": 0}
        turns = [("A", 0), ("B", 0)]
        for variant in "".join(self.blocks):
            rounds[variant] += 1
            turns.append((variant, rounds[variant]))
        return [
            (variant, _positions(plans[variant], repetition, batch))
            for variant, repetition in turns
        ]


def prepare_duet(
    a: LoadedSuite,
    b: LoadedSuite,
    labels: tuple[str, str],
    count: int,
    only: Sequence[str] = (),
    limit: float | None = None,
) -> Duet:
    """Plan both variants with two samples of each in every block. Raises BadDocument.

    `limit` is what B may cost. The order follows the `seed` of the suite where it has one,
    otherwise the run id, so that no two duets share an order by chance.
    """
    if not FEWEST_BLOCKS <= count <= MOST_BLOCKS:
        text = f"{FEWEST_BLOCKS} to {MOST_BLOCKS}; fewer cannot reach p = 1 %"
        raise BadDocument([Problem("many-blocks", text, str(count), "--blocks")])
    first = new_run_id()
    seed = a.suite.seed if "seed" in a.suite.model_fields_set else int(digest(first)[:8], 16)
    turns = blocks(count, seed)
    plans = []
    for loaded, variant, other in ((a, "A", "b"), (b, "B", "a")):
        plan = make_plan(
            loaded,
            only=only,
            trigger="ab",
            variant=variant,
            run_id=f"{first[:-1]}{variant.lower()}",
        )
        points = [replace(point, repetitions=count * A_BLOCK, until=None) for point in plan.points]
        options = replace(
            plan.options, words=labels, other=f"{first[:-1]}{other}", blocks=turns, within=limit
        )
        plan = replace(
            plan,
            seed=seed,
            points=points,
            order=order(points, seed, loaded.suite.warmup),
            batches=[],
            options=options,
        )
        plans.append(with_revisions(plan, loaded))
    in_a = [(point.entry, point.benchmark) for point in plans[0].points]
    in_b = [(point.entry, point.benchmark) for point in plans[1].points]
    if in_a != in_b:
        entries = sorted({entry for entry, _ in in_a} ^ {entry for entry, _ in in_b})
        text = f"{len(in_a)} points in A and {len(in_b)} in B must match, entry by entry"
        raise BadDocument([Problem("other-points", text, ", ".join(entries), "ab", 1)])
    return Duet(plans[0], plans[1], turns)


def with_first_blocks(duet: Duet, count: int) -> Duet:
    """Return a duet as if it had been planned with its first `count` blocks alone."""
    a, b = (_with_repetitions(plan, count) for plan in (duet.a, duet.b))
    return Duet(a, b, duet.blocks[:count])


def _with_repetitions(plan: Plan, count: int) -> Plan:
    """Return the plan of a variant with the samples of the first `count` blocks."""
    last = count * A_BLOCK
    return replace(
        plan,
        points=[replace(point, repetitions=last) for point in plan.points],
        order=[(index, repetition) for index, repetition in plan.order if repetition <= last],
        options=replace(plan.options, blocks=plan.options.blocks[:count]),
    )


def duet_on_cluster(duet: Duet) -> Duet:
    """Return the duet with batches, whose pods measure both variants.

    Points of one entry and shape share their pods for all blocks. Raises BadDocument if the
    variants differ in their shapes.
    """
    a, b = map(place_hosts, (duet.a, duet.b))
    for point_a, point_b in zip(a.points, b.points, strict=True):
        shape_a = a.shapes[point_a.shape]
        shape_b = b.shapes[point_b.shape]
        if shape_a != shape_b:
            keys = ", ".join(
                key for key in sorted(SHAPE_KEYS) if getattr(shape_a, key) != getattr(shape_b, key)
            )
            text = (
                f"entry {point_a.entry}: A and B differ in {keys}, but the same pods measure both; "
                "measure them as two runs, and `perfdag compare` them"
            )
            raise BadDocument([Problem("other-shape", text, "", "ab", 1)])
    points = [
        replace(point_b, shape=point_a.shape)
        for point_a, point_b in zip(a.points, b.points, strict=True)
    ]
    plans = []
    for plan in (a, replace(b, points=points, shapes=a.shapes)):
        options = replace(plan.options, cluster=True)
        # The programs are those of images, so the commits of this machine are not theirs.
        revisions = {
            entry: revision for entry, revision in plan.revisions.items() if not revision.folder
        }
        batches = batches_by_kind(plan)
        plans.append(replace(plan, batches=batches, options=options, revisions=revisions))
    return replace(duet, a=plans[0], b=plans[1])


def stored_duet(a: Plan, b: Plan) -> Duet:
    """Return the duet of two stored plans."""
    first, second = (a, b) if a.variant == "A" else (b, a)
    return Duet(first, second, list(a.options.blocks))


def _positions(plan: Plan, repetition: int, batch: int | None) -> list[int]:
    """Return the positions of one round in the order of the plan. Round 0 is all warm-up rounds."""
    positions = range(len(plan.order)) if batch is None else plan.batches[batch].samples
    return [position for position in positions if max(plan.order[position][1], 0) == repetition]
