# %% [markdown]
# # Are places of a word nearer where it means the same?
#
# The vector of a place is that of the word's first token, joined with that of its last. `senses.json` has six
# sentences for each of twenty English words with two senses, three of each; WiC pairs have the same form.

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
def place_vectors(encoder: Encoder) -> np.ndarray:
    """The vectors of the first and last token of each place, joined: f32 [places, 2d]."""
    sequences, slots = [], []
    for _, _, text, start, end in places:
        given = encoder.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        own = [n for n, (first, last) in enumerate(given["offset_mapping"]) if first < end and last > start]
        sequences.append(np.array([*encoder.prefix_ids, *given["input_ids"], *encoder.suffix_ids]))
        slots.append(np.array([own[0], own[-1]]) + len(encoder.prefix_ids))
    vectors = encode_sequences(encoder, sequences, slots, tokens_per_batch=8192).vectors
    return np.stack(vectors).reshape(len(places), -1)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(a positive scores above a negative), equal scores as a half (Hanley and McNeil 1982)."""
    gaps = scores[positive][:, None] - scores[~positive]  # f64 [positives, negatives]
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


# %% [markdown]
# ## AUC of same against other sense
#
# Intervals draw entire words, because the pairs of a word share sentences (Efron and Tibshirani 1993, §8.3).

# %%
words = np.array([list(senses).index(places[a][0]) for a, _ in pairs])  # i64 [pairs]
firsts, seconds = np.array(pairs).T  # i64 [pairs] each
for name in NAMES:
    vectors = place_vectors(Encoder.load(name, device="cpu")).astype(np.float64)  # f64 [places, 2d]
    products = (vectors[firsts] * vectors[seconds]).sum(1)  # f64 [pairs]
    lengths = np.linalg.norm(vectors, axis=1)  # f64 [places]
    for kind, scores in {"inner product": products, "cosine": products / (lengths[firsts] * lengths[seconds])}.items():
        rng, draws = np.random.default_rng(0), []
        for _ in range(500):
            drawn = [np.flatnonzero(words == word) for word in rng.integers(len(senses), size=len(senses))]
            chosen = np.concatenate(drawn)
            draws.append(auc(scores[chosen], same[chosen]))
        low, high = np.quantile(draws, [0.025, 0.975])
        print(f"{name}, {kind}: AUC {auc(scores, same):.1%} [{low:.1%}, {high:.1%}]")

# %% [markdown]
# ## A word in the plane
#
# The places of one word by their two first principal components; with an index over texts of your own the same
# shows places under a kept field.

# %%
word = "bank" if "bank" in senses else next(iter(senses))
own = [number for number, place in enumerate(places) if place[0] == word]
centered = vectors[own] - vectors[own].mean(0)  # f64 [m, 2d]
left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
for number, point in zip(own, left[:, :2] * sizes[:2], strict=True):
    print(f"sense {places[number][1] + 1}  ({point[0]:+.2f}, {point[1]:+.2f})  {places[number][2]}")
