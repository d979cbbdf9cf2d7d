"""What the step rule promises, measured on made-up series beside the rule that it replaced.

    python benchmarks/detector.py                       # all of it: 2,000 series, half an hour
    python benchmarks/detector.py --series 100          # quick
    python benchmarks/detector.py --others --real FILE  # beside Otava and ruptures, if installed

Every night adds a run, and two re-measurements of the same night where it is suspicious, as
`perfdag run` and a scheduled run do. Seeds are fixed, so a figure is the same each time. FILE is a
CSV of time, series, value with the positions of CHANGES. Exit 1 where a target is missed.
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from perfdag.analysis.verdict import compare_sides
from perfdag.stats.levels import Level, Levels
from perfdag.stats.robust import spread
from perfdag.stats.scale import Nights
from tests.stats.synthetic import levels_of, noise_of

Array = np.ndarray
Random = np.random.Generator
Model = Callable[[Random, int], Array]
"""Draws the logarithms of three measurements of each of n nights: an array of (3, n)."""
AGAIN = 3
GATE = math.log1p(0.05)


def independent(draw: Callable[[Random, int], Array]) -> Model:
    """Measurements of one night share nothing."""
    return lambda r, n: np.stack([draw(r, n) for _ in range(AGAIN)])


def shared(draw: Callable[[Random, int], Array], within: float) -> Model:
    """Measurements of one night share all that `draw` gives, and differ by `within` beside it."""
    return lambda r, n: draw(r, n) + r.normal(0, within, (AGAIN, n))


def normal(cv: float) -> Callable[[Random, int], Array]:
    return lambda r, n: r.normal(0, cv, n)


def spikes(r: Random, n: int) -> Array:
    """2 % noise, and one measurement in twenty is slower by 15 % on average."""
    return r.normal(0, 0.02, n) + (r.random(n) < 0.05) * r.exponential(0.15, n)


def correlated(phi: float, cv: float) -> Callable[[Random, int], Array]:
    """An autoregressive process of first order."""

    def draw(r: Random, n: int) -> Array:
        steps, x = r.normal(0, cv * np.sqrt(1 - phi**2), n), np.zeros(n)
        x[0] = r.normal(0, cv)
        for i in range(1, n):
            x[i] = phi * x[i - 1] + steps[i]
        return x

    return draw


def two_peaks(distance: float) -> Callable[[Random, int], Array]:
    return lambda r, n: r.normal(0, 0.01, n) + distance * (r.random(n) < 0.5)


def heavy(r: Random, n: int) -> Array:
    """Student's t with two degrees of freedom."""
    return 0.02 * r.standard_t(2, n)


def pinned(share: float) -> Callable[[Random, int], Array]:
    """Most measurements are equal, as of a histogram; a share is slower by 5.5 to 12 %."""
    return lambda r, n: np.log1p((r.random(n) < share) * r.uniform(0.055, 0.12, n))


def sticky(r: Random, n: int) -> Array:
    """Two modes, 4 % apart, each for ten nights on average."""
    return 0.04 * (np.cumsum(r.random(n) < 0.1) % 2) + r.normal(0, 0.01, n)


def season(r: Random, n: int) -> Array:
    """A wave of 2 % up and down over 90 nights, at 2 % noise."""
    return 0.02 * np.sin(2 * np.pi * (np.arange(n) / 90 + r.random())) + r.normal(0, 0.02, n)


def ticks(r: Random, n: int) -> Array:
    """A clock with ticks of 4 % of the value, at 2 % noise."""
    return np.log(np.round(np.exp(r.normal(0, 0.02, n)) / 0.04) * 0.04)


INDEPENDENT: dict[str, Model] = {
    "noise 1 %": independent(normal(0.01)),
    "noise 2 %": independent(normal(0.02)),
    "noise 5 %": independent(normal(0.05)),
    "noise 10 %": independent(normal(0.10)),
    "noise 20 %": independent(normal(0.20)),
    "spikes": independent(spikes),
    "correlated 0.5": independent(correlated(0.5, 0.05)),
    "two peaks, 4 % apart": independent(two_peaks(0.04)),
    "two peaks, 8 % apart": independent(two_peaks(0.08)),
    "heavy tails": independent(heavy),
    "pinned, 10 % slower": independent(pinned(0.1)),
    "pinned, 20 % slower": independent(pinned(0.2)),
    "pinned, 30 % slower": independent(pinned(0.3)),
    "ticks of 4 %": independent(ticks),
}
SHARED: dict[str, Model] = {
    "night effect 2 %": shared(normal(0.02), 0.004),
    "night effect 5 %": shared(normal(0.05), 0.01),
    "night effect 10 %": shared(normal(0.10), 0.02),
    "nights correlated 0.5": shared(correlated(0.5, 0.05), 0.01),
    "nights correlated 0.7": shared(correlated(0.7, 0.05), 0.01),
    "sticky modes": shared(sticky, 0.004),
    "season": shared(season, 0.004),
}
ALLOWED = {"night effect 10 %": 0.17, "nights correlated 0.5": 0.30, "nights correlated 0.7": 0.70}
"""False steps in % that the first form of this rule had; 0.05 where nothing is said."""
UNJUDGED = ("sticky modes", "season")
"""Nights of these really differ, so what is found there is printed and not judged."""


