"""The server against `PhraseFiller.fill` on the same texts, and its answers under a given rate of requests, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_server index=DIR [texts=256] [rounds=5] [rates=0.5,0.8,1.2]
        [seconds=30] [soak_minutes=0] [seed=0] [SETTING=VALUE …]

Starts `npmlm serve` on the index and asks texts made from its documents. First, in turns: one text after the other
directly and over HTTP (a single caller), and all texts in one list directly and from 32 clients at once, twice as
many as the server fills together (saturation). Then open loop: requests go out at shares of the rate at saturation,
whether earlier ones are answered or not, so that waiting counts; milliseconds are from the time a request was due.
`soak_minutes` goes on at 0.8 and compares the server's memory. Ratios are what to read: machines are shared. Further
settings go to `npmlm serve`.
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.drawn_questions import draw_questions
from npm.core.display import markdown_table
from npm.indexing.phrase_index import PhraseIndex
from npm.retrieval.filler import PhraseFiller
from tests.helpers.running_server import RunningServer

CLIENTS, SOAK_RATE = 32, 0.8


@dataclass
class Client:
    """Keep-alive connections to one server."""

    url: str
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def fill(self, text: str) -> int:
        """Ask one text; the status of the answer, which is read whole."""
        while self.free and self.free[-1][0].at_eof():  # closed by the server since
            self.free.pop()[1].close()
        place = urlsplit(self.url)
        reader, writer = self.free.pop() if self.free else await asyncio.open_connection(place.hostname, place.port)
        body = json.dumps({"text": text}).encode()
        head = ("POST /v1/fill HTTP/1.1", "Host: localhost", "Content-Type: application/json")
        writer.write("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        await reader.readexactly(length)
        self.free.append((reader, writer))
        return int(lines[0].split()[1])

    async def timed(self, text: str, due: float) -> tuple[float, int]:
        """Seconds since it was due, and the status."""
        status = await self.fill(text)
        return time.perf_counter() - due, status

    async def saturated(self, texts: Sequence[str]) -> float:
        """Texts a second from several clients, each asking without a pause."""
        waiting = list(texts)

        async def ask() -> None:
            while waiting:
                assert await self.fill(waiting.pop()) == 200

        started = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(CLIENTS)))
        return len(texts) / (time.perf_counter() - started)

    async def open_loop(self, texts: Sequence[str], rate: float, seconds: float) -> list[tuple[float, int]]:
        """Seconds and status of requests that are due `rate` times a second."""
        started, asked = time.perf_counter(), []
        for number in range(int(rate * seconds)):
            due = started + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked.append(asyncio.create_task(self.timed(texts[number % len(texts)], due)))
        return list(await asyncio.gather(*asked))


def percentiles(seconds: Sequence[float]) -> list[str]:
    """p50, p95 and p99 in milliseconds."""
    return [f"{1000 * value:.1f}" for value in np.percentile(seconds, (50, 95, 99))] if len(seconds) else ["–"] * 3


async def measure(server: RunningServer, filler: PhraseFiller, texts: list[str], given: dict[str, str]) -> None:
    """Everything, printed as it is found."""
    client = Client(server.url)
    alone: dict[str, list[float]] = {"direct": [], "HTTP": []}
    together: dict[str, list[float]] = {"direct": [], "HTTP": []}
    await client.saturated(texts[:CLIENTS])  # warm
    for _ in range(int(given["rounds"])):
        for text in texts:
            started = time.perf_counter()
            filler.fill(text)
            alone["direct"].append(time.perf_counter() - started)
            alone["HTTP"].append((await client.timed(text, time.perf_counter()))[0])
        started = time.perf_counter()
        filler.fill(texts)
        together["direct"].append(len(texts) / (time.perf_counter() - started))
        together["HTTP"].append(await client.saturated(texts))
    medians = {way: float(np.median(seconds)) for way, seconds in alone.items()}
    ratios = [http / direct for http, direct in zip(together["HTTP"], together["direct"], strict=True)]
    rows = [
        (way, *percentiles(alone[way]), f"{np.median(together[way]):.1f}", f"{np.median(ratios):.2f}" * (way == "HTTP"))
        for way in alone
    ]
    print(markdown_table(["way", "p50 ms", "p95 ms", "p99 ms", "texts/s together", "ratio"], rows))
    print(f"a single caller waits {1000 * (medians['HTTP'] - medians['direct']):.1f} ms longer than a direct call\n")
    saturation = float(np.median(together["HTTP"]))
    rows = []
    for share in map(float, given["rates"].split(",")):
        found = await client.open_loop(texts, share * saturation, float(given["seconds"]))
        answered = [seconds for seconds, status in found if status == 200]
        refused = sum(status == 429 for _, status in found) / len(found)
        others = len(found) - len(answered) - sum(status == 429 for _, status in found)
        rows.append(
            (f"{share:.1f}", f"{share * saturation:.1f}", *percentiles(answered), f"{refused:.1%}", str(others))
        )
    print(markdown_table(["share", "texts/s due", "p50 ms", "p95 ms", "p99 ms", "429", "other errors"], rows))
    await soak(server, client, texts, SOAK_RATE * saturation, 60 * float(given["soak_minutes"]))


async def soak(server: RunningServer, client: Client, texts: Sequence[str], rate: float, seconds: float) -> None:
    """Print memory before and after the second half of a long run, and what was not answered."""
    if not seconds:
        return
    found = await client.open_loop(texts, rate, seconds / 2)
    half_mib = server.metric("process_resident_memory_bytes") / 2**20
    found += await client.open_loop(texts, rate, seconds / 2)
    end_mib = server.metric("process_resident_memory_bytes") / 2**20
    errors = sum(status != 200 for _, status in found)
    print(
        f"\n{seconds / 60:.0f} minutes at {rate:.1f} texts/s: {len(found):,} requests, {errors} without an answer; "
        f"memory {half_mib:,.0f} MiB after half of it, {end_mib:,.0f} MiB at the end"
    )


def main(arguments: list[str]) -> None:
    """Print the tables."""
    own = {"texts": "256", "rounds": "5", "rates": "0.5,0.8,1.2", "seconds": "30", "soak_minutes": "0", "seed": "0"}
    given = own | dict(argument.split("=", 1) for argument in arguments)
    index = Path(given.pop("index"))
    drawn = draw_questions(PhraseIndex.open(index), int(given["texts"]), seed=int(given["seed"]))
    texts, filler = [each.text for each in drawn], PhraseFiller.open(index)
    settings = [f"{name}={value}" for name, value in given.items() if name not in own]
    with RunningServer(index, "timeout_seconds=60", *settings) as server:
        print(f"{len(texts)} texts, {filler!r}\n")
        asyncio.run(measure(server, filler, texts, given))


if __name__ == "__main__":
    main(sys.argv[1:])
