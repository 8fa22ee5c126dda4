# %% [markdown]
# # Your own corpus, with filters
#
# Documents with fields are indexed, asked under conditions, replaced and deleted, all from Python. The notes of
# an imaginary operations team stand for your own texts; `npm.build` takes paths such as `notes/*.jsonl` as
# well.

# %%
from pathlib import Path
from tempfile import mkdtemp

import npm

NOTES = [
    (
        "1",
        "Billing",
        2023,
        "payments",
        "Invoices were not sent. Tomas Lindqvist found an expired certificate on the mail relay.",
    ),
    (
        "2",
        "Search",
        2023,
        "search",
        "Queries took nine seconds. Wanjiru Kamau found that a migration had dropped an index.",
    ),
    ("3", "Uploads", 2023, "storage", "Two uploads were lost. Tomas Lindqvist found a full disk on the gateway."),
    (
        "4",
        "Login",
        2024,
        "accounts",
        "Customers were sent back to the login page. Mei Tanaka found a clock skew of four minutes.",
    ),
    (
        "5",
        "Charges",
        2024,
        "payments",
        "Fifty customers were charged twice. Ana Duarte found a retry without an idempotency key.",
    ),
    ("6", "Search", 2024, "search", "Search answered nothing. Priya Raman found a memory leak in the ranking service."),
]
documents = [npm.Document(id, title, text, {"year": year, "team": team}) for id, title, year, team, text in NOTES]
INDEX = Path(mkdtemp()) / "incidents"
state = npm.build(documents, INDEX)
print(state.documents, "documents,", state.vectors, "vectors")

# %% [markdown]
# ## Conditions
#
# Fields of documents that are handed over are kept; of files name them with `corpus={"kept_fields": ["year",
# "team"]}`. A condition compares a field, and all conditions must hold.

# %%
filler = npm.PhraseFiller.open(INDEX)
for where in ([], ["year=2023"], ["year>=2024", "team in [payments, accounts]"]):
    answer = filler.fill("The trouble was found by <mask>.", k=2, where=where)
    print(where, [(phrase.phrase, phrase.occurrences[0].title) for phrase in answer.phrases])

# %% [markdown]
# A condition that no document meets, or that cannot be read, is an error, whose message says what to do.

# %%
for where in ("year=1999", "year is 2024"):
    try:
        filler.fill("The trouble was found by <mask>.", where=[where])
    except npm.UserError as error:
        print(error, end="\n\n")

# %% [markdown]
# ## Replace, add, delete
#
# The index changes under a reader's feet without harm: an open filler answers from what it opened until
# `refresh`.

# %%
text = "Search answered nothing. Oluwaseun Adeyemi found a failed leader election in the ranking service."
corrected = npm.Document("6", "Search", text, {"year": 2024, "team": "search"})
text = "Receipts came a day late. Mei Tanaka found a greylisting rule of a large provider."
delay = npm.Document("7", "Mail", text, {"year": 2025, "team": "payments"})
changed = npm.add([corrected, delay], INDEX, replace=True)
print(changed.added, "added,", changed.deleted, "replaced")
npm.delete(["3"], INDEX)
question = "Nothing was answered by search until <mask> found out why."
print(filler.fill(question, k=1).phrases[0].phrase)
print(filler.refresh(), filler.fill(question, k=1).phrases[0].phrase)

# %% [markdown]
# `compact` writes the index anew without what was deleted, and `verify` reads every byte of it and encodes a
# sample of the vectors again.

# %%
filler.close()
print(npm.compact(INDEX).documents, "documents are left")
npm.verify(INDEX)
