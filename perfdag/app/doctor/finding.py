"""One result of `perfdag doctor`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One check: its state, what was checked, and what to do.

    `warn`: results may be noisy. `missing`: points will be skipped or fail.
    """

    state: Literal["ok", "warn", "missing"]
    what: str
    do: str = ""

    def text(self) -> str:
        """Return the finding as text."""
        return f"{self.state:<8} {self.what}" + (f"\n         -> {self.do}" if self.do else "")
