"""The head for masked tokens: the logits of transformers' own class, before and after it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from npm.core.errors import EncoderError
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead, attach_masked_head
from npm.objectives.combine import WeightedSum
from npm.objectives.masked import MaskedTokens
from tests.helpers.command_line import all_bytes
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder
from tests.helpers.toy_training import toy_encoder, toy_trainer


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bare(family: str, tmp_path: Path) -> Path:
    """An encoder without a head, as saved."""
    tiny_encoder(family).save(tmp_path / "bare")
    return tmp_path / "bare"


def load(folder: Path, **settings: Any) -> Encoder:
    return Encoder.load(str(folder), device="cpu", **{"dtype": "float32", **settings})


def attached(folder: Path, *, trained: bool = False, seed: int = 0) -> tuple[Encoder, MaskedHead]:
    """The encoder in `folder` with a head; a new one has all its weights moved, so that none stands at its start."""
    encoder = load(folder)
    torch.manual_seed(seed)
    head = attach_masked_head(encoder, str(folder), trained=trained)
    if not trained:
        with torch.no_grad():
            for parameter in head.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return encoder, head


def inputs(encoder: Encoder) -> dict[str, torch.Tensor]:
    """Two sentences of uneven length, i64 [2, L] each."""
    texts = [sentence.replace(" the ", f" {encoder.tokenizer.mask_token} ") for sentence in SENTENCES[:2]]
    batch = encoder.tokenizer(texts, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def logits_of(encoder: Encoder, head: MaskedHead) -> torch.Tensor:
    """Logits f32 [t, V] at all tokens that are no padding."""
    given = inputs(encoder)
    vectors = encoder.token_vectors(**given)  # f32 [2, L, d]
    logits: torch.Tensor = head(vectors[given["attention_mask"].bool()])  # f32 [t, V]
    return logits


@torch.no_grad()
def logits_in_transformers(folder: Path, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same of the masked language model in `folder`, by `transformers` alone."""
    model, report = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    logits: torch.Tensor = model.eval()(**given).logits[given["attention_mask"].bool()]  # f32 [t, V]
    return logits


def test_what_is_saved_gives_equal_logits_and_the_same_bytes(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="weights of the head"):
        attach_masked_head(load(bare), str(bare), trained=True)
    encoder, head = attached(bare)
    encoder.save(tmp_path / "saved")
    expected = logits_in_transformers(tmp_path / "saved", inputs(encoder))
    torch.testing.assert_close(logits_of(encoder, head), expected, rtol=1e-5, atol=1e-5)
    assert expected.shape[1] == len(encoder.tokenizer)
    again, same = attached(tmp_path / "saved", trained=True, seed=1)
    again.save(tmp_path / "again")
    torch.testing.assert_close(logits_of(again, same), logits_of(encoder, head), rtol=0, atol=0)
    assert all_bytes(tmp_path / "again") == all_bytes(tmp_path / "saved")


def test_a_saved_masked_language_model_loads_as_the_same_encoder(bare: Path, tmp_path: Path) -> None:
    before = load(bare)
    encoder, _ = attached(bare)
    assert encoder.fingerprint == before.fingerprint
    encoder.similarity_scale = 0.75  # as training does when it ends
    encoder.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.similarity_scale == 0.75
    again.similarity_scale = before.similarity_scale
    assert again.fingerprint == before.fingerprint
    config = AutoConfig.from_pretrained(tmp_path / "saved")
    assert config.architectures == [type(encoder.language_model).__name__]
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").mask_token_id == encoder.mask_id


def test_a_run_that_masks_single_tokens_leaves_a_masked_language_model(tmp_path: Path) -> None:
    toy_encoder().save(tmp_path / "bare")
    encoder, head = attached(tmp_path / "bare")
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    objective = WeightedSum({"masked": MaskedTokens(head)}, {"masked": 1.0})
    trainer = toy_trainer(tmp_path / "run", max_steps=3, encoder=encoder, objective=objective)
    trainer.train()
    folder = tmp_path / "run" / "encoder"
    again, same = attached(folder, trained=True)
    expected = logits_in_transformers(folder, inputs(again))
    torch.testing.assert_close(logits_of(again, same), expected, rtol=1e-5, atol=1e-5)
    assert not any(torch.equal(tensor, before[name]) for name, tensor in same.state_dict().items())
    assert again.fingerprint == encoder.fingerprint != load(tmp_path / "bare").fingerprint


