"""Charts of rows, and the one-file HTML report.

The chart of a benchmark is a module of this folder, or an entry point of the group `perfdag.charts`
in another package. The module has the name of the benchmark, with `_` for `-`. It has one function:

    def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]

`rows` are the rows of that benchmark in one run, with warm-up and failed samples. Each figure has a
slug (a-z, 0-9, `-`) that is unique within the benchmark and becomes part of the file name.
`charts.series.read(rows)` returns points and series, `charts.style.figure()` a figure in the house
style. `charts.generic.dot_figure()` and `charts.lines.panel()` are building blocks. A benchmark
without a module gets the generic chart.
"""
