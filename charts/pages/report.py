"""report.html: one file without remote content, for light, dark and small screens.

Its script sorts, filters and copies tables. The page is whole without it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain, groupby, zip_longest
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from perfdag.analysis.gate_result import GateResult
from perfdag.analysis.history import Series as History
from perfdag.analysis.sentence import Judged, banner
from perfdag.benchmark import registry
from perfdag.charts import style
from perfdag.charts.pages import screen
from perfdag.charts.pictures import (
    Picture,
    draw_pictures,
    file_name,
    fill_rows,
    inline_picture,
    picture_of,
    printable,
    to_svg,
)
from perfdag.charts.series import BANDS
from perfdag.plan import Plan
from perfdag.results.labels import flatten, setting
from perfdag.results.run_store import result_key
from perfdag.results.schema import revisions_of
from perfdag.results.summary import (
    PointState,
    RunTrust,
    Series,
    Summary,
    headlines,
    points_of,
    relative_spread,
    statuses_text,
    unusable,
    worst_of_points,
)
from perfdag.revision import short_revision
from perfdag.stats.evidence import STEP
from perfdag.units import digits, plural, scaled, short, short_seconds

LIMIT = 980_000  # bytes of a page; charts above it are named instead
ROWS = 400  # most rows of a table; the Parquet file has all
ALL_ROWS = 1500  # of all tables of values, about 500 kB
NODES, COMMANDS, REASONS, FACTS = 6, 20, 3, 4
"""Most nodes in the head, commands of a benchmark, reasons of a point, values of a fact."""
BAD = ("failed", "invalid", "missing")
MARKS = {
    "~": "~: disturbed while it was measured",
    "unusable": "unusable: the samples are too far apart",
}
KINDS = {
    "noisy": "noisy",
    "unusable": "unusable",
    "lost": "measured in part",
    "failed": "failed",
    "skipped": "skipped",
}
"""What the squares of the points say by their colours."""
KINDS_OF_TRUST = {"good": "same"}
COLUMNS = {
    "point": "point",
    "metric": "",
    "median": "n",
    "unit": "value",
    "spread": "value",
    "last runs": "runs",
    "±": "n",
    "n": "n",
    "": "noisy",
    "of nominal": "value",
}
"""The columns of a table of values, with their classes."""
UNSET = ("null", "", "[]")
_BACKTICKS = re.compile(r"`([^`]+)`")
_SCRATCH = re.compile(r"/[^\s=]*/perfdag-[\w-]+-[0-9a-f]{8}-\d+")
"""The scratch folder of a sample, in its command."""


@cache
def templates() -> Environment:
    """Return the templates of the pages. They escape every text."""
    folder = PackageLoader("perfdag.charts", "templates")
    environment = Environment(
        loader=folder,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=printable,
    )
    environment.filters["plural"] = plural
    environment.filters["code"] = code
    environment.globals["source"] = source
    return environment


def code(text: str) -> Markup:
    """Return a text whose words in backticks are code."""
    return Markup(_BACKTICKS.sub(r"<code>\1</code>", str(escape(text))))


@cache
def source(name: str) -> Markup:
    """Return a style or script of the pages."""
    return Markup(files("perfdag.charts").joinpath(name).read_text("utf-8"))


def write(
    summary: Summary,
    plan: Plan,
    put: Callable[[str, bytes], Any],
    root: str,
    site: bool,
    gate: GateResult | None,
) -> None:
    """Draw all charts of a run, and write them and report.html by `put(name, bytes)`.

    `root` is the address of the store, `site` whether it has pages over all runs, and `gate` the
    answers about the series of the run.
    """
    pictures = list(draw_pictures(summary))
    for picture in pictures:
        put(f"{picture.name}.svg", picture.svg)
        put(f"{picture.name}.png", picture.png)
    html = report(summary, plan, pictures, root, site, gate)
    put("report.html", html.encode("utf-8", "replace"))


def report(
    summary: Summary,
    plan: Plan,
    pictures: Sequence[Picture],
    root: str,
    site: bool,
    gate: GateResult | None,
) -> str:
    """Return the page of a run. Equal input gives an equal page."""
    run = Judged(summary, gate)
    table = summary.table
    sentence = banner(run)
    states = summary.points
    first = _first_pictures(run, pictures)
    names = list(dict.fromkeys(state.benchmark for state in states))
    points = [_point(names.index(state.benchmark), state, summary.trust) for state in states]
    kinds = {kind for _, kind, _ in points}
    limit = min(ROWS, max(40, ALL_ROWS // max(2 * len(names), 1)))
    tiles = screen.tiles(run)
    context = {
        "plan": plan,
        "site": site,
        "head": head(table),
        "banner": sentence,
        "reasons": [text for text in sentence.why if not text.startswith("trust ")],
        "colour": screen.colour(sentence.word),
        "doubts": screen.doubts(run),
        "trust": summary.trust.text,
        "tiles": tiles,
        "more": sum(len(headlines(state)) for state in states) - len(tiles),
        "first": [inline_picture(drawn, -number) for number, drawn in enumerate(fill_rows(first))],
        "points": len(points),
        "remarkable": [point for point in points if point[1] != "same"],
        "key": [(kind, text) for kind, text in KINDS.items() if kind in kinds],
        "problems": list(_problems(states, BAD)),
        "skipped": list(_problems(states, ("skipped",))),
        "most": ROWS,
        "samples": statuses_text(summary.statuses),
        "verdicts": worst_of_points(summary.verdicts),
        "sections": [_section(run, name, limit) for name in names],
        "environment": _facts(_environment(table)),
        "sample_facts": _facts(_sample_facts(table)),
        "canary": _values(run, _canary(table), None, limit),
        "count": table.num_rows,
        "rows_file": f"{root.rstrip('/')}/{result_key(plan.suite, plan.run_id)}",
    }
    template = templates().get_template("report.html")
    room = LIMIT - len(template.render(context, charts={}).encode("utf-8", "replace"))
    others = [picture for picture in pictures if picture not in first]
    return template.render(context, charts=_charts(others, room))


def _section(run: Judged, name: str, limit: int) -> dict[str, Any]:
    """Return what the page says of a benchmark."""
    states = [state for state in run.summary.points if state.benchmark == name]
    return {
        "name": name,
        "file": file_name(name),
        "about": _about(name),
        "common": _common(states),
        "first": _values(run, states, True, limit),
        "rest": _values(run, states, False, limit),
        "commands": _commands(run.summary.table, name),
    }


def card_of(summary: Summary, plan: Plan, gate: GateResult | None) -> bytes:
    """Return the card of a run, a PNG of 1200 x 630."""
    return screen.card(Judged(summary, gate), plan.suite, head(summary.table))


def _first_pictures(run: Judged, pictures: Sequence[Picture]) -> list[Picture]:
    """Return one or two pictures that show the sentence.

    They are the histories of what changed, the pairs of a slow node, or charts of the first values.
    """
    changed = [line for line in run.deciding() if line.verdict.word in screen.CHANGED]
    lines = [line for line in changed if line.levels.measured >= STEP][:2]
    if lines:
        return [_history(line, wide=len(lines) == 1) for line in lines]
    if banner(run).word == "slow":
        return [drawn for drawn in pictures if drawn.title.startswith("Slow ")][:1]
    names = dict.fromkeys(file_name(tile.benchmark) for tile in screen.tiles(run))
    by_name = [[drawn for drawn in pictures if drawn.benchmark == name] for name in names]
    return list(filter(None, chain.from_iterable(zip_longest(*by_name))))[:2]


def _history(line: History, wide: bool) -> Picture:
    with style.narrow():
        narrow = to_svg(screen.history(line))
    return picture_of("history", line.info.series_id, screen.history(line, wide), narrow)


def _charts(pictures: Sequence[Picture], room: int) -> dict[str, list[Markup | str]]:
    """Return the charts of each benchmark in `room` bytes. Those that do not fit are names."""
    charts: dict[str, list[Markup | str]] = {}
    by_name = [
        fill_rows(list(of_name)) for _, of_name in groupby(pictures, lambda drawn: drawn.benchmark)
    ]
    for number, drawn in enumerate(chain.from_iterable(by_name), 1):
        chart: Markup | str = inline_picture(drawn, number)
        if len(chart.encode("utf-8", "replace")) > room:
            chart = f"{drawn.name}.svg"
        room -= len(chart.encode("utf-8", "replace"))
        charts.setdefault(drawn.benchmark, []).append(chart)
    return charts


def head(table: pa.Table) -> list[str]:
    """Return date, duration and machine of a run."""
    start = pc.min(table["started_at"]).as_py()
    end = pc.max(table["finished_at"]).as_py()
    parts = [] if start is None else [f"{start:%-d %b %Y %H:%M} UTC"]
    if start is not None and end is not None:
        parts.append(short_seconds((end - start).total_seconds()))
    nodes = _distinct(pc.list_flatten(table["nodes"].combine_chunks()))
    more = f" and {len(nodes) - NODES} more" if len(nodes) > NODES else ""
    parts += [f"revision {short_revision(name)}" for name in revisions_of(table)]
    parts += [f"cluster {name}" for name in _distinct(table["cluster"])]
    parts += [", ".join(nodes[:NODES]) + more] if nodes else []
    # a multiple of a class says no more than the number of nodes
    classes = _distinct(table["env_class"])
    return [*parts, *([name for name in classes if " x [" not in name] or classes)[:2]]


def _distinct(column: Any) -> list[str]:
    return sorted(text for text in pc.unique(column).to_pylist() if text)


def _point(number: int, state: PointState, trust: RunTrust) -> tuple[int, str, str]:
    """Return section, class and title of the square of a point: its failure, or its trust."""
    point = trust.points.get(state.point)
    name = f"{state.benchmark} {state.title}"
    if state.why or point is None:
        return number, "failed" if point else "skipped", f"{name}: {state.why}"
    kind = "lost" if state.statuses.keys() & BAD else KINDS_OF_TRUST.get(point.level, point.level)
    reasons = "; ".join([*point.reasons.values(), *state.reasons]) or "ok"
    return number, kind, f"{name}: {reasons}"


def _problems(states: Sequence[PointState], statuses: Sequence[str]) -> Iterator[list[Any]]:
    """Yield point, samples and reasons of the points with samples of these statuses."""
    for state in states:
        counts = {status: state.statuses[status] for status in statuses if state.statuses[status]}
        if counts:
            reasons = state.reasons[:REASONS] or ["no reason was stored"]
            samples = f"{statuses_text(counts)} of {state.statuses.total()}"
            yield [state.entry, state.title, samples, reasons]


Values = dict[str, Any]
"""A table of series: `columns` with their classes, `rows`, how many `more` there are, `caption`."""


def _about(name: str) -> tuple[str, str]:
    """Return summary and clock of a benchmark, or nothing where it is not installed."""
    try:
        program = registry.get(name)
    except Exception:
        return "", ""
    return program.summary(), program.clock()


def _common(states: Sequence[PointState]) -> list[tuple[str, str]]:
    """Return the parameters that all points of a benchmark share."""
    common = _params(states[0])
    for state in states[1:]:
        common &= _params(state)
    return sorted(common)


def _params(state: PointState) -> set[tuple[str, str]]:
    texts = [(name, text) for name, text in flatten(state.params) if text not in UNSET]
    return {(name, setting(state.benchmark, name, text)) for name, text in texts}


def _values(run: Judged, states: Sequence[PointState], headline: bool | None, limit: int) -> Values:
    """Return the series of the headline metrics, those of the others, or all.

    A column without a cell is left out.
    """
    series = list(chain.from_iterable(state.series for state in states))
    names = {one.metric for one in series if one.headline} or {one.metric for one in series[:1]}
    if headline is not None:
        series = [one for one in series if (one.metric in names) is headline]
    by_point = {state.point: state for state in states}
    rows = [list(_value(run, by_point[one.point], one)) for one in series[:limit]]
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=False))
    columns = {name: cells for name, cells in columns.items() if any(cells) or name == "unit"}
    bands = sorted({one.band.kind for one in series} - {"none"}, reverse=True)
    keys = [f"spread: {' or '.join(BANDS[kind] for kind in bands)}"] if bands else []
    keys += [text for mark, text in MARKS.items() if mark in columns.get("", ())]
    return {
        "columns": [(name, COLUMNS[name]) for name in columns],
        "rows": list(zip(*columns.values(), strict=True)),
        "more": max(0, len(series) - limit),
        "caption": "; ".join(keys),
    }


def _value(run: Judged, state: PointState, series: Series) -> Iterator[Any]:
    """Yield the cells of a series, the median also in the base unit to sort by."""
    band = series.band
    part = relative_spread(series)
    factor, unit = scaled(series.display_unit, series.middle)
    yield state.title
    yield series.label or series.entry, series.name
    yield digits(series.middle / factor), series.middle
    yield unit or "1"
    spread = f"{digits(band.low / factor)} to {digits(band.high / factor)}"
    yield (spread, band.low, band.high) if band.n > 1 else ""
    line = run.lines.get(series.series_id)
    yield screen.spark(line) if line else ""
    # half the spread: of a share in points, because a share of a share says nothing
    half = "points" if series.display_unit == "%" else "%"
    yield "" if part is None else f"{digits(round(50 * part, 2))} {half}"
    yield band.n
    yield "unusable" if unusable(series) else "~" if state.noise else ""
    yield series.nominal


def _commands(table: pa.Table, name: str) -> list[str]:
    rows = table.filter(pc.equal(table["benchmark"], name))
    commands = list(
        dict.fromkeys(_SCRATCH.sub("SCRATCH", text) for text in _distinct(rows["command"]))
    )
    more = len(commands) - COMMANDS
    return commands[:COMMANDS] + ([f"({more} more in the rows)"] if more > 0 else [])


def _canary(table: pa.Table) -> list[PointState]:
    rows = table.filter(pc.equal(table["benchmark"], "canary"))
    # points_of leaves out the benchmark `canary`, which is no point of the suite.
    at = rows.schema.get_field_index("benchmark")
    named = pa.array(["canary rows"] * rows.num_rows, pa.string())
    return points_of(rows.set_column(at, "benchmark", named))


def _environment(table: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the facts of the hosts as flat text."""
    for text in _distinct(table["env"]):
        yield from _flat({k: v for k, v in orjson.loads(text).items() if k != "sample"})


def _sample_facts(table: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the facts of samples, such as the file system of a target, and their tools."""
    columns = [table[name].to_pylist() for name in ("benchmark", "env", "tool")]
    for benchmark, text, tool in sorted(set(zip(*columns, strict=True)), key=str):
        own = (orjson.loads(text) if text else {}).get("sample") or {}
        for name, value in [*([("tool", tool)] if tool else []), *_flat(own)]:
            yield f"{benchmark}: {name}", value


def _facts(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each fact once, with the first of its values."""
    facts: dict[str, dict[str, None]] = {}
    for name, value in pairs:
        facts.setdefault(name, {})[value] = None
    cut = {
        name: [*list(values)[:FACTS], *["..."][: len(values) > FACTS]]
        for name, values in facts.items()
    }
    return [(name, " | ".join(values)) for name, values in cut.items()]


def _flat(value: Any) -> list[tuple[str, str]]:
    """Return facts as flat text, with units of what counts bytes."""
    return [
        (name, short(float(text), "B") if text.isdigit() and name.endswith("_bytes") else text)
        for name, text in flatten(value)
        if text not in UNSET
    ]
