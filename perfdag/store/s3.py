"""A store in an S3 bucket, and the store at any address."""

import contextlib
import mimetypes
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from perfdag.store.base import (
    DEFAULT_ROOT,
    AddressError,
    FolderStore,
    NotStoredError,
    Store,
    StoreError,
    check_address,
    check_key,
    is_key,
)

WAITING = "waiting for the store"


def print_wait(seconds: float) -> None:
    """Print for how long the store has not answered; after 0 s it answers again."""
    line = f"{WAITING}: no answer for {seconds:.0f} s" if seconds else "the store answers again"
    print(line, flush=True)  # noqa: T201


T = TypeVar("T")

NO_KEY = ".perfdag-absent"
"""A name that is no key, so that no store has it."""
READ_AT_ONCE = 16

KEYS_A_TASK = 8

REPORT_SECONDS = 4.0
"""Seconds between two reports of a wait, and until the first one."""


class S3Store:
    """A bucket with an optional prefix.

    Endpoint, keys, region and role come from the environment (AWS_ENDPOINT_URL ...), then from a
    profile in ~/.aws. An object is written by one PUT. While requests fail, `on_wait` receives the
    seconds since the first of them, every few seconds; then 0 once a request is answered.
    """

    def __init__(
        self, root: str, patience: float, on_wait: Callable[[float], None] | None = None
    ) -> None:
        self.root = root.rstrip("/")
        self.patience = patience
        self._on_wait = on_wait
        self._away = self._next = 0.0
        self._reached = self._checked = False
        bucket, _, prefix = self.root.removeprefix("s3://").partition("/")
        try:
            import obstore
            from obstore.store import S3Store as Bucket
        except ModuleNotFoundError:
            raise StoreError(
                f"store {root}: obstore is not installed; pip install 'perfdag[s3]'"
            ) from None
        self._api = obstore
        config = _profile(root)
        configured = config.pop("endpoint_url", None)
        variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        self.endpoint = next(filter(None, (*map(os.environ.get, variables), configured)), None)
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        config["region"] = region or config.get("region") or "us-east-1"
        if self.endpoint:
            config |= {"endpoint": self.endpoint, "virtual_hosted_style_request": False}
        _check_settings(root, {"endpoint_url": self.endpoint, "region": config["region"]})
        options: Any = {
            "client_options": {"allow_http": True, "connect_timeout": "5s", "timeout": "60s"},
            "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=20)},
            **config,
        }
        try:
            with _ca_bundle():
                self._bucket = Bucket(bucket, prefix=prefix or None, **options)
        except Exception as error:  # obstore has no common class, and prints its source
            cause = re.search(r'source: \w+ \{(.*?)\}|"(.*?)"', str(error), re.S)
            text = cause[0] if cause else str(error).partition("\n")[0]
            raise AddressError(f"store {root}: a setting AWS_*: {' '.join(text.split())}") from None

    def _error(self, error: Exception) -> StoreError:
        return StoreError(f"store {self.root}: {_s3_reason(error)}")

    def _patiently(self, request: Callable[[], T]) -> T:
        """Return the result of a request, with retries. Raises FileNotFoundError, StoreError."""
        deadline = time.monotonic() + self.patience
        pause = 0.2
        while True:
            began = time.monotonic()
            try:
                result = request()
            except FileNotFoundError:
                self._answered()
                raise
            except Exception as error:
                # who has keys for some requests gets more of them; a pod without any never does
                keyless = not self._reached and _s3_reason(error) == NO_CREDENTIALS
                if keyless or _permanent(error):
                    raise self._error(error) from error
                self._wait(began)
                if time.monotonic() + pause > deadline:
                    raise self._error(error) from error
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            except BaseException as error:
                if type(error).__name__ == "PanicException":  # of obstore; it is no Exception
                    raise AddressError(f"store {self.root}: a setting AWS_*: {error}") from None
                raise
            else:
                self._answered()
                return result

    def _check_server(self) -> None:
        """Raise StoreError if what answers is no S3 server: a page reads like an empty listing.

        It has a key that nobody wrote. Asked once, where nothing is listed.
        """
        if self._checked:
            return
        try:
            self._api.get(self._bucket, NO_KEY)
        except Exception:  # of obstore, which has no common class: any error is right here
            self._checked = True
        else:
            raise StoreError(f"store {self.root}: {NO_S3}")

    def _wait(self, began: float) -> None:
        """Report a request that failed, unless another thread just did; `began` is monotonic."""
        now = time.monotonic()
        self._away = self._away or began
        if self._on_wait and now >= max(self._next, self._away + REPORT_SECONDS):
            self._next = now + REPORT_SECONDS
            self._on_wait(now - self._away)

    def _answered(self) -> None:
        """Note that the server answers, and report the end of a wait that was reported."""
        self._reached = True
        reported = self._next
        self._away = self._next = 0.0
        if self._on_wait and reported:
            self._on_wait(0.0)

    def put(self, key: str, data: bytes) -> None:
        check_key(self.root, key)
        # Static hosting hands the type on, and a browser shows a page only by its type.
        kind = mimetypes.guess_type(key)[0] or "application/octet-stream"
        try:
            self._patiently(
                lambda: self._api.put(self._bucket, key, data, attributes={"Content-Type": kind})
            )
        except FileNotFoundError as error:
            raise self._error(error) from error

    def get(self, key: str) -> bytes:
        check_key(self.root, key)
        try:
            return self._patiently(lambda: bytes(self._api.get(self._bucket, key).bytes()))
        except FileNotFoundError:
            raise NotStoredError(f"store {self.root}: no {key}") from None

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        # A task reads several keys, as handing over a task costs about as much as a request, and
        # what is read ahead is bounded.
        tasks = [keys[at : at + KEYS_A_TASK] for at in range(0, len(keys), KEYS_A_TASK)]
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            for at in range(0, len(tasks), 4 * READ_AT_ONCE):
                for batch in pool.map(self._get_batch, tasks[at : at + 4 * READ_AT_ONCE]):
                    yield from batch

    def _get_batch(self, keys: Sequence[str]) -> list[tuple[str, bytes]]:
        return [(key, self.get(key)) for key in keys]

    def _paths(self, prefix: str) -> list[str]:
        """Return the paths of all objects below a prefix, those that are no keys too."""
        if prefix:
            check_key(self.root, prefix)
        try:
            pages = self._patiently(lambda: list(self._api.list(self._bucket, prefix)))
        except FileNotFoundError:
            pages = []
        paths = [entry["path"] for entry in chain.from_iterable(pages)]
        if not paths:
            self._check_server()
        return paths

    def folders(self, prefix: str) -> list[str]:
        check_key(self.root, prefix)
        try:
            listed = self._patiently(lambda: self._api.list_with_delimiter(self._bucket, prefix))
        except FileNotFoundError:
            listed = {"common_prefixes": []}
        if not listed["common_prefixes"]:
            self._check_server()
        names = (path.rpartition("/")[2] for path in listed["common_prefixes"])
        return sorted(name for name in names if is_key(name))

    def list(self, prefix: str) -> list[str]:
        return sorted(path for path in self._paths(prefix) if is_key(path))

    def delete(self, prefix: str) -> None:
        # S3 has no folders, so delete the key itself and all objects below it.
        check_key(self.root, prefix)
        keys = [*self._paths(prefix), prefix]
        with contextlib.suppress(FileNotFoundError):
            self._patiently(lambda: self._api.delete(self._bucket, keys))

    def url(self, key: str) -> str:
        return f"{self.root}/{key}"


