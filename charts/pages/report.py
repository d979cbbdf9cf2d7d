"""report.html: one file without scripts or remote content, for light, dark and small screens."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark import registry
from perfdag.charts.pages import page, pick, words
from perfdag.charts.pages.page import text
from perfdag.charts.pages.pick import Picture
from perfdag.charts.series import Cell, labelled
from perfdag.results.summary import summarise
from perfdag.store.s3 import endpoint_of

LIMIT = 2_900_000  # bytes; charts that would go past it are named instead
ALL_ROWS = 3000  # of all tables of values, about 1 MB
DEFAULT_ROOT = "./perfdag-results"
Plan = Any


def write(
    table: pa.Table,
    plan: Plan | None,
    put: Callable[[str, bytes], Any],
    root: str = DEFAULT_ROOT,
    beside: Mapping[str, str] | None = None,
) -> list[str]:
    """Draw all charts of a run, and write them and report.html by `put(name, bytes)`. Return the
    names.
    """
    pictures = list(pick.draw(table))
    names = pick.put_all(pictures, put)
    put("report.html", report(table, plan, pictures, root, beside).encode("utf-8", "replace"))
    return [*names, "report.html"]


def report(
    table: pa.Table,
    plan: Plan | None = None,
    pictures: Sequence[Picture] | None = None,
    root: str = DEFAULT_ROOT,
    beside: Mapping[str, str] | None = None,
) -> str:
    """Return the page of a run. Equal input gives an equal page."""
    drawn = list(pick.draw(table)) if pictures is None else list(pictures)
    table = _plain(table)
    cells = _cells(table)
    suite = _first(table["suite"]) or str(_of(plan, "suite") or "?")
    run = _first(table["run_id"]) or str(_of(plan, "run_id") or "?")
    head = _summary(table, cells, suite, run, plan, beside or {})
    tail = [_problems(cells), _environment(table), _suite(plan), _reading(table, suite, run, root)]
    room = (
        LIMIT - sum(len(part.encode("utf-8", "replace")) for part in (head, css(), *tail)) - 20_000
    )
    body = _benchmarks(table, cells, drawn, room)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(suite)} {text(run)}</title>\n<style>\n{css()}</style>\n</head>\n<body>\n<main>\n"
        f"{head}\n{tail[0]}\n{body}\n{''.join(tail[1:])}\n</main>\n</body>\n</html>\n"
    )


@cache
def css() -> str:
    """The style of every page."""
    return files("perfdag.charts").joinpath("report.css").read_text("utf-8")


def _plain(table: pa.Table) -> pa.Table:
    """Text columns as plain strings, however they were encoded."""
    return table.cast(
        pa.schema(
            [
                pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
                for f in table.schema
            ]
        )
    )


def _cells(table: pa.Table) -> list[Cell]:
    """Points of all benchmarks; labels are unique within a benchmark."""
    states = summarise(table)
    return [
        cell
        for name in dict.fromkeys(s.benchmark for s in states)
        for cell in labelled([s for s in states if s.benchmark == name])
    ]


def _of(plan: Plan | None, name: str) -> Any:
    return plan.get(name) if isinstance(plan, Mapping) else getattr(plan, name, None)


def _first(column: Any) -> str | None:
    return next((value for value in column.unique().to_pylist() if value), None)


def _summary(
    table: pa.Table,
    cells: Sequence[Cell],
    suite: str,
    run: str,
    plan: Plan | None,
    beside: Mapping[str, str],
) -> str:
    well, ended = words.how_it_ended(cells)
    names = list(dict.fromkeys(cell.state.benchmark for cell in cells))
    links = [("#problems", "What went wrong")] if not well else []
    links += [(f"#b{i}", name) for i, name in enumerate(names)]
    links += [("#environment", "Environment"), ("#suite", "Suite"), ("#rows", "The rows")]
    links += [(file, name) for name, file in beside.items()]
    nav = "".join(f'<a href="{where}">{text(name)}</a>' for where, name in links)
    findings = "".join(
        _finding_list(name, [cell for cell in cells if cell.state.benchmark == name])
        for name in names
    )
    merged = _of(plan, "merged")
    more = (
        f"<p>{words.plural(int(merged), 'equal point')} of the suite {'was' if merged == 1 else 'were'} merged.</p>"
        if merged
        else ""
    )
    return (
        f'<h1>{text(suite)}</h1>\n<p class="muted">run {text(run)}</p>\n<nav>{nav}</nav>\n'
        f"<p>{text(words.what_ran(table, cells, suite))} {text(words.when_where(table))}</p>\n{more}"
        f'<p><span class="{"good" if well else "bad"}">{text(ended)}</span> {text(words.noise(cells, table))}</p>\n<ul>{findings}</ul>\n'
        '<p class="muted small">Every value is a median with its spread in parentheses: the range of fewer than 6 samples, from 6 on the'
        " order-statistic interval that covers the true median with at least 95 %. n counts samples. Times are UTC.</p>"
    )


def _finding_list(name: str, cells: Sequence[Cell]) -> str:
    findings = [finding[:1].upper() + finding[1:] for finding in words.findings(cells)]
    if len(findings) == 1:
        return f"<li><strong>{text(name)}</strong>: {text(findings[0])}</li>"
    return f"<li><strong>{text(name)}</strong><ul>{''.join(f'<li>{text(finding)}</li>' for finding in findings)}</ul></li>"


def _problems(cells: Sequence[Cell]) -> str:
    bad, skipped = page.problems(cells, words.BAD), page.problems(cells, ("skipped",))
    html = (
        f'<h2 id="problems">What went wrong</h2>\n<div class="alert">{bad}</div>\n' if bad else ""
    )
    return html + (f'<h2 id="skipped">Skipped</h2>\n{skipped}\n' if skipped else "")


def _benchmarks(table: pa.Table, cells: Sequence[Cell], drawn: Sequence[Picture], room: int) -> str:
    """Sections of the benchmarks. Tables come first in the count of `room` bytes; charts that no longer fit are named."""
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
        for drawing in (p for p in drawn if p.benchmark == pick.file_name(name)):
            number += 1
            shown = page.picture(drawing, number)
            size = len(shown.encode("utf-8", "replace"))
            if size > room:
                shown, size = (
                    f'<p class="muted">Chart left out for its size: {text(drawing.name)}.svg beside this file.</p>',
                    200,
                )
            room -= size
            parts.append(shown)
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
    """Headline metrics in sight, the others folded."""
    pairs = [(cell, series) for cell in cells for series in cell.state.series]
    headlines = {pair[1].metric for pair in pairs if pair[1].headline} or {
        pair[1].metric for pair in pairs[:1]
    }
    first = [pair for pair in pairs if pair[1].metric in headlines]
    rest = [pair for pair in pairs if pair[1].metric not in headlines]
    html = page.values(first, limit) if first else ""
    if rest:
        html += f"<details><summary>{words.plural(len(rest), 'further value')}</summary>\n{page.values(rest, limit)}</details>\n"
    return html


def _commands(table: pa.Table, name: str) -> str:
    rows = table.filter(pc.equal(table["benchmark"], name))
    seen = [command for command in rows["command"].unique().to_pylist() if command]
    if not seen:
        return ""
    shown = "\n".join(seen[:20]) + (
        f"\n({len(seen) - 20} more in the rows)" if len(seen) > 20 else ""
    )
    return f"<details><summary>Commands that ran</summary><pre><code>{text(shown)}</code></pre></details>\n"


def _environment(table: pa.Table) -> str:
    html = '<h2 id="environment">Environment</h2>\n'
    facts = words.environment(table)
    html += page.facts(facts) if facts else "<p>Nothing was recorded.</p>"
    noted = words.sample_facts(table)
    html += (
        f"<details><summary>Facts of the samples and their tools</summary>{page.facts(noted)}</details>\n"
        if noted
        else ""
    )
    canary = table.filter(pc.equal(table["benchmark"], "canary"))
    if canary.num_rows:
        rows = page.values(
            [(cell, series) for cell in _canary(canary) for series in cell.state.series]
        )
        html += (
            "<h3>Canary</h3>\n<p>A fixed small load before and after each round. Where it moves, the machine changed, "
            f"not what is measured.</p>\n{rows}"
        )
    return html


def _canary(rows: pa.Table) -> list[Cell]:
    # summarise leaves the canary out, since it is no point of the suite
    at = rows.schema.get_field_index("benchmark")
    return labelled(
        summarise(
            rows.set_column(at, "benchmark", pa.array(["canary rows"] * rows.num_rows, pa.string()))
        )
    )


def _suite(plan: Plan | None) -> str:
    suite_text = _of(plan, "suite_text") if plan is not None else None
    if not suite_text:
        return '<h2 id="suite">Suite</h2>\n<p class="muted">The suite\'s text was not stored with this run.</p>\n'
    seed = _of(plan, "seed")
    note = (
        f"<p>The suite as submitted. Points were shuffled in each round from seed {text(seed)}.</p>\n"
        if seed is not None
        else ""
    )
    shown = (
        suite_text
        if len(suite_text) < 200_000
        else suite_text[:200_000] + "\n# ... cut here; plan.json has all of it"
    )
    return f'<h2 id="suite">Suite</h2>\n{note}<pre><code>{text(shown)}</code></pre>\n'


def reading(suite: str, run: str, root: str) -> tuple[str, str]:
    """(DuckDB, pandas): how to read the rows of a run, to paste; on S3 with the keys and the region of the reader's environment."""
    key = f"{root.rstrip('/')}/results/suite={suite}/month={run[:4]}-{run[4:6]}/{run}.parquet"
    secret, where, before = "", repr(key), ""
    if root.startswith("s3://"):
        endpoint = endpoint_of(root)
        url = urlsplit(endpoint or "")
        options = (
            f", ENDPOINT '{url.netloc}{url.path}', URL_STYLE 'path', USE_SSL {str(url.scheme == 'https').lower()}"
            if endpoint
            else ""
        )
        secret = f"CREATE SECRET (TYPE s3, PROVIDER credential_chain{options});\n"
        before = f"from pyarrow.fs import S3FileSystem\nbucket = S3FileSystem({f'endpoint_override={endpoint!r}' if endpoint else ''})\n"
        where = f"{key.removeprefix('s3://')!r}, filesystem=bucket"
    sql = (
        f"{secret}SELECT benchmark, params->>'$' AS params, metric, stat, coords->>'$' AS coords,\n"
        "       median(value) AS median, min(value) AS low, max(value) AS high, count(value) AS n, any_value(unit) AS unit\n"
        f"FROM read_parquet('{key}', hive_partitioning = false)\n"
        "WHERE status = 'ok' AND phase = 'measure' GROUP BY ALL ORDER BY ALL;"
    )
    frame = (
        f"import json, pandas as pd\n{before}"
        f"rows = pd.read_parquet({where}, partitioning=None)\n"
        "rows = rows.join(pd.DataFrame(rows.pop('params').map(json.loads).tolist()).add_prefix('params.'))\n"
        "ok = rows[(rows.status == 'ok') & (rows.phase == 'measure')]\n"
        "ok.groupby(['entry', 'point', 'metric', 'stat', 'coords', 'unit']).value.agg(['median', 'min', 'max', 'count'])"
    )
    return sql, frame


def _reading(table: pa.Table, suite: str, run: str, root: str) -> str:
    sql, frame = reading(suite, run, root)
    return (
        '<h2 id="rows">The rows</h2>\n<p>One row is one metric of one sample, in SI base units (s, B, bit/s, 1/s); failed samples are rows '
        f"with a status, a reason and no value. {table.num_rows:,} rows of this run. With DuckDB:</p>\n"
        f"<pre><code>{text(sql)}</code></pre>\n<p>With pandas:</p>\n<pre><code>{text(frame)}</code></pre>\n"
    )
