"""report.html: one file without remote content, for light, dark and small screens.

Its script only sorts, filters and copies tables.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from perfdag.analysis.alerts import GateResult
from perfdag.benchmark import registry
from perfdag.charts.pages import page, pick, words
from perfdag.charts.pages.page import text
from perfdag.charts.pages.pick import Picture
from perfdag.charts.pages.recipes import recipes
from perfdag.charts.pages.tiles import Answers, most_telling, tiles
from perfdag.charts.series import Cell, label_cells
from perfdag.plan.plan import Plan
from perfdag.results.summary import add_nominal, own_verdicts, summarise, trust_in
from perfdag.units import plural

ALL_ROWS = 1500  # of all tables of values, about 500 kB
SUITE_TEXT = 200_000
"""Characters of the suite in the page."""


def write(
    table: pa.Table,
    plan: Plan,
    put: Callable[[str, bytes], Any],
    root: str,
    links: Mapping[str, str],
    gate: GateResult | None,
) -> None:
    """Draw all charts of a run, and write them and report.html by `put(name, bytes)`.

    `root` is the address of the store, `links` has pages beside the report by their titles, and
    `gate` the answers about the series of the run.
    """
    pictures = list(pick.draw(table))
    for picture in pictures:
        put(f"{picture.name}.svg", picture.svg)
        put(f"{picture.name}.png", picture.png)
    html = report(table, plan, pictures, root, links, gate)
    put("report.html", html.encode("utf-8", "replace"))


def report(
    table: pa.Table,
    plan: Plan,
    pictures: Sequence[Picture],
    root: str,
    links: Mapping[str, str],
    gate: GateResult | None,
) -> str:
    """Return the page of a run. Equal input gives an equal page."""
    table = _plain(table)
    cells = _cells(table)
    trust = trust_in(table, [cell.state for cell in cells])
    answers = Answers(gate, trust)
    first = tiles(cells, own_verdicts(table), answers)
    plots, first_chart = _take(pictures, most_telling(cells, answers))
    head = _summary(table, cells, plan, links, f"{first}{_problems(cells)}{first_chart}")
    tail = [_skipped(cells), _environment(table), _suite(plan), _reading(table, plan, root)]
    fixed_parts = (head, page.css(), page.script(), *tail)
    room = page.LIMIT - sum(len(part.encode("utf-8", "replace")) for part in fixed_parts) - 20_000
    body = _benchmarks(table, cells, plots, room)
    contents = f"{head}\n{tail[0]}\n{body}\n{''.join(tail[1:])}"
    return page.document(f"{plan.suite} {plan.run_id}", contents, page.script())


def _take(pictures: Sequence[Picture], benchmark: str | None) -> tuple[Sequence[Picture], str]:
    """Return the other pictures, and the first of a benchmark as HTML."""
    name = pick.file_name(benchmark or "")
    first = next((picture for picture in pictures if picture.benchmark == name), None)
    if first is None or len(first.svg) > page.INLINE:
        return pictures, ""
    return [picture for picture in pictures if picture is not first], page.picture(first, 0)


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with text columns as plain strings, however they were encoded."""
    return table.cast(
        pa.schema(
            [
                pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
                for f in table.schema
            ]
        )
    )


def _cells(table: pa.Table) -> list[Cell]:
    """Return the points of all benchmarks. Labels are unique within a benchmark."""
    states = summarise(table)
    add_nominal(table, states)
    return [
        cell
        for name in dict.fromkeys(s.benchmark for s in states)
        for cell in label_cells([s for s in states if s.benchmark == name])
    ]


def _summary(
    table: pa.Table,
    cells: Sequence[Cell],
    plan: Plan,
    pages: Mapping[str, str],
    first: str,
) -> str:
    well, end_text = words.how_it_ended(cells)
    names = list(dict.fromkeys(cell.state.benchmark for cell in cells))
    links = [("#problems", "What went wrong")] if not well else []
    links += [(f"#b{i}", name) for i, name in enumerate(names)]
    links += [("#environment", "Environment"), ("#suite", "Suite"), ("#rows", "The rows")]
    links += [(file, name) for name, file in pages.items()]
    nav = "".join(f'<a href="{where}">{text(name)}</a>' for where, name in links)
    more = (
        f"<p>{plural(plan.merged, 'equal point')} of the suite "
        f"{'was' if plan.merged == 1 else 'were'} merged.</p>"
        if plan.merged
        else ""
    )
    end_text = text(end_text) if well else f'<span class="bad">{text(end_text)}</span>'
    return (
        f'<h1>{text(plan.suite)}</h1>\n<p class="muted">run {text(plan.run_id)}</p>\n'
        f"<nav>{nav}</nav>\n{first}\n"
        f"<p>{text(words.what_ran(table, cells, plan.suite))} {text(words.when_where(table))}</p>\n"
        f"{more}{page.verdicts(table)}<p>{end_text}</p>\n"
        '<p class="muted small">Every value is a median with its spread in parentheses: the range '
        "of fewer than 6 samples, from 6 on the interval that covers the true median with at least "
        "95 %. n counts samples, and ~ marks a point with disturbed ones. Times are UTC.</p>"
    )


def _problems(cells: Sequence[Cell]) -> str:
    bad = page.problems(cells, words.BAD)
    html = f'<h2 id="problems">What went wrong</h2>\n<div class="alert">{bad}</div>\n'
    return html if bad else ""


