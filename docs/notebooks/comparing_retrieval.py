# %% [markdown]
# # Comparing ways to look, and reading scores
#
# The same questions are asked four times. `hybrid`, the default, ranks passages by shared words and by vectors
# and reads the best three together with the question; `bm25` and `blocks` look in the best three by one of the
# two; `dense` compares the question with every vector of the corpus. `NPMLM_NOTEBOOK_QUESTIONS` says how many
# of the demo's development questions are asked; the other half is for reporting.

# %%
import json
import os
from pathlib import Path

import npm

INDEX = "runs/demo/index"
if not Path(INDEX, "manifest.json").is_file():
    npm.build("npm/assets/demo/*.jsonl", INDEX)
questions = json.loads(Path("npm/assets/demo/questions.json").read_text("utf-8"))["questions"]
questions = [each for each in questions if each["split"] == "dev"][
    : int(os.environ.get("NPMLM_NOTEBOOK_QUESTIONS", 161))
]
filler = npm.PhraseFiller.open(INDEX)
len(questions)

# %%
texts = [each["text"] for each in questions]
answers = {way: filler.fill(texts, k=5, retrieval=way) for way in ("hybrid", "bm25", "blocks", "dense")}


def rank(answer: npm.Answer, right: list[str]) -> int | None:
    """The place of the first phrase that is right, counted from 1; `npmlm evaluate` forgives articles and marks too."""
    names = [phrase.phrase.casefold() for phrase in answer.phrases]
    return next((place for place, name in enumerate(names, 1) if name in [each.casefold() for each in right]), None)


ranks = {
    way: [rank(*pair) for pair in zip(given, (q["answers"] for q in questions), strict=True)]
    for way, given in answers.items()
}

# %% [markdown]
# ## hit@1 and hit@5
#
# How often the first phrase is right, and how often one of five. With 161 questions an interval is about ±7.5
# points wide, with forty ±15: differences below that are chance, unless the same questions are compared in
# pairs, as `npmlm compare` does.

# %%
for way, found in ranks.items():
    shares = (sum(place is not None and place <= k for place in found) / len(found) for k in (1, 5))
    print(f"{way:<7} hit@1 {next(shares):6.1%}  hit@5 {next(shares):6.1%}")

# %% [markdown]
# ## Where two ways differ
#
# A question that one way answers and another does not shows what each is good at: `bm25` needs a rare word that
# both share, `dense` needs none but is led astray by what is alike in kind.

# %%
for question, hybrid, dense in zip(questions, ranks["hybrid"], ranks["dense"], strict=True):
    if (hybrid == 1) != (dense == 1):
        print(f"hybrid {hybrid or '–'}  dense {dense or '–'}  {question['text']}  ({question['answers'][0]})")

# %% [markdown]
# ## What a score says
#
# The score is the share of the evidence that a phrase has among all that were looked at, after the softmax. So
# it depends on the way: `hybrid` looks at three passages, `dense` at thousands of places. Within one way a
# higher score is right more often, but it is no probability: compare the mean score of the first phrases with
# the share of right ones.

# %%
for way, given in answers.items():
    first = [answer.phrases[0].score if answer.phrases else 0.0 for answer in given]
    order = sorted(range(len(first)), key=first.__getitem__)
    halves = (order[: len(order) // 2], order[len(order) // 2 :])
    right = [sum(ranks[way][i] == 1 for i in half) / max(len(half), 1) for half in halves]
    mean = sum(first) / len(first)
    print(f"{way:<7} mean score {mean:.2f}; right: {right[0]:.0%} of the lower half, {right[1]:.0%} of the upper")

# %% [markdown]
# The notebook `evaluation_plots` draws this as a reliability diagram with its calibration error. To
# choose by score when to show an answer, choose the threshold on questions of your own, for the way and the
# index that you use.

# %%
filler.close()