@dataclass
class Former:
    """The rule before: three measurements in a row on one side, each 2.9 errors beyond the level.

    Every measurement counts, those of one night too. A step begins at the first of the three.
    """

    window: list[float] = field(default_factory=list)
    base: float = 0.0
    width: float = 0.0
    beyond: list[tuple[int, float]] = field(default_factory=list)

    def side(self, x: float) -> int:
        return int(np.sign(x - self.base)) if abs(x - self.base) > self.width else 0

    def take(self, x: float) -> None:
        if len(self.window) < 30:
            self.window.append(x)
            self.base = float(np.median(self.window))
            noise = noise_of(np.array(self.window) - self.base, GATE)
            self.width = max(GATE, 2.9 * noise * math.sqrt(1 + 1 / len(self.window)))

    def add(self, night: int, x: float) -> int | None:
        """Add a measurement; return the night at which a new level began, if it shows one."""
        if len(self.window) < 3:
            self.take(x)
            return None
        if self.beyond and self.side(x) != self.side(self.beyond[-1][1]):
            for _, earlier in self.beyond:
                self.take(earlier)
            self.beyond = []
        if not self.side(x):
            self.take(x)
            return None
        self.beyond.append((night, x))
        if len(self.beyond) < 3:
            return None
        start, values = self.beyond[0][0], [value for _, value in self.beyond]
        self.window, self.beyond = [], []
        for value in values:
            self.take(value)
        return start


@dataclass(frozen=True)
class Step:
    """A step that begins at night `start`, was decided at `decided`, and may have begun between."""

    start: int
    decided: int
    first: int
    last: int


Rule = Callable[[Array, bool], list[Step]]
"""The steps that a rule finds in the measurements (3, nights), with re-measurements or without."""


def former(x: Array, again: bool = True) -> list[Step]:
    """Return the steps of the rule before."""
    rule, steps = Former(), []
    for night in range(x.shape[1]):
        for k in range(AGAIN if again else 1):
            start = rule.add(night, float(x[k, night]))
            if start is not None:
                steps.append(Step(start, night, start, start))
                break
            if not rule.beyond:
                break
    return steps


def current(x: Array, again: bool = True) -> list[Step]:
    """Return the steps of perfdag's rule.

    All nights are judged at once; from the first suspicious one on, again with what it measured.
    """
    value, least, most = (np.exp(x[0]) for _ in range(3))
    nights = Nights(np.arange(x.shape[1]), value, least, most, np.ones(x.shape[1], np.int64))
    measured = -1
    while True:
        found = levels_of(nights)
        suspicious = [night for night in found.suspicious if night > measured]
        if not again or not suspicious:
            return [_step(level) for level in found.levels[1:]]
        measured = suspicious[0]
        values = np.exp(x[:, measured])
        nights.value[measured] = np.exp(x[:, measured].mean())
        nights.least[measured], nights.most[measured] = values.min(), values.max()
        nights.count[measured] = AGAIN


def _step(level: Level) -> Step:
    return Step(level.start, level.decided, -1 if level.earlier else level.first, level.last)


RULES: dict[str, Rule] = {"before": former, "now": current}


def false_steps(model: Model, rule: Rule, series: int, nights: int = 120, seed: int = 1) -> int:
    """Return the steps in so many series where nothing changes."""
    r = np.random.default_rng(seed)
    return sum(len(rule(model(r, nights), True)) for _ in range(series))


def interval(events: int, trials: int) -> str:
    """Return a share in %, with the 95 % interval of rare events (by Wilson and Hilferty)."""

    def bound(count: int, z: float) -> float:
        return count * (1 - 1 / (9 * count) + z / (3 * math.sqrt(count))) ** 3 if count else 0.0

    low, high = bound(events, -1.96), bound(events + 1, 1.96)
    return f"{100 * events / trials:.3f} ({100 * low / trials:.3f} to {100 * high / trials:.3f})"


