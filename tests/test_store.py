"""The store: durable and whole, on a folder and on S3, with the keys of `aws configure`."""

import errno
import importlib.util
import os
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.store.base import (
    AddressError,
    FolderStore,
    NotStoredError,
    Store,
    StoreError,
)
from perfdag.store.s3 import S3Store, open_store
from tests.fakes.http_server import QuietHandler, serving


def exercise(store: Store) -> None:
    assert store.list("runs") == []
    with pytest.raises(NotStoredError, match=r"no runs/a/plan\.json"):
        store.get("runs/a/plan.json")
    store.put("runs/a/plan.json", b"1")
    store.put("runs/a/plan.json", b"2")
    for number in range(40):
        store.put(f"runs/a/parts/{number:02}.json", str(number).encode())
    store.put("runs/ab/plan.json", b"other")
    assert store.get("runs/a/plan.json") == b"2"
    keys = store.list("runs/a")
    assert keys == sorted(keys)
    assert len(keys) == 41
    assert [data for _, data in store.get_many(keys[:40])] == [
        str(number).encode() for number in range(40)
    ]
    with pytest.raises(NotStoredError):
        list(store.get_many(["runs/a/plan.json", "runs/a/absent"]))
    assert (store.folders("runs"), store.folders("none")) == (["a", "ab"], [])
    store.delete("runs/a")
    store.delete("runs/a")
    assert store.list("runs/a") == []
    assert store.get("runs/ab/plan.json") == b"other", "a neighbour whose name begins alike stays"
    store.delete("runs/ab/plan.json")


def test_folder(tmp_path: Path) -> None:
    exercise(FolderStore(str(tmp_path)))


