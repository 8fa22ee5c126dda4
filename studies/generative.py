"""Models that write: a decoder continues the text before the mask, an encoder-decoder writes the content of the mask.

    log P(w | x) = Σ_j log P(w_j | x before the mask, w_1 … w_{j−1})               a decoder, a word w of n tokens
    log P(w | x) = Σ_j log P(w_j | x with a sentinel for the mask, w_1 … w_{j−1})   T5 (Raffel et al. 2020)
    P(w_1 | x) = λ P_kNN(w_1 | x) + (1 − λ) P_LM(w_1 | x),   P_kNN(v | x) ∝ Σ_i [v_i = v] e^{−‖h(x) − h_i‖² / T}

The last is the kNN-LM (Khandelwal et al. 2020, arXiv 1911.00172, §2): h_i is the last hidden state of a prefix in the
corpus, v_i the token after it, over the k nearest of all prefixes. A word's further tokens are the decoder's alone.

Open tasks are answered with the greedy continuation.

Shapes: q texts, W words, B texts of a batch, L padded length, k neighbors, d dimensions, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.core.errors import EncoderError
from npm.core.types import MASK_TEXT, Answer, Phrase, Progress
from npm.corpus.markup import visible
from npm.evaluation.methods.parametric import WordLogs, check_word, check_words, prompted_labels
from npm.evaluation.methods.registry import Method, Predictions, admissible_parts, answered
from npm.evaluation.prompts import plain_token_ids
from npm.evaluation.results import index_facts, model_facts
from npm.evaluation.tasks import Calibration, Example, Task, load_verbalizer
from npm.models.batches import length_sorted_batches
from npm.models.denoiser import Denoiser
from npm.retrieval.settings import FillSettings
from studies.decoder import Decoder

if TYPE_CHECKING:
    from npm.evaluation.methods.registry import Resources
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.stored import StoredModel

TOKENS_PER_BATCH = 2048
TEXTS_GENERATED_TOGETHER, MOST_NEW_TOKENS = 8, 32
PASSAGES_IN_FRONT = 3
EXAMPLES_PER_PASS = 4096
"""Examples scored together: a kNN-LM reads the corpus once for each such batch."""
ANCHOR = ":"
"""A word is tokenized after it, so that tokenizers that put a space before every text put none before the word."""
QUESTION = re.compile(r"(.*\?)(\s(the )?answer( is)?:)?", re.DOTALL | re.IGNORECASE)
"""A question, and the template's text between it and the mask: `The answer is:`; no name with a question mark."""
PUNCTUATION = re.compile(r"[.,;:!?()\[\]\"“”«»。，、；：！？（）।]")


