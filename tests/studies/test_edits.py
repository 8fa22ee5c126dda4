"""Edits of checkpoints: each family's model is saved, edited, saved, and read again with `transformers` alone."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForMaskedLM, AutoTokenizer

from npm.cli.registry import find_verb
from npm.core.errors import EncoderError, SettingError
from npm.models.encoder import Encoder
from npm.models.masked_lm import attach_masked_head
from npm.models.names import shipped_folder
from npm.models.tokenizer import load_tokenizer
from studies.edits.checkpoint import RECORD, Checkpoint, matching_ids, token_texts, write_checkpoint
from studies.edits.edits import edit_checkpoint
from studies.edits.settings import NAMED, EditSettings, Scheme, Scope
from tests.helpers.command_line import CommandLine, all_bytes
from tests.helpers.tiny_models import SENTENCES, tiny_encoder, wordpiece_tokenizer

FAMILIES = ("bert", "roberta", "xlm-roberta", "modernbert")
WITH_EQUAL_LAYERS = FAMILIES[:3]
LAYERS = 4
Folders = dict[str, Path]
READ: dict[Path, Checkpoint] = {}


def masked_model(family: str, folder: Path, *, seed: int = 0, **sizes: Any) -> Path:
    """A masked language model none of whose numbers stands at its start, but for rows of padding."""
    encoder = tiny_encoder(family, dimensions=16, num_hidden_layers=LAYERS, seed=seed, **sizes)
    attach_masked_head(encoder, None, trained=False)
    with torch.no_grad():
        for parameter in encoder.whole_model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        for module in encoder.whole_model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    encoder.save(folder)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("sources")
    return {family: masked_model(family, folder / family) for family in FAMILIES}


def model_in(folder: Path) -> Any:
    model, report = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert is_tied is model.config.tie_word_embeddings
    return model.eval()


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    """The parameters, tied ones once, by the names of edit.json."""
    tensors = load_file(folder / "model.safetensors")
    return {re.sub(r"^(bert|roberta|model)\.", "", name): tensor for name, tensor in tensors.items()}


def edited(source: Path, out: Path, *edits: dict[str, Any], seed: int = 0) -> Path:
    if source not in READ:
        READ[source] = Checkpoint.read(str(source))
    checkpoint = copy.copy(READ[source])
    checkpoint.config, checkpoint.tensors = copy.deepcopy(checkpoint.config), dict(checkpoint.tensors)
    encoder, record = edit_checkpoint(checkpoint, EditSettings(edits=list(edits)).steps(), seed=seed)
    write_checkpoint(encoder, out, record)
    return out


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def input_ids(folder: Path) -> torch.Tensor:
    ids: torch.Tensor = AutoTokenizer.from_pretrained(folder)(SENTENCES[0], return_tensors="pt")["input_ids"]
    return ids


def of_scope(family: str, scope: Scope, name: str) -> bool:
    """Whether a tensor belongs to a scope, told by the words that its name is made of."""
    words = set(re.split(r"\W+", name))
    in_layer, in_head = bool(words & {"layer", "layers"}), bool(words & {"cls", "lm_head", "head", "decoder"})
    is_norm = "norm" in name.lower()
    return {
        "all": True,
        "head": in_head,
        "layers": in_layer,
        "norms": is_norm and not in_head,
        "embedding_norm": is_norm and "embeddings" in words,
        "word_embeddings": bool(words & {"word_embeddings", "tok_embeddings"}),
        "position_embeddings": "position_embeddings" in words,
        "token_type_embeddings": "token_type_embeddings" in words,
        "attention": in_layer and not is_norm and bool(words & {"attention", "attn"}),
        "feed_forward": in_layer and not is_norm and not words & {"attention", "attn"},
    }[scope]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_scopes_are_those_of_the_names_and_nothing_else_changes(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    before = tensors_in(sources[family])
    for scope in get_args(Scope):
        expected = {name for name in before if of_scope(family, scope, name)}
        step = {"name": "reinitialize", "scope": scope, "scheme": "permute_elements"}
        if not expected:
            assert family == "modernbert" and scope in ("position_embeddings", "token_type_embeddings")
            with pytest.raises(SettingError, match="changes nothing"):
                edited(sources[family], tmp_path / scope, step)
            continue
        after = tensors_in(edited(sources[family], tmp_path / scope, step))
        assert changed(before, after) == expected
        for name in expected:
            assert torch.equal(before[name].flatten().sort().values, after[name].flatten().sort().values), name
        record = json.loads((tmp_path / scope / RECORD).read_text())["tensors"]
        assert {name for name, entry in record.items() if entry["changed"]} == expected
        assert record.keys() == before.keys()
        for name, entry in record.items():
            assert entry["norm_before"] == pytest.approx(float(before[name].double().norm()))
            assert entry["norm_after"] == pytest.approx(float(after[name].double().norm()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_part_of_the_layers_is_drawn_as_it_is_among_all_of_them(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    before = tensors_in(sources[family])
    for scheme in get_args(Scheme):
        step = {"name": "reinitialize", "scope": "layers", "scheme": scheme}
        whole = tensors_in(edited(sources[family], tmp_path / f"{scheme}-all", step))
        part = tensors_in(edited(sources[family], tmp_path / f"{scheme}-two", step | {"layers": [1, 3]}))
        second = {name for name in before if re.search(r"layers?\.[13]\.", name)}
        assert changed(before, part) == second
        assert all(torch.equal(part[name], whole[name]) for name in second)


@pytest.mark.parametrize("family", FAMILIES)
def test_default_is_a_new_model_and_matches_keep_norm_or_standard_deviation(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    before, model = tensors_in(sources[family]), model_in(sources[family])
    padding = {id(m.weight): m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding)}
    rows = {tuple(weight.shape): row for weight in model.parameters() if (row := padding.get(id(weight))) is not None}
    new = {"name": "reinitialize", "scope": "all"}
    default = tensors_in(edited(sources[family], tmp_path / "default", new))
    norm = tensors_in(edited(sources[family], tmp_path / "norm", new | {"scheme": "match_norm"}))
    std = tensors_in(edited(sources[family], tmp_path / "std", new | {"scheme": "match_std"}))
    mean = tensors_in(edited(sources[family], tmp_path / "mean", new | {"scheme": "match_std", "keep_mean": True}))
    for name, old in before.items():
        if old.ndim == 1:
            start = 1.0 if name.lower().endswith("norm.weight") else 0.0
            for drawn in (default, norm, std, mean):
                assert torch.equal(drawn[name], torch.full_like(old, start)), name
            continue
        assert 0.005 < float(default[name].std()) < 0.05, name
        padded = rows.get(tuple(old.shape))
        for drawn in (norm, std, mean):
            assert padded is None or not drawn[name][padded].any()
        inside = [row for row in range(len(old)) if row != padded]
        assert float(norm[name].double().norm()) == pytest.approx(float(old.double().norm()), rel=1e-6)
        for drawn in (std, mean):
            assert float(drawn[name][inside].double().std()) == pytest.approx(
                float(old[inside].double().std()), rel=1e-6
            )
        assert float(std[name][inside].double().mean()) == pytest.approx(0, abs=1e-7)
        assert float(mean[name][inside].double().mean()) == pytest.approx(float(old[inside].double().mean()), abs=1e-7)


@pytest.mark.parametrize("family", WITH_EQUAL_LAYERS)
def test_reversed_layers_run_from_the_last_to_the_first_and_twice_is_nothing(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    step = {"name": "reverse_layers"}
    once = edited(sources[family], tmp_path / "once", step)
    twice = edited(once, tmp_path / "twice", step)
    assert not changed(tensors_in(sources[family]), tensors_in(twice))
    by_hand = model_in(sources[family])
    by_hand.base_model.encoder.layer = nn.ModuleList(list(by_hand.base_model.encoder.layer)[::-1])
    ids = input_ids(once)
    assert torch.equal(model_in(once)(ids).logits, by_hand(ids).logits)
    assert not torch.equal(model_in(once)(ids).logits, model_in(sources[family])(ids).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_layers_give_the_hidden_state_behind_them(family: str, sources: Folders, tmp_path: Path) -> None:
    whole = model_in(sources[family])
    ids = input_ids(sources[family])
    states = whole(ids, output_hidden_states=True).hidden_states
    for step in ({"layers": [0, 1]}, {"keep": "first_half"}):
        kept = model_in(edited(sources[family], tmp_path / next(iter(step)), {"name": "keep_layers"} | step))
        assert kept.config.num_hidden_layers == 2
        last = whole.base_model.final_norm(states[2]) if family == "modernbert" else states[2]
        torch.testing.assert_close(kept.base_model(ids).last_hidden_state, last, rtol=0, atol=1e-6)
    second = model_in(edited(sources[family], tmp_path / "second", {"name": "keep_layers", "keep": "every_second"}))
    assert second.config.num_hidden_layers == 2
    kinds = getattr(whole.config, "layer_types", None)
    assert getattr(second.config, "layer_types", None) == (kinds and [kinds[0], kinds[2]])
    by_hand = copy.deepcopy(whole)
    stack = by_hand.base_model.layers if family == "modernbert" else by_hand.base_model.encoder.layer
    del stack[3], stack[1]
    by_hand.config.layer_types = kinds and [kinds[0], kinds[2]]
    assert torch.equal(second(ids).logits, by_hand(ids).logits)


def test_layers_that_differ_move_only_by_force(sources: Folders, tmp_path: Path) -> None:
    for step in ({"name": "reverse_layers"}, {"name": "keep_layers", "layers": [1, 2]}):
        with pytest.raises(SettingError, match="layer 0"):
            edited(sources["modernbert"], tmp_path / "refused", step)
        assert not (tmp_path / "refused").exists()
    before = tensors_in(sources["modernbert"])
    after = tensors_in(edited(sources["modernbert"], tmp_path / "forced", {"name": "reverse_layers", "force": True}))
    assert torch.equal(after["layers.0.attn.Wo.weight"], before["layers.3.attn.Wo.weight"])
    assert torch.equal(after["layers.3.attn_norm.weight"], torch.ones(16))
    assert torch.equal(after["layers.1.attn_norm.weight"], before["layers.2.attn_norm.weight"])
    kinds = model_in(sources["modernbert"]).config.layer_types
    assert model_in(tmp_path / "forced").config.layer_types == kinds[::-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_shuffled_rows_are_those_of_latin_letters_and_no_other_moves(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    before = tensors_in(sources[family])
    tokenizer = AutoTokenizer.from_pretrained(sources[family])
    words = next(name for name in before if of_scope(family, "word_embeddings", name))
    pattern = re.compile(r"(##)?[A-Za-z]+" if family == "bert" else r" ?[A-Za-z]+")
    texts = {number: token if family == "bert" else tokenizer.decode([number])
             for token, number in tokenizer.get_vocab().items()}  # fmt: skip
    letters = {n for n, text in texts.items() if pattern.fullmatch(text)} - set(tokenizer.all_special_ids)
    assert 80 < len(letters) < len(tokenizer) - 40
    after = tensors_in(edited(sources[family], tmp_path / "letters", {"name": "permute_rows"}))
    assert changed(before, after) == {words}
    moved = {row for row in range(len(before[words])) if not torch.equal(before[words][row], after[words][row])}
    assert moved <= letters and len(moved) > 0.9 * len(letters)
    assert sorted(map(tuple, before[words].tolist())) == sorted(map(tuple, after[words].tolist()))
    both = tensors_in(edited(sources[family], tmp_path / "both", {"name": "permute_rows", "others": True}))[words]
    assert torch.equal(both[sorted(letters)], after[words][sorted(letters)])
    assert torch.equal(both[tokenizer.all_special_ids], before[words][tokenizer.all_special_ids])
    others = sorted(set(range(len(tokenizer))) - letters - set(tokenizer.all_special_ids))
    assert not torch.equal(both[others], before[words][others])
    assert sorted(map(tuple, both[others].tolist())) == sorted(map(tuple, before[words][others].tolist()))


def test_the_letters_of_uncased_bert_are_26503_of_its_30522_tokens() -> None:
    matching, others = matching_ids(load_tokenizer(str(shipped_folder())))
    assert (len(matching), len(matching) + len(others) + 5) == (26_503, 30_522)


def test_tokens_of_sentencepiece_begin_with_a_space() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("ing", -2.0), ("▁1", -3.0), ("é", -4.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert token_texts(tokenizer) == {1: " the", 2: "ing", 3: " 1", 4: "é"}
    assert matching_ids(tokenizer) == ([1, 2], [3, 4])
    assert matching_ids(tokenizer, r"\s\d") == ([3], [1, 2, 4])


@pytest.mark.parametrize("family", FAMILIES)
def test_swapped_embeddings_are_the_donors_and_those_of_itself_change_nothing(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    before = tensors_in(sources[family])
    itself = edited(sources[family], tmp_path / "itself", {"name": "swap_embeddings", "donor": str(sources[family])})
    assert not changed(before, tensors_in(itself))
    assert (itself / "tokenizer.json").read_bytes() == (sources[family] / "tokenizer.json").read_bytes()
    donor = sources["roberta" if family == "bert" else "bert"]
    swapped = edited(sources[family], tmp_path / "swapped", {"name": "swap_embeddings", "donor": str(donor)})
    theirs, ours = model_in(donor), model_in(swapped)
    assert torch.equal(ours.get_input_embeddings().weight, theirs.get_input_embeddings().weight)
    assert torch.equal(ours.get_output_embeddings().bias, theirs.get_output_embeddings().bias)
    assert (ours.config.vocab_size, ours.config.pad_token_id) == (theirs.config.vocab_size, theirs.config.pad_token_id)
    after = tensors_in(swapped)
    of_words = {name for name in before if of_scope(family, "word_embeddings", name) or name.endswith(".bias")}
    kept = {name for name in before if name not in of_words and "position_embeddings" not in name}
    assert all(torch.equal(before[name], after[name]) for name in kept)
    first, second = (Encoder.load(str(each), device="cpu") for each in (sources[family], swapped))
    assert first.max_input_tokens == second.max_input_tokens
    assert second.tokenizer_fingerprint == Encoder.load(str(donor), device="cpu").tokenizer_fingerprint
    positions = "embeddings.position_embeddings.weight"
    if family != "modernbert":  # the first token has the position vector that it had
        begins = [config.pad_token_id + 1 if "roberta" in family else 0 for config in (first.model.config, ours.config)]
        assert torch.equal(before[positions][begins[0] :], after[positions][begins[1] :])


def test_an_average_weighs_each_tensor_of_the_donor_and_refuses_another_architecture(
    sources: Folders, tmp_path: Path
) -> None:
    donor = masked_model("bert", tmp_path / "donor", seed=1)
    theirs = load_file(donor / "model.safetensors")
    theirs["bert.embeddings.LayerNorm.bias"] = tensors_in(sources["bert"])["embeddings.LayerNorm.bias"] + 4
    save_file(theirs, donor / "model.safetensors", {"format": "pt"})
    step = {"name": "average", "donor": str(donor), "fraction": 0.25}
    before, after = tensors_in(sources["bert"]), tensors_in(edited(sources["bert"], tmp_path / "out", step))
    torch.testing.assert_close(after["embeddings.LayerNorm.bias"], before["embeddings.LayerNorm.bias"] + 1)
    assert before.keys() == after.keys() == tensors_in(donor).keys()
    for name, tensor in tensors_in(donor).items():
        torch.testing.assert_close(after[name], 0.75 * before[name] + 0.25 * tensor)
    with pytest.raises(EncoderError, match="must have the tokenizer and the sizes of"):
        edited(sources["bert"], tmp_path / "other", step | {"donor": str(sources["roberta"])})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_vocabulary_draws_word_vectors_and_leaves_the_layers(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    tokenizer = wordpiece_tokenizer(SENTENCES[:3], vocabulary_size=200)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    step = {"name": "new_vocabulary", "tokenizer": str(tmp_path / "tokenizer")}
    new = edited(sources[family], tmp_path / "new", step)
    before, after = tensors_in(sources[family]), tensors_in(new)
    bias = next(name for name in after if name in ("cls.predictions.bias", "lm_head.bias", "decoder.bias"))
    words = next(name for name in after if of_scope(family, "word_embeddings", name))
    assert after[words].shape == (len(tokenizer), 16)
    assert 0.01 < float(after[words].std()) < 0.03
    assert torch.equal(after[bias], torch.zeros(len(tokenizer)))
    rest = before.keys() - {words, bias, "embeddings.position_embeddings.weight"}
    assert all(torch.equal(before[name], after[name]) for name in rest)
    assert all_bytes(edited(sources[family], tmp_path / "same", step)) == all_bytes(new)
    other = tensors_in(edited(sources[family], tmp_path / "other", step, seed=1))
    assert changed(after, other) == {words}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untied_head_predicts_as_before_and_keeps_its_matrix_when_the_word_vectors_go(
    family: str, sources: Folders, tmp_path: Path
) -> None:
    untied = edited(sources[family], tmp_path / "untied", {"name": "untie"})
    ids = input_ids(untied)
    assert torch.equal(model_in(untied)(ids).logits, model_in(sources[family])(ids).logits)
    clean = {"name": "reinitialize", "scope": "word_embeddings"}
    before, after = tensors_in(untied), tensors_in(edited(untied, tmp_path / "clean", clean))
    assert {name for name in changed(before, after) if of_scope(family, "word_embeddings", name)} == changed(
        before, after
    )
    with pytest.raises(SettingError, match="changes nothing"):
        edited(untied, tmp_path / "again", {"name": "untie"})


def test_an_encoder_without_a_head_is_edited_without_one_and_another_family_refused(
    tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    out = edited(tiny_encoder_folder, tmp_path / "out", {"name": "reverse_layers"})
    before, after = (Encoder.load(str(folder), device="cpu").model for folder in (tiny_encoder_folder, out))
    for name, tensor in before.state_dict().items():
        other = re.sub(r"layer\.(\d)", lambda found: f"layer.{1 - int(found[1])}", name)
        assert torch.equal(tensor, after.state_dict()[other])
    assert json.loads((out / "config.json").read_text())["architectures"] == ["BertModel"]
    with pytest.raises(EncoderError, match="no head"):
        edited(tiny_encoder_folder, tmp_path / "untied", {"name": "untie"})
    tokenizer = wordpiece_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "dim": 8, "hidden_dim": 8, "n_heads": 2, "n_layers": 1}
    DistilBertForMaskedLM(DistilBertConfig(**sizes)).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(EncoderError, match="distilbert"):
        edited(tmp_path / "other", tmp_path / "out", {"name": "reverse_layers"})


def test_edits_follow_one_another_and_the_record_says_from_what(sources: Folders, tmp_path: Path) -> None:
    steps = [{"name": "keep_layers", "layers": [3, 0]}, {"name": "reinitialize", "scope": "layers", "layers": [1]}]
    out = edited(sources["bert"], tmp_path / "out", *steps, seed=7)
    before, after = tensors_in(sources["bert"]), tensors_in(out)
    query = "encoder.layer.{}.attention.self.query.weight"
    assert torch.equal(after[query.format(0)], before[query.format(3)])
    assert not torch.equal(after[query.format(1)], before[query.format(0)])
    record = json.loads((out / RECORD).read_text())
    assert (record["edits"], record["seed"]) == (steps, 7)
    source, result = (Encoder.load(str(folder), device="cpu") for folder in (sources["bert"], out))
    assert (record["source"]["fingerprint"], record["fingerprint"]) == (source.fingerprint, result.fingerprint)
    assert record["tensors"][query.format(2)]["norm_after"] is None
    assert str(tmp_path) not in (out / RECORD).read_text()


@pytest.mark.parametrize("name", NAMED)
def test_a_named_edit_is_complete_and_listed_in_the_help(name: str) -> None:
    needed = {"swap_embeddings": {"donor": "D"}, "new_vocabulary": {"tokenizer": "T"}}.get(NAMED[name]["name"], {})
    assert [step.record() for step in EditSettings(edit=name, **needed).steps()] == [NAMED[name] | needed]
    assert name in find_verb("edit").settings["edit"].text


def test_the_command_edits_by_name_and_by_list(sources: Folders, npmlm: CommandLine, tmp_path: Path) -> None:
    donor = sources["roberta"]
    for number, arguments in enumerate(
        (["edit=swapped_embeddings", f"donor={donor}"], ["edits=[{name: reverse_layers}]"])
    ):
        outcome = npmlm("edit", f"encoder={sources['bert']}", f"out={tmp_path / str(number)}", *arguments)
        assert (outcome.status, outcome.out) == (0, "")
        assert "tensors changed; the encoder is in" in outcome.err
        model_in(tmp_path / str(number))


BAD = [
    (["edits=[{name: magic}]"], ["edits[0].name", "reverse_layers", "got magic"]),
    (["edits=[{name: reinitialize}]"], ["scope of the edit reinitialize is required"]),
    (["edits=[{name: permute_rows, filter: '('}]"], ["filter must be a regular expression"]),
    (["edits=[{name: keep_layers, layers: [0,4]}]"], ["edits[0].layers", "0 to 3"]),
    (["edits=[{name: keep_layers, layers: [0,1,2,3]}]"], ["edits[0] changes nothing", "keep_layers"]),
    ([], ["edit or edits"]),
    (["edit=oracle", "edits=[{name: untie}]"], ["edit", "edits"]),
]


@pytest.mark.parametrize(("arguments", "parts"), BAD)
def test_a_mistake_is_one_message_and_leaves_nothing(
    arguments: list[str], parts: list[str], sources: Folders, npmlm: CommandLine, tmp_path: Path
) -> None:
    npmlm("edit", f"encoder={sources['bert']}", f"out={tmp_path / 'out'}", *arguments).refused(*parts)
    assert not list(tmp_path.iterdir())


def test_a_donor_of_another_size_and_a_tokenizer_without_mask_are_refused(
    sources: Folders, npmlm: CommandLine, tmp_path: Path
) -> None:
    wide = tmp_path / "wide"
    tiny_encoder("bert", dimensions=32).save(wide)
    command = ("edit", f"encoder={sources['bert']}", f"out={tmp_path / 'out'}")
    npmlm(*command, "edit=swapped_embeddings", f"donor={wide}").refused("16 dimensions", "got 32")
    tokenizer = wordpiece_tokenizer(SENTENCES[:2])
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    npmlm(*command, "edit=new_vocabulary", f"tokenizer={tmp_path / 'tokenizer'}").refused("no mask token")
    assert npmlm(*command, "edit=reversed").status == 0
    npmlm(*command, "edit=reversed").refused("out must be")
