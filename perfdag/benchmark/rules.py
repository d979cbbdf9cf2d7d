"""Rules between the parameters of a benchmark, or with its shape, as a table."""

Rule = tuple[object, str]
"""A condition and the message if it is true."""


def broken(*rules: Rule) -> list[str]:
    """Return the messages of the rules whose condition is true."""
    return [message for condition, message in rules if condition]


def refuse(*rules: Rule) -> None:
    """Raise ValueError with the message of the first rule whose condition is true."""
    for message in broken(*rules):
        raise ValueError(message)