def test_a_file_is_on_the_disk_before_its_name_and_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []

    def fsync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        flushed.append((path == tmp_path, (tmp_path / "key").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    FolderStore(str(tmp_path)).put("key", b"1")
    assert flushed == [(False, False), (True, True)]


def uses(store: Store, key: str) -> list[Callable[[], object]]:
    """Every way to use a key."""
    return [
        lambda: store.put(key, b"1"),
        lambda: store.get(key),
        lambda: list(store.get_many([key])),
        lambda: store.list(key),
        lambda: store.folders(key),
        lambda: store.delete(key),
    ]


@pytest.mark.parametrize("kind", ["folder", "s3"])
@pytest.mark.parametrize(
    "key",
    [
        "..",
        "../x",
        "/etc/passwd",
        "runs/../../x",
        "runs/./x",
        "runs//x",
        "runs/x/",
        ".hidden",
        "runs/-x",
        "runs/a b",
        "runs/a\n",
        "runs/a\0",
        "runs/ä",
        "runs\\x",
        "runs/%2e%2e/x",
        "x" * 201,
    ],
)
def test_a_text_that_is_no_key_reaches_neither_the_folder_nor_the_bucket(
    key: str, kind: str, tmp_path: Path
) -> None:
    """No request can be made to the S3 server, which is none."""
    (tmp_path / "x").write_text("outside")
    root = tmp_path / "root"
    store: Store = FolderStore(str(root)) if kind == "folder" else S3Store("s3://b/x", 0.0)
    for use in uses(store, key):
        with pytest.raises(NotStoredError, match="is no key; a key is"):
            use()
    assert not root.exists()
    assert (tmp_path / "x").read_text() == "outside"


def test_objects_that_are_no_keys_are_not_listed_but_deleted(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    store.put("runs/a/plan.json", b"1")
    (tmp_path / "runs/a/notes of mine.txt").write_text("x")
    assert store.list("") == ["runs/a/plan.json"]
    store.delete("runs/a")
    assert not (tmp_path / "runs/a").exists()


@pytest.mark.parametrize(
    ("mask", "file", "folder"), [(0o022, 0o640, 0o750), (0, 0o640, 0o750), (0o077, 0o600, 0o700)]
)
def test_results_are_for_owner_and_group_unless_the_umask_says_less(
    mask: int, file: int, folder: int, tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        FolderStore(str(tmp_path / "store")).put("runs/a/parts/x.json", b"1")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"x.json": file} | dict.fromkeys(("store", "runs", "a", "parts"), folder)


def test_a_folder_that_takes_nothing_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "open", Mock(side_effect=full))
    with pytest.raises(StoreError, match=f"store {tmp_path}: No space left on device"):
        FolderStore(str(tmp_path)).put("key", b"")


def test_a_run_that_finds_the_disk_full_leaves_no_run_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(str(tmp_path))
    store.put("runs/a/plan.json", b"1")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    for key in ("runs/a/report.html", "runs/b/plan.json"):
        with pytest.raises(StoreError, match="No space left"):
            store.put(key, b"1")
    assert store.folders("runs") == ["a"]


def test_a_folder_without_rights_is_a_clear_line_and_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(str(tmp_path))
    store.put("runs/a", b"1")
    refused = Mock(side_effect=PermissionError(errno.EACCES, "denied", "/there"))
    for owner, name in ((os, "scandir"), (os, "unlink"), (Path, "read_bytes")):
        monkeypatch.setattr(owner, name, refused)
    for ask in (store.list, store.folders):
        with pytest.raises(StoreError, match="/there: denied"):
            ask("runs")
    with pytest.raises(StoreError, match="runs/a: denied"):
        store.get("runs/a")
    for key in ("runs", "runs/a"):
        with pytest.raises(StoreError, match=f"{key}: denied"):
            store.delete(key)


def test_a_folder_that_somebody_else_deletes_too_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, unlink = FolderStore(str(tmp_path)), os.unlink
    for number in range(3):
        store.put(f"runs/a/parts/{number}.json", b"")

    def late(*where: Any, **options: Any) -> None:
        unlink(*where, **options)
        raise FileNotFoundError

    monkeypatch.setattr(os, "unlink", late)
    store.delete("runs/a")
    assert store.list("runs") == []


@pytest.mark.cluster
def test_s3(s3_root: str) -> None:
    exercise(S3Store(s3_root, 5.0))


@pytest.mark.cluster
def test_s3_with_wrong_keys_or_bucket_says_so(
    s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="answers NoSuchBucket"):
        S3Store("s3://no-such-bucket-here/x", 0.5).put("a", b"")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="check AWS_ACCESS_KEY_ID"):
        S3Store(s3_root, 0.5).put("a", b"")


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a")


@pytest.fixture
def answers(
    s3_keys: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator["Callable[[int, str], list[str]]"]:
    """A server that answers every request alike. Returns the methods that it was asked with."""
    status, body, asked = 200, "", list[str]()

    class Server(QuietHandler):
        def _answer(self) -> None:
            asked.append(self.command)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_GET = do_POST = _answer  # noqa: N815

    def answer(new_status: int, new_body: str) -> list[str]:
        nonlocal status, body
        status, body = new_status, new_body
        return asked

    with serving(Server) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield answer


PORT = "S3 API Request made to Console port. S3 Requests should be sent to API port"
LOGIN = "<html><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (403, "RequestTimeTooSkewed", "The difference is too large", "set the clock"),
        (400, "ExpiredToken", "The provided token has expired", "AWS_SESSION_TOKEN"),
        (400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'", "set AWS_REGION"),
        (301, "", "", "set AWS_REGION"),
        (403, "AccessDenied", "Access Denied", "s3:ListBucket"),
        (403, "InvalidAccessKeyId", "It does not exist", "check AWS_ACCESS_KEY_ID"),
        (403, "QuotaExceeded", "quota", "perfdag prune"),
        (507, "XMinioStorageFull", "Storage is full", "free space"),
        (404, "NoSuchBucket", "The bucket does not exist", "make it"),
        (403, "AccessDenied", PORT, "name the port of S3 in AWS_ENDPOINT_URL"),
        (400, "InvalidRequest", "Missing required header", "check AWS_ENDPOINT_URL"),
        (407, "", LOGIN, "NO_PROXY"),
        (405, "", LOGIN, "no S3 server"),
        (200, "", LOGIN, "no S3 server"),
        (200, "", "", "no S3 server"),
    ],
)
@pytest.mark.parametrize(
    "ask", [lambda store: store.put("a", b"x"), lambda store: store.list("")], ids=["put", "list"]
)
def test_s3_is_quoted_with_what_to_do_and_not_asked_again(
    ask: Callable[[S3Store], object],
    status: int,
    code: str,
    message: str,
    expected: str,
    answers: Callable[[int, str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}.</Message></Error>"
    answers(status, error if code else message)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it is asked again"))
    with pytest.raises(StoreError) as refused:
        ask(S3Store("s3://b/x", 60.0))
    if code:
        assert f"answers {code}: {message}; " in str(refused.value)
    assert expected in str(refused.value)


def test_a_server_that_is_busy_is_asked_again(answers: Callable[[int, str], list[str]]) -> None:
    asked = answers(503, "<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>")
    with pytest.raises(StoreError, match="answers SlowDown: Reduce your rate; wait"):
        S3Store("s3://b/x", 0.3).put("a", b"x")
    assert len(asked) > 1


@pytest.mark.usefixtures("s3_keys")
def test_aws_ca_bundle_is_honoured_and_left_out_of_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca",
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request -subj /CN=localhost",
        "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 "
        "-extfile names",
    )
    Path("names").write_text("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
    for command in commands:
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("cert.pem", "key.pem")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    with serving(OneObject, context) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url.replace("http://127.0.0.1", "https://localhost"))
        with pytest.raises(StoreError, match="name that of its CA in AWS_CA_BUNDLE"):
            S3Store("s3://b/x", 0.0).get("a")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        environment = dict(os.environ)
        store = S3Store("s3://b/x", 0.0)
        assert os.environ == environment
        assert store.get("a") == b"1"
    monkeypatch.setenv("AWS_CA_BUNDLE", "absent.pem")
    with pytest.raises(AddressError, match=r"AWS_CA_BUNDLE: absent\.pem cannot be read"):
        S3Store("s3://b/x", 0.0)


class OneObject(QuietHandler):
    """An S3 server of one object, which keeps the headers of the last request."""

    last: Message

    def do_GET(self) -> None:  # noqa: N802
        OneObject.last = self.headers
        self.send_response(200)
        for name, value in (
            ("Content-Length", "1"),
            ("ETag", '"1"'),
            ("Last-Modified", "Sun, 22 Nov 2026 03:00:00 GMT"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"1")


@pytest.fixture
def url() -> Iterator[str]:
    with serving(OneObject) as url:
        yield url


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(StoreError, match="is a claim of a cluster"):
        open_store("claim://results")
    typos = ("s3:/b/x", "s3:host/bucket", "~/results", "$HOME/results", " results")
    for root in ("gs://bucket", *typos):
        with pytest.raises(StoreError, match="a store is a folder or s3://"):
            open_store(root)
    assert not any(Path.cwd().iterdir()), "no folder of that name appears"
    open_store("./~/results").put("a", b"1")


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """A writer is killed again and again while it replaces one key; each read gives one whole
    version.
    """
    code = (
        "import sys; from perfdag.store.base import FolderStore; s = "
        "FolderStore(sys.argv[1]); n = 0\n"
        "while True:\n    n += 1; s.put('key', str(n % 10).encode() * 200_000)\n"
        "    print(n, flush=True)"
    )
    store = FolderStore(str(tmp_path))
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(50):
            data = store.get("key")
            assert len(data) == 200_000
            assert len(set(data)) == 1
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert store.list("") == ["key"], "temporary files are no keys"


class Flaky:
    """An S3 client whose first requests find nobody."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def _answer(self, answer: object) -> object:
        self.left -= 1
        if self.left >= 0:
            raise OSError("connection refused")
        return answer

    def get(self, bucket: object, key: str) -> object:
        return self._answer(type("Got", (), {"bytes": lambda self: b"x"})())

    def list(self, bucket: object, prefix: str) -> object:
        return self._answer([[{"path": "a"}]])

    def delete(self, bucket: object, keys: object) -> object:
        return self._answer(None)


@pytest.mark.parametrize(
    "ask",
    [lambda store: store.get("a"), lambda store: store.list(""), lambda store: store.delete("a")],
)
def test_every_request_has_the_patience_that_a_put_has(
    ask: Callable[[S3Store], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient, hasty = S3Store("s3://b/x", 5.0), S3Store("s3://b/x", 0.0)
    monkeypatch.setattr(patient, "_api", Flaky(2))
    ask(patient)
    monkeypatch.setattr(hasty, "_api", Flaky(1))
    with pytest.raises(StoreError, match="cannot be reached"):
        ask(hasty)


def test_a_wait_for_s3_is_reported_until_a_request_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    store = S3Store("s3://b/x", 5.0, waits.append)
    monkeypatch.setattr(store, "_api", Flaky(2))
    store.get("a")
    assert waits == [], "a short one is not told"
    monkeypatch.setattr("perfdag.store.s3.REPORT_SECONDS", 0.0)
    monkeypatch.setattr(store, "_api", Flaky(2))
    store.get("a")
    store.get("a")
    assert len(waits) == 3
    assert 0 < waits[0] < waits[1]
    assert waits[2] == 0.0


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


def signed() -> tuple[str, str, str | None]:
    """Return the key id, the region and the session token with which the store signs."""
    assert open_store("s3://bench/x", patience=2.0).get("a") == b"1"
    _, _, rest = OneObject.last["Authorization"].partition("Credential=")
    key, _, region = rest.split("/")[:3]
    return key, region, OneObject.last["x-amz-security-token"]


@needs_boto3
def test_the_default_profile_and_a_named_one_are_read(
    files: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "credentials").write_text(f"{CREDENTIALS}aws_session_token = T\n")
    (files / "config").write_text(
        f"[default]\nregion = eu-west-1\nendpoint_url = {url}\ns3 =\n"
        f"  max_concurrent_requests = 20\n"
        "[profile lab]\nregion = eu-north-1\naws_access_key_id = OLD\n"
    )
    assert signed() == ("STANDARD", "eu-west-1", None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert signed() == ("LAB", "eu-north-1", "T")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert signed() == ("LAB", "us-west-2", "T")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SHELL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    assert signed() == ("SHELL", "us-west-2", None), "keys of the environment go first"


@needs_boto3
@pytest.mark.parametrize(
    ("profile", "config", "message"),
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
    files: Path, monkeypatch: pytest.MonkeyPatch, profile: str, config: str, message: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    (files / "credentials").write_text(CREDENTIALS)
    (files / "config").write_text(config)
    with pytest.raises(StoreError) as error:
        open_store("s3://bench/x")
    assert str(error.value).startswith(f"store s3://bench/x: {message}")
    assert "SECRET" not in str(error.value)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL", "minio:9000"),
        ("AWS_ENDPOINT_URL", ""),
        ("AWS_ENDPOINT_URL", "http://"),
        ("AWS_ENDPOINT_URL", "http://h:99999"),
        ("AWS_ENDPOINT_URL", "http://a b:9"),
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9\n"),
        ("AWS_ACCESS_KEY_ID", "k\n"),
        ("AWS_SESSION_TOKEN", " t"),
        ("AWS_REGION", "us east"),
        ("AWS_SKIP_SIGNATURE", "maybe"),
        ("AWS_CHECKSUM_ALGORITHM", "none"),
    ],
)
@pytest.mark.usefixtures("s3_keys")
def test_a_malformed_setting_is_named_before_native_code_reads_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(AddressError, match="AWS_"):
        S3Store("s3://b/x", 0.0)
