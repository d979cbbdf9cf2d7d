"""Rows of the schema to pictures, and the one-file HTML report.

A benchmark's chart is a module of this folder named as the benchmark (`-` written `_`), or an entry point of the group
`perfdag.charts`, here or in another package. It has one function:

    def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]

`rows` are that benchmark's rows of one run, warm-up and failed samples included; each figure comes with a slug (a-z, 0-9, `-`) that
is unique within the benchmark and becomes part of the file's name. `charts.series.read(rows)` turns rows into points and series,
`charts.style.figure()` makes a figure of the house style, `charts.generic.dot_figure()` and
`charts.lines.panel()` are building blocks. A benchmark without a module gets the generic chart.
"""
