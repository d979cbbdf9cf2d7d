"""Keys of the S3 store from the files of `aws configure`: what is signed with them, and what is
refused.
"""

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from perfdag.store.base import StoreError
from perfdag.store.open import open_store

needs_boto3 = pytest.mark.skipif(
    importlib.util.find_spec("boto3") is None, reason="needs boto3: pip install 'perfdag[aws]'"
)
CREDENTIALS = (
    "[default]\naws_access_key_id = STANDARD\naws_secret_access_key = 100%s\n[lab]\n"
    "aws_access_key_id = LAB\naws_secret_access_key = x\n"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for both files, and no AWS variables but those that name them."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """An S3 server of one object, which keeps how the last request was signed."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.signed = self.headers["Authorization"]  # type: ignore[attr-defined]
            self.server.token = self.headers["x-amz-security-token"]  # type: ignore[attr-defined]
            self.send_response(200)
            for name, value in (
                ("Content-Length", "1"),
                ("ETag", '"1"'),
                ("Last-Modified", "Sun, 22 Nov 2026 03:00:00 GMT"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"1")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


def signed(server: HTTPServer) -> tuple[str, str, str | None]:
    """Return the key id, the region and the session token with which the store signs."""
    assert open_store("s3://bench/x", patience=2.0).get("a") == b"1"
    _, _, rest = server.signed.partition("Credential=")  # type: ignore[attr-defined]
    key, _, region = rest.split("/")[:3]
    return key, region, server.token  # type: ignore[attr-defined]


@needs_boto3
def test_the_default_profile_and_a_named_one_are_read(
    files: Path, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    (files / "credentials").write_text(f"{CREDENTIALS}aws_session_token = T\n")
    (files / "config").write_text(
        f"[default]\nregion = eu-west-1\nendpoint_url = {url}\ns3 =\n"
        f"  max_concurrent_requests = 20\n"
        "[profile lab]\nregion = eu-north-1\naws_access_key_id = OLD\n"
    )
    assert signed(server) == ("STANDARD", "eu-west-1", None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert signed(server) == ("LAB", "eu-north-1", "T")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert signed(server) == ("LAB", "us-west-2", "T")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SHELL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    assert signed(server) == ("SHELL", "us-west-2", None), "keys of the environment go first"


@needs_boto3
@pytest.mark.parametrize(
    ("profile", "config", "said"),
    [
        ("nowhere", "", "AWS profile nowhere: The config profile (nowhere) could not be found"),
        ("lab", "SECRET\n", "AWS profile lab: Unable to parse config file"),
        (
            "half",
            "[profile half]\naws_access_key_id = A\n",
            "AWS profile half: Partial credentials found in config-file",
        ),
    ],
)
def test_a_profile_that_cannot_be_used_is_a_clear_line(
    files: Path, monkeypatch: pytest.MonkeyPatch, profile: str, config: str, said: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    (files / "credentials").write_text(CREDENTIALS)
    (files / "config").write_text(config)
    with pytest.raises(StoreError) as refused:
        open_store("s3://bench/x")
    assert str(refused.value).startswith(f"store s3://bench/x: {said}")
    assert "SECRET" not in str(refused.value)


def test_without_the_extra_a_profile_names_it(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    open_store("s3://bench/x")
    (files / "config").write_text("[default]\nregion = eu-west-1\n")
    with pytest.raises(
        StoreError,
        match=r"an AWS profile needs boto3; pip install 'perfdag\[aws\]', or set AWS_ACCESS_KEY_ID",
    ):
        open_store("s3://bench/x")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x")
    open_store("s3://bench/x")
