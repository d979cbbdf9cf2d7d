from perfdag.workflows.compose import (
    RESTRICTED as RESTRICTED,
    benchmark as benchmark,
    measure as measure,
)
from perfdag.workflows.cron import schedule as schedule
from perfdag.workflows.emit import dump as dump

__all__ = ["RESTRICTED", "benchmark", "dump", "measure", "schedule"]