class DecoderWriter:
    """Reads the text before the mask, and continues it."""

    reads = "the text before the mask"

    def __init__(self, model: Decoder) -> None:
        self.model = model

    def prompts(self, texts: Sequence[str], *, room: int) -> tuple[list[np.ndarray], np.ndarray]:
        """The last tokens of the text before each mask, without the space before it, which is the word's."""
        most = max(1, self.model.max_input_tokens - room - len(self.model.prefix_ids))
        before = plain_token_ids(self.model, [text.partition(MASK_TEXT)[0].rstrip() for text in texts])
        cut = np.array([len(ids) > most for ids in before], dtype=bool)  # [q]
        found = [[*self.model.prefix_ids, *ids[-most:]] or self.model.beginning_ids for ids in before]
        return [np.array(ids, dtype=np.int64) for ids in found], cut

    def logits(
        self, prompts: Sequence[np.ndarray], stems: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        """For each prompt and stem their indices and the logits f32 [len(stem) + 1, V] of the next tokens."""
        sequences = [np.append(prompt, stem).astype(np.int64) for prompt in prompts for stem in stems]
        first = [len(prompt) - 1 for prompt in prompts for _ in stems]
        for number, logits in self.model.next_logits(sequences, first):
            yield *divmod(number, len(stems)), logits

    def open_text(self, text: str) -> str:
        """A question with space for its answer, a text that ends in a colon as it is, and any other text as a cloze."""
        before, _, after = text.partition(MASK_TEXT)
        if question := QUESTION.fullmatch(before.strip()):
            return f"Question: {question[1]}\nAnswer:{MASK_TEXT}"
        if before.rstrip().endswith(":"):
            return before.rstrip() + MASK_TEXT
        return f"{before}_____{after.rstrip()} Fill in the blank. Answer:{MASK_TEXT}"

    def written(self, prompts: Sequence[np.ndarray]) -> list[tuple[list[int], float]]:
        """The greedy continuation of each prompt, and its log probability."""
        end = self.model.tokenizer.eos_token_id
        return _generated(self.model, self.model.padded(prompts, side="left"), end_ids=[] if end is None else [end])


class SentinelWriter:
    """Reads the text with a sentinel at the mask, and writes the text of the sentinel."""

    reads = "the text with a sentinel in the mask's place"

    def __init__(self, model: Denoiser) -> None:
        """Raises EncoderError if its tokenizer has no sentinels."""
        self.model = model
        self._sentinels = model.sentinel_ids
        if len(self._sentinels) < 2:
            raise EncoderError(
                f"{model.name} has no sentinels <extra_id_0> and <extra_id_1>: choose a T5 with zero_shot.t5.model"
            )
        stored: Any = model.model
        starts = [getattr(each, "decoder_start_token_id", None) for each in (stored.config, stored.generation_config)]
        start = next((int(each) for each in starts if each is not None), model.pad_id)
        self._begin = [start, self._sentinels[0]]

    def prompts(self, texts: Sequence[str], *, room: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Full texts with their end: positions are relative, so that none is too long."""
        assert room <= self.model.max_input_tokens, "an encoder-decoder with absolute positions has no sentinels"
        halves = plain_token_ids(self.model, [half for text in texts for half in text.split(MASK_TEXT)])
        pairs = zip(halves[::2], halves[1::2], strict=True)
        found = [[*before, self._sentinels[0], *after, self.model.end_id] for before, after in pairs]
        return [np.array(ids, dtype=np.int64) for ids in found], np.zeros(len(texts), dtype=bool)

    def logits(
        self, prompts: Sequence[np.ndarray], stems: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        """As a decoder does it; a text is encoded once for all stems."""
        model: Any = self.model.model
        lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)  # i64 [q]
        for batch in length_sorted_batches(lengths, tokens_per_batch=TOKENS_PER_BATCH):
            inputs = self.model.padded([prompts[number] for number in batch], pad_id=self.model.pad_id)
            mask = inputs["attention_mask"]  # i64 [B, L]
            with torch.inference_mode():
                encoded = model.get_encoder()(**inputs)
                for number, stem in enumerate(stems):
                    given = torch.tensor(
                        [[*self._begin, *stem]] * len(batch), device=self.model.device
                    )  # i64 [B, 2 + n]
                    out = model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=given, use_cache=False)
                    for row, prompt in enumerate(batch.tolist()):
                        yield prompt, number, out.logits[row, 1:].float()  # f32 [n + 1, V]

    def open_text(self, text: str) -> str:
        """The text itself: such a model was trained on texts with masks."""
        return text

    def written(self, prompts: Sequence[np.ndarray]) -> list[tuple[list[int], float]]:
        """As a decoder does it; the next sentinel ends the output."""
        inputs = self.model.padded(prompts, pad_id=self.model.pad_id)
        given = torch.tensor([self._begin] * len(prompts), device=self.model.device)  # i64 [B, 2]
        ends = [self.model.end_id, self._sentinels[1]]
        return _generated(self.model, inputs, end_ids=ends, start_id=self._begin[0], decoder_input_ids=given)


def _generated(
    model: StoredModel,
    inputs: Mapping[str, torch.Tensor],
    *,
    end_ids: list[int],
    start_id: int | None = None,
    **given: torch.Tensor,
) -> list[tuple[list[int], float]]:
    """Greedy continuations of `inputs`, as `StoredModel.padded` makes them, without their ends.

    `start_id` is what an encoder-decoder begins with. The model's generation_config.json is ignored.
    """
    from transformers import GenerationConfig

    config = GenerationConfig(
        max_new_tokens=MOST_NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        eos_token_id=end_ids or None,
        pad_token_id=end_ids[0] if end_ids else 0,
        decoder_start_token_id=start_id,
        return_dict_in_generate=True,
        output_logits=True,
    )
    writer: Any = model.model
    own, writer.generation_config = writer.generation_config, config  # unset values would come from the model's
    try:
        with torch.inference_mode():
            out = writer.generate(**inputs, generation_config=config, **given)
    finally:
        writer.generation_config = own
    with torch.inference_mode():
        steps = len(out.logits)
        chosen = out.sequences[:, -steps:]  # i64 [B, steps]
        logs = torch.stack(  # f32 [B, steps]
            [row.float().log_softmax(1).gather(1, chosen[:, [step]])[:, 0] for step, row in enumerate(out.logits)], 1
        )
    found = []
    for tokens, each in zip(chosen.tolist(), logs.double().tolist(), strict=True):
        count = next((place for place, token in enumerate(tokens) if token in end_ids), steps)
        found.append((tokens[:count], sum(each[: count + 1])))
    return found


Writer = DecoderWriter | SentinelWriter


def load_generator(kind: str, resources: Resources) -> Decoder | Denoiser:
    """The model of the methods `causal…` or `t5`, loaded once. Raises EncoderError if there is none of that kind."""
    settings = resources.settings
    if kind not in resources.shared:
        load: Any = Denoiser.load if kind == "t5" else Decoder.load
        name = getattr(settings.zero_shot, kind).model
        resources.shared[kind] = load(name, device=settings.device, dtype=settings.precision)
    model: Decoder | Denoiser = resources.shared[kind]
    return model


def _writer(name: str, resources: Resources) -> Writer:
    """The model that writes for a method. Raises EncoderError if it cannot serve."""
    model = load_generator("t5" if name == "t5" else "causal", resources)
    return SentinelWriter(model) if isinstance(model, Denoiser) else DecoderWriter(model)


def closed_method(name: str, task: Task, resources: Resources) -> Method:
    """Method `causal`, `causal-pmi`, `causal-knn` or `t5`."""
    writer, verbalizer = _writer(name, resources), load_verbalizer(task, "label_words")
    model = {**model_facts(writer.model), "dtype": writer.model.dtype_name}
    facts: dict[str, Any] = {"model": model, "reads": writer.reads}
    calibration: Calibration = "prompt" if name == "causal-pmi" else "none"
    word_logs: WordLogs = partial(writer_logs, writer)
    check_words(word_logs, task, verbalizer, calibration)
    if name == "causal-knn":
        assert isinstance(writer, DecoderWriter), "the other writer has no prefixes"
        causal, index = resources.settings.zero_shot.causal, resources.index(task)[0]
        chosen: dict[str, Any] = {"share": causal.knn_share, "temperature": causal.knn_temperature, "k": causal.knn_k}
        word_logs = NeighbourLogs(writer, index, **chosen)
        facts |= {"neighbors": chosen, "index": index_facts(index)}
    return prompted_labels(
        name,
        word_logs,
        facts=facts,
        verbalizer=verbalizer,
        calibration=calibration,
        examples_per_call=EXAMPLES_PER_PASS,
    )


def open_method(name: str, task: Task, resources: Resources) -> Method:
    """Method `causal`, `causal-bm25` or `t5`."""
    index = resources.index(task)[0] if name == "causal-bm25" else None
    return Method(name, PhraseWriter(_writer(name, resources), index, resources.fill_settings(task)).predict)


def continuation_logs(
    writer: Writer, texts: Sequence[str], words: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log P of each word's first token, and of its other tokens, f64 [q, W] each, and whether a text was cut, bool [q].

    Raises SettingError for a word that cannot be written.
    """
    first, rest = np.zeros((2, len(texts), len(words)))  # f64 [q, W] each
    is_cut = np.zeros(len(texts), dtype=bool)  # [q]
    spaced = np.array([takes_space(text) for text in texts], dtype=bool)  # [q]
    for after_space in (False, True):
        chosen = np.flatnonzero(spaced == after_space)  # i64 [q of this kind]
        if not len(chosen):
            continue
        tokens = written_words(writer.model, words, after_space=after_space)
        prompts, cut = writer.prompts([texts[number] for number in chosen.tolist()], room=max(map(len, tokens)))
        is_cut[chosen] = cut
        owners = [tuple(ids[:-1]) for ids in tokens]  # the tokens before a word's last one
        stems = list(dict.fromkeys(owners))
        for row, number, logits in writer.logits(prompts, stems):
            logs = logits.log_softmax(1).double()  # f64 [n, V]
            for word in (place for place, owner in enumerate(owners) if owner == stems[number]):
                ids = torch.tensor(tokens[word], device=logs.device)  # i64 [n of the word]
                own = logs[torch.arange(len(ids), device=logs.device), ids].cpu().numpy()  # f64 [n of the word]
                first[chosen[row], word], rest[chosen[row], word] = own[0], own[1:].sum()
    return first, rest, is_cut


def takes_space(text: str) -> bool:
    """Return True if a space precedes the mask, which is the word's to a model that continues the text."""
    return text.partition(MASK_TEXT)[0][-1:].isspace()


def written_words(model: StoredModel, words: Sequence[str], *, after_space: bool) -> list[list[int]]:
    """The token ids of each word as it occurs in a text. Raises SettingError for one that cannot be written."""
    (anchor,) = plain_token_ids(model, [ANCHOR])
    tokens = []
    for ids in plain_token_ids(model, [f"{ANCHOR}{' ' if after_space else ''}{word}" for word in words]):
        tokens.append(ids[len(anchor) :] if ids[: len(anchor)] == anchor else ids)
    for word, ids in zip(words, tokens, strict=True):
        check_word(model, word, ids)
    return tokens


def writer_logs(writer: Writer, texts: Sequence[str], words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """log P(word | text) f64 [q, W] of a model that writes, and whether each text was cut, bool [q]: a `WordLogs`."""
    first, rest, cut = continuation_logs(writer, texts, words)
    return first + rest, cut


class PhraseWriter:
    """Fills the mask of an open task with the first line of a generated text: an open method."""

    def __init__(self, writer: Writer, index: PhraseIndex | None = None, settings: FillSettings | None = None) -> None:
        """With `index`, the three best blocks by BM25 precede each text, of documents as `settings` filter them."""
        self._writer = writer
        self._index = index
        self._settings = settings or FillSettings()

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        """The first line written for every example; none where passages precede texts and no document may answer."""
        parts: Iterable[tuple[Any, list[int]]] = [(self, [*range(len(examples))])]  # no index: any example is answered
        if self._index is not None:
            parts = admissible_parts(self._index, examples, self._settings)
        answers = answered(task, examples, parts, self._answers, progress, at_once=TEXTS_GENERATED_TOGETHER)
        facts = {
            "model": {**model_facts(self._writer.model), "dtype": self._writer.model.dtype_name},
            "answers": f"greedy, at most {MOST_NEW_TOKENS} tokens, the first line",
            "passages_in_front": 0 if self._index is None else PASSAGES_IN_FRONT,
            **({} if self._index is None else {"index": index_facts(self._index), "where": self._settings.where}),
            "cut_texts": sum(answer.cut for answer in answers),
        }
        return Predictions(answers, facts)

    def _answers(self, part: Any, examples: Sequence[Example]) -> list[Answer]:
        texts = [example.text for example in examples]
        asked = [self._with_passages(text, self._writer.open_text(text), part) for text in texts]
        prompts, cut = self._writer.prompts(asked, room=MOST_NEW_TOKENS)
        answers = []
        for text, own_cut, (ids, log) in zip(texts, cut.tolist(), self._writer.written(prompts), strict=True):
            line = first_line(self._writer.model.tokenizer.backend_tokenizer.decode(ids), text)
            phrases = (Phrase(line, float(np.exp(log)), 0, ()),) if line else ()
            answers.append(Answer(text, phrases, own_cut))
        return answers

    def _with_passages(self, text: str, asked: str, part: PhraseIndex) -> str:
        if self._index is None:
            return asked
        blocks, _ = self._index.lexicon.best_blocks(text, PASSAGES_IN_FRONT, allowed=part.live_blocks)
        passages = (visible(part.store.block_text(block)).replace(MASK_TEXT, " ") for block in blocks.tolist())
        return "\n\n".join([*passages, asked])


def first_line(written: str, text: str) -> str:
    """The answer in the output for `text`: its first line, up to the first punctuation if the text ends in a colon.

    >>> first_line(" Oslo.\\nQuestion: ", "Its capital is <mask>."), first_line(" Осло, the", "In Russian: <mask>.")
    ('Oslo.', 'Осло')
    """
    line = next(iter(written.strip().splitlines()), "").strip()
    before = text.partition(MASK_TEXT)[0].rstrip()
    if before.endswith(":") and not QUESTION.fullmatch(before.strip()):
        line = PUNCTUATION.split(line)[0].strip()
    return line


class NeighbourLogs:
    """log P(word | text) of a kNN-LM over the blocks of an index: a `WordLogs`. Nothing of the corpus is kept."""

    def __init__(self, writer: DecoderWriter, index: PhraseIndex, *, share: float, temperature: float, k: int) -> None:
        """λ, T and k."""
        self._writer = writer
        self._index = index
        self._share, self._temperature, self._k = share, temperature, k

    def __call__(self, texts: tuple[str, ...], words: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """f64 [q, W], and whether each text was cut, bool [q]; reads the corpus once."""
        first, rest, cut = continuation_logs(self._writer, texts, words)
        prompts, _ = self._writer.prompts(texts, room=1)
        queries = torch.cat([self._writer.model.states([prompt])[0, -1:] for prompt in prompts])  # f32 [q, d]
        squares, tokens = self._nearest(queries)  # f32 [q, k], i64 [q, k]
        weights = torch.softmax(-squares.double() / self._temperature, 1)  # f64 [q, k]
        near = np.zeros(first.shape)  # f64 [q, W]
        for after_space in (False, True):
            rows = [number for number, text in enumerate(texts) if takes_space(text) == after_space]
            for word, ids in enumerate(written_words(self._writer.model, words, after_space=after_space)):
                near[rows, word] = (weights[rows] * (tokens[rows] == ids[0])).sum(1).cpu().numpy()  # f64 [rows]
        with np.errstate(divide="ignore"):  # a share of 0 or 1, and words that no neighbor has
            mixed = np.logaddexp(np.log(self._share) + np.log(near), np.log1p(-self._share) + first)  # f64 [q, W]
        return mixed + rest, cut

    def _nearest(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared distances f32 [q, k] to the nearest prefixes of the corpus, and the tokens i64 [q, k] after them."""
        model = self._writer.model
        squares = torch.full((len(queries), self._k), torch.inf, device=model.device)  # f32 [q, k]
        tokens = torch.full((len(queries), self._k), -1, dtype=torch.int64, device=model.device)  # i64 [q, k]
        own = queries.square().sum(1, keepdim=True)  # f32 [q, 1]
        for keys, behind in self._prefixes():  # f32 [n, d], i64 [n]
            far = own - 2 * queries @ keys.T + keys.square().sum(1)  # f32 [q, n]
            both = torch.cat([squares, far], 1)  # f32 [q, k + n]
            squares, places = both.topk(self._k, dim=1, largest=False)  # [q, k] each
            tokens = torch.cat([tokens, behind.expand(len(queries), -1)], 1).gather(1, places)
        return squares, tokens

    def _prefixes(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """States f32 [n, d] of prefixes of the corpus's blocks, and the token after each, i64 [n]."""
        model, index = self._writer.model, self._index
        blocks = range(index.store.block_count) if index.live_blocks is None else np.flatnonzero(index.live_blocks)
        texts = [visible(index.store.block_text(int(block))) for block in blocks]
        most = model.max_input_tokens - len(model.prefix_ids)
        ids = [np.array([*model.prefix_ids, *each[:most]], dtype=np.int64) for each in plain_token_ids(model, texts)]
        lengths = np.array([len(each) for each in ids], dtype=np.int64)  # i64 [blocks]
        for batch in length_sorted_batches(lengths, tokens_per_batch=TOKENS_PER_BATCH):
            own = [ids[number] for number in batch.tolist()]
            if max(map(len, own)) < 2:
                continue
            states = model.states(own)  # f32 [B, L, d]
            keys = torch.cat([states[row, : len(each) - 1] for row, each in enumerate(own)])  # f32 [n, d]
            yield keys, torch.from_numpy(np.concatenate([each[1:] for each in own])).to(model.device)
