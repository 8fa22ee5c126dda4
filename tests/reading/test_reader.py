"""What readers share: windows, alignment of tokens, and which one is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import EncoderError
from npm.reading.loading import open_reader
from npm.reading.mask_reader import MaskReader
from npm.reading.reader import TokenScores, windows
from npm.reading.span_head import SpanHeadReader
from tests.helpers.tiny_models import tiny_encoder, tiny_span_head


@pytest.mark.parametrize(("count", "size"), [(1, 4), (4, 4), (5, 4), (9, 4), (10, 4), (7, 1), (0, 4)])
def test_windows_cover_all_tokens_and_none_goes_beyond(count: int, size: int) -> None:
    found = windows(count, size)
    covered = {token for window in found for token in range(window.start, window.stop)}
    assert covered == set(range(count))
    assert all(window.stop - window.start <= size for window in found)
    assert all(window.stop - window.start == size for window in found[:-1])


def test_scores_of_tokens_cut_otherwise_are_those_of_their_first_and_last_characters() -> None:
    bounds = np.array([[0, 4], [4, 6], [7, 10]])  # of the reader: "Reyk", "ja", "vík"
    scores = TokenScores(bounds, np.log([[0.5, 0.2, 0.1], [0.1, 0.2, 0.6]]), np.log([0.2, 0.1]))
    own = np.array([[0, 6], [7, 8], [8, 10], [11, 14]])  # of an index; the last was not read
    found = np.exp(scores.of_tokens(own))
    np.testing.assert_allclose(found, [[0.5, 0.1, 0.1, 0.1], [0.2, 0.6, 0.6, 0.1]])


def test_nothing_that_was_read_can_be_an_answer() -> None:
    empty = TokenScores(np.zeros((0, 2), dtype=np.int64), np.zeros((2, 0)), np.zeros(2))
    assert np.isneginf(empty.of_tokens(np.array([[0, 3]]))).all()


def test_a_folder_is_read_as_it_was_trained(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.reads_jointly = True
    encoder.save(tmp_path / "masks")
    tiny_span_head("bert", tmp_path / "head")
    found = open_reader(str(tmp_path / "masks"), encoder)
    assert isinstance(found, MaskReader) and found.fingerprint == encoder.fingerprint
    assert open_reader(str(tmp_path / "masks"), encoder) is found  # opened once
    assert isinstance(open_reader(str(tmp_path / "head"), encoder), SpanHeadReader)
    assert open_reader("none", encoder) is None


def test_the_shipped_reader_reads_for_encoders_with_its_tokenizer_alone() -> None:
    assert open_reader("", tiny_encoder("bert")) is None


def test_a_model_without_a_trained_head_is_no_reader(tmp_path: Path) -> None:
    tiny_encoder("roberta").save(tmp_path / "encoder")
    with pytest.raises(EncoderError, match="head for answers"):
        open_reader(str(tmp_path / "encoder"), tiny_encoder("bert"))


def test_a_name_that_is_neither_a_folder_nor_on_the_hub_is_refused() -> None:
    with pytest.raises(EncoderError, match=r"no such reader.*nowhere/at-all"):
        open_reader("nowhere/at-all", tiny_encoder("bert"))
