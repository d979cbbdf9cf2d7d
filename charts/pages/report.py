"""report.html: one file without remote content, for light, dark and small screens.

Its script sorts, filters and copies tables. The page is whole without it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from perfdag.analysis.gate_result import Banner, GateResult, RunVerdicts, banner
from perfdag.analysis.history import Series
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
from perfdag.charts.series import BANDS, figures_of
from perfdag.identity import grouped
from perfdag.plan import Plan
from perfdag.results.labels import flatten, setting
from perfdag.results.run_store import result_key
from perfdag.results.schema import distinct
from perfdag.results.summary import (
    BenchmarkVerdict,
    PointState,
    RunSeries,
    RunTrust,
    Summary,
    facts_of_samples,
    points_of,
    statuses_text,
    worst_of_points,
)
from perfdag.revision import short_revision
from perfdag.stats.evidence import STEP
from perfdag.units import digits, plural, short, short_seconds

LIMIT = 980_000  # bytes of a page; charts above it are named instead
ROWS = 400  # most rows of a table; the Parquet file has all
ALL_ROWS = 1500  # of all tables of values, about 500 kB
NODES = 6  # most nodes in the head
COMMANDS = 20  # most commands of a benchmark
REASONS = 3  # most reasons of a point
FACTS = 4  # most values of a fact
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
SCRATCH = r"/[^\s=]*/perfdag-[\w-]+-[0-9a-f]{8}-\d+"
"""The scratch folder of a sample, in its command."""


@dataclass
class Cell:
    """A cell of a table of values: its text, and what a pointer or the sorting of a column needs.

    `value` is the figure in the base unit, or the low end of a spread whose other one is `high`.
    """

    text: str | int = ""
    title: str = ""
    value: float | None = None
    high: float | None = None


@dataclass
class Values:
    """A table of series: its columns with their classes, and how many more rows there are."""

    columns: list[tuple[str, str]]
    rows: list[dict[str, Cell]]
    more: int
    caption: str


@dataclass
class Section:
    """What the page says of a benchmark.

    `about` is its summary and clock, and `common` the parameters that all its points share. Of its
    values, the table of the important ones stands `first`.
    """

    name: str
    file: str
    about: tuple[str, str]
    common: list[tuple[str, str]]
    first: Values
    rest: Values
    commands: list[str]


@dataclass
class Square:
    """The square of a point: the number of its section, its class in KINDS or `same`, a title."""

    section: int
    kind: str
    title: str


Problem = tuple[str, str, str, list[str]]
"""Entry, title, samples and reasons of a point with samples without a value."""


@dataclass
class FirstScreen:
    """The sentence about a run, and below it what supports it.

    `doubts` is why its figures are not to be quoted, and `more` how many headlines have no tile.
    """

    banner: Banner
    doubts: str
    tiles: list[screen.Headline]
    more: int
    charts: list[Markup]


@dataclass
class Trust:
    """How far the figures of a run can be trusted.

    `squares` are the points that are not good, `key` what their colours say, and `verdicts` the
    worst of benchmarks on each point, with how many of its rules share it.
    """

    squares: list[Square]
    key: list[tuple[str, str]]
    verdicts: list[tuple[BenchmarkVerdict, str]]


@dataclass
class Page:
    """The page of a run, part by part. `head` is date, duration and machine.

    `site`: the store has pages over all runs, to which this one leads. `rows_file` is the address
    of its rows.
    """

    plan: Plan
    summary: Summary
    site: bool
    head: list[str]
    first: FirstScreen
    trust: Trust
    problems: list[Problem]
    skipped: list[Problem]
    sections: list[Section]
    environment: list[tuple[str, str]]
    sample_facts: list[tuple[str, str]]
    canary: Values
    rows_file: str


@cache
def templates() -> Environment:
    """Return the templates of the pages. They escape every text."""
    environment = Environment(
        loader=PackageLoader("perfdag.charts", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=printable,
    )
    environment.filters |= {
        "plural": plural,
        "code": code,
        "colour": screen.colour,
        "figures": figures_of,
        "spark": screen.spark,
        "statuses": statuses_text,
    }
    environment.globals |= {"source": source, "most": ROWS}
    return environment


def code(text: str) -> Markup:
    """Return a text whose words in backticks are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


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
    run = RunVerdicts(summary, gate)
    first = _first_pictures(run, pictures)
    page = _page(run, plan, first, root, site)
    template = templates().get_template("report.html")
    # What the page needs without charts says how much they may take.
    room = LIMIT - len(template.render(page=page, charts={}).encode("utf-8", "replace"))
    others = [picture for picture in pictures if picture not in first]
    return template.render(page=page, charts=_charts(others, room))


