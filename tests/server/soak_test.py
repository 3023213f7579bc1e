#!/usr/bin/env python3
"""Many clients of all manners for a while: nothing leaks, nothing is left behind. Usage: soak_test.py TESSERA MODEL

Rounds of the same requests. After each one no sequence, page, file or thread may be left that was not there before, and memory may
grow only as caches and the allocator's pools do.
"""

import asyncio
import json
import os
import random
import socket
import struct
import sys
import time
import urllib.parse
import urllib.request

from serving import Server, check

ROUNDS = 6
FILLING = 3  # rounds until the caches are full
CLIENTS = 12
REQUESTS = 40  # of each client in a round
# What lies free between the allocator's blocks grew by up to 4 KiB a request here, less from round to round (0.1 KiB with requests of
# one kind only). A request or connection that stays with all that is its own has more.
MOST_GROWTH = 8 * 1024 * CLIENTS * REQUESTS * (ROUNDS - FILLING)

STORY = [{"role": "user", "content": "Once upon a time"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}}}


def body_of(rng):
    """Path and body of a request that a server answers."""
    prompt = [rng.randrange(10, 2000) for _ in range(rng.randrange(1, 80))]
    number = rng.randrange(4)
    schema = {"type": "object", "properties": {f"a{number}": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}}, "required": ["b"]}
    path, body = rng.choice([
        ("/v1/completions", {"prompt": prompt, "max_tokens": rng.randrange(1, 24)}),
        ("/v1/completions", {"prompt": prompt, "max_tokens": 20, "stream": True, "n": 2, "logprobs": 2}),
        ("/v1/completions", {"prompt": prompt, "max_tokens": 12, "stop": ["the", "a "], "echo": True}),
        ("/v1/chat/completions", {"messages": STORY, "max_tokens": 16, "stream": True, "presence_penalty": 0.5}),
        ("/v1/chat/completions", {"messages": STORY, "max_tokens": 30, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
        ("/v1/chat/completions", {"messages": STORY, "max_tokens": 30, "tools": [TOOL], "tool_choice": rng.choice(["auto", "required"])}),
        ("/v1/embeddings", {"input": [prompt, prompt[:5] or [1]]}),
        ("/v1/attention", {"messages": STORY, "answer": "there lived a girl"}),
        ("/tokenize", {"prompt": "word " * number}),
        ("/v1/completions", {"prompt": prompt, "temperature": 9}),
        ("/v1/chat/completions", {"messages": "no list"}),
        ("/nowhere", {}),
    ])  # fmt: skip
    return path, {"seed": number, **body}  # the same work in each round


async def request(host, port, rng, counts):
    path, body = body_of(rng)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    manner = rng.choice(["whole"] * 5 + ["leave", "reset", "half", "nonsense"])
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if manner == "half":
            writer.write(head + data[: len(data) // 2])
        elif manner == "nonsense":
            writer.write(bytes(rng.randrange(256) for _ in range(200)) + b"\r\n\r\n")
        else:
            writer.write(head + data)
        await writer.drain()
        if manner == "whole":
            answer = await reader.read()
            status = int(answer.split(b" ", 2)[1])
            counts[status] = counts.get(status, 0) + 1
            if body.get("stream") and status == 200 and b"[DONE]" not in answer:
                sys.exit(f"FAILED: a stream ended with {answer[-200:]!r}")
        elif manner in ("leave", "reset"):
            await reader.read(rng.randrange(1, 600))
            if manner == "reset":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except (ConnectionError, asyncio.IncompleteReadError):
        if manner == "whole":
            raise
    finally:
        writer.close()


async def client(host, port, seed, counts):
    rng = random.Random(seed)
    for _ in range(REQUESTS):
        await request(host, port, rng, counts)


async def run_round(host, port, counts):
    await asyncio.gather(*(client(host, port, seed, counts) for seed in range(CLIENTS)))


def metrics(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


def files_and_threads(server):
    """The least of some readings: the connection that asked for the metrics is closed a moment after its answer."""
    readings = []
    for _ in range(50):
        readings.append(tuple(len(os.listdir(f"/proc/{server.process.pid}/{what}")) for what in ("fd", "task")))
        time.sleep(0.01)
    return min(readings)


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


with Server(sys.argv[1], sys.argv[2], "--max-batch", "8", "--max-seq-len", "256", "--max-kv-tokens", "2048") as server:
    address = urllib.parse.urlparse(server.url)
    sizes, held, counts = [], [], {}
    for number in range(ROUNDS):
        asyncio.run(run_round(address.hostname, address.port, counts))
        check(server.ask("/v1/completions", {"prompt": "Once", "max_tokens": 4})[0] == 200, "it answers")
        while True:  # what was left unread is given up within the next steps
            now = metrics(server)
            if sum(now[f"tessera_requests_{state}"] for state in ("preparing", "waiting", "running")) == 0 and now["tessera_http_connections"] == 1:
                break
        held.append(files_and_threads(server))
        sizes.append(resident_bytes(server))
        print(f"round {number + 1}: {sizes[-1] / 2**20:.1f} MiB, answers {counts}", flush=True)
    check(set(counts) == {200, 400, 404}, f"answers are {counts}")
    check(now["tessera_kv_pages_used"] == 0, f"{now['tessera_kv_pages_used']} pages are used by nobody")
    check(len(set(held)) == 1, f"files and threads after each round are {held}")
    growth = sizes[-1] - sizes[FILLING - 1]
    check(growth <= MOST_GROWTH, f"memory grew by {growth} bytes in the last rounds: {sizes}")
print(f"{check.count} checks passed")
