from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from npm import PhraseFiller
from npm.core.errors import QueryError
from npm.models.encoder import Encoder
from npm.retrieval.passages import PassageFiller, masked_claims
from npm.retrieval.scoring import ScoringSettings
from npm.retrieval.settings import FillSettings, Retrieval
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

CLAIMS = ["Reykjavík is the capital of Iceland.", "Madrid", "The Bank of America, founded in Poland!"]


def tokens(encoder: Encoder, text: str) -> list[int]:
    return list(encoder.tokenizer(text, add_special_tokens=False)["input_ids"])


def states(encoder: Encoder, ids: list[int]) -> torch.Tensor:
    """f32 [L, d] of one sequence without its special tokens."""
    framed = [*encoder.prefix_ids, *ids, *encoder.suffix_ids]
    with torch.inference_mode():
        found = encoder.token_vectors(torch.tensor([framed]), torch.ones(1, len(framed), dtype=torch.long))[0]
    return found[len(encoder.prefix_ids) : len(framed) - len(encoder.suffix_ids)]


def plain_claim_score(filler: PassageFiller, claim: list[int], content: list[bool], texts: list[str]) -> float:
    """One masked token after the other, one passage token after the other."""
    encoder, scoring = filler.encoder, filler.settings.scoring
    passage_tokens = [
        (token, vector.double())
        for text in texts
        for token, vector in zip(tokens(encoder, text), states(encoder, tokens(encoder, text)), strict=True)
    ]
    factor = encoder.similarity_scale / scoring.temperature
    shares = []
    for place, token in enumerate(claim):
        if not content[place]:
            continue
        masks = [encoder.mask_id] * encoder.query_masks
        masked = states(encoder, [*claim[:place], *masks, *claim[place + 1 :]]).double()
        matching = total = 0.0
        for other, vector in passage_tokens:
            s, t = (factor * float(vector @ masked[place + side]) for side in (0, len(masks) - 1))
            weight = np.exp((s + t) * len(masks) / 2)
            matching += weight if other == token else 0.0
            total += weight
        shares.append(matching / total)
    return sum(shares) / len(shares)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("masks", [1, 2])
def test_a_claim_scores_the_mean_share_of_its_content_tokens(family: str, masks: int) -> None:
    encoder = tiny_encoder(family)
    encoder.query_masks = masks
    settings = FillSettings(retrieval=Retrieval.dense, scoring=ScoringSettings(temperature=0.5))
    texts = list(SENTENCES[:4])
    filler = PhraseFiller.over(texts, encoder, settings=settings)
    for claim, score in zip(CLAIMS, filler.score_claim(CLAIMS), strict=True):
        ids = tokens(encoder, claim)
        offsets = encoder.tokenizer(claim, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        surfaces = [claim[start:end].strip().lower() for start, end in offsets]
        # In these claims no content word has a function word as a piece.
        content = [surface not in ("is", "the", "of", "in", ".", ",", "!") for surface in surfaces]
        assert score == pytest.approx(plain_claim_score(filler, ids, content, texts), rel=1e-4)


def test_only_content_tokens_are_masked() -> None:
    encoder = tiny_encoder("bert")
    claims = ["The Seine flows through Paris, in France.", "Oslo"]
    inputs, slots, token_ids, counts = masked_claims(claims, encoder)
    masked = [str(encoder.tokenizer.convert_ids_to_tokens(token)) for token in token_ids]
    assert "".join(masked).replace("##", "") == "seineflowsparisfranceoslo"
    assert len(counts) == 2 and sum(counts) == len(masked)
    for sequence, pair in zip(inputs, slots, strict=True):
        assert np.flatnonzero(sequence == encoder.mask_id).tolist() == pair.tolist()


def test_a_claim_about_what_no_passage_names_scores_nothing() -> None:
    filler = PhraseFiller.over(["Oslo is a city."], tiny_encoder("bert"))
    assert filler.score_claim("Rhine") == 0.0
    assert 0.0 < filler.score_claim("Oslo") <= 1.0


def test_only_the_passages_that_the_settings_name_support_a_claim() -> None:
    encoder = tiny_encoder("bert")
    filler = PhraseFiller.over(["Oslo is a city.", "Paris is a city."], encoder)
    named = replace(filler.settings, documents=["1"])
    assert filler.score_claim("Oslo") > 0.0
    assert PhraseFiller.over(["Oslo is a city.", "Paris is a city."], encoder, settings=named).score_claim("Oslo") == 0


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        (["Oslo.", "It is of the."], "claim 2 of 2"),
        ([" "], "empty"),
        (["a <mask> b"], "claim must not have <mask>"),
        (["Paris", "It is <mask>"], "claim 2 of 2"),
        (["Oslo " * 200], "must have at most"),
        ("\ud800 Paris", "not valid Unicode"),
        (["Paris", "Oslo \udfff"], "claim 2 of 2"),
        (None, "NoneType"),
        (["Paris", None], "claim 2 of 2"),
    ],
)
def test_a_claim_that_cannot_be_scored_is_refused(claims: Any, told: str) -> None:
    with pytest.raises(QueryError, match=told):
        PhraseFiller.over(SENTENCES, tiny_encoder("bert")).score_claim(claims)
