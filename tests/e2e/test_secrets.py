"""A gang whose command prints its environment, in the lead and in the peer."""

import pytest
import yaml

from perfdag.results.samples import read_sample, sample_key
from perfdag.store.s3 import open_store

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
BOTH = """env
echo PEER
set -- $PERFDAG_SSH_PORTS
exec perfdag step rsh "${1%%=*}" 'env; echo end'
"""


def test_a_command_starts_without_secrets_in_its_pod_and_in_its_peer(bench: Namespace) -> None:
    entry = {
        "benchmark": "command",
        "hosts": {"count": 2},
        "params": {"argv": ["bash", "-c", BOTH]},
    }
    run = bench.measure(yaml.safe_dump({"name": "search", "entries": [entry]}))
    [key] = bench.stored(run.id)
    record = read_sample(open_store(bench.store).get(sample_key(run.id, key)))
    assert record.status == "ok", f"{record.error}\n{run.output}"
    lead, _, peer = record.texts["stdout"].partition("\nPEER\n")
    assert peer.endswith("\nend\n")
    for text in (lead, peer):
        assert "\nPATH=" in f"\n{text}"
        assert not [word for word in ("AWS_", "PERFDAG_STORE", "redacted") if word in text]