@dataclass
class Found:
    """How fast steps at night `at` were found, and how well dated."""

    at: int
    steps: list[Step | None] = field(default_factory=list)

    def by(self, nights: int) -> float:
        """Share that was found within so many nights, the night of the step included."""
        return float(
            np.mean([step is not None and step.decided < self.at + nights for step in self.steps])
        )

    def dated(self, within: int) -> float:
        """Share of those found that are dated within so many nights."""
        return float(np.mean([abs(step.start - self.at) <= within for step in self.steps if step]))

    def covered(self) -> float:
        """Share of those found whose interval has the true night."""
        return float(np.mean([step.first <= self.at <= step.last for step in self.steps if step]))

    @property
    def text(self) -> str:
        by = ", ".join(f"{100 * self.by(nights):3.0f}" for nights in (1, 3, 5, 10, 30))
        if not any(self.steps):
            return f"{by}"
        late = f"{100 * (1 - self.dated(2)):3.0f} % dated 3 or more off"
        return f"{by}; {late}; interval has it {100 * self.covered():3.0f} %"


def find(
    rule: Rule,
    model: Model,
    step: Callable[[Array], Array],
    series: int,
    past: int = 60,
    after: int = 40,
    again: bool = True,
    seed: int = 2,
) -> Found:
    """Return what is found of steps after `past` nights; `step` gives the logs of the change."""
    r, found = np.random.default_rng(seed), Found(past)
    change = np.concatenate([np.zeros(past), step(np.arange(after))])
    for _ in range(series):
        steps = rule(model(r, past + after) + change, again)
        found.steps.append(next((each for each in steps if each.decided >= past), None))
    return found


def constant(factor: float) -> Callable[[Array], Array]:
    return lambda nights: np.full(len(nights), math.log(factor))


STEPS = (
    (1.06, 0.01),
    (1.08, 0.02),
    (1 / 1.08, 0.02),
    (1.2, 0.05),
    (1.3, 0.05),
    (1.5, 0.10),
    (1.05, 0.01),
    (1.055, 0.01),
    (1.06, 0.02),
)
"""Factors and noises of steps at night 60."""
LEAST_FOUND: dict[tuple[float, float], tuple[int, ...]] = {
    (1.06, 0.01): (0, 17, 88, 98, 100),
    (1.08, 0.02): (2, 20, 80, 100, 100),
    (1 / 1.08, 0.02): (0, 20, 87, 100, 100),
    (1.2, 0.05): (25, 65, 93, 100, 100),
    (1.3, 0.05): (87, 100, 100, 100, 100),
    (1.5, 0.10): (52, 80, 98, 100, 100),
}
"""What the first form of the rule found in 60 series within 1, 3, 5, 10 and 30 nights, in %."""
MIXTURES: dict[str, Callable[[Array], Array]] = {
    "two of three nights +30 %": lambda i: math.log(1.3) * (i % 3 != 2),
    "every second night +30 %": lambda i: math.log(1.3) * (i % 2 == 0),
    "6 of 10 nights +30 %": lambda i: math.log(1.3) * np.isin(i % 10, (0, 2, 3, 5, 6, 9)),
    "3 of 10 nights +30 %": lambda i: math.log(1.3) * np.isin(i % 10, (0, 4, 8)),
}


def drift_found_at(rate: float, cv: float, rule: Rule, series: int, seed: int = 4) -> Array:
    """Return the share by which each drifting series had moved when its first step was found."""
    r, moved = np.random.default_rng(seed), []
    for _ in range(series):
        x = independent(normal(cv))(r, 400) + np.arange(400) * math.log1p(rate)
        steps = rule(x, True)
        moved.append((1 + rate) ** (steps[0].decided if steps else 400) - 1)
    return np.array(moved)


def wrong_pairs(model: Model, pairs: int, seed: int = 3) -> float:
    """Return the share of equal pairs of runs of three samples that are called different."""
    r, wrong = np.random.default_rng(seed), 0
    for _ in range(pairs):
        a, b = np.exp(model(r, 2)[0])
        left, right = (spread(each * np.exp(r.normal(0, 0.002, 3))) for each in (a, b))
        wrong += compare_sides(left, right, Levels(), "lower").kind in ("worse", "better")
    return wrong / pairs


CHANGES: dict[str, tuple[int, ...]] = {
    "symfony": (437, 451, 457),
    "laravel": (290, 457),
    "wordpress": (436, 457),
    "bench.php": (306,),
}
"""Changes of the nightly figures of PHP at one fixed commit, by position: machine, application."""


