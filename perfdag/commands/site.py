"""`perfdag site`: write pages over all runs of a store, and serve them."""

import argparse

from perfdag.commands.options import print_json, print_now

EPILOG = """examples:
  perfdag site
  perfdag site --store s3://bench/results
  perfdag site --serve

The pages open from the folder, from static hosting of the bucket, or behind --serve, which also
compares any two runs with verdicts. The last step of a run on a cluster writes them again.
"""


def add_site(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "site",
        help="write pages over all runs of a store",
        description="Write pages into the store: an index of runs, the history of each suite, "
        "the series of each benchmark, and a comparison of any two runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default: ./perfdag-results)"
    )
    parser.add_argument(
        "--serve", action="store_true", help="serve the pages over HTTP until Ctrl-C"
    )
    parser.add_argument(
        "--address", default="127.0.0.1", help="address to serve on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8600, help="port to serve on (default: 8600; 0: any free one)"
    )
    parser.add_argument("--json", action="store_true", help="print the address as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the site, and serve it."""
    from perfdag.app.site.serve import serve
    from perfdag.app.site.write import write_site
    from perfdag.store.base import open_store

    store = open_store(args.store)
    url = write_site(store)
    print_json({"url": url}) if args.json else print_now(url)
    if args.serve:
        serve(store, args.address, args.port)
    return 0
