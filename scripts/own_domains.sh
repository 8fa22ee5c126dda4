#!/usr/bin/env bash
# Indexes and asks the three domains of tests/domains (docs/results/quality.md): one table by domain, style and kind.
#   scripts/own_domains.sh OUT [key=value …]    settings for the evaluation, such as fill.k=10
# About a minute on one CPU core.
set -euo pipefail
out=${1:?usage: scripts/own_domains.sh OUT [key=value …]}
shift
npmlm=${NPMLM:-.venv/bin/npmlm}
python=${PYTHON:-.venv/bin/python}
results=()
for domain in handbook statutes textbook; do
  from=tests/domains/$domain
  $npmlm build "corpus.files=[$from/pages/]" index="$out/$domain/index"
  $npmlm evaluate task="$from/task.yaml" method=[npm-hybrid] index="$out/$domain/index" out="$out/$domain/evaluation" "$@"
  results+=("$from/questions.jsonl" "$out/$domain/evaluation")
done
$python scripts/question_table.py "${results[@]}"
