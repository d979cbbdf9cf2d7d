"""A gang whose command looks for secrets: in its environment, in those of other processes, in
files.
"""

import re

import pytest
import yaml

from perfdag.results.samples import read_sample, sample_key
from perfdag.store.s3 import open_store

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
# `at` stands before what a host shows, `end` after it
SEARCH = r"""
exec 2>&1
echo at; env
for pid in /proc/[0-9]*; do tr '\0' '\n' <"$pid/environ"; tr '\0' '\n' <"$pid/cmdline"; done
cat /var/run/secrets/kubernetes.io/serviceaccount/*
find /perfdag /run /tmp -type f -size -64k -exec cat {} +
echo; find /tmp/perfdag-ssh /run/secrets -type f; touch /etc/passwd
echo end
"""
BOTH = f"""cat >/tmp/search <<'S'
{SEARCH}
S
sh /tmp/search
echo PEER
set -- $PERFDAG_SSH_PORTS
base64 -w0 /tmp/search >/tmp/encoded
exec perfdag step rsh "${{1%%=*}}" "echo $(cat /tmp/encoded) | base64 -d >/tmp/search; sh /tmp/search"
"""  # noqa: E501


def test_a_command_finds_no_secret_of_its_pod_or_of_its_peer(bench: Namespace) -> None:
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
    for text in (lead, peer):
        assert text.startswith("at\n")
        assert "\nend" in text
        assert "Permission denied" in text  # the environment of perfdag's own process
        assert not re.search(r"AWS_SECRET|perfdag-secret|\beyJ[\w-]+\.|\[redacted", text)
        assert "touch: cannot touch '/etc/passwd': Permission denied" in text
    assert {line for line in lead.splitlines() if line.startswith("/tmp/perfdag-ssh")} == {
        f"/tmp/perfdag-ssh/lead/{file}" for file in ("id", "ca.pub", "known_hosts", "ssh_config")
    }
    assert {line for line in peer.splitlines() if line.startswith("/tmp/perfdag-ssh")} >= {
        f"/tmp/perfdag-ssh/peer/{file}" for file in ("host", "host-cert.pub", "id.pub")
    }
    assert "/tmp/perfdag-ssh/peer/id\n" not in peer
    assert (
        lead.count("BEGIN OPENSSH PRIVATE KEY") == 3
    )  # the client's: two files, one of them twice
    assert "serviceaccount/token" not in lead + peer
