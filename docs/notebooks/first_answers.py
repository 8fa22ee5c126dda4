# %% [markdown]
# # First answers
#
# An index is opened, asked, and its answers are looked up. The index is that of the demo corpus, 521 short
# passages about countries, science, nature and culture; it is built in the first cell if `make demo` has not
# done so.

# %%
from pathlib import Path

import npm

INDEX = "runs/demo/index"
if not Path(INDEX, "manifest.json").is_file():
    npm.build("npm/assets/demo/*.jsonl", INDEX)
filler = npm.PhraseFiller.open(INDEX)
filler

# %% [markdown]
# ## One question
#
# The mask may stand anywhere in the text. An answer shows itself as a table in a notebook, each phrase marked
# in its sentence.

# %%
answer = filler.fill("The Mona Lisa was painted by <mask>.", k=3)
answer

# %% [markdown]
# A phrase has a score, its share of the evidence, and its occurrences: document, title, offsets in the
# document's text, and the sentence around it. `parts` cuts the sentence at the phrase.

# %%
best = answer.phrases[0]
place = best.occurrences[0]
before, phrase, behind = place.parts
print(best.phrase, round(best.score, 3), best.occurrence_count)
print(f"{before}«{phrase}»{behind}", f"({place.title}, {place.start_char}:{place.end_char})")

# %% [markdown]
# ## Several questions at once
#
# A list of texts gives a list of answers, faster than one by one. `to_records` makes flat rows of them, one for
# each occurrence, as `pandas.DataFrame` takes them.

# %%
questions = [
    "Gladiators fought in the Colosseum in <mask>.",
    "Below Cairo the <mask> fans out into a delta.",
    "The Eiffel Tower was built by <mask>.",
]
for answer in filler.fill(questions, k=2, occurrences=1):
    for row in answer.to_records():
        print(f"{row['rank']}  {row['phrase']:<20} {row['score']:.2f}  {row['title']}")

# %% [markdown]
# ## Several masks in one text
#
# All masks are filled together: a filling is a phrase for each of them, and phrases that stand in the same
# passages more often than by chance go together.

# %%
joint = filler.fill("Penicillin was discovered by <mask> in <mask>.")
for filling in joint.fillings[:3]:
    print(filling.phrases, round(filling.score, 3))

# %% [markdown]
# ## From one document, or from none
#
# `documents` names the only documents that may answer. What stands nowhere in them cannot be answered.

# %%
filler.fill("It was painted by <mask>.", documents=["painting-mona-lisa"], k=2)

# %% [markdown]
# ## Texts at hand
#
# Without an index: passages that come along are embedded at once. `score` gives each of some words its share of
# the evidence.

# %%
passages = npm.PhraseFiller.over(["Oslo is the capital of Norway.", "Paris lies on the Seine."])
print(passages.fill("The king of Norway lives in <mask>.").phrases[0].phrase)
print(passages.score("The king of Norway lives in <mask>.", ["Oslo", "Paris"]))

# %%
passages.close()
filler.close()
