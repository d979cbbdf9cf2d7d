"""The forest plot of `perfdag ab`."""

from pathlib import Path

from perfdag.app.ab.outcome import AbResult, series_name
from perfdag.app.chart_file import write_chart
from perfdag.charts.pages.compare import Effect, forest
from perfdag.units import plural


def write_forest_plot(path: Path, result: AbResult) -> None:
    """Draw the relative effects of all series with their intervals. Raises OSError."""
    lines, duet = result.outcome.lines, result.duet
    effects = [
        Effect(
            series_name(line),
            paired.effect,
            paired.interval.low,
            paired.interval.high,
            line.judged.word,
        )
        for line in lines
        if not (paired := line.judged.result).absolute
    ]
    a, b = duet.a.options["words"]
    blocks = f"{duet.a.suite}: {plural(len(duet.blocks), 'block')} of ABBA or BAAB"
    figure = forest(
        effects,
        f"{b} against {a}",
        f"{blocks}; line: interval of the median ratio",
        len(lines) - len(effects),
    )
    write_chart(path, figure)
