"""Thresholds of a suite: what `perfdag check` holds a run against, beside the change-point detector."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Check(BaseModel):
    """One threshold: a metric of an entry against an absolute value or a named baseline."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    entry: str | None = Field(None, description="entry name or glob; unset: every entry that has the metric")
    metric: str
    stat: str = "value"
    op: Literal["<", "<=", ">", ">="]
    value: float | None = Field(None, description="absolute threshold in the metric's base unit")
    ratio: float | None = Field(None, gt=0, description="threshold as a ratio to the baseline's median")
    baseline: str | None = None
