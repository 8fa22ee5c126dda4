#!/usr/bin/env bash
# The same questions asked of an old corpus, a new one, and both: three ways of bringing an index up to date.
#   scripts/temporal.sh OUT [FACTS] [settings of evaluate, such as "method=[npm-bm25,npm-hybrid]"]
# asks FACTS (200) facts with invented names that scripts/make_synthetic_time.py makes. For two dumps of a corpus with the
# same ids and two tasks about them: OUT/2019.jsonl, OUT/2022.jsonl, OUT/both.jsonl (each id with its date, and a field
# date), OUT/task-2019.yaml and OUT/task-2022.yaml that are there stay; DATES="2010 2020" names others. An index is not built again, results are.
set -euo pipefail
out=${1:?usage: scripts/temporal.sh OUT [FACTS] [SETTINGS…]}
facts=${2:-200}
shift $(($# < 2 ? $# : 2))
npmlm=${NPMLM:-.venv/bin/npmlm}
python=${PYTHON:-.venv/bin/python}
read -r old new <<< "${DATES:-2019 2022}"

[ -e "$out/task-$new.yaml" ] || $python scripts/make_synthetic_time.py "$out" "$facts"
$npmlm build "corpus.files=[$out/$old.jsonl]" index="$out/old"
$npmlm build "corpus.files=[$out/$new.jsonl]" index="$out/new"
$npmlm build "corpus.files=[$out/both.jsonl]" "corpus.kept_fields=[date]" index="$out/both"
if [ ! -e "$out/replaced" ]; then
  rm -rf "$out/replaced.part"
  cp -r "$out/old" "$out/replaced.part"
  time $npmlm add "corpus.files=[$out/$new.jsonl]" index="$out/replaced.part" replace=true
  mv "$out/replaced.part" "$out/replaced"
fi
ask() { # ask ROW INDEX DATE settings…
  local row=$1 index=$2 date=$3
  shift 3
  echo "== $row"
  $npmlm evaluate task="$out/task-$date.yaml" index="$out/$index" out="$out/results/$row" "$@"
}
ask old old "$new" "$@"
ask new new "$new" "$@"
ask replaced replaced "$new" "$@"
ask both both "$new" "$@"
ask both-until-old both "$old" "fill.where=[date<={date}]" "$@"
ask both-until-new both "$new" "fill.where=[date<={date}]" "$@"
ask both-at-new both "$new" "fill.where=[date={date}]" "$@"
$npmlm compare "$out/results/replaced" "$out/results/new"