def test_the_embedding_belongs_to_the_encoder_alone(bare: Path) -> None:
    encoder, head = attached(bare)
    assert head.embedding is encoder.model.get_input_embeddings()
    pointers = {parameter.data_ptr() for parameter in head.parameters()}
    assert head.embedding.weight.data_ptr() not in pointers
    assert len(pointers) == len(list(head.parameters()))
    assert encoder.language_model is not None
    all_weights = {parameter.data_ptr() for parameter in encoder.language_model.parameters()}
    assert all_weights == pointers | {parameter.data_ptr() for parameter in encoder.model.parameters()}


def test_a_new_head_starts_from_the_generator_of_torch(bare: Path) -> None:
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        head = attach_masked_head(load(bare), str(bare), trained=False)
        weights.append(next(head.transform.parameters()))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_head_computes_in_float32_beside_an_encoder_in_bfloat16(bare: Path, tmp_path: Path) -> None:
    exact, head = attached(bare)
    exact.save(tmp_path / "saved")
    encoder = load(tmp_path / "saved", dtype="bfloat16")
    beside = attach_masked_head(encoder, str(tmp_path / "saved"), trained=True)
    assert encoder.model.get_input_embeddings().weight.dtype == torch.bfloat16
    logits = logits_of(encoder, beside)
    assert logits.dtype == torch.float32
    distinct, distinct_if_rounded = len(logits.unique()), len(logits.bfloat16().unique())
    assert distinct > 2 * distinct_if_rounded  # rounded to bfloat16, many words would be equal
    torch.testing.assert_close(logits, logits_of(exact, head), rtol=0, atol=0.1)


def test_a_published_model_whose_output_matrix_is_its_own_predicts_with_that(bare: Path, tmp_path: Path) -> None:
    attached(bare)[0].save(tmp_path / "saved")
    config = AutoConfig.from_pretrained(tmp_path / "saved", tie_word_embeddings=False)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved", config=config)
    torch.nn.init.normal_(model.get_output_embeddings().bias)
    model.save_pretrained(tmp_path / "untied")
    load(tmp_path / "saved").tokenizer.save_pretrained(tmp_path / "untied")
    encoder, head = attached(tmp_path / "untied", trained=True)
    expected = logits_in_transformers(tmp_path / "untied", inputs(encoder))
    torch.testing.assert_close(logits_of(encoder, head), expected)


def test_an_untied_head_begins_as_a_tied_one_and_learns_a_matrix_of_its_own(bare: Path, tmp_path: Path) -> None:
    tied = attached(bare)
    tied[0].save(tmp_path / "tied")
    encoder = load(tmp_path / "tied")
    head = attach_masked_head(encoder, str(tmp_path / "tied"), trained=True, untied=True)
    torch.testing.assert_close(logits_of(encoder, head), logits_of(*tied))
    assert {name for name, _ in head.named_parameters()} > {"matrix", "bias"}
    before = head.embedding.weight.clone()
    with torch.no_grad():
        head.get_parameter("matrix").add_(1.0)
        head.bias.add_(torch.arange(len(head.bias)))
    assert torch.equal(head.embedding.weight, before)
    encoder.weights_changed()
    encoder.save(tmp_path / "saved")
    again, same = attached(tmp_path / "saved", trained=True)
    assert torch.equal(same.get_parameter("matrix"), head.get_parameter("matrix"))
    expected = logits_in_transformers(tmp_path / "saved", inputs(again))
    torch.testing.assert_close(logits_of(encoder, head), expected)


def test_an_encoder_of_an_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    encoder = tiny_encoder("bert")
    sizes = {"vocab_size": len(encoder.tokenizer), "dim": 8, "hidden_dim": 8, "n_heads": 2, "n_layers": 1}
    DistilBertModel(DistilBertConfig(**sizes)).save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match="distilbert"):
        attached(tmp_path)
