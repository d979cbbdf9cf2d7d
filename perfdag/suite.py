"""A suite file: which benchmarks, with which parameters, how often, on what. `perfdag plan --schema` prints its JSON schema."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from perfdag import benchmark as registry
from perfdag.checks import Check, misaimed
from perfdag.document import (
    BadDocument,
    Document,
    Problem,
    Where,
    nearest,
    parse_document,
    read_document,
)
from perfdag.explain import explain, salvage
from perfdag.shape import Shape
from perfdag.units import Duration, PositiveDuration

SuiteName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
EntryName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$")
]
Scalar = str | int | float | bool | None
Condition = Any


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Until(_Strict):
    """Repeat a point until the half-width of the 95 % interval of its headline's median is this small a part of the median."""

    relative_spread: float = Field(gt=0, lt=1)
    max_repetitions: int = Field(
        ge=6, le=1000, description="at least 6: fewer samples give no interval of 95 %"
    )


class Permutations(_Strict):
    """The points of an entry. Names are parameters, or shape keys with dots (`network.host`)."""

    product: dict[str, list[Any]] = Field({}, description="every combination of these values")
    zip: dict[str, list[Any]] = Field(
        {}, description="values taken side by side; all lists of one length"
    )
    explicit: list[dict[str, Any]] = Field(
        [], description="added points; alone: exactly these points"
    )
    exclude: list[dict[str, Condition]] = Field(
        [],
        description="points of product and zip to leave out: for each name a value, a list or {lt|le|gt|ge|ne: value}; all must hold",
    )


Repetitions = Annotated[int, Field(ge=1, le=1000)]


class Settings(Shape):
    """What `defaults` and every entry may set. Keys of the shape (network, hosts, resources ...) stand beside `params`."""

    params: dict[str, Any] = {}
    repetitions: Repetitions | None = None
    until: Until | None = None
    timeout: PositiveDuration | None = None
    retries: Annotated[int, Field(ge=0, le=10)] | None = None


ENTRY_KEYS = frozenset(Settings.model_fields) - frozenset(Shape.model_fields) - {"params"}


class Entry(Settings):
    """One benchmark with fixed params and permutations."""

    benchmark: str
    name: EntryName | None = None
    permutations: Permutations = Permutations()


class Suite(_Strict):
    """A suite of benchmarks."""

    name: SuiteName
    description: str = ""
    store: str | None = Field(
        None,
        description="folder, s3://bucket/prefix or claim://NAME; default ./perfdag-results, in pods the installation's; `argo submit` does not look at it",
    )
    repetitions: Repetitions = 1
    seed: int = Field(0, ge=0, description="seed of the order of the points in each round")
    warmup: int = Field(0, ge=0, le=100, description="rounds measured and stored but not analysed")
    timeout: PositiveDuration | None = Field(
        None, description="of one sample; default: five times its expected time, at least 60 s"
    )
    retries: int = Field(
        1,
        ge=0,
        le=10,
        description="how often a sample is tried again after a fault of the infrastructure",
    )
    budget: PositiveDuration | None = Field(
        None,
        description="wall time after which no further sample starts; on a cluster counted from the plan step on",
    )
    isolation: Literal["batch", "pod"] = Field(
        "batch", description="pod: every sample in pods of its own"
    )
    rounds_per_batch: int | None = Field(
        None,
        ge=1,
        description="rounds measured in the same pods; default 1 where the plan has several shapes, else all",
    )
    batch_time: PositiveDuration = Field(
        600.0, description="expected time after which a batch is cut"
    )
    pending_limit: Duration = Field(600.0, description="how long a gang may wait for all its pods")
    priority: int = Field(
        0,
        description="on a cluster: of the runs that wait the highest is next; above 0 its pods push out pods of lower priority, where they need the room",
    )
    defaults: Settings = Settings()
    include: str | list[str] = Field(
        [], description="suite files whose entries come first, relative to this file"
    )
    entries: list[Entry] = []
    checks: list[Check] = []


@dataclass
class Source:
    """An entry as written, with the `defaults` of its own file and what --set fixes; and where, for enumeration and for errors.

    `refused`: keys of the entry or its defaults that are wrong and therefore left out here; a suite with such an entry is never used, but
    the rest of the entry is still looked at, so that all mistakes are said at once. `given`: paths of the entry's keys that --set gave.
    """

    entry: Entry
    raw: dict[str, Any]
    defaults: Settings
    raw_defaults: dict[str, Any]
    document: Document
    path: Where
    name: str
    sets: dict[str, Any] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    given: set[Where] = field(default_factory=set)

    @property
    def partial(self) -> bool:
        """Whether what is refused bears on the params or the shape, so that what is absent of them may well have been given."""
        return not self.refused <= ENTRY_KEYS | {"name"}