def rules_of_others() -> dict[str, Callable[[Array], list[int]]]:
    """Return the change points that other tools find in a series, where they are installed."""
    rules: dict[str, Callable[[Array], list[int]]] = {}
    try:
        from otava.analysis import compute_change_points  # type: ignore[import-not-found]
    except ImportError:
        print("apache-otava is not installed")
    else:
        rules["Otava"] = lambda x: [
            int(point.index)
            for point in compute_change_points(np.exp(x).tolist(), 50, 0.001, 0.05)[0]
        ]
    try:
        import ruptures  # type: ignore[import-not-found]
    except ImportError:
        print("ruptures is not installed")
    else:

        def pelt(x: Array) -> list[int]:
            noise = noise_of(np.diff(x)) / math.sqrt(2)
            found = ruptures.Pelt(model="l2", min_size=3, jump=1).fit(x)
            return [int(end) for end in found.predict(pen=4 * math.log(len(x)) * noise**2)[:-1]]

        rules["ruptures"] = pelt
    rules["perfdag before"] = lambda x: [step.start for step in former(x[None], False)]
    rules["perfdag now"] = lambda x: [step.start for step in current(x[None], False)]
    return rules


def score(found: Sequence[Sequence[int]], true: Sequence[Sequence[int]]) -> str:
    """Return recall, precision and the mean distance of the date of change points of series."""
    pairs = list(zip(found, true, strict=True))
    distances = [min((abs(f - t) for f in fs), default=999) for fs, ts in pairs for t in ts]
    near = [distance for distance in distances if distance <= 5]
    right = sum(any(abs(f - t) <= 5 for t in ts) for fs, ts in pairs for f in fs)
    total = sum(map(len, found))
    return (
        f"recall {len(near) / max(len(distances), 1):4.2f}   precision {right / max(total, 1):4.2f}"
        f" of {total:3}   date off by {np.mean(near) if near else math.nan:4.2f} nights"
    )


def beside_others(real: str | None, series: int) -> None:
    """Print recall, precision, delay and distance of the date of each tool, one value a night."""
    rules = rules_of_others()
    if real:
        columns: dict[str, list[float]] = {name: [] for name in CHANGES}
        with Path(real).open() as file:
            for row in csv.DictReader(file):
                columns[row["series"]].append(float(row["value"]))
        print("\nnightly figures of PHP, what cannot be measured (0 s) left out")
        for name, rule in rules.items():
            found = []
            for values in columns.values():
                at = np.flatnonzero(np.array(values) > 0)
                found.append([int(at[i]) for i in rule(np.log(np.array(values)[at]))])
            print(f"{name:16}{score(found, list(CHANGES.values()))}")
    for step, cv in ((1.08, 0.02), (1.2, 0.05)):
        print(f"\n{100 * (step - 1):+.0f} % at {100 * cv:.0f} % noise at night 60 of 100")
        draws = [normal(cv)(np.random.default_rng((5, i)), 100) for i in range(series)]
        xs = [draw + math.log(step) * (np.arange(100) >= 60) for draw in draws]
        for name, rule in rules.items():
            delays = []
            for x in xs:
                ends = (end for end in range(61, 101) if any(i >= 58 for i in rule(x[:end])))
                delays.append(next(ends, 101) - 60)
            scores = score([rule(x) for x in xs], [(60,)] * series)
            print(f"{name:16}{scores}   after {np.median(delays):.0f} nights")