def _skipped(cells: Sequence[Cell]) -> str:
    skipped = page.problems(cells, ("skipped",))
    return f'<h2 id="skipped">Skipped</h2>\n{skipped}\n' if skipped else ""


def _benchmarks(table: pa.Table, cells: Sequence[Cell], plots: Sequence[Picture], room: int) -> str:
    """Return the sections of the benchmarks in `room` bytes.

    Tables have priority. Charts that do not fit are named.
    """
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(cell.state.benchmark, []).append(cell)
    limit = min(page.ROWS, max(40, ALL_ROWS // max(2 * len(by_name), 1)))
    sections = []
    for i, (name, own) in enumerate(by_name.items()):
        sections.append(
            (
                name,
                f'<h2 id="b{i}">{text(name)}</h2>\n{_about(name)}',
                _values(own, limit) + _commands(table, name),
            )
        )
    room -= sum(
        len(part.encode("utf-8", "replace")) for section in sections for part in section[1:]
    )
    parts: list[str] = []
    number = 0
    for name, head, tail in sections:
        parts.append(head)
        for picture in (p for p in plots if p.benchmark == pick.file_name(name)):
            number += 1
            chart = page.picture(picture, number)
            size = len(chart.encode("utf-8", "replace"))
            if size > room:
                chart, size = (
                    '<p class="muted">Chart left out for its size: '
                    f"{text(picture.name)}.svg beside this file.</p>",
                    200,
                )
            room -= size
            parts.append(chart)
        parts.append(tail)
    return "\n".join(parts)


def _about(name: str) -> str:
    """Return the summary and clock of a benchmark, or nothing where it is not installed."""
    try:
        program = registry.get(name)
    except Exception:
        return ""
    clock = program.clock()
    return f"<p>{text(program.summary())}</p>\n" + (
        f'<p class="muted small">Clock: {text(clock)}</p>\n' if clock else ""
    )


def _values(cells: Sequence[Cell], limit: int) -> str:
    """Return tables of the headline metrics, with the other metrics folded."""
    pairs = [(cell, series) for cell in cells for series in cell.state.series]
    headlines = {pair[1].metric for pair in pairs if pair[1].headline} or {
        pair[1].metric for pair in pairs[:1]
    }
    first = [pair for pair in pairs if pair[1].metric in headlines]
    rest = [pair for pair in pairs if pair[1].metric not in headlines]
    html = page.values(first, limit) if first else ""
    if rest:
        html += page.details(plural(len(rest), "further value"), f"\n{page.values(rest, limit)}")
    return html


def _commands(table: pa.Table, name: str) -> str:
    rows = table.filter(pc.equal(table["benchmark"], name))
    commands = [command for command in rows["command"].unique().to_pylist() if command]
    if not commands:
        return ""
    first = "\n".join(commands[:20]) + (
        f"\n({len(commands) - 20} more in the rows)" if len(commands) > 20 else ""
    )
    return page.details("Commands that ran", f"<pre><code>{text(first)}</code></pre>")


def _environment(table: pa.Table) -> str:
    html = '<h2 id="environment">Environment</h2>\n'
    facts = words.environment(table)
    html += page.facts(facts) if facts else "<p>Nothing was recorded.</p>"
    if sample_facts := words.sample_facts(table):
        html += page.details("Facts of the samples and their tools", page.facts(sample_facts))
    canary = table.filter(pc.equal(table["benchmark"], "canary"))
    if canary.num_rows:
        rows = page.values(
            [(cell, series) for cell in _canary(canary) for series in cell.state.series]
        )
        html += (
            "<h3>Canary</h3>\n<p>A fixed small load before and after each round. If it moves, the "
            f"machine changed during the run.</p>\n{rows}"
        )
    return html


def _canary(rows: pa.Table) -> list[Cell]:
    # summarise leaves out the benchmark `canary`, which is no point of the suite.
    at = rows.schema.get_field_index("benchmark")
    return label_cells(
        summarise(
            rows.set_column(at, "benchmark", pa.array(["canary rows"] * rows.num_rows, pa.string()))
        )
    )


def _suite(plan: Plan) -> str:
    suite = plan.suite_text
    if not suite:
        return '<h2 id="suite">Suite</h2>\n<p>Its rows alone are stored, and no plan.</p>\n'
    if len(suite) > SUITE_TEXT:
        suite = suite[:SUITE_TEXT] + "\n# ... cut here; plan.json has all of it"
    return (
        f'<h2 id="suite">Suite</h2>\n<p>The suite as submitted. Seed {plan.seed} shuffled the '
        f"points of each round.</p>\n<pre><code>{text(suite)}</code></pre>\n"
    )


def _reading(table: pa.Table, plan: Plan, root: str) -> str:
    sql, frame = recipes(plan.suite, plan.run_id, root)
    return (
        '<h2 id="rows">The rows</h2>\n<p>One row is one metric of one sample, in SI base units '
        "(s, B, bit/s, 1/s). Failed samples are rows with a status, a reason and no value. This "
        f"run has {plural(table.num_rows, 'row')}. With DuckDB:</p>\n"
        f"<pre><code>{text(sql)}</code></pre>\n"
        f"<p>With pandas:</p>\n<pre><code>{text(frame)}</code></pre>\n"
    )
