from __future__ import annotations

import pytest

from examples.tiny.tokenizer import CharTokenizer

TOKENIZER = CharTokenizer(alphabet="01+=")


def test_text_survives_the_round_trip() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("10+1=")) == "10+1="


def test_decoding_stops_at_the_end_token_and_drops_padding() -> None:
    zero, one = TOKENIZER.encode("01")
    ids = [TOKENIZER.pad_id, one, zero, TOKENIZER.eos_id, one]

    assert TOKENIZER.decode(ids) == "10"


def test_batches_are_padded_on_the_left() -> None:
    ids, mask = TOKENIZER.encode_left_padded(["1", "01+"], 4)

    assert ids.tolist() == [[0, 0, 0, 3], [0, 2, 3, 4]]
    assert mask.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
    assert TOKENIZER.decode_batch(ids) == ["1", "01+"]


def test_an_empty_batch_keeps_its_width() -> None:
    ids, mask = TOKENIZER.encode_left_padded([], 4)

    assert ids.shape == mask.shape == (0, 4)


def test_what_cannot_be_encoded_is_named() -> None:
    with pytest.raises(ValueError, match=r"'1x' has 'x'"):
        TOKENIZER.encode("1x")
    with pytest.raises(ValueError, match=r"3 tokens does not fit width=2"):
        TOKENIZER.encode_left_padded(["111"], 2)
    with pytest.raises(ValueError, match=r"names a character twice"):
        CharTokenizer(alphabet="00")
