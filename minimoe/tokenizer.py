"""Text as tokens: four special ids, then one id for each byte of UTF-8. Nothing is learned and nothing is unknown."""

from collections.abc import Iterable
from itertools import takewhile

from minimoe.errors import InputError

PAD, BOS, EOS, SEP = range(4)
FIRST_BYTE = 4  # byte b is id FIRST_BYTE + b
VOCABULARY = FIRST_BYTE + 256


def encode(text: str) -> list[int]:
    """Return the ids of the text's UTF-8 bytes, without special ids.

    Raises `InputError` for a lone surrogate, the one thing a Python string can hold that UTF-8 cannot.
    """
    try:
        return [FIRST_BYTE + byte for byte in text.encode("utf-8")]
    except UnicodeEncodeError as error:
        raise InputError(f"character {error.start} of the text is a lone surrogate or no UTF-8; remove it") from None


def decode(ids: Iterable[int]) -> str:
    """Return the text of the ids. Special ids are skipped; bytes that are not UTF-8, or half a character, become U+FFFD.

    Raises `InputError` for an id outside 0..259.
    """
    ids = list(ids)
    for token in ids:
        if not 0 <= token < VOCABULARY:
            raise InputError(f"token id {token} is outside the vocabulary; ids run from 0 to {VOCABULARY - 1}")
    return bytes(token - FIRST_BYTE for token in ids if token >= FIRST_BYTE).decode("utf-8", errors="replace")


def completion_text(ids: Iterable[int]) -> str:
    """Return the text before the first EOS, or all of it if there is none. Raises what `decode` raises."""
    return decode(takewhile(lambda token: token != EOS, ids))
