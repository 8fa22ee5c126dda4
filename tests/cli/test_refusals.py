"""Mistakes of all verbs in one table: one message that says what it must, status 2, and no file made or changed.

`{name}` is a file or folder of `places`, `NAME` at the beginning one of the COMMANDS, `-key` leaves out one of its
settings, and a setting that is given replaces one before it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.test_train import SHRUNK, write_texts
from tests.cli.test_zero_shot import OPEN_TASK, ROWS, TASK
from tests.helpers.command_line import QUESTION, CommandLine, all_bytes, write_corpus
from tests.helpers.language_models import random_language_model
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

COMMANDS = {
    "FILL": "fill index={index}",
    "BUILD": "build index=new corpus.files={corpus} encoder={encoder}",
    "TRAIN": f"train corpus.files={{texts}} run=new encoder={{encoder}} {' '.join(SHRUNK)}",
    "CLOSED": "evaluate task={closed} index={index} out=new",
    "OPEN": "evaluate task={open} index={index} out=new",
    "STS": "evaluate task=sts encoder={encoder} sts.pooler=avg data_dir={pairs} out=new",
    "MASKED": "evaluate task=masked_tokens encoder={language_model} corpus.files={held_out} out=new limit=2",
}
REFUSED = [
    # how settings are written
    ("fill -k 3 {question}", "key=value", "npmlm fill --help"),
    ("inspect i", "key=value", "npmlm inspect --help"),
    ("FILL ~k=5", "did you mean k=?"),
    ("FILL K=5", "did you mean k=?"),
    ("FILL question=Who?", "a text is given alone"),
    ("fil index=i", "did you mean 'fill'?"),
    ("help trian", "did you mean 'train'?"),
    ("FILL retreival=bm25", "did you mean retrieval=?"),
    ("BUILD files=a.jsonl", "did you mean corpus.files=?"),
    ("FILL scoring=referense", "did you mean 'reference'?"),
    ("FILL retrieval=lexical", "retrieval must be 'dense', 'bm25', 'blocks' or 'hybrid'", "got lexical"),
    ("FILL k=many", "k must be a valid integer", "got many"),
    ("compact index=i retrain=2", "retrain must be a valid boolean", "got 2"),
    ("FILL scoring.cut_expressions=perhaps", "scoring.cut_expressions"),
    ("FILL ~index=i", "index"),
    ("TRAIN experiment=magic", "experiment"),
    ("TRAIN schedule=5", "schedule"),
    ("BUILD corpus.files={texts} encoder={pairs}", "config.json is missing"),
    ("BUILD corpus.files=[]", "corpus.files is empty"),
    (f"BUILD corpus.max_documents=-{'9' * 5000}", "corpus.max_documents"),
    ("delete index={index} ids=[\udcff]", "UTF-8", r"\udcff"),
    ("delete index={index} ids_file=\udcff", "UTF-8", r"\udcff"),
    ("inspect index=a\0b", "index"),
    # changes of an index
    ("delete index={index} ids=[iceland,atlantis]", "atlantis"),
    ("delete index={index} ids=[iceland,france,bank,poland,norway,book]", "no document would be left"),
    ("delete index={index}", "ids"),
    ("compact index=nowhere", "nowhere"),
    ("partition index={index} partitions=99", "partitions", "99"),
    ("BUILD corpus.files={texts} stage=merge partitions=2", "npmlm partition"),
    # files that are none
    ("delete index=i ids_file={pipe}", "ids_file"),
    ("fill index=i texts=/dev/zero", "texts"),
    ("BUILD corpus.files=[{pipe}]", "corpus.files"),
    ("TRAIN experiment={pipe}", "experiment"),
    ("CLOSED task={pipe}", "task"),
    ("BUILD rotation=pca", "rotation=pca requires dimensions", "dimensions=128"),
    ("BUILD corpus.files={texts} rotation=pca dimensions=33", "dimensions", "33"),
    # texts
    ("FILL {question} <mask><mask><mask><mask><mask><mask><mask><mask><mask>", "got 9", "text 2 of 2"),
    ("FILL {question} {nothing}", "is empty", "text 2 of 2"),
    ("FILL {question} broken\udcffbytes<mask>", "not valid Unicode", "text 2 of 2"),
    ("FILL {question} {far}", "text 2 of 2", "<mask> is far away. Paris is near."),
    ("FILL documents=[icelnad] {question}", "no such document: 'icelnad'", "ids that answers show"),
    ("FILL documents=[] {question}", "documents is empty"),
    # training
    ("TRAIN corpus.files=nowhere.jsonl", "nowhere.jsonl does not exist"),
    ("TRAIN schedule.max_minutes=1", "exactly one of schedule.max_steps", "to null"),
    ("TRAIN schedule.max_steps=null schedule.max_minutes=0", "schedule.max_minutes must be", "above 0"),
    ("TRAIN trainer.groups_per_device_batch=1000", "trainer.groups_per_device_batch"),
    ("TRAIN device=warp", "device"),
    ("TRAIN device=cuda:1", "device", "CUDA_VISIBLE_DEVICES"),
    ("TRAIN precision=float16 trainer.sharding=full", "precision=float16", "trainer.sharding=full"),
    ("TRAIN trainer.seed=18446744073709551616", "trainer.seed"),
    ("TRAIN groups.sequences_per_group=50000", "groups.sequences_per_group", "at most 43690"),
    ("TRAIN blocks.max_block_tokens=120", "128 tokens", "blocks.max_block_tokens"),
    ("TRAIN blocks.max_block_tokens=129 masking.unit=token", "128 tokens", "129"),
    ("TRAIN blocks.title_tokens=20", "titles leave too little room", "blocks.title_tokens"),
    (
        "TRAIN start.fresh.layers=1 start.fresh.window_tokens=4 start.fresh.dimensions=6",
        "start.fresh.dimensions",
        "even",
    ),
    ("TRAIN evaluation.patience_evaluations=3", "evaluation.files"),
    ("TRAIN evaluation.files=[{texts}] evaluation.best=held_out_los", "held_out_loss", "evaluation.best"),
    ("TRAIN objective.denoising_weight=1", "objective.denoising_weight and objective.nonparametric_weight exclude"),
    (
        "TRAIN objective.denoising_weight=1 objective.nonparametric_weight=0 masking.min_masked_fraction=0.05",
        "not an encoder-decoder",
    ),
    ("TRAIN objective.masked_weight=1 corruption.predicted_fraction=0.4", "corruption.predicted_fraction", "copies"),
    ("TRAIN objective.masked_weight=1 objective.masked.visible_only=true corruption.random_fraction=0.1", "visible"),
    ("TRAIN objective.reading_weight=1", "objective.reading_weight requires masking.context_fraction"),
    (
        "TRAIN objective.block_teacher_weight=1 objective.block_teacher.encoder={roberta}",
        "objective.block_teacher.encoder",
        "tokenizer fingerprint",
    ),
    ("TRAIN objective.block_teacher_weight=1 objective.sentence_weight=1", "objective.sentence.pooler must be avg"),
    ("TRAIN objective.nonparametric.dimensions=[8,32]", "objective.nonparametric.dimensions", "from 1 to 31"),
    (
        "TRAIN objective.nonparametric_weight=0 objective.token_contrast_weight=1 corruption.copies=true "
        "corruption.masked_fraction=0.2 corruption.predicted_fraction=0.4",
        "objective.token_contrast_weight",
        "change corruption",
    ),
    # evaluation
    ("CLOSED -task", "task is required", "task=demo"),
    ("CLOSED task=", "task is empty"),
    ("CLOSED task=magic", "unknown task 'magic'", "sst2", "demo, ", "in_batch, ", "denoising, ", "sts, "),
    ("CLOSED task=[sts,sst2]", "task=sts must be the only task"),
    ("CLOSED index=nowhere", "no folder", "nowhere"),
    ("CLOSED encoder={roberta}", "another encoder"),
    ("CLOSED data_dir={corpus}", "data_dir=", "is not a folder"),
    ("CLOSED method=gpt", "unknown method 'gpt'", "mlm-knn"),
    ("CLOSED method=[npm,mlm-fuzy] zero_shot.mlm.encoder=zz", "unknown method 'mlm-fuzy'"),
    ("CLOSED method=[npm,npm-dense]", "method npm-dense answers none of the tasks"),
    ("CLOSED method=[npm,npm]", "each name once"),
    ("CLOSED method=mlm", "zero_shot.mlm.encoder="),
    ("CLOSED method=mlm-knn zero_shot.mlm.encoder=minilm", "zero_shot.mlm.index="),
    ("CLOSED method=causal", "method causal needs zero_shot.causal.model="),
    ("CLOSED method=majority zero_shot.mlm.encoder=./nowhere", "no such encoder"),
    ("CLOSED zero_shot.mlm.encoder={encoder}", "head for masked tokens", "experiment=mlm_uniform"),
    ("CLOSED zero_shot.closed.temperature=1e-300", "zero_shot.closed.temperature must be", "at least 0.001"),
    ("CLOSED zero_shot.closed.verbalizer=nowhere.json", "nowhere.json"),
    ("OPEN method=t5", "method t5 needs zero_shot.t5.model="),
    ("STS data_dir=nowhere", "data_dir=", "nowhere"),
    ("STS -data_dir", "data_dir is required"),
    ("STS split=dev", "score", "stsb-dev.jsonl"),
    ("STS sts.pooler=mean", "pooler", "cls_before_pooler"),
    ("STS encoder=./nowhere", "no such encoder"),
    ("MASKED held_out.unit=collocation", "held_out.unit", "'token' or 'word'"),
    ("MASKED -encoder", "encoder is required"),
    ("MASKED encoder={encoder}", "tiny", "experiment=mlm_uniform"),
    ("MASKED -corpus.files", "corpus.files is required"),
    ("MASKED limit=3", "too few long articles"),
    ("MASKED held_out.max_block_tokens=600", "held_out.max_block_tokens must be", "128 tokens", "600"),
    ("MASKED encoder={titled} held_out.max_block_tokens=32", "held_out.max_block_tokens=32 has too little room"),
    ("compare", "npmlm compare"),
    ("compare a b methods=[npm]", "npmlm compare"),
    ("compare {index} {index}", "index"),
    # tuning
    ("inspect index=nothing", "nothing"),
]


@pytest.fixture(scope="module")
def places(built_index: Path, tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("places")
    random_language_model("bert", folder / "language_model")
    shutil.copytree(folder / "language_model", folder / "titled")
    config = json.loads((folder / "titled" / "config.json").read_bytes())
    config["npm"]["title_tokens"] = 16
    (folder / "titled" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tiny_encoder("roberta").save(folder / "roberta")
    write_corpus(folder / "corpus")
    write_texts(folder)
    rows = [{"country": "Norway", "answers": ["Oslo"], "kind": "capital"}]
    pair = {"sentence1": SENTENCES[0], "sentence2": SENTENCES[1], "score": 4.6}
    articles = [{"id": str(number), "text": " ".join(SENTENCES * 12)} for number in range(2)]
    tables = {
        "capitals.jsonl": rows,
        "pairs/stsb-test.jsonl": [pair, pair],
        "pairs/stsb-dev.jsonl": [{**pair, "score": "a"}],
    }
    (folder / "pairs").mkdir()
    for name, lines in {**tables, "held_out.jsonl": articles}.items():
        write_corpus(folder / name, lines)
    (folder / "places.csv").write_text(ROWS, encoding="utf-8")
    (folder / "closed.yaml").write_text(TASK, encoding="utf-8")
    (folder / "open.yaml").write_text(OPEN_TASK, encoding="utf-8")
    os.mkfifo(folder / "pipe.yaml")
    far = "<mask> is far away." + " Paris is near." * 60 + " The capital is <mask>."
    texts = {"question": QUESTION, "nothing": "", "space": "  \n\t ", "far": far}
    files = {path.name.partition(".")[0]: str(path) for path in sorted(folder.iterdir())}
    return {**files, "index": str(built_index), "encoder": str(tiny_encoder_folder), "": str(folder), **texts}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0][:60].encode("ascii", "backslashreplace").decode())
def test_a_mistake_is_one_message_and_changes_nothing(
    row: tuple[str, ...], npmlm: CommandLine, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places[""])
    (verb, *words), parts = row[0].split(" "), row[1:]
    verb, *given = [*COMMANDS.get(verb, verb).split(), *words]
    command: dict[str, str] = {}
    for number, word in enumerate(given):
        key, is_setting, _ = word.partition("=")
        if word[0] == "-" and f"{word[1:]}" in command:
            del command[word[1:]]
        else:
            command[key if is_setting else str(number)] = word.format_map(places)
    before = all_bytes(Path.cwd()), all_bytes(Path(places["index"]))
    npmlm(verb, *command.values()).refused(*parts)
    assert (all_bytes(Path.cwd()), all_bytes(Path(places["index"]))) == before
