"""The installed benchmarks, which register in the entry-point group `perfdag.benchmarks`.

    registry.get("iperf").metrics
    registry.fault("iperf")  # None, or why it cannot be used

A benchmark is checked where it is loaded. A broken one breaks no other: whoever lists benchmarks
lists the `working` ones, and a suite that names a broken one is refused with its `fault`.
"""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from pydantic import BaseModel

from perfdag.benchmark.contract import CLOCK, SHARE, Benchmark, Better, Metric, ShortForm
from perfdag.hosts.base import MANAGERS
from perfdag.shape import Shape
from perfdag.units import BASE_UNITS, Unit, rate_unit, readable, written

RESERVED = ("network", "hosts", "resources", "volume", "hugepages", "node_selector")
"""Keys of a shape with keys below, which a permutation names with dots (`network.host`)."""


def mistakes(benchmark: Any) -> Iterator[str]:
    """Yield the mistakes of a benchmark class.

    A text continues a sentence that begins with the name of the benchmark.
    """
    if not (inspect.isclass(benchmark) and issubclass(benchmark, Benchmark)):
        yield f"is {benchmark!r}, not a subclass of perfdag.benchmark.contract.Benchmark"
        return
    about = (benchmark.__doc__ or "").strip()
    if not about:
        yield "has no docstring; its first line says what is measured"
    if not CLOCK.search(about):
        yield "has no `Clock:` paragraph in its docstring, which says what starts and stops it"
    for tool in benchmark.tools:
        for manager in tool.packages.keys() - set(MANAGERS):
            managers = ", ".join(MANAGERS)
            yield f"has the tool {tool.program} in {manager!r}; package managers are {managers}"
    metrics = benchmark.metrics
    if not any(metric.headline for metric in metrics):
        yield "has no headline metric; set headline=True for the main one"
    for metric_name, count in Counter(metric.name for metric in metrics).items():
        if count > 1:
            yield f"declares the metric {metric_name} {count} times"
    for metric in metrics:
        if metric.unit not in BASE_UNITS:
            units = ", ".join(BASE_UNITS)
            yield f"has the metric {metric.name} in {metric.unit!r}; SI base units are {units}"
        if metric.better not in get_args(Better):
            yield f"has the metric {metric.name} with better={metric.better!r}"
    if not hasattr(benchmark, "Params"):
        yield "has no parameters; derive it from Benchmark[P], where P is a subclass of Params"
        return
    for key in benchmark.Params.model_fields:
        if key in RESERVED:
            yield f"has the parameter {key}, which is a key of the shape in suites; rename it"
        elif not re.fullmatch(r"[a-z][a-z0-9_]*", key):
            yield f"has the parameter {key}; a name has a-z, 0-9 and _, and begins with a letter"


class BrokenBenchmark(LookupError):
    """A benchmark that cannot be used. The message names its package."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of all installed benchmarks, sorted, without loading them."""
    return tuple(sorted(benchmark_entry_points()))


