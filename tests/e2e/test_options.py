"""What an installation may be asked for beyond the usual."""

import json
from collections.abc import Iterator

import pytest

from .conftest import Namespace, installed

pytestmark = [pytest.mark.argo, pytest.mark.slow]


FETCH = """\
import urllib.error, urllib.request
try:
    urllib.request.urlopen("http://perfdag-site/site/index.html", timeout=20)
except urllib.error.HTTPError as error:
    print(error.code, error.read())
    assert error.code == 404  # the store was read, and no run has written the site yet
"""


@pytest.fixture(scope="module")
def wide() -> Iterator[Namespace]:
    """An installation with a NetworkPolicy, a pull secret and the site."""
    with installed("restricted", "--pull-secret", "registry", "--site") as namespace:
        yield namespace


def test_iperf_behind_a_network_policy_beside_the_site(wide: Namespace) -> None:
    fetch = json.dumps(["python3", "-c", FETCH])
    name = wide.submit(
        "name: wide\npending_limit: 90s\nentries:\n"
        "  - {benchmark: iperf, hosts: {count: 2}, params: {duration: 1s}}\n"
        f"  - {{benchmark: command, name: site, params: {{argv: {fetch}}}}}\n"
    )
    assert {"name": "registry"} in wide.pod(name, 1)["spec"]["imagePullSecrets"]
    run = wide.finish(name)
    run.assert_ok()
    assert {json.loads(row["env"])["cluster"]["network_policy"] for row in run.rows} == {True}
