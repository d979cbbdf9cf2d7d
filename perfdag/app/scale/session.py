"""What the commands of `perfdag scale` share: cluster, folder, schedule, lines of output."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perfdag import signals
from perfdag.kube.client import Kube
from perfdag.steps.scale.figures.percentiles import summaries
from perfdag.steps.scale.model.schedule import Arrival, Schedule
from perfdag.steps.scale.runai.settings import Settings, read_settings
from perfdag.units import short

T = TypeVar("T")
Print = Callable[[str], None]


@dataclass(frozen=True)
class Session:
    """Where a command works: a context of the kubeconfig, a folder, and its settings.

    `output` receives results, `log` progress and warnings.
    """

    context: str | None
    folder: Path
    settings: Settings
    output: Print
    log: Print

    def run(self, work: Callable[[Kube], Awaitable[T]], connections: int = 100) -> T:
        """Run the work on the session's cluster. Raises KubeError, KeyboardInterrupt."""
        return on_cluster(self.context, work, connections)


def open_session(
    context: str | None, folder: Path | None, settings_file: Path | None, output: Print, log: Print
) -> Session:
    """Read the settings, which name the folder if `folder` is None. Raises SettingsError."""
    settings = read_settings(settings_file)
    return Session(context, folder or Path(settings.output_dir), settings, output, log)


def on_cluster(
    context: str | None, work: Callable[[Kube], Awaitable[T]], connections: int = 100
) -> T:
    """Run the work on the cluster of a context. Raises KubeError, KeyboardInterrupt."""

    async def main() -> T:
        async with Kube(context=context, connections=connections) as kube:
            return await work(kube)

    return signals.run_until_stopped(main())


def schedule_of(
    pattern: Arrival | None, rate: float, burst: int | None, seed: int, parallel: int, delay: float
) -> Schedule:
    """Return how objects arrive: a pattern, its rate per second, the size of a burst, a seed.

    `delay` (s) makes batches of `parallel` objects. Raises ValueError for values that clash.
    """
    name = pattern or ("batch" if delay > 0 else "constant" if rate else "closed")
    if pattern and delay > 0:
        raise ValueError("--delay makes batches of -p; use --rate with --arrival")
    if burst is not None and name != "burst":
        raise ValueError(f"--burst needs --arrival burst, not {name}")
    if seed and name != "poisson":
        raise ValueError(f"--seed needs --arrival poisson, not {name}")
    return Schedule(name, rate, burst or parallel, delay, seed)


def parse_variables(options: list[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts. Raises ValueError for another form."""
    pairs = [text.partition("=") for text in options]
    if any(not name or not middle for name, middle, _ in pairs):
        raise ValueError("--var is NAME=VALUE")
    return {name: value for name, _, value in pairs}


def print_schedule(session: Session, batch: dict[str, Any]) -> None:
    """Print whether an open loop kept its schedule."""
    if batch["held"] is None:
        return
    parts = [] if batch["rate_share"] is None else [f"{batch['rate_share']:.0%} of its rate"]
    parts += [] if batch["lag_p99_s"] is None else [f"lag p99 {batch['lag_p99_s']:.3f} s"]
    parts += [f"{batch['not_sent']} of {batch['planned']} never sent"] if batch["not_sent"] else []
    if batch["held"]:
        session.output(f"the schedule was held: {', '.join(parts)}")
    else:
        session.log(f"the schedule was not held: {', '.join(parts)}")


def print_stages(session: Session, rows: list[Any]) -> None:
    """Print a line for each stage: its counts, percentiles and resolution."""
    numbers = f"{'ok':>6}{'never':>7}{'unseen':>8}{'median':>12}{'p95':>12}{'p99':>12}"
    session.output(f"{'stage':<24}{'since':<20}{numbers}   +-")
    for summary in summaries(rows):
        values = (summary.p50, summary.p95, summary.p99)
        times = "".join(f"{short(value, 's'):>12}" for value in values)
        never = summary.censored + summary.failed
        error = short(summary.resolution_s, "s") if summary.resolution_s is not None else "-"
        counts = f"{summary.ok:>6}{never:>7}{summary.unobserved:>8}"
        session.output(f"{summary.stage:<24}{summary.since:<20}{counts}{times}   {error}")
    if any(row.simulated for row in rows):
        session.output("simulated nodes: these are figures of the control plane alone")
