"""Golden record: what the commands answer, lose and predict, to be compared after a change that must not change it.

    python scripts/golden.py write FOLDER [data=DIR] [only=answers,masks]
    python scripts/golden.py compare FOLDER [data=DIR] [only=…]

`write` makes FOLDER/NAME.json for each part, with the shipped encoder, seed 0 and one thread; `compare` repeats the
parts and lists what differs, numbers by more than 1e-4 of their size. Parts that read evaluation data need data=DIR
(classification/, open/, sts/, treebanks/, corpora/). Compare on the machine that wrote the record.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
DEMO = REPOSITORY / "npm" / "assets" / "demo"
TIMES = {"seconds", "tokens_per_second", "data_fraction"}
SHORT = "tacl_control npm_single npm_mlm matryoshka ul2_small tacl span_supervision"
EXPERIMENTS = dict.fromkeys(("encoder_mini_2", "mlm_uniform", "simcse_unsup"), 20) | dict.fromkeys(SHORT.split(), 2)
EDITS = ("every_second", "matched_norm", "oracle", "reversed", "untied", "swapped_embeddings donor=encoder-mini")
TASKS = {"subj": "subj-unlabelled.jsonl", "sst2": "reviews.jsonl.zst", "agn": "wikinews.jsonl.zst"}


def npmlm(*arguments: str) -> str:
    """Standard output of one command."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "COLUMNS": "80"}
    command = [sys.executable, "-m", "npm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def demo_index(work: Path) -> Path:
    """Index of the demo corpus, built once."""
    if not (work / "index").exists():
        npmlm("build", f"corpus.files=[{DEMO}/*.jsonl]", f"index={work / 'index'}")
    return work / "index"


def answers(work: Path) -> dict[str, Any]:
    """First ten phrases with scores and places, of each retrieval, with the reference scoring."""
    index, names = demo_index(work), ("questions.json", "other-questions.json")
    texts = [row["text"] for name in names for row in json.loads((DEMO / name).read_text("utf-8"))["questions"]]
    found: dict[str, Any] = {}
    for setting in ("retrieval=hybrid", "retrieval=dense", "scoring=reference", "overlaps=keep"):
        (work / "texts.txt").write_text("\n".join(texts[: None if "hybrid" in setting else 60]), "utf-8")
        out = npmlm("fill", f"index={index}", f"texts={work / 'texts.txt'}", "k=10", "output=json", setting)
        rows = map(json.loads, out.splitlines())
        found[setting] = [{key: value for key, value in row.items() if key != "status"} for row in rows]
    return found


def masks(_: Path) -> dict[str, Any]:
    """Masked spans of 200 groups of random text, under each unit of the phrase loss and each sampler of the others."""
    import numpy as np

    from npm.core.types import Sequences, TokenFlag
    from npm.masking.corruption import SAMPLERS, CorruptionSettings, build_selector
    from npm.masking.denoising import DenoisingSettings, MixtureMasker, MixtureName
    from npm.masking.masker import MaskingSettings, MaskingUnit, build_masker, mask_rng

    phrases = {each.value: build_masker(MaskingSettings(unit=each)) for each in MaskingUnit}
    pairs = [(unit, each) for unit, samplers in SAMPLERS.items() for each in samplers if unit.value != "collocation"]
    others = {f"{unit.value} {each.value}": CorruptionSettings(unit=unit, sampler=each) for unit, each in pairs}
    mixtures = {each.value: MixtureMasker(DenoisingSettings(preset=each).denoisers()) for each in MixtureName}
    groups = []
    for group in range(200):
        rng = np.random.default_rng(group)
        lengths = rng.integers(20, 128, size=8)  # i64 [8]
        token_ids = np.minimum(rng.zipf(1.3, lengths.sum()), 3000).astype(np.int32)  # i32 [T]
        starts = rng.random(len(token_ids)) < 0.7  # bool [T]
        starts[np.cumsum([0, *lengths[:-1]])] = True
        flags = starts * TokenFlag.WORD_START + np.append(starts[1:], True) * TokenFlag.WORD_END  # i64 [T]
        text, rngs = Sequences(token_ids, flags.astype(np.uint8), np.cumsum([0, *lengths])), partial(mask_rng, 0, 0)
        drawn = {name: masker.select(text, rngs(group)) for name, masker in phrases.items()}
        drawn |= {name: build_selector(each).select(text, rngs(group))[0].masked for name, each in others.items()}
        drawn |= {name: masker.select(text, rngs(group))[0] for name, masker in mixtures.items()}
        groups.append({name: each and [each.starts.tolist(), each.lengths.tolist()] for name, each in drawn.items()})
    return {"groups": groups}


def train(run: Path, experiment: str, steps: int, *settings: str) -> None:
    """Train a few steps, each with a line of metrics."""
    settings += ("schedule.max_minutes=null", f"schedule.max_steps={steps}", "trainer.log_every_steps=1")
    npmlm("train", f"experiment={experiment}", f"run={run}", "encoder=encoder-mini", "precision=float32", *settings)


def losses(work: Path) -> dict[str, Any]:
    """Losses of the first steps of each experiment, which show its masks, terms and gradients."""
    lines = [line for path in sorted(DEMO.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    texts = (json.loads(line)["text"].partition(" is ") for line in lines)
    facts = [(name, rest) for name, _, rest in texts if rest and len(name) < 40]
    asked = [{"question": f"<mask> is {b[:60]}.", "answers": [a], "context": f"{a} is {b}"[:300]} for a, b in facts]
    (work / "questions.jsonl").write_text("\n".join(map(json.dumps, asked)), "utf-8")
    found = {}
    for experiment, steps in EXPERIMENTS.items():
        run, source = work / "runs" / experiment, "sentences" if experiment.startswith("simcse") else "corpus"
        settings = [f"{source}.files=[{DEMO}/*.jsonl]"]
        if experiment == "span_supervision":
            settings = [f"questions={work / 'questions.jsonl'}", "supervision.questions_per_device_batch=8"]
        train(run, experiment, steps, *settings)
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
        found[experiment] = [{key: row[key] for key in row.keys() - TIMES} for row in metrics]
        shutil.rmtree(run)
    return found


def edits(work: Path) -> dict[str, Any]:
    """Digests of the tensors of a masked language model after each kind of edit."""
    from safetensors.numpy import load_file

    train(work / "mlm", "mlm_uniform", 1, f"corpus.files=[{DEMO}/*.jsonl]")
    found = {}
    for edit in (*EDITS, "new_vocabulary tokenizer=encoder-mini"):
        out = work / "edits" / edit.partition(" ")[0]
        npmlm("edit", f"encoder={work / 'mlm' / 'encoder'}", *f"edit={edit}".split(), f"out={out}")
        tensors = load_file(out / "model.safetensors").items()
        found[edit] = {name: hashlib.sha256(tensor.tobytes()).hexdigest()[:16] for name, tensor in tensors}
    return found


def predictions(work: Path) -> dict[str, Any]:
    """Predictions of three closed and two open tasks on 200 rows, and correlations of sentence pairs."""
    found: dict[str, Any] = {}
    for task, corpus in TASKS.items():
        index = work / "tasks" / task
        npmlm("build", f"corpus.files=[{work}/data/corpora/{corpus}]", "corpus.max_documents=300", f"index={index}")
    for task in (*TASKS, "trex", "nq"):
        index = work / "tasks" / task if task in TASKS else demo_index(work)
        settings = [f"task={task}", "method=npm", f"index={index}", "limit=200", "seed=0"]
        npmlm("evaluate", *settings, f"data_dir={work / 'data'}", f"out={work / 'out' / task}")
        lines = (work / "out" / task / "predictions.jsonl").read_text("utf-8").splitlines()
        found[task] = [json.loads(line) for line in lines]
    settings = ["task=sts", "encoder=encoder-mini", "split=dev", f"out={work / 'out' / 'sts'}"]
    npmlm("evaluate", *settings, f"data_dir={work / 'data' / 'sts'}")
    return found | {"sts": json.loads((work / "out" / "sts" / "metrics.json").read_text("utf-8"))}


def generated(work: Path) -> dict[str, Any]:
    """Digest of artificial text."""
    out = work / "artificial"
    npmlm("generate", f"treebank=[{work / 'data'}/treebanks/fr_gsd-dev.conllu]", f"out={out}", "sentences=2000")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.rglob("*.jsonl*"))}


PARTS = {each.__name__: each for each in (answers, masks, losses, edits, predictions, generated)}
OF_DATA = {"predictions", "generated"}


def differences(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """Each place where two records differ, and how."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old | new:
            yield from differences(old.get(name), new.get(name), f"{key}.{name}")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=1e-4, abs_tol=1e-4):
            yield f"{key}: {old} → {new}"
    elif old != new:
        yield f"{key}: {str(old)[:80]} → {str(new)[:80]}"


def main(arguments: list[str]) -> int:
    """Write or compare the record; status 1 where something differs."""
    given = dict(each.partition("=")[::2] for each in arguments[2:])
    if len(arguments) < 2 or arguments[0] not in ("write", "compare") or not given.keys() <= {"data", "only"}:
        sys.stderr.write(__doc__ or "")
        return 2
    folder, data = Path(arguments[1]), Path(given["data"]).resolve() if "data" in given else None
    folder.mkdir(parents=True, exist_ok=True)
    chosen = given["only"].split(",") if "only" in given else [name for name in PARTS if data or name not in OF_DATA]
    count = 0
    with tempfile.TemporaryDirectory() as work:
        Path(work, "data").symlink_to(data or work)
        for name in chosen:
            record, file = json.loads(json.dumps(PARTS[name](Path(work)))), folder / f"{name}.json"
            if arguments[0] == "write":
                file.write_text(json.dumps(record, ensure_ascii=False), "utf-8")
            found = list(differences(json.loads(file.read_text("utf-8")), record))
            count += len(found)
            sys.stdout.write("\n".join([f"{name}: {len(found)} differences", *found[:20], ""]))
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
