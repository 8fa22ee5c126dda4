# %% [markdown]
# # Are places of a word nearer where it means the same?
#
# The vector of a place is that of the word's first token, joined with that of its last. `senses.json` has six
# sentences for each of twenty English words with two senses, three of each. `NPMLM_NOTEBOOK_PAIRS` names JSON lines in
# the form of SuperGLUE's WiC instead: word, sentence1, start1, end1, sentence2, start2, end2, label.

# %%
import json
import os
import re
from itertools import combinations
from pathlib import Path

import numpy as np

from npm.models.batches import encode_sequences
from npm.models.encoder import Encoder

NAMES = os.environ.get("NPMLM_NOTEBOOK_ENCODERS", "encoder-mini").split()


def lines_of(path: str) -> list[dict]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


if PAIRS := os.environ.get("NPMLM_NOTEBOOK_PAIRS"):
    rows = lines_of(PAIRS)
    places = [
        (row["word"], 0, *(row[f"{key}{n}"] for key in ("sentence", "start", "end"))) for row in rows for n in (1, 2)
    ]
    pairs = [(2 * number, 2 * number + 1) for number in range(len(rows))]
    same = np.array([bool(row["label"]) for row in rows])  # bool [pairs]
else:
    senses = json.loads(Path("docs/notebooks/senses.json").read_text("utf-8"))
    places = [
        (word, sense, text, *re.search(rf"\b{re.escape(word)}\b", text).span())
        for word, both in senses.items()
        for sense, sentences in enumerate(both)
        for text in sentences
    ]
    pairs = [(a, b) for a, b in combinations(range(len(places)), 2) if places[a][0] == places[b][0]]
    same = np.array([places[a][1] == places[b][1] for a, b in pairs])  # bool [pairs]
len(pairs)


# %%
def place_vectors(encoder: Encoder, places: list[tuple]) -> np.ndarray:
    """The vectors of the first and last token of each place, joined: f64 [places, 2d]."""
    sequences, slots = [], []
    for _, _, text, start, end in places:
        given = encoder.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        own = [n for n, (first, last) in enumerate(given["offset_mapping"]) if first < end and last > start]
        sequences.append(np.array([*encoder.prefix_ids, *given["input_ids"], *encoder.suffix_ids]))
        slots.append(np.array([own[0], own[-1]]) + len(encoder.prefix_ids))
    vectors = encode_sequences(encoder, sequences, slots, tokens_per_batch=8192).vectors
    return np.stack(vectors).reshape(len(places), -1).astype(np.float64)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(a positive scores above a negative), equal scores as a half (Hanley and McNeil 1982)."""
    gaps = scores[positive][:, None] - scores[~positive]  # f64 [positives, negatives]
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def interval(values: list[float]) -> str:
    """The middle 95 % of resampled values."""
    low, high = np.quantile(values, [0.025, 0.975])
    return f"[{low:.1%}, {high:.1%}]"


# %% [markdown]
# ## AUC of same against other sense
#
# Intervals draw entire words, because the pairs of a word share sentences (Efron and Tibshirani 1993, §8.3). All
# encoders have the same draws, and the later ones their difference from the first. The accuracy is that of one half of
# the words with the best threshold of the other half.

# %%
of_words, words = np.unique([places[a][0] for a, _ in pairs], return_inverse=True)  # [words], i64 [pairs]
firsts, seconds = np.array(pairs).T  # i64 [pairs] each
rng = np.random.default_rng(0)
draws = [
    np.concatenate([np.flatnonzero(words == word) for word in rng.integers(len(of_words), size=len(of_words))])
    for _ in range(500)
]
draws = [drawn for drawn in draws if 0 < same[drawn].sum() < len(drawn)]
half = words % 2 == 0  # bool [pairs]
resampled: dict[str, list[float]] = {}
for name in NAMES:
    vectors = place_vectors(Encoder.load(name, device="cpu"), places)  # f64 [places, 2d]
    products = (vectors[firsts] * vectors[seconds]).sum(1)  # f64 [pairs]
    lengths = np.linalg.norm(vectors, axis=1)  # f64 [places]
    for kind, scores in {"inner product": products, "cosine": products / (lengths[firsts] * lengths[seconds])}.items():
        own = [auc(scores[drawn], same[drawn]) for drawn in draws]
        first = resampled.setdefault(kind, own)
        threshold = max(scores[half], key=lambda score: ((scores[half] >= score) == same[half]).mean())
        accuracy = ((scores[~half] >= threshold) == same[~half]).mean()
        print(f"{name}, {kind}: AUC {auc(scores, same):.1%} {interval(own)}, accuracy {accuracy:.1%}")
        if name != NAMES[0]:
            gaps = [mine - other for mine, other in zip(own, first, strict=True)]
            print(f"    difference from {NAMES[0]}: {np.mean(gaps):+.1%} {interval(gaps)}")

# %% [markdown]
# ## By rating
#
# `NPMLM_NOTEBOOK_RATED` names the file that `scripts/rated_passages.py` writes: sentences of reviews with words that
# praise in one review and blame in another. How often is another place with the same rating (at most 2, or at least 4)
# nearer than one with the other rating? 50 % is chance.

# %%
if RATED := os.environ.get("NPMLM_NOTEBOOK_RATED"):
    from scripts.rated_passages import RATED_WORDS

    encoder, shares = Encoder.load(NAMES[0], device="cpu"), []
    passages = [row for row in lines_of(RATED) if row["rating"] <= 2 or row["rating"] >= 4]
    for word in RATED_WORDS.split():
        found = [(row, re.search(rf"\b{word}\b", row["text"], re.IGNORECASE)) for row in passages]
        rated = [(word, row["rating"] >= 4, row["text"], *match.span()) for row, match in found if match]
        is_high = np.array([place[1] for place in rated], dtype=bool)  # bool [m]
        if min(is_high.sum(), (~is_high).sum()) < 2:
            continue
        vectors_of_word = place_vectors(encoder, rated)  # f64 [m, 2d]
        products = vectors_of_word @ vectors_of_word.T  # f64 [m, m]
        others = ~np.eye(len(rated), dtype=bool)  # bool [m, m]
        alike = is_high[:, None] == is_high  # bool [m, m]
        shares.append(np.mean([auc(products[n][others[n]], alike[n][others[n]]) for n in range(len(rated))]))
        print(f"{word}: {shares[-1]:.1%} of {len(rated)} places")
    means = [float(np.mean(rng.choice(shares, len(shares)))) for _ in range(2000)]
    print(f"{NAMES[0]}: same rating nearer {np.mean(shares):.1%} {interval(means)}, {len(shares)} words")

# %% [markdown]
# ## A word in the plane
#
# The places of one word by their two first principal components; with an index over texts of your own the same
# shows places under a kept field.

# %%
word = "bank" if "bank" in of_words else of_words[0]
own_places = [number for number, place in enumerate(places) if place[0] == word]
centered = vectors[own_places] - vectors[own_places].mean(0)  # f64 [m, 2d]
left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
for number, point in zip(own_places, left[:, :2] * sizes[:2], strict=True):
    print(f"sense {places[number][1] + 1}  ({point[0]:+.2f}, {point[1]:+.2f})  {places[number][2]}")
