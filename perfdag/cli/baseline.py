"""`perfdag baseline`: named baselines, such as a release or a site's acceptance."""

import argparse

EPILOG = """examples:
  perfdag baseline set v1.0 last --note 'release 1.0'
  perfdag baseline set acceptance 'suite=net month=2026-10' --store s3://bench/blue
  perfdag baseline show
  perfdag baseline show v1.0 --json

`perfdag compare baseline:v1.0 last` compares with it; a suite's `checks` can hold a run against it
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.options import add_store

    parser = sub.add_parser(
        "baseline",
        help="named baselines",
        description="Give runs a name to compare with, or show the names. They are kept in baselines.json of the store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="set|show", required=True)
    one = actions.add_parser("set", help="name a run or a selection")
    one.add_argument("name", metavar="NAME")
    one.add_argument("runs", metavar="RUN", help="run or selection, as `perfdag compare` takes it")
    one.add_argument("--note", default="", help="what it is")
    add_store(one)
    shown = actions.add_parser("show", help="the names, or the values of one")
    shown.add_argument("name", nargs="?", metavar="NAME")
    shown.add_argument("--json", action="store_true", help="as JSON on stdout")
    add_store(shown)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Set or show; exit 2 where a name or a run is not there."""
    from perfdag.cli.compare import complain
    from perfdag.regress.selection import SelectionError, baselines, select, set_baseline
    from perfdag.store.open import open_store

    store = open_store(args.store)
    try:
        if args.action == "set":
            if not args.name.strip():
                raise SelectionError("an empty name names nothing: perfdag baseline set v1.0 RUN")
            chosen = select(store, args.runs, args.suite)
            set_baseline(store, args.name, chosen, args.note)
            print(f"baseline {args.name}: {len(chosen.runs)} run(s) of {chosen.suite}")
            return 0
        known = baselines(store)
        if args.name is not None:
            return _one(store, args.name, args.suite, args.json)
    except SelectionError as error:
        return complain("baseline", error)
    if args.json:
        import orjson

        print(orjson.dumps(known, option=orjson.OPT_INDENT_2).decode())
        return 0
    for name, suites in sorted(known.items()):
        for suite, what in sorted(suites.items()):
            runs = what["runs"] if isinstance(what["runs"], list) else []
            extent = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else "".join(runs)
            print(
                f"{name}  {suite}  {len(runs)} run(s), {extent}  {what.get('note') or ''}".rstrip()
            )
    if not known:
        print("no baselines; `perfdag baseline set NAME RUN` makes one")
    return 0


def _one(store: object, name: str, suite: str | None, as_json: bool) -> int:
    """Print the headline values of a baseline."""
    from typing import cast

    import numpy as np

    from perfdag.cli.compare import with_spread
    from perfdag.regress.changes import series_names
    from perfdag.regress.run_medians import COLUMNS, medians_of_rows
    from perfdag.regress.selection import baseline
    from perfdag.results import schema
    from perfdag.stats.robust import median, spread
    from perfdag.store.base import Store

    chosen = baseline(cast(Store, store), name, suite)
    damaged: list[str] = []
    table = schema.load(
        cast(Store, store),
        suites=[chosen.suite],
        runs=list(chosen.runs),
        columns=list(COLUMNS),
        damaged=damaged,
    )
    trends = medians_of_rows(table, chosen.suite)
    rows = []
    for i, label in enumerate(series_names(trends)):
        info, values = trends.series[i], trends.value[i]
        if info.canary:
            continue
        band = spread(values)
        low, high = (
            (band.low, band.high)
            if np.isfinite(values).sum() > 1
            else (float(trends.low[i].min()), float(trends.high[i].max()))
        )
        rows.append(
            {
                "series": label,
                "median": median(values),
                "low": low,
                "high": high,
                "unit": info.unit,
                "runs": band.n,
                "headline": info.headline,
            }
        )
    if as_json:
        import orjson

        print(
            orjson.dumps(
                {"name": name, "suite": chosen.suite, "runs": list(chosen.runs), "series": rows},
                option=orjson.OPT_INDENT_2,
            ).decode()
        )
        return 0
    print(f"{name}  {chosen.suite}  {len(chosen.runs)} run(s)")
    for row in rows:
        if row["headline"]:
            value = with_spread(row["median"], row["low"], row["high"], row["unit"])  # type: ignore[arg-type]
            print(f"{row['series']}  {value}")
    for key in damaged:
        print(f"damaged, left out: {key}")
    return 0
