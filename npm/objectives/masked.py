"""Masked-token prediction over the vocabulary.

    L = −(1/|T|) Σ_{t ∈ T} log softmax(head(h_t))[x_t]

(Devlin et al. 2019, arXiv 1810.04805, §3.1; the head is in `npm/models/masked_lm.py`.) The targets T are the spans of
the view `tokens`, of one token each; the corruption decides which of them are masked, replaced or kept. The head
runs on them only. With `visible_only` the vectors h come from a decoder over the encoded visible tokens
(`npm/models/masked_lm.py`).

Shapes: n targets, d dimensions, V vocabulary, Q masked copies of length Lq.
"""

from __future__ import annotations

from torch import nn

from npm.masking.batches import MaskedBatch
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead, VisibleOnly, attach_masked_head
from npm.models.names import locate_encoder
from npm.objectives.combine import Term, classification_terms
from npm.objectives.encoded import EncodedBatch
from npm.objectives.settings import MaskedSettings


class MaskedTokens(nn.Module):
    """Cross entropy at the targets only: term `masked`; term `masked_top1` of weight 0 counts right predictions."""

    view = "tokens"
    reads_clean_copies = False

    def __init__(self, head: MaskedHead, *, visible: VisibleOnly | None = None) -> None:
        """With `visible` the encoder reads the visible tokens alone and `visible` makes the vectors at the masks."""
        super().__init__()
        self.head = head
        self.visible = visible

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Targets of this rank."""
        count = len(batch.span_sequences)
        return {"masked": count, "masked_top1": count}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The terms of one batch."""
        spans = encoded.batch.span_token_ids  # i64 [n, 1]
        assert spans.shape[1] == 1, f"targets of up to {spans.shape[1]} tokens in the view {self.view}"
        if self.visible is None:
            vectors = encoded.start_queries  # f32 [n, d]
        else:
            batch = encoded.batch
            decoded = self.visible(encoded.token_vectors, batch.query_input_ids, batch.query_attention_mask)
            vectors = decoded.float()[batch.span_sequences, batch.start_slots]  # f32 [n, d]
        logits = self.head(vectors).float()  # f32 [n, V]
        return classification_terms("masked", logits, spans[:, 0])


def masked_tokens(settings: MaskedSettings, encoder: Encoder, place: str | None) -> MaskedTokens:
    """The loss with the head of the encoder at `place`, or a fresh one; the encoder keeps the head."""
    located = None if place is None else locate_encoder(place)
    head = attach_masked_head(encoder, located, trained=False, untied=settings.untied)
    if not settings.visible_only:
        return MaskedTokens(head)
    encoder.language_model = None  # the head reads the decoder's vectors, so that without it the head is not saved
    return MaskedTokens(head, visible=VisibleOnly(encoder, decoder_layers=1))