_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|\d{1,4})"
_ENDPOINT = rf"https?://([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\])(:{_PORT})?(/[!-~]*)?"


def _check_settings(root: str, used: Mapping[str, str | None]) -> None:
    """Raise AddressError for a setting that would end in a panic of native code.

    `used` are the endpoint and the region, of the environment or of a profile. The value is not in
    the message, as it may be a key.
    """
    for name, value in os.environ.items():
        if name.startswith("AWS_") and not (value.isprintable() and value == value.strip()):
            raise AddressError(f"store {root}: {name} has a line break or a space at an end")
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle and not os.access(bundle, os.R_OK):
        raise AddressError(f"store {root}: AWS_CA_BUNDLE: {bundle} cannot be read")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if os.environ.get(name) == "":
            raise AddressError(f"store {root}: {name} is empty; unset it, or write https://HOST")
    for key, form, example in (
        ("endpoint_url", _ENDPOINT, "https://HOST:PORT"),
        ("region", r"[A-Za-z0-9-]+", "eu-west-1"),
    ):
        chosen = used[key]
        if chosen is not None and not re.fullmatch(form, chosen):
            raise AddressError(
                f"store {root}: AWS_{key.upper()} or the profile: {chosen[:200]!r}; write {example}"
            )


def _profile(root: str) -> dict[str, Any]:
    """Return the credentials, region and endpoint of the AWS profile AWS_PROFILE, or `default`.

    Return nothing if the environment has keys, or if no profile is configured. Raises StoreError.
    """
    keys = {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"}
    name = os.environ.get("AWS_PROFILE")
    files = (
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    if keys & os.environ.keys() or not (
        name or any(Path(file).expanduser().exists() for file in files)
    ):
        return {}
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError:
        raise StoreError(
            f"store {root}: an AWS profile needs boto3; pip install 'perfdag[aws]', "
            "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        session = Session(profile=name)
        settings = session.get_scoped_config()
        config: dict[str, Any] = {
            key: settings[key] for key in ("region", "endpoint_url") if key in settings
        }
        if session.get_credentials() is not None:
            config["credential_provider"] = Boto3CredentialProvider(session)
    except BotoCoreError as error:
        raise StoreError(f"store {root}: AWS profile {name or 'default'}: {error}") from None
    return config


CHECK_KEYS = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the rights on the bucket"
RENEW_KEYS = "get new keys, and set AWS_SESSION_TOKEN with them"
SET_REGION = "set AWS_REGION to the region of the bucket"
MAKE_SPACE = "raise the quota or free space, as by perfdag prune"
ADVICE = {
    "RequestTimeTooSkewed": "set the clock of this machine",
    "RequestExpired": "set the clock of this machine",
    "ExpiredToken": RENEW_KEYS,
    "ExpiredTokenException": RENEW_KEYS,
    "InvalidToken": RENEW_KEYS,
    "TokenRefreshRequired": RENEW_KEYS,
    "PermanentRedirect": SET_REGION,
    "AuthorizationHeaderMalformed": SET_REGION,
    "IllegalLocationConstraintException": SET_REGION,
    "QuotaExceeded": MAKE_SPACE,
    "XMinioAdminBucketQuotaExceeded": MAKE_SPACE,
    "XMinioStorageFull": MAKE_SPACE,
    "AccessDenied": "the keys need s3:ListBucket, GetObject, PutObject and DeleteObject there",
    "InvalidAccessKeyId": CHECK_KEYS,
    "SignatureDoesNotMatch": CHECK_KEYS,
    "NoSuchBucket": "make it, or check the name and AWS_ENDPOINT_URL",
    "403": CHECK_KEYS,
    "407": "write the proxy as http://USER:PASSWORD@HOST, or name the server in NO_PROXY",
}
"""What to do about a code of S3, or a status without one, that no retry changes."""
AGAIN = ("RequestTimeout", "OperationAborted", "TooManyRequests", "ThrottlingException")
"""Codes beside a status below 500 that a retry may change."""
NO_S3 = (
    "what answers is no S3 server, but perhaps a proxy or a login page; "
    "check AWS_ENDPOINT_URL and HTTPS_PROXY"
)
NO_CREDENTIALS = (
    "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
    "or run `aws configure`; pods have those of the Secret that install --store-secret names"
)
UNREACHABLE = (
    "cannot be reached; check AWS_ENDPOINT_URL and the network, then run again with --resume"
)
UNTRUSTED = "the certificate of the server is not trusted; name that of its CA in AWS_CA_BUNDLE"
_REASONS = {
    "redirect without LOCATION": f"the bucket is in another region; {SET_REGION}",
    "ETag Header missing": NO_S3,
    "invalid list response": NO_S3,
    "InvalidCertificate": UNTRUSTED,
}
"""Reasons that no retry changes, by a text of obstore."""


def _answer(error: Exception) -> tuple[int, str, str]:
    """Return the status of an answer, or 0 without one, the code of S3 in it, and both in words."""
    text = str(error)
    status = re.search(r"status code: (\d+)", text)
    code = re.search("<Code>([A-Za-z]+)</Code>", text)
    message = re.search("<Message>(.*?)</Message>", text, re.S)
    texts = [match[1] for match in (code or status, message) if match]
    quoted = "".join(c if c.isprintable() else " " for c in ": ".join(texts)[:250])
    answer = f"the server answers {quoted.strip(' .')}"
    return int(status[1]) if status else 0, code[1] if code else "", answer


def _lacks_credentials(error: Exception) -> bool:
    """Return whether it was not S3 that answered, but the place where a cloud gives out keys."""
    text = str(error)
    return "<Code>" not in text and ("169.254." in text or "credential" in text.lower())


def _permanent(error: Exception) -> str:
    """Return the reason of an error that no retry changes, or an empty text."""
    if _lacks_credentials(error):  # such a place may be away for a moment
        return ""
    status, code, answer = _answer(error)
    if "API port" in answer:  # MinIO's console says so, with the code AccessDenied
        return f"{answer}; name the port of S3 in AWS_ENDPOINT_URL"
    if advice := ADVICE.get(code or str(status)):
        return f"{answer}; {advice}"
    if code not in AGAIN and 300 <= status < 500 and not isinstance(error, FileNotFoundError):
        return f"{answer}; check AWS_ENDPOINT_URL" if code else f"{answer}: {NO_S3}"
    return next((reason for part, reason in _REASONS.items() if part in str(error)), "")


def _s3_reason(error: Exception) -> str:
    if _lacks_credentials(error):
        return NO_CREDENTIALS
    if reason := _permanent(error):
        return reason
    if isinstance(error, FileNotFoundError):
        return f"no such bucket; {ADVICE['NoSuchBucket']}"
    status, _, answer = _answer(error)
    return f"{answer}; wait, then run again with --resume" if status else UNREACHABLE


@contextlib.contextmanager
def _ca_bundle() -> Iterator[None]:
    """Let obstore trust the certificates of AWS_CA_BUNDLE, as other tools of S3 do.

    It reads SSL_CERT_FILE where a client is made. Programs that are measured do not get it.
    """
    before = os.environ.get("SSL_CERT_FILE")
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        os.environ["SSL_CERT_FILE"] = bundle
    try:
        yield
    finally:
        os.environ.pop("SSL_CERT_FILE", None)
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


def open_store(
    root: str | None, patience: float = 10.0, on_wait: Callable[[float], None] | None = None
) -> Store:
    """Return the store in a folder or at an s3:// address.

    A failing request to S3 is retried for `patience` seconds; `on_wait` is as in S3Store. Raises
    StoreError.
    """
    root = check_address(root or DEFAULT_ROOT)
    if root.startswith("claim://"):
        raise AddressError(
            f"{root} is a claim of a cluster; here use a folder or s3://, "
            "or run the command in a pod that mounts it"
        )
    if root.startswith("s3://"):
        return S3Store(root, patience, on_wait)
    return FolderStore(root)
