"""The second filter of LAMA-UHN: examples whose answer a masked language model guesses from the person's name alone.

Poerner et al. 2019 (arXiv 1911.03681), §2.2. The first filter, by the answer standing in the name, is the reader's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npm.core.types import MASK_TEXT
from npm.evaluation.tasks.data import TaskExamples
from npm.evaluation.tasks.readers import UHN_BY_STRING
from npm.evaluation.zero_shot.parametric import masked_logits
from npm.retrieval.queries import encode_masks

if TYPE_CHECKING:
    from npm.evaluation.tasks.task import Example
    from npm.models.encoder import Encoder
    from npm.models.masked_lm import MaskedHead


UHN = "uhn"
KIND_OF_ANSWER = {
    **dict.fromkeys(("P19", "P20", "place_of_birth", "place_of_death"), "city"),
    "P27": "country",
    **dict.fromkeys(("P103", "P1412"), "language"),
}
"""What is asked of a name, by relation; others are not filtered."""
GUESSES = 3
"""Best words that count as guessed."""
NAMES_PER_CALL = 256


def lacks_name_filter(read: TaskExamples) -> bool:
    """Whether the subset uhn of these examples is made by the first filter alone."""
    return UHN in read.subsets and any(UHN_BY_STRING in note for note in read.notes)


def without_guessed_names(read: TaskExamples, encoder: Encoder, head: MaskedHead) -> TaskExamples:
    """`read` with those examples out of the subset uhn whose answer is among the best words for a part of the name.

    Asked is "X is a common name in the following city: <mask>." for each word X of the subject. Case is not compared.
    """
    prompts: dict[str, list[str]] = {}
    for example in read.examples:
        for prompt in _prompts(example):
            prompts[prompt] = []
    asked = list(prompts)
    for first in range(0, len(asked), NAMES_PER_CALL):
        batch = asked[first : first + NAMES_PER_CALL]
        masks = encode_masks(encoder, batch, masks_per_text=1)
        for rows, logits in masked_logits(head, masks.vectors[:, 0]):  # f32 [rows, V]
            best = logits.topk(min(GUESSES, logits.shape[1])).indices.tolist()  # i64 [rows, 3]
            for prompt, ids in zip(batch[rows], best, strict=True):
                prompts[prompt] = [str(encoder.tokenizer.decode([token])).strip().casefold() for token in ids]
    examples = [
        replace(example, subsets=tuple(name for name in example.subsets if name != UHN))
        if any(example.answers[0].casefold() in prompts[prompt] for prompt in _prompts(example))
        else example
        for example in read.examples
    ]
    told = f"uhn leaves out examples whose subject holds the answer or lets {encoder.name} guess it."
    return replace(read, examples=examples, notes=tuple(note.replace(UHN_BY_STRING, told) for note in read.notes))


def _prompts(example: Example) -> list[str]:
    """What is asked to guess the answer of an example of the subset uhn; nothing for other relations."""
    kind = KIND_OF_ANSWER.get(example.group)
    if kind is None or UHN not in example.subsets:
        return []
    words = [word for word in example.subject.split() if MASK_TEXT not in word]
    return [f"{word} is a common name in the following {kind}: {MASK_TEXT}." for word in words]
