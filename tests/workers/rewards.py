"""A reward that a tiny untrained model can raise: to stop, which is all it takes for an answer to count."""


def stopped(response_text: str, answer: str) -> float:
    """1.0 for every finished answer; one that is cut off earns nothing, whatever this says."""
    return 1.0
