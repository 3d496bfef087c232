"""A Hugging Face tokenizer behind the ChatTokenizer protocol, and what identifies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import xxhash

from schemas.errors import InputError
from stages.vocabulary import assert_same_vocabulary


class HFTokenizer:
    """Chat messages to prompt ids, response ids to text; text is never turned into response ids."""

    def __init__(self, path: str | Path) -> None:
        import transformers

        if not Path(path).is_dir():
            raise InputError(f"tokenizer {str(path)!r}: no such directory")
        try:
            self.inner = transformers.AutoTokenizer.from_pretrained(str(path))
        except (OSError, ValueError) as error:
            raise InputError(f"tokenizer {str(path)!r}: cannot be loaded ({error})") from error

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Prompt ids up to where the assistant speaks, by the checkpoint's own chat template."""
        encoded = self.inner.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.inner.decode(token_ids, skip_special_tokens=True))

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a response."""
        if self.inner.eos_token_id is None:
            raise InputError("tokenizer: it names no end token (eos_token), so no response would ever end")
        return [int(self.inner.eos_token_id)]

    @cached_property
    def vocabulary(self) -> list[str]:
        """Text of every token id, in order; gaps are empty."""
        table: dict[str, int] = self.inner.get_vocab()
        tokens = [""] * (max(table.values()) + 1)
        for text, index in table.items():
            tokens[index] = text
        return tokens

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that map ids to the same strings."""
        return xxhash.xxh3_64_hexdigest("\x00".join(self.vocabulary).encode("utf-8", "surrogatepass"))

    def save(self, directory: Path) -> None:
        self.inner.save_pretrained(directory)


def refuse_other_vocabulary(student: HFTokenizer, teacher: HFTokenizer, alias: str) -> None:
    """Raise InputError naming the first id that the two map to different strings."""
    assert_same_vocabulary(dict(enumerate(student.vocabulary)), dict(enumerate(teacher.vocabulary)), alias)
