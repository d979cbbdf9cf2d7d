"""A conversation in the original protocol, with a queue ``sleep`` bounded at 3.

Recorded from Intel's frontend (k8s-device-scalability-tester, commit c9c185b) with

    frontend -caddr 127.0.0.1:9997 -waddr 127.0.0.1:9999 -maddr 127.0.0.1:9998 -qmax 3 sleep
    python tests/queue/conversation.py 9997 9999 9998 > tests/recorded/queue/original.json
"""

import asyncio
import json
import re
import sys
from typing import Any


class Connection:
    """A connection that sends texts and reads one JSON object at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def receive(self) -> Any:
        data = await asyncio.wait_for(self.reader.read(4096), 5)
        return json.loads(data) if data else None

    async def send(self, text: str) -> None:
        self.writer.write(text.encode())
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
        await asyncio.sleep(0.05)


async def dial(port: int, text: str = "") -> Connection:
    line = Connection(*await asyncio.open_connection("127.0.0.1", port))
    if text:
        await line.send(text)
        await asyncio.sleep(0.02)  # so that requests are accepted in the order they were made
    return line


async def hold(clients: int, workers: int) -> list[list[Any]]:
    """Every answer of the frontend, each with what was said."""
    answers: list[list[Any]] = []

    async def ask(port: int, who: str, text: str) -> None:
        line = await dial(port, text)
        answers.append([who, text, await line.receive()])
        await line.close()

    bad = [
        '{"Queue": "nowhere"}',
        '{"Queue": ""}',
        "{}",
        "hello",
        "[]",
        '{"Queue": 3}',
        '{"Queue": "sleep"} x',
        '{"Queue": "sleep", "Args": "1"}',
    ]
    for text in bad:
        await ask(clients, "client", text)
    for text in bad[:-1]:
        await ask(workers, "backend", text)
    await ask(workers, "backend", '{"Queue": "sleep"}')

    async def item(request: str, *replies: str) -> None:
        client = await dial(clients, request)
        worker = await dial(workers, '{\n\t"Queue": "sleep"\n}')
        answers.append(["item for", request, await worker.receive()])
        for reply in replies:
            await worker.send(reply)
        if not replies:
            await worker.close()
        answers.append(["client hears of", list(replies), await client.receive()])
        await client.close()

    done = (
        '{"Pod": "p", "Node": "n", "Device": "card0", "Error": "", "Timeout": 0, "Runtime": 1.5, '
        '"Retcode": 0}'
    )
    await item('{"Queue": "sleep", "Args": ["1"], "Limit": 2.5}', done)
    await item('{"Queue": "sleep"}', done)
    await item('{"queue": "sleep", "ARGS": ["a", "<b>"], "Unknown": [1]}', done)
    await item(
        '{"Queue": "sleep", "Args": null, "Limit": 0}',
        '{"Pod": "p", "Node": "n", "Error": "no <b>luck</b>", "Retcode": 3}',
    )
    await item(
        '{"Queue": "sleep"}',
        '{"Node": "n", "Error": "Sleep timeout", "Timeout": 2, "Runtime": 2, "Retcode": 1}',
    )
    await item('{"Queue": "sleep"}', "what?")
    await item('{"Queue": "sleep"}')

    waiting = [await dial(clients, f'{{"Queue": "sleep", "Args": ["{n}"]}}') for n in range(3)]
    await ask(clients, "one too many", '{"Queue": "sleep"}')
    await waiting[0].close()
    for _ in range(2):
        worker = await dial(workers, '{"Queue": "sleep"}')
        answers.append(["first in, first out", "", await worker.receive()])
        await worker.send(done)
        await asyncio.sleep(0.02)
        await worker.close()
    for client in waiting[1:]:
        answers.append(["in order", "", await client.receive()])
        await client.close()
    await ask(workers, "backend", '{"Queue": "sleep"}')
    return answers


async def scrape(port: int) -> dict[str, float]:
    """The values of a metrics port by name with labels."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    body = (await reader.read()).decode().partition("\r\n\r\n")[2]
    writer.close()
    return {
        name: float(value) for name, value in re.findall(r"^([a-z][^ #\n]*) (\S+)\r?$", body, re.M)
    }


async def _record() -> None:
    clients, workers, metrics = map(int, sys.argv[1:4])
    answers = await hold(clients, workers)
    record = {"heard": answers, "metrics": await scrape(metrics)}
    sys.stdout.write(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(_record())
