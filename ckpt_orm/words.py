"""How a number of things is told."""


def counted(number: int, noun: str) -> str:
    """A number and what it counts: "1 thread", "2,000 threads"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
