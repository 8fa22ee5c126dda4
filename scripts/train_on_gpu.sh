#!/usr/bin/env bash
# Training on a machine with a GPU, a limit on the minutes of a command and on the size of files, and of Python's libraries
# only torch, transformers, accelerate, safetensors and numpy (docs/training.md, "A GPU for half an hour").
#   scripts/train_on_gpu.sh pack RUN ENCODER PIECES         here: the packed text of a run and its start, in pieces of 60 MB
#   scripts/train_on_gpu.sh train PIECES RUN [key=value …]  there: MINUTES (8) of training; status 3: not at the end yet
#   scripts/train_on_gpu.sh join PIECES FOLDER              puts pieces together again, their sums checked
# What a part of the run leaves goes to $OUT (out): metrics.jsonl, evaluation.json, curves.png if there is matplotlib, and
# pieces of at most 16 MB: of encoder.tar at the end, before that of run.tar, with which another machine can go on.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${OUT:-out}

cut_up() { # cut_up FOLDER NAME MEGABYTES < archive
  mkdir -p "$1"
  rm -f "$1/$2".[0-9]* "$1/$2.sha256"
  split --bytes="$3"000000 --numeric-suffixes --suffix-length=4 - "$1/$2."
  (cd "$1" && sha256sum "$2".[0-9]* > "$2.sha256")
}

refuse() { # refuse MESSAGE
  printf 'train_on_gpu.sh: error: %s\n' "$1" >&2
  exit 2
}

join() { # join PIECES FOLDER
  local archives=("$1"/*.tar.sha256)
  [ -f "${archives[0]}" ] || refuse "$1 holds no pieces of an archive: a .tar.sha256 and the files that it names"
  [ ${#archives[@]} = 1 ] || refuse "$1 holds pieces of several archives (${archives[*]##*/}): move all but one away"
  (cd "$1" && sha256sum --check --quiet ./*.tar.sha256) || refuse "the pieces in $1 are not those that were cut"
  mkdir -p "$2"
  local name=${archives[0]%.sha256}
  cat "$name".[0-9]* | tar --extract --directory "$2"
}

case ${1:-help} in
  pack)
    [ $# = 4 ] || refuse "expected: pack RUN ENCODER PIECES"
    [ -d "$2/corpus" ] || refuse "$2 holds no packed text: give the folder of a run that has begun"
    [ -f "$3/config.json" ] || refuse "$3 is no folder of an encoder"
    held_out=$([ ! -d "$2/held-out" ] || echo held-out)
    # shellcheck disable=SC2086
    tar --create --directory "$2" settings.json corpus $held_out --directory "$(realpath "$3")" --transform 's,^\./,encoder/,' . |
      cut_up "$4" packed.tar 60
    ;;
  train)
    [ $# -ge 3 ] || refuse "expected: train PIECES RUN [key=value …]"
    [[ ${MINUTES:-8} =~ ^[0-9]+(\.[0-9]+)?$ ]] || refuse "MINUTES is no number of minutes: $MINUTES"
    pieces=$2 run=$3
    shift 3
    mkdir -p "$out"
    if [ ! -d "$run.packed" ]; then
      rm -rf "$run.packed.tmp"
      join "$pieces" "$run.packed.tmp"
      cp "$pieces"/*.tar.sha256 "$run.packed.tmp/pieces.sha256"
      mv "$run.packed.tmp" "$run.packed"
    fi
    cmp -s "$pieces"/*.tar.sha256 "$run.packed/pieces.sha256" ||
      refuse "$run.packed was made of other pieces than those in $pieces: remove it, or name another run"
    status=0
    PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} "${PYTHON:-python3}" "$here/scripts/train_packed.py" \
      "$run.packed" "$run" "$out" "${MINUTES:-8}" "$@" || status=$?
    [ ! -f "$run/metrics.jsonl" ] || cp "$run/metrics.jsonl" "$out"
    case $status in
      0)
        rm -f "$out"/run.tar.*
        tar --create --directory "$run" encoder settings.json metrics.jsonl | cut_up "$out" encoder.tar 16
        ;;
      3)
        rm -f "$out"/encoder.tar.*  # of a run that wrote here before
        tar --create --directory "$run" . | cut_up "$out" run.tar 16
        ;;
    esac
    exit $status
    ;;
  join)
    [ $# = 3 ] || refuse "expected: join PIECES FOLDER"
    join "$2" "$3"
    ;;
  *)
    sed -n '2,8s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
