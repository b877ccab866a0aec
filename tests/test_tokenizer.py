import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minimoe.tokenizer
from minimoe.errors import InputError
from minimoe.tokenizer import BOS, EOS, PAD, SEP, VOCABULARY, completion_text, decode, encode


def test_ids_are_fixed():
    assert (PAD, BOS, EOS, SEP, VOCABULARY) == (0, 1, 2, 3, 260)
    assert encode("aé\0") == [4 + 0x61, 4 + 0xC3, 4 + 0xA9, 4]
    assert decode([259]) == "\ufffd"  # byte 255, the last id


@given(st.text())
def test_text_survives_the_round_trip(text):
    assert encode(text) == [4 + byte for byte in text.encode("utf-8")]
    assert decode(encode(text)) == text


@given(st.binary() | st.just(bytes(range(256))), st.sampled_from([PAD, BOS, EOS, SEP]))
def test_any_bytes_decode_and_special_ids_are_skipped(data, special):
    ids = [special]
    for byte in data:
        ids += [4 + byte, special]
    assert decode(ids) == data.decode("utf-8", errors="replace")


def test_half_a_character_becomes_the_replacement_character():
    ids = encode("a€")
    assert decode(ids[:-1]) == "a\ufffd"
    assert decode(ids[2:]) == "\ufffd\ufffd"


@pytest.mark.parametrize("text", ["a\ud800", "a\udfff b"])
def test_lone_surrogate_is_refused_by_position(text):
    with pytest.raises(InputError, match="character 1 of the text is a lone surrogate"):
        encode(text)


@pytest.mark.parametrize("token", [-1, 260])
def test_id_outside_the_vocabulary_is_refused(token):
    with pytest.raises(InputError, match=f"token id {token} is outside"):
        decode([5, token])


def test_completion_ends_at_the_first_eos():
    assert completion_text(encode("one") + [EOS] + encode("two") + [EOS]) == "one"
    assert completion_text(encode("no end") + [PAD]) == "no end"
    assert completion_text([EOS]) == completion_text([]) == ""


def test_importing_the_tokenizer_does_not_import_numpy():
    code = "import sys, minimoe.tokenizer; sys.exit('numpy' in sys.modules)"
    root = Path(minimoe.tokenizer.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0
