"""history.html: the changes and charts of the history of a suite, as one file."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from perfdag.charts.files import to_bytes
from perfdag.charts.pages.page import LIMIT, css, document, picture, table, text
from perfdag.charts.pages.pick import Picture
from perfdag.regress.history import Series
from perfdag.regress.run_medians import RunMedians
from perfdag.results.result_files import day_of
from perfdag.units import plural, short

TITLES = {"overview": "The last runs at a glance", "noise": "Where the noise is"}


def page(
    medians: RunMedians, series: Sequence[Series], figures: Mapping[str, Figure], more: str = ""
) -> str:
    """Return the page: changes of level, newest first, then the figures by name.

    Equal input gives an equal page.
    """
    first, last = medians.runs[0].run_id, medians.runs[-1].run_id
    head = (
        f'<h1>{text(medians.suite)}: history</h1>\n<p class="muted">'
        f"{plural(len(medians.runs), 'run')} from {day_of(first)} to {day_of(last)}; "
        f'<a href="report.html">report of the newest</a></p>\n{_changes(series)}\n'
    )
    body, room = [], LIMIT - len(head.encode()) - len(css().encode()) - 20_000
    for number, (name, fig) in enumerate(figures.items(), 1):
        title = TITLES.get(name, "Series over the runs")
        svg, png = to_bytes(fig)
        section = (
            f"<h2>{text(title)}</h2>\n{picture(Picture('history', name, title, svg, png), number)}"
        )
        if len(section.encode()) > room:
            body.append(f'<p class="muted">{text(title)} ({text(name)}): left out for its size</p>')
            continue
        room -= len(section.encode())
        body.append(section)
    if more:
        body.append(f'<p class="muted">{text(more)}</p>')
    return document(f"{medians.suite}: history", f"{head}{''.join(body)}")


def _changes(series: Sequence[Series]) -> str:
    changes = sorted(
        (change for line in series for change in line.findings), key=lambda change: -change.index
    )
    if not changes:
        return "<p>No series changed its level.</p>"
    rows = []
    for change in changes:
        c, unit = change.change, change.info.unit
        differs = (
            "; ".join(f"{key} {a} -> {b}" for key, (a, b) in change.environment.items())
            or "nothing that is recorded"
        )
        level = f"{short(c.before, unit)} to {short(c.after, unit)}"
        rows.append(
            [
                day_of(change.run),
                text(change.name),
                text(f"{change.size} {change.word}"),
                text(level),
                text(differs[:300]),
            ]
        )
    return table(
        ("since", "series", "change", "level", "what else changed"),
        rows,
        ("value", "point", "value", "value", "text"),
        True,
    )
