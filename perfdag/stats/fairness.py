"""How evenly a thing is shared."""

from collections.abc import Sequence


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index, (sum x)^2 / (n sum x^2): 1 where all get the same, 1/n where one gets all (Jain, Chiu, Hawe 1984).

    Raises ValueError for no share, a negative one, or none above zero.
    """
    if not shares or min(shares) < 0 or not any(shares):
        raise ValueError("fairness needs shares, none negative and one above zero")
    return float(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)))
