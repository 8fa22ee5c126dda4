#!/usr/bin/env bash
# Makes the zero-shot tables of docs/studies/npm.md with the shipped encoder: trains the parametric baseline, builds
# the reference indexes of both encoders, evaluates. Training and builds go on where they stopped; an evaluation that is there is not repeated.
#   make zero-shot DATA=DIR        or: scripts/zero_shot.sh DATA [OUT]
# DATA holds classification/, glue/, open/ and corpora/ as docs/studies/npm.md lists them. About three hours on 2 CPU cores, and
# 20 GB of disk under OUT (runs/zero-shot).
set -euo pipefail
data=${1:?usage: scripts/zero_shot.sh DATA [OUT]}
out=${2:-runs/zero-shot}
npmlm=${NPMLM:-.venv/bin/npmlm}
corpora=$data/corpora
wiki="corpus.files=[$corpora/enwiki/enwiki-00.jsonl.zst]"

# as many steps as the second edition of encoder-mini; those after it have some hundred more, with questions
$npmlm train experiment=mlm_uniform schedule.max_steps=6708 run="$out/mlm-6708" "corpus.files=[$corpora/enwiki/enwiki-0[0-6].jsonl.zst]"

indexes() { # indexes FOLDER [encoder=…]: labels may be function words (No), so that only punctuation has no vectors
  local folder=$1 rule=vectors.pruning=without_punctuation
  shift
  $npmlm build "$@" "corpus.files=[$corpora/subj-unlabelled.jsonl]" index="$folder/subj" $rule
  $npmlm build "$@" "corpus.files=[$corpora/reviews.jsonl.zst]" index="$folder/reviews" $rule
  if [ ! -e "$folder/news" ]; then # begun anew: an addition cannot be told from its beginning
    rm -rf "$folder/news.part"
    $npmlm build "$@" "corpus.files=[$corpora/wikinews.jsonl.zst]" corpus.max_documents=6000 index="$folder/news.part" $rule
    $npmlm add "$@" "$wiki" corpus.max_documents=700 index="$folder/news.part"
    mv "$folder/news.part" "$folder/news"
  fi
}
indexes "$out/npm"
indexes "$out/mlm-index" encoder="$out/mlm-6708/encoder"
$npmlm build "$wiki" corpus.max_documents=2500 index="$out/npm/wiki"

evaluate() { # evaluate FOLDER settings…
  local folder=$1
  shift
  [ -e "$out/$folder/metrics.json" ] || $npmlm evaluate "$@" out="$out/$folder"
  cat "$out/$folder/results.md"
}
both=("zero_shot.mlm.encoder=$out/mlm-6708/encoder" "zero_shot.mlm.index=$out/mlm-index" "index=$out/npm" "data_dir=$data")
evaluate closed-6708 "task=[sst2,mr,agn,subj,rte]" "${both[@]}"
$npmlm compare "$out/closed-6708" "methods=[npm,mlm-fuzzy-corpus]"
evaluate agn-wikipedia task=agn "method=[npm,npm-single,mlm-fuzzy-corpus]" "${both[0]}" "data_dir=$data" index="$out/npm/wiki"
for seed in 0 1 2; do
  evaluate trex-$seed task=trex seed=$seed limit=2000 fill.scoring.length_exponent=-3 "${both[@]}"
done
evaluate subj-sum task=subj "method=[npm,npm-single,mlm-knn]" "${both[@]}" zero_shot.closed.calibration=none zero_shot.closed.label_mean=sum zero_shot.closed.temperature=1
evaluate nq task=nq limit=500 "zero_shot.mlm.encoder=$out/mlm-6708/encoder" "index=$out/npm" "data_dir=$data"

# What was chosen on development data: a folder for each task and row of the table.
rows=(
  "verbalizer=label_words calibration=none label_mean=occurrences temperature=2"
  "calibration=none label_mean=sum temperature=1"
  "calibration=none label_mean=occurrences temperature=2"
  "calibration=none label_mean=words temperature=2"
  "calibration=prompt label_mean=words temperature=2"
  "calibration=corpus label_mean=words temperature=1"
  "calibration=corpus label_mean=words temperature=2"
  "calibration=corpus_scaled label_mean=words temperature=4"
  "calibration=corpus label_mean=words temperature=2 combination=sum"
  "retrieval=top_k k=4096 label_mean=occurrences temperature=2 calibration=none"
  "retrieval=top_k k=4096 label_mean=sum temperature=2 calibration=none"
  ""
)
for task in sst2 agn subj; do
  for number in "${!rows[@]}"; do
    settings=()
    for setting in ${rows[$number]}; do settings+=("zero_shot.closed.$setting"); done
    echo "development, $task: ${rows[$number]:-as the task says}"
    evaluate "dev-$task-$number" task=$task split=dev limit=1000 method=npm "index=$out/npm" "data_dir=$data" "${settings[@]}"
  done
done