def _page(run: RunVerdicts, plan: Plan, first: Sequence[Picture], root: str, site: bool) -> Page:
    """Return the page of a run without the charts of its benchmarks."""
    table = run.summary.table
    states = run.summary.points
    benchmarks = list(dict.fromkeys(state.benchmark for state in states))
    # A benchmark has two tables: its important values, and the others.
    limit = min(ROWS, max(40, ALL_ROWS // (2 * len(benchmarks) or 1)))
    hosts = [_flat(orjson.loads(text), skip=("sample",)) for text in distinct(table["env"])]
    return Page(
        plan=plan,
        summary=run.summary,
        site=site,
        head=list(head(table)),
        first=_first_screen(run, first),
        trust=_trust(run.summary, benchmarks),
        problems=list(_problems(states, BAD)),
        skipped=list(_problems(states, ("skipped",))),
        sections=[_section(run, name, limit) for name in benchmarks],
        environment=_facts(chain.from_iterable(hosts)),
        sample_facts=_facts(_sample_facts(table)),
        canary=_canary(run, limit),
        rows_file=f"{root.rstrip('/')}/{result_key(plan.suite, plan.run_id)}",
    )


def _first_screen(run: RunVerdicts, pictures: Sequence[Picture]) -> FirstScreen:
    """Return what the page says first."""
    tiles = screen.tiles(run)
    headlines = sum(len(state.headlines) for state in run.summary.points)
    return FirstScreen(
        banner=banner(run),
        doubts=screen.doubts(run),
        tiles=tiles,
        more=headlines - len(tiles),
        # The numbers keep ids apart: those of the charts below begin with 1.
        charts=[inline_picture(drawn, -n) for n, drawn in enumerate(fill_rows(pictures))],
    )


def _trust(summary: Summary, benchmarks: Sequence[str]) -> Trust:
    """Return how far a run can be trusted, with a square for each point that is not good."""
    squares = [
        _square(benchmarks.index(state.benchmark), state, summary.trust) for state in summary.points
    ]
    kinds = {square.kind for square in squares}
    return Trust(
        squares=[square for square in squares if square.kind != "same"],
        key=[(kind, text) for kind, text in KINDS.items() if kind in kinds],
        verdicts=worst_of_points(summary.verdicts),
    )


def _section(run: RunVerdicts, name: str, limit: int) -> Section:
    """Return what the page says of a benchmark."""
    states = [state for state in run.summary.points if state.benchmark == name]
    measured = list(chain.from_iterable(state.series for state in states))
    important = [series for series in measured if series.headline] or measured[:1]
    names = {series.metric for series in important}
    first = [series for series in measured if series.metric in names]
    rest = [series for series in measured if series.metric not in names]
    return Section(
        name=name,
        file=file_name(name),
        about=_about(name),
        common=_common(states),
        first=_values(run, states, first, limit),
        rest=_values(run, states, rest, limit),
        commands=_commands(run.summary.table, name),
    )


def card_of(summary: Summary, plan: Plan, gate: GateResult | None) -> bytes:
    """Return the card of a run, a PNG of 1200 x 630."""
    return screen.card(RunVerdicts(summary, gate), plan.suite, [*head(summary.table)])


def _first_pictures(run: RunVerdicts, pictures: Sequence[Picture]) -> list[Picture]:
    """Return one or two pictures that show the sentence.

    They are the histories of what changed, the pairs of a slow node, or charts of the first values.
    """
    lines = [
        line
        for line in run.deciding()
        if line.verdict.kind in screen.CHANGED and line.levels.measured >= STEP
    ][:2]
    if lines:
        return [_history(line, wide=len(lines) == 1) for line in lines]
    if banner(run).kind == "slow":
        return [drawn for drawn in pictures if drawn.title.startswith("Slow ")][:1]
    by_name = grouped(pictures, lambda drawn: drawn.benchmark)
    names = dict.fromkeys(file_name(tile.state.benchmark) for tile in screen.tiles(run))
    return screen.in_turn([by_name.get(name, []) for name in names])[:2]


def _history(line: Series, wide: bool) -> Picture:
    """Return the picture of the history of a series."""
    with style.narrow():
        narrow = to_svg(screen.history(line))
    return picture_of("history", line.info.series_id, screen.history(line, wide), narrow)


LEFT_OUT = Markup('<p class="muted wide">Chart left out for its size: {} beside this file.</p>')


def _charts(pictures: Sequence[Picture], room: int) -> dict[str, list[Markup]]:
    """Return the charts of each benchmark in `room` bytes. Those that do not fit are named."""
    charts: dict[str, list[Markup]] = {}
    by_name = grouped(pictures, lambda drawn: drawn.benchmark)
    rows = map(fill_rows, by_name.values())
    for number, drawn in enumerate(chain.from_iterable(rows), 1):
        chart = inline_picture(drawn, number)
        if len(chart.encode("utf-8", "replace")) > room:
            chart = LEFT_OUT.format(f"{drawn.name}.svg")
        room -= len(chart.encode("utf-8", "replace"))
        charts.setdefault(drawn.benchmark, []).append(chart)
    return charts


def head(table: pa.Table) -> Iterator[str]:
    """Yield date, duration and machine of a run."""
    start = pc.min(table["started_at"]).as_py()
    end = pc.max(table["finished_at"]).as_py()
    if start is not None:
        yield f"{start:%-d %b %Y %H:%M} UTC"
    if start is not None and end is not None:
        yield short_seconds((end - start).total_seconds())
    yield from [f"revision {short_revision(name)}" for name in distinct(table["revision"])]
    yield from [f"cluster {name}" for name in distinct(table["cluster"])]
    nodes = distinct(pc.list_flatten(table["nodes"].combine_chunks()))
    if nodes:
        further = f" and {len(nodes) - NODES} more" if len(nodes) > NODES else ""
        yield ", ".join(nodes[:NODES]) + further
    # a multiple of a class says no more than the number of nodes
    classes = distinct(table["env_class"])
    yield from ([name for name in classes if " x [" not in name] or classes)[:2]


def _square(section: int, state: PointState, trust: RunTrust) -> Square:
    """Return the square of a point, which shows its failure, or its trust."""
    point = trust.points.get(state.point)
    name = f"{state.benchmark} {state.title}"
    if state.why or point is None:
        return Square(section, "failed" if point else "skipped", f"{name}: {state.why}")
    reasons = "; ".join([*point.reasons.values(), *state.reasons]) or "ok"
    kind = "same" if point.level == "good" else point.level
    lost = bool(state.statuses.keys() & BAD)
    return Square(section, "lost" if lost else kind, f"{name}: {reasons}")


def _problems(states: Sequence[PointState], statuses: Sequence[str]) -> Iterator[Problem]:
    """Yield the points with samples of these statuses."""
    for state in states:
        counts = {status: state.statuses[status] for status in statuses if state.statuses[status]}
        if counts:
            reasons = state.reasons[:REASONS] or ["no reason was stored"]
            samples = f"{statuses_text(counts)} of {state.statuses.total()}"
            yield state.entry, state.title, samples, reasons


def _about(name: str) -> tuple[str, str]:
    """Return summary and clock of a benchmark, or empty texts where it is not installed."""
    try:
        program = registry.get(name)
    except Exception:
        return "", ""
    return program.summary(), program.clock()


def _common(states: Sequence[PointState]) -> list[tuple[str, str]]:
    """Return the parameters that all points of a benchmark share."""
    params = []
    for state in states:
        texts = [(name, text) for name, text in flatten(state.params) if text not in UNSET]
        params.append({(name, setting(state.benchmark, name, text)) for name, text in texts})
    return sorted(set.intersection(*params))


def _values(
    run: RunVerdicts, states: Sequence[PointState], measured: Sequence[RunSeries], limit: int
) -> Values:
    """Return a table of series of some points. A column without a text is left out."""
    by_point = {state.point: state for state in states}
    rows = [_cells(run, by_point[series.point], series) for series in measured[:limit]]
    used = [name for name in COLUMNS if name == "unit" or any(row[name].text for row in rows)]
    return Values(
        columns=[(name, COLUMNS[name]) for name in used],
        rows=rows,
        more=max(0, len(measured) - limit),
        caption=_caption(rows, measured),
    )


def _caption(rows: Sequence[dict[str, Cell]], measured: Sequence[RunSeries]) -> str:
    """Return what the spreads of a table are, and what its marks say."""
    marks = {row[""].text for row in rows}
    texts = [text for mark, text in MARKS.items() if mark in marks]
    bands = {series.band.kind for series in measured} - {"none"}
    if bands:
        kinds = " or ".join(BANDS[kind] for kind in sorted(bands, reverse=True))
        texts.insert(0, f"spread: {kinds}")
    return "; ".join(texts)


def _cells(run: RunVerdicts, state: PointState, series: RunSeries) -> dict[str, Cell]:
    """Return the cells of a series by column, the median also in the base unit to sort by."""
    number, spread, unit = figures_of(series)
    band = series.band
    history = run.histories.get(series.series_id)
    part = series.relative_spread
    # half the spread: of a share in points, because a share of a share says nothing
    half = "points" if series.display_unit == "%" else "%"
    mark = "~" if state.noise else ""
    return {
        "point": Cell(state.title),
        "metric": Cell(series.label or series.entry, title=series.name),
        "median": Cell(number, value=series.middle),
        "unit": Cell(unit or "1"),
        "spread": Cell(spread, value=band.low, high=band.high),
        "last runs": Cell(screen.spark(history) if history else ""),
        "±": Cell("" if part is None else f"{digits(round(50 * part, 2))} {half}"),
        "n": Cell(band.n),
        "": Cell("unusable" if series.unusable else mark),
        "of nominal": Cell(series.nominal),
    }


def _commands(table: pa.Table, name: str) -> list[str]:
    """Return the commands of a benchmark, each once whatever its scratch folder."""
    rows = table.filter(pc.equal(table["benchmark"], name))
    texts = [re.sub(SCRATCH, "SCRATCH", text) for text in distinct(rows["command"])]
    commands = list(dict.fromkeys(texts))
    shown = commands[:COMMANDS]
    if len(commands) > COMMANDS:
        shown.append(f"({len(commands) - COMMANDS} more in the rows)")
    return shown


def _canary(run: RunVerdicts, limit: int) -> Values:
    """Return the table of the canary, which is no point of the suite and needs another name."""
    rows = run.summary.table.filter(pc.equal(run.summary.table["benchmark"], "canary"))
    at = rows.schema.get_field_index("benchmark")
    named = pa.array(["canary rows"] * rows.num_rows, pa.string())
    states = points_of(rows.set_column(at, "benchmark", named))
    measured = list(chain.from_iterable(state.series for state in states))
    return _values(run, states, measured, limit)


def _sample_facts(table: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the facts of samples, such as the file system of a target, and their tools."""
    for row, facts in facts_of_samples(table, "benchmark", "tool"):
        for name, text in _flat({"tool": row["tool"]} | facts):
            yield f"{row['benchmark']}: {name}", text


def _facts(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each fact once, with the first of its values."""
    distinct_pairs = dict.fromkeys(pairs)
    rows = []
    for name, facts in grouped(distinct_pairs, lambda pair: pair[0]).items():
        ending = " | ..." if len(facts) > FACTS else ""
        rows.append((name, " | ".join(value for _, value in facts[:FACTS]) + ending))
    return rows


def _flat(facts: Any, skip: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the facts that are set as flat text, with units of what counts bytes."""
    for name, text in flatten(facts, skip):
        if name.endswith("_bytes") and text.isdigit():
            yield name, short(float(text), "B")
        elif text not in UNSET:
            yield name, text