@dataclass
class Loaded:
    """A suite file read and checked, includes resolved; entries not yet enumerated.

    `lost`: an entry could not be read at all. `notes`: what is no mistake and may still surprise, a sentence each.
    """

    suite: Suite
    document: Document
    sources: list[Source] = field(default_factory=list)
    lost: bool = False
    notes: list[str] = field(default_factory=list)

    def known(self) -> Iterator[Source]:
        """Entries whose benchmark is installed."""
        return (source for source in self.sources if source.entry.benchmark in registry.names())


def load(file: Path | str, settings: Iterable[str] = ()) -> Loaded:
    """Read a suite file, its includes and `--set` settings (`entry.param=value`, `repetitions=5`). Raises BadDocument."""
    return _sound(read_document(file), settings, Path(file).parent, (str(Path(file).resolve()),))


def loads(text: str, file: str = "suite.yaml", settings: Iterable[str] = ()) -> Loaded:
    """As `load`, from text; includes are relative to the folder of `file`."""
    return _sound(parse_document(text, file), settings, Path(file).parent, (file,))


def _sound(
    document: Document, settings: Iterable[str], folder: Path, chain: tuple[str, ...]
) -> Loaded:
    problems: list[Problem] = []
    loaded = _load(document, settings, folder, chain, problems)
    if problems:
        from perfdag.points import (
            wrong_points,
        )  # enumeration is made of what this module reads, and is asked here for its mistakes

        raise BadDocument([*problems, *(wrong_points(loaded) if loaded else ())])
    assert loaded is not None
    return loaded


def _load(
    document: Document,
    settings: Iterable[str],
    folder: Path,
    chain: tuple[str, ...],
    problems: list[Problem],
) -> Loaded | None:
    """What of a suite file can be read, its mistakes added to `problems`; None where it is no suite at all."""
    if not isinstance(document.data, dict):
        problems.append(document.problem((), "a suite is a mapping with `name` and `entries`"))
        return None
    sets = _split_settings(document, document.data, settings, problems)
    loaded, checks = _read(document, problems)
    names = (
        [loaded.suite.include] if isinstance(loaded.suite.include, str) else loaded.suite.include
    )
    included = [
        source for name in names for source in _include(loaded, name, folder, chain, problems)
    ]
    loaded.sources = [*included, *loaded.sources]
    _check_names(loaded, problems)
    _apply(loaded, sets, problems)
    _check_checks(loaded, checks, problems)
    if not loaded.sources and not problems:
        problems.append(
            document.problem(
                ("entries",), "no entries: a suite needs at least one, or an `include`"
            )
        )
    return loaded


def _read(document: Document, problems: list[Problem]) -> tuple[Loaded, list[tuple[int, Check]]]:
    """The suite with its own entries and its checks by their number, without what is wrong."""
    data = document.data
    apart = {
        key: data[key]
        for key, kind in (("entries", list), ("checks", list), ("defaults", dict))
        if isinstance(data.get(key), kind)
    }
    outer = {**data, **{key: type(value)() for key, value in apart.items()}}
    suite, refused = salvage(document, (), outer, Suite, problems, {"name": "unnamed"})
    defaults, wrong = salvage(
        document, ("defaults",), apart.get("defaults", {}), Settings, problems
    )
    below = wrong | (refused & {"defaults"})
    loaded = Loaded(suite or Suite(name="unnamed"), document, lost="entries" in refused)
    for index, raw in enumerate(apart.get("entries", [])):
        entry, wrong = salvage(document, ("entries", index), raw, Entry, problems)
        if entry is None:
            loaded.lost = True
            continue
        name = entry.name or entry.benchmark
        raw_defaults = apart.get("defaults", {})
        loaded.sources.append(
            Source(
                entry,
                raw,
                defaults or Settings(),
                raw_defaults,
                document,
                ("entries", index),
                name,
                refused=wrong | below,
            )
        )
    found = [
        (index, salvage(document, ("checks", index), raw, Check, problems)[0])
        for index, raw in enumerate(apart.get("checks", []))
    ]
    checks = [(index, check) for index, check in found if check is not None]
    own = {
        "defaults": defaults or Settings(),
        "entries": [each.entry for each in loaded.sources],
        "checks": [each for _, each in checks],
    }
    loaded.suite = loaded.suite.model_copy(update=own)
    return loaded, checks


