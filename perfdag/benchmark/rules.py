"""Rules between the parameters of a benchmark, as a table."""


def refuse(*rules: tuple[object, str]) -> None:
    """Raise ValueError with the message of the first rule whose condition is true."""
    for broken, message in rules:
        if broken:
            raise ValueError(message)
