#!/usr/bin/env bash
# Makes the analyses of docs/analyses.md: rare and unseen words, the size of the corpus, word sense, cost; tables and figures.
#   scripts/analyses.sh DATA [OUT]
# DATA as for scripts/zero_shot.sh, whose indexes and masked language model are taken from OUT if they are there and are
# made otherwise. About four hours on 2 CPU cores. Builds go on where they stopped; what is there is not measured again.
set -euo pipefail
data=${1:?usage: scripts/analyses.sh DATA [OUT]}
out=${2:-runs/zero-shot}
npmlm=${NPMLM:-.venv/bin/npmlm}
python=${PYTHON:-.venv/bin/python}
corpora=$data/corpora
wiki="corpus.files=[$corpora/enwiki/enwiki-00.jsonl.zst]"
mlm=$out/mlm-mini/encoder
mkdir -p "$out"

[ -e "$mlm/config.json" ] ||
  $npmlm train experiment=mlm_uniform run="$out/mlm-mini" "corpus.files=[$corpora/enwiki/enwiki-0[0-6].jsonl.zst]"
$npmlm build "$wiki" corpus.max_documents=2500 index="$out/npm/wiki"
if [ ! -e "$out/rated.jsonl" ]; then
  $python scripts/rated_passages.py "$corpora/reviews.jsonl.zst" > "$out/rated.part"
  mv "$out/rated.part" "$out/rated.jsonl"
fi
$npmlm build "corpus.files=[$out/rated.jsonl]" "corpus.kept_fields=[rating]" index="$out/npm/rated"

analysis() { # analysis NAME settings…: results.md or the printed tables, and NAME.png
  local folder=$out/analyses/$1
  shift
  [ -e "$folder/metrics.json" ] || $npmlm evaluate "$@" out="$folder"
  $npmlm plot "$folder" picture=panels out="$folder.png"
}
both=(task=trex "data_dir=$data" index="$out/npm/wiki")
methods="method=[npm-dense,npm-bm25,npm-hybrid,mlm]"
analysis rare "${both[@]}" "$methods" zero_shot.mlm.encoder="$mlm" \
  "breakdown=[answer_tokens,answer_count,subject_count,trained_count]" "trained_on=[$corpora/enwiki/enwiki-0[0-6].jsonl.zst]"
# the answers of T-REx are one token long, those of Natural Questions of any length
analysis rare-nq task=nq "data_dir=$data" index="$out/npm/wiki" limit=1000 "$methods" zero_shot.mlm.encoder="$mlm" \
  "breakdown=[answer_tokens,answer_count]"
analysis corpus-size "${both[@]}" limit=1000 "method=[npm-dense,npm-bm25,npm-hybrid]" "corpus_shares=[0.125,0.25,0.5,1.0]"
analysis corpus-size-agn task=agn data_dir="$data" limit=1000 method=npm index="$out/npm/wiki" "corpus_shares=[0.125,0.25,0.5,1.0]"
analysis unseen-words task=unseen_words "$wiki" "unseen_words.trained_on=[$corpora/enwiki/enwiki-0[0-6].jsonl.zst]" \
  zero_shot.mlm.encoder="$mlm"
analysis word-sense task=word_sense "word_sense.encoders=[minilm,$mlm]" word_sense.layers=true
analysis word-sense-rated task=word_sense index="$out/npm/rated"
$npmlm plot senses index="$out/npm/rated" word=cheap colour_by=rating out="$out/analyses/cheap.png"
$python -m benchmarks.bench_cost index="$out/npm/wiki" mlm="$mlm" results="$out/analyses/rare,trex" out="$out/analyses/cost"
