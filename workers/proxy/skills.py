"""The two skills of the proxy: reversing letters and sorting digits."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

LETTERS, DIGITS = "abcdefghij", "0123456789"
ALPHABET = {"rev": LETTERS, "sort": DIGITS}
SKILLS = tuple(ALPHABET)


@dataclass(frozen=True)
class Problem:
    """A prompt such as ``rev abcd``, and its answer ``dcba``."""

    skill: str
    text: str
    answer: str

    @property
    def prompt(self) -> str:
        return f"{self.skill} {self.text}"

    @property
    def held_out(self) -> bool:
        """One prompt in ten is never trained on; decided by the prompt alone, so builds agree."""
        return zlib.crc32(self.prompt.encode()) % 10 == 0


def problems(skill: str, rng: random.Random, *, held_out: bool) -> Iterator[Problem]:
    """Endless problems of *skill*: 3 to 6 characters to reverse or sort."""
    while True:
        text = "".join(rng.choice(ALPHABET[skill]) for _ in range(rng.randint(3, 6)))
        problem = Problem(skill, text, solve(skill, text))
        if problem.held_out == held_out:
            yield problem


def solve(skill: str, text: str) -> str:
    """The right answer."""
    return text[::-1] if skill == "rev" else "".join(sorted(text))


def sloppy(problem: Problem, rng: random.Random, *, echo: float = 0.40, slip: float = 0.10) -> str:
    """How the student was taught: sometimes an echo of the text, else each character wrong now and then."""
    if rng.random() < echo:
        return problem.text
    alphabet = ALPHABET[problem.skill]
    return "".join(rng.choice(alphabet) if rng.random() < slip else character for character in problem.answer)
