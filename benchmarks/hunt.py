"""How well `hosts.pairs: hunt` names one slow host of 1,000, against `all` and `random 20`.

One host is 20 % slow, and each measurement of a pair has 5 % noise. Prints how often it is named,
false accusations, rounds, and the time of a sweep in measurements one after the other; exit 1 where
a limit is not held. Usage: python benchmarks/hunt.py [SWEEPS]
"""

import sys

import numpy as np
from limits import at_most

from perfdag.stats.nodes import outliers, slow_parts
from perfdag.steps.hunt import ROUNDS, Hunt
from perfdag.suite.pairs import rounds

HOSTS, SLOW, NOISE = 1000, 0.2, 0.05
SWEEPS = 500


def value(rng: np.random.Generator, pair: tuple[int, int], slow_host: int) -> float:
    """The throughput of a pair: a slow host makes all its pairs slow."""
    return float((1 - SLOW * (slow_host in pair)) * np.exp(rng.normal(0, NOISE)))


def sweep(seed: int, slow_host: int) -> tuple[set[int], int, int, int]:
    """The accused hosts, the rounds, the pairs that were measured, and the measurements in turn."""
    rng, hunt = np.random.default_rng(seed), Hunt(HOSTS, seed)
    pairs = in_turn = 0
    while now := hunt.pairs():
        hunt.record(now, [value(rng, pair, slow_host) for pair in now])
        pairs, in_turn = pairs + len(now), in_turn + 1
    return set(hunt.slow), hunt.rounds, pairs, in_turn


def line(kind: str, hits: int, false: int, sweeps: int, pairs: float, in_turn: float) -> None:
    """Print the figures of one kind of sweep."""
    print(
        f"{kind:10} {100 * hits / sweeps:6.1f} % named  {100 * false / sweeps:5.2f} % of "
        f"sweeps accuse another"
        f"  {pairs:10,.0f} pairs  {in_turn:10,.0f} measurements in turn  ({sweeps} sweeps)"
    )


def main() -> int:
    """Run the sweeps and print the figures."""
    sweeps = int(sys.argv[1]) if len(sys.argv) > 1 else SWEEPS
    hits = false = 0
    lengths, pairs, in_turn = [], [], []
    for seed in range(sweeps):
        host = seed % HOSTS
        suspects, length, count, turns = sweep(seed, host)
        hits += host in suspects and length <= ROUNDS
        false += bool(suspects - {host})
        lengths.append(length)
        pairs.append(count)
        in_turn.append(turns)
    line("hunt", hits, false, sweeps, float(np.mean(pairs)), float(np.mean(in_turn)))
    print(f"{'':10} rounds of pairs at once: {np.mean(lengths):.1f}, at most {max(lengths)}")
    quiet = sum(bool(sweep(10**6 + seed, -1)[0]) for seed in range(sweeps))
    print(f"{'':10} {quiet} of {sweeps} sweeps without a slow host accuse one")
    few = [_random_20(seed, seed % HOSTS) for seed in range(100)]
    line("random 20", sum(a for a, _ in few), sum(b for _, b in few), 100, 20, 20)
    every = [_all(seed, seed % HOSTS) for seed in range(5)]
    total = HOSTS * (HOSTS - 1) // 2
    line("all", sum(a for a, _ in every), sum(b for _, b in every), 5, total, total)
    ok = [
        at_most("sweeps that do not name the slow host", 1 - hits / sweeps, 0.01),
        at_most("sweeps with a false accusation", false / sweeps, 0.01),
        at_most("accusations without a slow host", quiet / sweeps, 0.01),
    ]
    return 0 if all(ok) else 1


def _random_20(seed: int, host: int) -> tuple[bool, bool]:
    rng = np.random.default_rng(seed)
    pairs = [pair for each in rounds("random 20", HOSTS, seed) for pair in each]
    values = {(str(a), str(b)): [value(rng, (a, b), host)] for a, b in pairs}
    suspects = {part.name for part in slow_parts(values, True) if part.kind == "node"}
    return str(host) in suspects, bool(suspects - {str(host)})


def _all(seed: int, host: int) -> tuple[bool, bool]:
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(0, NOISE, (HOSTS, HOSTS)))
    values = np.triu(values, 1) + np.triu(values, 1).T
    values[host, :] *= 1 - SLOW
    values[:, host] *= 1 - SLOW
    groups = {str(i): np.delete(values[i], i) for i in range(HOSTS)}
    suspects = {suspect.node for suspect in outliers(groups)}
    return str(host) in suspects, bool(suspects - {str(host)})


if __name__ == "__main__":
    sys.exit(main())
