#!/usr/bin/env bash
# Reproduces the zero-shot tables of docs/results.md: trains the parametric baseline, builds the reference indexes of both
# encoders, evaluates. What was finished before is not done again.
#   make zero-shot DATA=DIR        or: scripts/zero_shot.sh DATA [OUT]
# DATA holds classification/, glue/, open/ and corpora/ as docs/results.md lists them. About two hours on 2 CPU cores, and
# 20 GB of disk under OUT (runs/zero-shot).
set -euo pipefail
data=${1:?usage: scripts/zero_shot.sh DATA [OUT]}
out=${2:-runs/zero-shot}
npmlm=${NPMLM:-.venv/bin/npmlm}
corpora=$data/corpora
wiki="corpus.files=[$corpora/enwiki/enwiki-00.jsonl.zst]"

$npmlm train experiment=mlm_uniform run="$out/mlm-mini" "corpus.files=[$corpora/enwiki/enwiki-0[0-6].jsonl.zst]"

indexes() { # indexes FOLDER [encoder=…]: labels may be function words (No), so that only punctuation has no vectors
  local folder=$1 rule=vectors.pruning=without_punctuation
  shift
  $npmlm build "$@" "corpus.files=[$corpora/subj-unlabelled.jsonl]" index="$folder/subj" $rule
  $npmlm build "$@" "corpus.files=[$corpora/reviews.jsonl.zst]" index="$folder/reviews" $rule
  if [ ! -e "$folder/news" ]; then
    $npmlm build "$@" "corpus.files=[$corpora/wikinews.jsonl.zst]" corpus.max_documents=6000 index="$folder/news.part" $rule
    $npmlm add "$@" "$wiki" corpus.max_documents=700 index="$folder/news.part"
    mv "$folder/news.part" "$folder/news"
  fi
}
indexes "$out/npm"
indexes "$out/mlm" encoder="$out/mlm-mini/encoder"
$npmlm build "$wiki" corpus.max_documents=2500 index="$out/npm/wiki"

both=("mlm.encoder=$out/mlm-mini/encoder" "mlm.index=$out/mlm" "index=$out/npm" "data_dir=$data")
$npmlm evaluate "task=[sst2,mr,agn,subj,rte]" "${both[@]}" out="$out/closed"
$npmlm evaluate task=agn "method=[npm,npm-single,mlm-fuzzy-corpus]" "${both[@]:0:2}" "data_dir=$data" index="$out/npm/wiki" out="$out/agn-wikipedia"
for seed in 0 1 2; do
  $npmlm evaluate task=trex seed=$seed "${both[@]}" out="$out/trex-$seed"
done
