#!/usr/bin/env bash
# The recipe of encoder-mini, third edition, with the code of today: scripts/encoder_mini.sh DATA OUT
#   DATA  enwiki-00.jsonl.zst to enwiki-06.jsonl.zst, facts.jsonl, templates.json (forms: scripts/make_questions.py), and
#         lama-trex.jsonl, whose pairs are left out, as the articles of the demo are
#   OUT   gets the runs and OUT/encoder, the averaged weights; a second call continues where the first was stopped
# 17 M tokens: 7.5 hours of one CPU core that multiplies in bfloat16 (AVX-512), 15 hours of one without. MiniLM, the start,
# is in the extra `pretrained`. LONG, JOINT, DECAY and SPANS set the steps of the four runs, such as for a trial.
# How good it is: docs/results/quality.md. What each run is for: npm/assets/encoder-mini/README.md.
set -euo pipefail
data=${1:?usage: scripts/encoder_mini.sh DATA OUT}
out=${2:?usage: scripts/encoder_mini.sh DATA OUT}
npmlm=${NPMLM:-.venv/bin/npmlm}
python=${PYTHON:-.venv/bin/python}
text="[$data/enwiki-0[0-6].jsonl.zst]"
mkdir -p "$out"

# Phrases, then phrases with joint reading at a constant rate, then the rate to zero.
phrases() {
  $npmlm train experiment=encoder_mini_2 "run=$out/$1" "corpus.files=$text" trainer.seed=1 masking.question=mixed \
    objective.block_teacher_weight=10 "${@:2}"
}

phrases long objective.reading_weight=0 "schedule.max_steps=${LONG:-5325}" schedule.warmup_fraction=0.0376
phrases joint "start.from_run=$out/long" "schedule.max_steps=${JOINT:-1083}" schedule.warmup_fraction=0.0923
phrases decay "start.from_run=$out/joint" "schedule.max_steps=${DECAY:-300}" schedule.warmup_fraction=0 schedule.final_fraction=0

# Questions with known answers, in four files by kind.
if [ ! -f "$out/terms.jsonl" ]; then
  demo=npm/assets/demo
  exclude="exclude=[$data/lama-trex.jsonl,$demo/science.jsonl,$demo/nature.jsonl,$demo/countries.jsonl,$demo/culture.jsonl]"
  $python -m scripts.make_questions entities "files=$text" "$exclude" "out=$out/entities.jsonl"
  $python -m scripts.make_questions facts "files=$text" "facts=$data/facts.jsonl" "templates=$data/templates.json" \
    "$exclude" "out=$out/facts.jsonl"
  grep '"kind": "name"' "$out/entities.jsonl" > "$out/names.jsonl"
  grep -E '"kind": "(number|date)"' "$out/entities.jsonl" > "$out/quantities.jsonl"
  grep '"kind": "term"' "$out/entities.jsonl" > "$out/terms.jsonl"
fi
$npmlm train experiment=span_supervision "run=$out/spans" "encoder=$out/decay/encoder" schedule.max_minutes=null \
  "questions=[$out/names.jsonl,$out/quantities.jsonl,$out/terms.jsonl,$out/facts.jsonl]" \
  "supervision.file_weights=[0.4,0.25,0.2,0.15]" supervision.questions_per_device_batch=20 "schedule.max_steps=${SPANS:-673}"

[ -f "$out/encoder/config.json" ] || $npmlm edit "encoder=$out/decay/encoder" "out=$out/encoder" \
  "edits=[{name: average, donor: $out/spans/encoder, fraction: 0.65}]"
