#!/usr/bin/env bash
# The published weights on Subj, with the reference's scoring: studies/original.sh DATA OUT [facebook/npm-single]
#   DATA  classification/subj-test.jsonl (configs/task/subj.yaml) and corpora/subj-unlabelled.jsonl, the sentences of Subj
#         that are not in its test set, one document {"text": …} each
#   OUT   gets the converted weights (1.4 GB), the index and the results; a second call skips what is there
# It needs the hub, 3 GB of memory and about half an hour of one core. Not run here; the paper's figures for all nine tasks are
# in docs/studies/npm.md.
set -euo pipefail
data=${1:?usage: studies/original.sh DATA OUT [WEIGHTS]}
out=${2:?usage: studies/original.sh DATA OUT [WEIGHTS]}
weights=${3:-facebook/npm}
npmlm=${NPMLM:-.venv/bin/npmlm}
python=${PYTHON:-.venv/bin/python}

[ -f "$out/weights/config.json" ] || $python -m npm.models.convert "$weights" "$out/weights"
$npmlm build "encoder=$out/weights" "index=$out/indexes/subj" blocks.title_tokens=16 vectors.pruning=word_boundaries \
  "corpus.files=[$data/corpora/subj-unlabelled.jsonl]"
$npmlm evaluate task=subj method=npm scoring=reference "encoder=$out/weights" "index=$out/indexes" "data_dir=$data" \
  "out=$out/results"
