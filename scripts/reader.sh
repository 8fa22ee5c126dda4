#!/usr/bin/env bash
# The recipe of reader-mini, the shipped reader, with the code of today: scripts/reader.sh DATA OUT
#   DATA  the sets of questions that the lists below name, in the form of docs/training.md, each passage as `context`;
#         enwiki-00.jsonl.zst to enwiki-06.jsonl.zst, facts.jsonl, templates.json (forms: scripts/make_questions.py) and
#         lama-trex.jsonl, whose pairs are left out, as the articles of the demo are
#   OUT   gets the rows and the runs; a second call continues where the first was stopped
# LONG and DECAY set the steps of the two runs, such as for a trial. A step is 32 questions of about 110 tokens: 5 seconds
# of one core without AVX-512. How good the reader is: docs/results/reading.md; its sets: npm/assets/reader-mini/README.md.
set -euo pipefail
data=${1:?usage: scripts/reader.sh DATA OUT}
out=${2:?usage: scripts/reader.sh DATA OUT}
npmlm=${NPMLM:-.venv/bin/npmlm}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"

# Statements with a mask are half of what is read, or they are answered worse than before.
if [ ! -f "$out/claims.jsonl" ]; then
  text="[$data/enwiki-0[0-6].jsonl.zst]" demo=npm/assets/demo
  exclude="exclude=[$data/lama-trex.jsonl,$demo/science.jsonl,$demo/nature.jsonl,$demo/countries.jsonl,$demo/culture.jsonl]"
  make() { $python -m scripts.make_questions "$1" "files=$text" "$exclude" "out=$out/$1.jsonl" "${@:2}"; }
  make entities limit=20000 seed=1
  make attributes limit=20000
  make facts "facts=$data/facts.jsonl" "templates=$data/templates.json" limit=15000
  # Questions of people as statements, by rules that the package had until 8e336397.
  git show 8e336397:npm/retrieval/plain_questions.py > "$out/plain_questions.py"
  PYTHONPATH="$out" $python - "$data" "$out" << 'STATEMENTS'
import json, sys
from pathlib import Path
from npm.corpus.questions import read_questions
from plain_questions import statement_of

data, out = map(Path, sys.argv[1:])
for name, sets in {"squad": ("squad_train_part", "squad_dev", "squadshifts_new_wiki"), "tydi": ("tydiqa_en_train",)}.items():
    rows = (row for _, row in read_questions([str(data / f"{each}.jsonl.zst") for each in sets]))
    made = ({**row, "question": statement_of(f"{row['question'].strip().rstrip('?')}?")} for row in rows)
    lines = (json.dumps(row) + "\n" for row in made if (row["question"] or "").count("<mask>") == 1)
    (out / f"statements_{name}.jsonl").write_text("".join(lines))
STATEMENTS
  # a mask that opens a statement can mostly be filled in several ways
  zstd -dc "$data/claims_cloze.jsonl.zst" | grep -v '"mask_first": true' > "$out/claims.part"
  mv "$out/claims.part" "$out/claims.jsonl"
fi
files="$data/squad_train_part.jsonl.zst,$data/squad_dev.jsonl.zst,$data/squadshifts_new_wiki.jsonl.zst"
files="$files,$data/tydiqa_en_train.jsonl.zst,$out/claims.jsonl,$out/entities.jsonl,$out/facts.jsonl,$out/attributes.jsonl"
files="$files,$out/statements_squad.jsonl,$out/statements_tydi.jsonl"
files="$files,$data/squadshifts_reddit.jsonl.zst,$data/squadshifts_amazon_reviews.jsonl.zst,$data/qamr_dev.jsonl.zst"
files="$files,$data/tatqa.jsonl.zst,$data/fairytaleqa.jsonl.zst"

# A constant rate, then the rate to zero.
read_questions() {
  $npmlm train experiment=reader "run=$out/$1" "questions=[$files]" supervision.max_block_tokens=120 \
    "supervision.file_weights=[.17,.08,.08,.06,.10,.10,.07,.10,.12,.03,.025,.02,.02,.015,.01]" "${@:2}"
}
read_questions long "schedule.max_steps=${LONG:-2300}" schedule.warmup_fraction=0.03 schedule.constant_fraction=0.998
read_questions decay "start.from_run=$out/long" "schedule.max_steps=${DECAY:-200}" schedule.warmup_fraction=0 \
  schedule.constant_fraction=0
echo "the reader is $out/decay/encoder: npmlm fill reader=$out/decay/encoder …"
