"""Errors of the program, and the kind and advice of every exception."""

import re

_NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|_STATUS_ALLOC_FAILED|Unable to allocate"
)


class OutOfMemoryError(Exception):
    """A batch is too large; the text names the largest that fits."""


def classify(error: BaseException) -> tuple[str, str]:
    """Return kind and text of an error; see UNUSABLE for kinds that skip."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:400]
    if isinstance(error, OutOfMemoryError | MemoryError) or _NO_MEMORY.search(text):
        return "memory", text
    if isinstance(error, ModuleNotFoundError):
        return (
            "missing",
            f"{text}: pip install 'perfdag[torch]' (with uv: uv pip install),"
            " or name an interpreter that has it with `python`",
        )
    if isinstance(error, UnusableError):
        return error.kind, text
    if type(error).__name__ in ("FailOnRecompileLimitHit", "FailOnCacheLimitHit"):
        return (
            "compiler",
            f"torch.compile gave up compiling and would run eagerly: {text}; lower batch,"
            " or backend: eager",
        )
    if type(error).__name__ in ("InductorError", "InvalidCxxCompiler", "BackendCompilerFailed"):
        return (
            "compiler",
            f"torch.compile failed: {text}; it needs a C++ compiler on a CPU: install g++,"
            " or backend: eager",
        )
    return "other", text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


class UnusableError(Exception):
    """The request is impossible here.

    `kind` is device, weights, memory, compiler or images.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
