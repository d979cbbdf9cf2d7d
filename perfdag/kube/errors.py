"""The error of the Kubernetes client."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class KubeError(Exception):
    """An error of the cluster or of the connection, in one line that says what to do.

    `status` is the HTTP status, or 0 without an answer. `reason` is the API server's word
    (NotFound, Forbidden, AlreadyExists ...), `Config` or `Unreachable`. `details` is the server's
    Status object if there is one.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        hint: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.status, self.reason, self.message, self.hint = status, reason, message, hint
        self.details = dict(details or {})
        super().__init__(f"{message}; {hint}" if hint else message)


@contextmanager
def ignore_status(*statuses: int) -> Iterator[None]:
    """Suppress a KubeError with one of these HTTP statuses, as contextlib.suppress does."""
    try:
        yield
    except KubeError as error:
        if error.status not in statuses:
            raise


def config_error(message: str, hint: str = "") -> KubeError:
    """Return the error for a kubeconfig that cannot be used."""
    return KubeError(0, "Config", message, hint)