@cache
def benchmark_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of all installed benchmarks, by name."""
    return {point.name: point for point in entry_points(group="perfdag.benchmarks")}


@cache
def get(name: str) -> Benchmark[Any]:
    """Return the benchmark of that name.

    Raises BrokenBenchmark if none is installed, or if it breaks the contract.
    """
    point = benchmark_entry_points().get(name)
    if point is None:
        raise BrokenBenchmark(f"benchmark {name} is not installed")
    try:
        benchmark = point.load()
        text = next(mistakes(benchmark), "")
        loaded: Benchmark[Any] = benchmark()
        loaded.name = name
    except Exception as error:
        text = f"cannot be used: {type(error).__name__}: {error}"
    if text:
        raise BrokenBenchmark(f"benchmark {name} of package {package(name)} {text}")
    return loaded


def package(name: str) -> str:
    """Return the name and version of the package that has the benchmark `name`."""
    distribution = getattr(benchmark_entry_points()[name], "dist", None)
    return f"{distribution.name} {distribution.version}" if distribution else "perfdag"


def fault(name: str) -> str | None:
    """Return why the benchmark `name` cannot be used, or None."""
    try:
        get(name)
    except BrokenBenchmark as error:
        return str(error)
    return None


def working() -> tuple[str, ...]:
    """Return the names of the benchmarks that can be used, sorted."""
    return tuple(name for name in names() if fault(name) is None)


def faults() -> list[str]:
    """Return a sentence for each installed benchmark that cannot be used."""
    return [text for name in names() if (text := fault(name))]


@cache
def metrics_of(benchmark: str) -> Mapping[str, Metric]:
    """Return the metrics that a benchmark declares by name, none if it cannot be used."""
    return {} if fault(benchmark) else {metric.name: metric for metric in get(benchmark).metrics}


@cache
def display_unit(benchmark: str, metric: str, unit: str) -> str:
    """Return the unit of a metric for people: of a rate, what its benchmark says that it counts.

    That of a share is %.
    """
    declared = metrics_of(benchmark).get(metric)
    counts = declared.counts if declared else ""
    if unit == "1" and counts == SHARE:
        return "%"
    return rate_unit(counts) if unit == "1/s" else unit


@cache
def units_of_settings(benchmark: str) -> Mapping[str, str]:
    """Return the base units of parameters, keys of a shape and coordinates by dotted name.

    Only those have one whose benchmark says so.
    """
    units = dict(_units_of(Shape))
    if fault(benchmark) is None:
        program = get(benchmark)
        units |= dict(_units_of(program.Params)) | dict.fromkeys(program.sizes, "B")
    return units


SHAPE_FORMS: Mapping[str, ShortForm] = {
    "hosts.count": "{} hosts",
    "network.host": {"true": "host network", "false": "pod network"},
    "network.path": {
        "pod": "pod network",
        "service": "through a Service",
        "nodeport": "through a NodePort",
        "host": "host network",
    },
    "network.family": {"ipv4": "IPv4", "ipv6": "IPv6"},
    "pair": "hosts {}",
}
"""Short forms of the keys of a shape, and of a pair of hosts."""


@cache
def short_forms(benchmark: str) -> Mapping[str, ShortForm]:
    """Return the short forms of settings and coordinates by dotted name, in reading order."""
    forms = {} if fault(benchmark) else get(benchmark).short_forms
    return {**forms, **{name: form for name, form in SHAPE_FORMS.items() if name not in forms}}


def short_form(benchmark: str, name: str, value: Any) -> str:
    """Return a parameter, key of a shape or coordinate for people: `4 KiB`, `depth 16`."""
    unit = units_of_settings(benchmark).get(name, "")
    text = written(value, unit)
    form = short_forms(benchmark).get(name)
    if isinstance(form, str):
        return (form.removesuffix("s") if text == "1" else form).format(readable(value, unit))
    return (form or {}).get(text) or (name if text == "true" else f"{name}={text}")


def reading_order(benchmark: str, names: Iterable[str]) -> list[str]:
    """Return settings in the order of the benchmark's short forms, the others behind by name."""
    rank = {name: number for number, name in enumerate(short_forms(benchmark))}
    return sorted(names, key=lambda name: (rank.get(name, len(rank)), name))


def point_words(benchmark: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings for people by name, in the order in which all surfaces show them."""
    names = reading_order(benchmark, settings)
    return {name: short_form(benchmark, name, settings[name]) for name in names}


def point_label(benchmark: str, settings: Mapping[str, Any]) -> str:
    """Return what people call a point, by the settings that tell it from others.

    Every surface uses it: `random read, 4 KiB, depth 16`.
    """
    return ", ".join(point_words(benchmark, settings).values())


def metric_label(
    benchmark: str, metric: str, stat: str = "value", coords: Mapping[str, Any] | None = None
) -> str:
    """Return what people call a metric, with its statistic and its coordinates.

    Every surface uses it: `read IOPS`, `time to scheduled, p95`. It is empty for the metric `value`
    of an imported series, whose entry says what it is.
    """
    parts = point_words(benchmark, coords or {})
    declared = metrics_of(benchmark).get(metric)
    text = (declared.label if declared else "") or (
        "" if metric == "value" else metric.replace("_", " ")
    )
    label = re.sub(r"\{(\w+)\}", lambda match: parts.pop(match[1], ""), text)
    of_stat = [stat] if stat != "value" else []
    return ", ".join(filter(None, [label.strip(), *of_stat, *parts.values()]))


def _units_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        for part in (*field.metadata, *_parts(field.annotation)):
            if isinstance(part, Unit):
                yield prefix + name, part.name
            elif inspect.isclass(part) and issubclass(part, BaseModel):
                yield from _units_of(part, f"{prefix}{name}.")


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and what it consists of: types, and their markers."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
