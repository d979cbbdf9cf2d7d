"""Code that reads the rows of a run with DuckDB and with pandas, for the report."""

from urllib.parse import urlsplit

from perfdag.results.runs import result_key
from perfdag.store.s3 import endpoint_of


def recipes(suite: str, run: str, root: str) -> tuple[str, str]:
    """Return code for (DuckDB, pandas) that reads the rows of a run.

    On S3 it uses the keys and the region of the environment.
    """
    key = f"{root.rstrip('/')}/{result_key(suite, run)}"
    secret, where, before = "", repr(key), ""
    if root.startswith("s3://"):
        endpoint = endpoint_of(root)
        url = urlsplit(endpoint or "")
        options = (
            f", ENDPOINT '{url.netloc}{url.path}', URL_STYLE 'path', "
            f"USE_SSL {str(url.scheme == 'https').lower()}"
            if endpoint
            else ""
        )
        secret = f"CREATE SECRET (TYPE s3, PROVIDER credential_chain{options});\n"
        override = f"endpoint_override={endpoint!r}" if endpoint else ""
        before = f"from pyarrow.fs import S3FileSystem\nbucket = S3FileSystem({override})\n"
        where = f"{key.removeprefix('s3://')!r}, filesystem=bucket"
    sql = (
        f"{secret}SELECT benchmark, params->>'$' AS params, metric, stat, coords->>'$' AS coords,\n"
        "       median(value) AS median, min(value) AS low, max(value) AS high,"
        " count(value) AS n, any_value(unit) AS unit\n"
        f"FROM read_parquet('{key}')\n"
        "WHERE status = 'ok' AND phase = 'measure' GROUP BY ALL ORDER BY ALL;"
    )
    frame = (
        f"import json, pandas as pd\n{before}"
        f"rows = pd.read_parquet({where})\n"
        "rows = rows.join(pd.DataFrame(rows.pop('params').map(json.loads).tolist())"
        ".add_prefix('params.'))\n"
        "ok = rows[(rows.status == 'ok') & (rows.phase == 'measure')]\n"
        "ok.groupby(['entry', 'point', 'metric', 'stat', 'coords', 'unit'])"
        ".value.agg(['median', 'min', 'max', 'count'])"
    )
    return sql, frame
