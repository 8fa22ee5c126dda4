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

# Statements with a mask: a quarter to a third of what is read, or statements are answered worse than before.
if [ ! -f "$out/claims.jsonl" ]; then
  text="[$data/enwiki-0[0-6].jsonl.zst]" demo=npm/assets/demo
  exclude="exclude=[$data/lama-trex.jsonl,$demo/science.jsonl,$demo/nature.jsonl,$demo/countries.jsonl,$demo/culture.jsonl]"
  $python -m scripts.make_questions entities "files=$text" "$exclude" "out=$out/entities.jsonl" limit=20000
  $python -m scripts.make_questions facts "files=$text" "facts=$data/facts.jsonl" "templates=$data/templates.json" \
    "$exclude" "out=$out/facts.jsonl" limit=15000
  # a mask that opens a statement can mostly be filled in several ways
  zstd -dc "$data/claims_cloze.jsonl.zst" | grep -v '"mask_first": true' > "$out/claims.part"
  mv "$out/claims.part" "$out/claims.jsonl"
fi
files="$data/squad_train_part.jsonl.zst,$data/squad_dev.jsonl.zst,$data/squadshifts_new_wiki.jsonl.zst"
files="$files,$data/tydiqa_en_train.jsonl.zst,$out/claims.jsonl,$out/entities.jsonl,$out/facts.jsonl"
files="$files,$data/squadshifts_reddit.jsonl.zst,$data/squadshifts_amazon_reviews.jsonl.zst,$data/qamr_dev.jsonl.zst"
files="$files,$data/qasrl_gs.jsonl.zst,$data/tatqa.jsonl.zst,$data/tweetqa.jsonl.zst,$data/fairytaleqa.jsonl.zst"

# A constant rate, then the rate to zero.
read_questions() {
  $npmlm train experiment=reader "run=$out/$1" "questions=[$files]" supervision.max_block_tokens=112 \
    "supervision.file_weights=[.23,.11,.10,.06,.12,.12,.09,.04,.04,.03,.02,.02,.01,.01]" "${@:2}"
}
read_questions long "schedule.max_steps=${LONG:-1153}" schedule.warmup_fraction=0.052 schedule.constant_fraction=0.998
read_questions decay "start.from_run=$out/long" "schedule.max_steps=${DECAY:-180}" schedule.warmup_fraction=0 \
  schedule.constant_fraction=0
echo "the reader is $out/decay/encoder: npmlm fill reader=$out/decay/encoder …"
