"""Fairness of shares."""

from collections.abc import Sequence


def jain(shares: Sequence[float]) -> float:
    """Return Jain's fairness index, (sum x)^2 / (n sum x^2) (Jain, Chiu, Hawe 1984).

    It is 1 for equal shares and 1/n where one takes all. Raises ValueError without a share, for a
    negative one, or where none is above zero.
    """
    if not shares or min(shares) < 0 or not any(shares):
        raise ValueError("fairness needs shares, none negative and one above zero")
    return float(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)))
