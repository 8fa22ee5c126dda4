# %% [markdown]
# # What the weights of an encoder look like
#
# Three looks that need no task: weights by module and layer, word vectors by group, and two vocabularies.
# `NPMLM_NOTEBOOK_ENCODERS` names the encoders; the first is compared with the second.

# %%
import json
import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from npm.models.encoder import Encoder
from npm.models.names import locate_encoder
from npm.models.tokenizer import load_tokenizer
from studies.edits.checkpoint import Checkpoint, matching_ids, token_texts

NAMES = os.environ.get("NPMLM_NOTEBOOK_ENCODERS", "encoder-mini").split()

# %% [markdown]
# ## Weights
#
# The standard deviation of the matrices of each kind of module, a column per layer. The largest magnitude and the
# mean show matrices that one number dominates.

# %%
for name in NAMES:
    kinds: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for tensor_name, tensor in Checkpoint.read(name).tensors.items():
        if found := re.fullmatch(r".*?\.(\d+)\.(.+)\.weight", tensor_name):
            kinds[found[2]][int(found[1])] = tensor.double().numpy().ravel()
    for kind, layers in kinds.items():
        deviations = " ".join(f"{layers[layer].std():.4f}" for layer in sorted(layers))
        every = np.concatenate([*layers.values()])
        print(f"{name} {kind:<32} {deviations}  mean {every.mean():+.4f} largest {np.abs(every).max():.2f}")

# %% [markdown]
# ## Word vectors by group
#
# How often the nearest centroid is that of a token's own group, taken without the token, and the mean silhouette with
# the distance 1 − cosine (Rousseeuw 1987). `GROUPS` is a file `{token: group}` such as groups.json of `npmlm generate`.

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
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # f64 [n, d]
    distances = 1 - units @ units.T  # f64 [n, n]
    right, silhouettes = [], []
    for number, own in enumerate(numbers):
        others = np.arange(len(numbers)) != number  # bool [n]
        members = [others & (numbers == group) for group in range(len(names))]
        gaps = [((vectors[member].mean(0) - vectors[number]) ** 2).sum() for member in members]
        right.append(int(np.argmin(gaps)) == own)
        means = [distances[number, member].mean() for member in members]
        nearest = min(mean for group, mean in enumerate(means) if group != own)
        silhouettes.append((nearest - means[own]) / max(nearest, means[own]))
    largest = np.bincount(numbers).max() / len(numbers)
    print(f"{name}: own centroid {np.mean(right):.1%} (chance {largest:.1%}), silhouette {np.mean(silhouettes):.3f}")

# %% [markdown]
# ## Two vocabularies
#
# Tokens without special ones, those that both spell alike, and those of Latin letters alone.

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