@dataclass
class Report:
    """What is printed: `series` of a figure of false steps, and the lines that miss a target."""

    series: int
    missed: list[str] = field(default_factory=list)

    @property
    def few(self) -> int:
        """Series of each figure of what is found."""
        return max(self.series // 10, 20)

    def judge(self, line: str, good: bool = True) -> None:
        """Print a line, and remember it where it misses a target."""
        print(line if good else f"{line}  MISSED", flush=True)
        if not good:
            self.missed.append(line)

    def finds(self, title: str, good: Callable[[Found], bool] | None = None, **case: Any) -> None:
        """Print what both rules find in a case."""
        for name, rule in RULES.items():
            found = find(rule, series=self.few, **case)
            judged = good is None or name == "before" or good(found)
            self.judge(f"{title if name == 'before' else '':30}{name:8}{found.text}", judged)

    def steps(self) -> None:
        """Print how fast steps are found, and how well they are dated."""
        print(f"\nfound within 1, 3, 5, 10, 30 nights, in % of {self.few} series (seed 2)")
        for step, cv in STEPS:

            def good(found: Found, key: tuple[float, float] = (step, cv)) -> bool:
                least = zip((1, 3, 5, 10, 30), LEAST_FOUND.get(key, ()), strict=False)
                fast = all(self.reaches(found.by(nights), share / 100) for nights, share in least)
                # a step of the smallest effect is refused half the time, and found late
                sure = abs(math.log(key[0])) >= max(3 * key[1], 1.05 * GATE)
                dated = self.reaches(found.dated(2), 0.97) and self.reaches(found.covered(), 0.9)
                return fast and (dated or not sure)

            title = f"{100 * (step - 1):+.1f} % at {100 * cv:.0f} %"
            self.finds(title, good, model=independent(normal(cv)), step=constant(step))
        for past in (4, 6, 8):
            model, change = independent(normal(0.02)), constant(1.1)
            title = f"+10 % at 2 %, {past} nights of past"
            self.finds(title, self.finds_all, model=model, step=change, past=past, after=30)
        for phi in (0.5, 0.7):
            model = shared(correlated(phi, 0.05), 0.01)
            title = f"+30 % at 5 %, correlated {phi}"
            self.finds(title, lambda found: found.covered() >= 0.8, model=model, step=constant(1.3))

    def finds_all(self, found: Found) -> bool:
        """Return whether all are found in the end."""
        return self.reaches(found.by(30), 1.0)

    def reaches(self, share: float, least: float) -> bool:
        """Return whether a share is within the 95 % interval of one of 60 series, or larger."""
        variance = max(least * (1 - least), 0.01) * (1 / 60 + 1 / self.few)
        return share >= least - 1.96 * math.sqrt(variance)

    def mixtures(self) -> None:
        """Print how fast changes of some nights are found, where none is measured again."""
        print(f"\nmixtures at 2 % noise, none measured again, in % of {self.few} series (seed 2)")
        for title, change in MIXTURES.items():
            self.finds(title, model=independent(normal(0.02)), step=change, again=False)
        speeds = independent(two_peaks(math.log(1.4)))
        self.finds("two speeds, no step", model=speeds, step=constant(1.0), again=False)
        self.finds("two speeds, +30 % of both", model=speeds, step=constant(1.3), again=False)

    def falls(self) -> None:
        """Print how many steps are false."""
        print(
            f"\nfalse steps in %, {self.few} x 120 nights before, {self.series} x 120 now (seed 1)"
        )
        trials = 120 * self.series
        for title, model in {**INDEPENDENT, **SHARED}.items():
            before = false_steps(model, former, self.few)
            now = false_steps(model, current, self.series)
            allowed = ALLOWED.get(title, 0.05) / 100 * trials
            chance = 1.96 * math.sqrt(allowed) if self.series < 2000 else 0
            line = f"{title:30}before {100 * before / (120 * self.few):5.3f}   now "
            good = now <= allowed + chance or title in UNJUDGED
            self.judge(line + interval(now, trials), good)
        long = false_steps(INDEPENDENT["noise 5 %"], current, self.few, 1000)
        self.judge(f"{'1,000 nights at 5 %':30}now {interval(long, 1000 * self.few)}")

    def others(self) -> None:
        """Print what two runs alone tell, what is found in its night, and when a drift is found."""
        print(f"\nequal pairs of runs called different, in % of {10 * self.few} (seed 3)")
        for title in ("noise 1 %", "noise 2 %", "noise 5 %", "noise 10 %", "noise 20 %", "spikes"):
            self.judge(f"{title:30}{100 * wrong_pairs(INDEPENDENT[title], 10 * self.few):.2f}")
        print(f"\nfound in its night, in % of {self.few} series (seed 2), then in three")
        for step, past in ((1.7, 3), (1.3, 10), (1.5, 10), (1 / 1.3, 10)):
            title = f"{100 * (step - 1):+.0f} % at 5 %, {past} nights of past"
            model, change = independent(normal(0.05)), constant(step)
            self.finds(title, model=model, step=change, past=past, after=3)
        print("\ndrift of 0.1 % a night at 1 % noise: moved when a step is found (seed 4)")
        for name, rule in RULES.items():
            middle, late = np.quantile(drift_found_at(0.001, 0.01, rule, self.few), (0.5, 0.95))
            self.judge(f"{name:8}{100 * middle:+.1f} %, 95 % by {100 * late:+.1f} %")


def main() -> int:
    """Print all tables; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=2000, help="series for false steps")
    parser.add_argument("--others", action="store_true", help="compare with other tools instead")
    parser.add_argument("--real", metavar="FILE", help="with --others: a CSV of real nights")
    args = parser.parse_args()
    if args.others:
        beside_others(args.real, 20)
        return 0
    report = Report(args.series)
    report.steps()
    report.mixtures()
    report.falls()
    report.others()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
