"""`perfdag site`: write pages over all runs of a store, and serve them."""

import argparse

from perfdag.commands.options import (
    JSON,
    STORE,
    CommandError,
    Verbs,
    add_verb,
    option,
    print_json,
    print_now,
)

EPILOG = """examples:
  perfdag site
  perfdag site --store s3://bench/results
  perfdag site --serve

The pages open from the folder, from static hosting of the bucket, or behind --serve, which also
compares any two runs with verdicts. The last step of a run on a cluster writes them again.
"""


def add_site(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "site",
        run,
        "Write pages into the store: an index of suites, the history of each, "
        "and a comparison of any two runs.",
        EPILOG,
        STORE,
        option("--serve", action="store_true", help="serve the pages over HTTP until Ctrl-C"),
        option("--address", default="127.0.0.1", help="address to serve on"),
        option("--port", default=8600, help="port to serve on; 0: any free one"),
        JSON,
    )


def run(args: argparse.Namespace) -> int:
    """Write the site, and serve it."""
    from perfdag.charts.pages.site import SiteError, write_site
    from perfdag.commands.serve import serve
    from perfdag.store.open import open_store

    store = open_store(args.store)
    try:
        url = write_site(store)
    except SiteError as error:
        raise CommandError(str(error)) from None
    print_json({"url": url}) if args.json else print_now(url)
    if args.serve:
        serve(store, args.address, args.port)
    return 0
