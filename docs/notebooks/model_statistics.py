# %% [markdown]
# # What the weights of an encoder look like
#
# Three looks that need no task: weights by module and layer, word vectors by group, and two vocabularies.
# `NPMLM_NOTEBOOK_ENCODERS` names the encoders; the vocabulary of the first is compared with that of the last.

# %%
import json
import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.models.encoder import Encoder
from npm.models.names import locate_encoder
from npm.models.tokenizer import load_tokenizer
from studies.edits.checkpoint import Checkpoint, generator_of, matching_ids, new_tensors, token_texts
from studies.geometry import group_scores

NAMES = os.environ.get("NPMLM_NOTEBOOK_ENCODERS", "encoder-mini").split()

# %% [markdown]
# ## Weights
#
# Standard deviation, mean and largest magnitude of each kind of tensor, a column per layer (one for embeddings and
# head), next to those of a newly made model of the same config.


# %%
def kinds_of(tensors: dict[str, torch.Tensor]) -> dict[str, dict[int, np.ndarray]]:
    """The numbers of tensors by kind of module and layer; those outside layers are under 0."""
    kinds: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for tensor_name, tensor in tensors.items():
        found = re.fullmatch(r".*?\.(\d+)\.(.+)", tensor_name)
        kind, layer = (found[2], int(found[1])) if found else (tensor_name, 0)
        kinds[kind][layer] = tensor.double().numpy().ravel()  # f64 [numbers]
    return kinds


MEASURES = {"deviation": np.std, "mean": np.mean, "largest": lambda values: np.abs(values).max()}
for name in NAMES:
    checkpoint = Checkpoint.read(name)
    made, _ = new_tensors(checkpoint, generator_of(0, 0, name))
    for label, tensors in {name: checkpoint.tensors, f"{name}, newly made": made}.items():
        for kind, layers in kinds_of(tensors).items():
            for what, measure in MEASURES.items():
                print(f"{label} {kind:<36} {what:<9}", *(f"{measure(layers[layer]):.4f}" for layer in sorted(layers)))

# %% [markdown]
# ## Word vectors by group
#
# How often the nearest centroid is that of a token's own group, taken without the token, and the mean silhouette with
# the distance 1 − cosine (Rousseeuw 1987); a group of one token counts in neither. The picture has the two first
# principal components. `NPMLM_NOTEBOOK_GROUPS` is a file `{token: group}` such as groups.json of `npmlm generate`.

# %%
GROUPS = os.environ.get("NPMLM_NOTEBOOK_GROUPS")
groups = (
    json.loads(Path(GROUPS).read_text("utf-8"))
    if GROUPS
    else {
        **dict.fromkeys(("red", "green", "blue", "yellow", "black", "white"), "color"),
        **dict.fromkeys(("monday", "tuesday", "friday", "sunday", "january", "april"), "time"),
        **dict.fromkeys(("paris", "london", "berlin", "rome", "madrid", "vienna"), "city"),
    }
)
names = sorted(set(groups.values()))
numbers = np.array([names.index(group) for group in groups.values()])  # i64 [n]
for name in NAMES:
    encoder = Encoder.load(name, device="cpu")
    vocabulary = encoder.tokenizer.get_vocab()
    matrix = encoder.model.get_input_embeddings().weight.detach().double().numpy()  # f64 [V, d]
    vectors = matrix[[vocabulary[token] for token in groups]]  # f64 [n, d]
    right, silhouettes = group_scores(vectors, numbers)  # bool [m], f64 [m]
    largest = np.bincount(numbers).max() / len(numbers)
    print(f"{name}: own centroid {right.mean():.1%} (chance {largest:.1%}), silhouette {silhouettes.mean():.3f}")
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    plane = left[:, :2] * sizes[:2]  # f64 [n, 2]
    figure = Figure()
    axes = figure.subplots()
    for number, group in enumerate(names):
        axes.scatter(*plane[numbers == number].T, s=12, label=group)
    axes.legend()
    figure.savefig(f"runs/word-vectors-{Path(name).name}.svg")

# %% [markdown]
# ## Two vocabularies
#
# Tokens without special ones, those that both spell alike, and those of Latin letters alone.
#
# A context looks English if more than five of ten consecutive tokens are of Latin letters alone: how much of a foreign
# corpus (`NPMLM_NOTEBOOK_TEXTS`) is English-like to its own vocabulary. Contexts do not overlap.

# %%
tokenizers = [load_tokenizer(locate_encoder(name)) for name in (NAMES[0], NAMES[-1])]
known = [token_texts(tokenizer) for tokenizer in tokenizers]
shared = {*known[0].values()} & {*known[1].values()}
for name, tokenizer, own in zip((NAMES[0], NAMES[-1]), tokenizers, known, strict=True):
    latin = matching_ids(tokenizer)[0]
    both = sum(own[token] in shared for token in latin)
    print(
        f"{name}: {len(own):,} tokens, {len(latin):,} of Latin letters; shared {len(shared):,}, {both:,} of them Latin"
    )

# %%
latin = matching_ids(tokenizers[0])[0]
looks_english: list[np.ndarray] = []
files = os.environ.get("NPMLM_NOTEBOOK_TEXTS", "npm/assets/demo/countries.jsonl").split()
for document in read_corpus(CorpusSettings(files=files)):
    ids = np.array(tokenizers[0](document.text, add_special_tokens=False, verbose=False)["input_ids"])  # i64 [n]
    whole = len(ids) // 10
    is_latin = np.isin(ids[: whole * 10], latin).reshape(whole, 10)  # bool [contexts, 10]
    looks_english.append(is_latin.sum(1) > 5)
contexts = np.concatenate(looks_english)  # bool [contexts]
print(f"{NAMES[0]}: {contexts.mean():.2%} of {len(contexts):,} contexts look English")