def _include(
    loaded: Loaded, name: str, folder: Path, chain: tuple[str, ...], problems: list[Problem]
) -> list[Source]:
    """Entries of another suite file."""
    target = folder / name
    if not target.exists():
        known = (
            sorted(path.name for path in target.parent.glob("*.yaml"))
            if target.parent.is_dir()
            else []
        )
        problems.append(
            loaded.document.problem(
                ("include",), f"no such file: {target}{nearest(target.name, known)}"
            )
        )
    elif str(target.resolve()) in chain:
        problems.append(loaded.document.problem(("include",), f"{name} includes itself"))
    else:
        try:
            inner = _load(
                read_document(target), (), target.parent, (*chain, str(target.resolve())), problems
            )
        except BadDocument as error:
            inner = None
            problems += error.problems
        if inner is not None:
            if inner.suite.checks:
                text = f"the checks of an included file are not looked at; move them to {loaded.document.file}"
                problems.append(inner.document.problem(("checks",), text))
            loaded.lost |= inner.lost
            loaded.notes += [*_unused(inner, loaded), *inner.notes]
            return inner.sources
    loaded.lost = True
    return []


def _unused(inner: Loaded, outer: Loaded) -> Iterator[str]:
    """What an included file asks for all its entries that the including file's own keys overrule, in a sentence."""
    keys = [
        key for key in ("repetitions", "timeout", "retries") if key in inner.suite.model_fields_set
    ]
    differ = [key for key in keys if getattr(inner.suite, key) != getattr(outer.suite, key)]
    if differ:
        yield f"{inner.document.file}: {', '.join(differ)} of an included file are not used, but those under its `defaults` are"


def _check_names(loaded: Loaded, problems: list[Problem]) -> None:
    seen: dict[str, Source] = {}
    for source in loaded.sources:
        known = registry.names()
        if source.entry.benchmark not in known:
            text = f"unknown benchmark {source.entry.benchmark!r}; there are {', '.join(known)}{nearest(source.entry.benchmark, known)}"
            problems.append(source.document.problem((*source.path, "benchmark"), text))
        if "name" in source.refused:
            continue
        if source.name in seen:
            other = seen[source.name]
            text = f"the entry name {source.name!r} is taken (line {other.document.line(other.path)}); give one of them another `name`"
            problems.append(source.document.problem((*source.path, "name"), text))
        seen[source.name] = source


def _check_checks(loaded: Loaded, checks: list[tuple[int, Check]], problems: list[Problem]) -> None:
    """Refuse checks that hold nothing: of no entry, of no metric, in another unit. With entries that are not known only the unit is sure."""
    entries = {
        source.name: registry.get(source.entry.benchmark).metrics for source in loaded.known()
    }
    whole = not loaded.lost and len(entries) == len({source.name for source in loaded.sources})
    for index, check in checks if entries else ():
        for _, key, text in misaimed([check], entries):
            if whole or key == "value":
                problems.append(loaded.document.problem(("checks", index, key), text))


def _split_settings(
    document: Document, data: dict[str, Any], settings: Iterable[str], problems: list[Problem]
) -> list[tuple[str, str, Any]]:
    split = []
    for setting in settings:
        left, equals, right = setting.partition("=")
        if not equals or not left:
            problems.append(
                Problem(
                    "--set",
                    1,
                    setting,
                    "write it as entry.param=value, for example iperf.duration=5s",
                )
            )
            continue
        try:
            value = parse_document(right, "--set").data
        except BadDocument:
            value = right
        target, dot, name = left.partition(".")
        if dot:
            split.append((target, name, value))
        elif target in Suite.model_fields and target not in {"entries", "include", "defaults"}:
            data[target] = value
            document.settings.add(target)
        else:
            known = sorted(set(Suite.model_fields) - {"entries", "include", "defaults"})
            problems.append(
                Problem(
                    "--set",
                    1,
                    setting,
                    f"no such key of a suite: {target}{nearest(target, known)}; for a parameter write entry.param=value",
                )
            )
    return split


def _apply(loaded: Loaded, sets: list[tuple[str, str, Any]], problems: list[Problem]) -> None:
    names = [source.name for source in loaded.sources]
    for target, name, value in sets:
        found = [source for source in loaded.sources if source.name == target]
        if not found and not loaded.lost:
            problems.append(
                Problem(
                    "--set",
                    1,
                    f"{target}.{name}",
                    f"no entry {target!r}; there are {', '.join(names)}{nearest(target, names)}",
                )
            )
        for source in found:
            if name in ENTRY_KEYS and not _is_param(source, name):
                _set_key(source, name, value, problems)
            else:
                source.sets[name] = value


def _is_param(source: Source, name: str) -> bool:
    return (
        source.entry.benchmark in registry.names()
        and name in registry.get(source.entry.benchmark).Params.model_fields
    )


def _set_key(source: Source, name: str, value: Any, problems: list[Problem]) -> None:
    """Replace a key that every entry has beside its params and shape."""
    raw = {**source.raw, name: value}
    try:
        source.entry, source.raw = Entry.model_validate(raw), raw
        source.given.add((name,))
    except ValidationError as error:
        problems += [
            Problem(
                "--set", 1, f"{source.name}.{name}", explain(source.document, (), each, Entry).text
            )
            for each in error.errors()
        ]
