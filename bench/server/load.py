#!/usr/bin/env python3
"""Many streams at once: rates, times to the first text, /health meanwhile, the network thread's share of a processor.

  bench/server/load.py URL [--streams 1000] [--tokens 32] [--prompt-tokens 16] [--shared-prompt]

The server's options must let that many wait: --max-waiting. Sockets of one asyncio loop; an HTTP client's work would be
the larger part.
"""

import argparse
import asyncio
import json
import random
import time
import urllib.parse


async def ask(host, port, head, body=""):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    return reader, writer


async def get(host, port, path):
    reader, writer = await ask(host, port, f"GET {path}")
    answer = await reader.read()
    writer.close()
    return answer.decode()


def metric(text, name):
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


async def stream(host, port, options, index, firsts, counts):
    length = options.prompt_tokens
    rng = random.Random(0 if options.shared_prompt else index)
    body = {"prompt": [rng.randrange(10, options.vocabulary) for _ in range(length)], "max_tokens": options.tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "seed": index}
    begun = time.monotonic()
    reader, writer = await ask(host, port, "POST /v1/completions", json.dumps(body))
    first = None
    tail = b""
    while data := await reader.read(65536):
        if first is None and b'"text":' in data:
            first = time.monotonic() - begun
        tail = (tail + data)[-1000:]
    writer.close()
    if b"[DONE]" in tail:
        firsts.append(first)
        counts.append(int(tail.split(b'"completion_tokens":')[1].split(b",")[0]))


async def watch(host, port, times, done):
    while not done.is_set():
        begun = time.monotonic()
        await get(host, port, "/health")
        times.append(time.monotonic() - begun)
        await asyncio.sleep(0.02)


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--shared-prompt", action="store_true")
    options = parser.parse_args()
    address = urllib.parse.urlparse(options.url)
    host, port = address.hostname, address.port
    before = await get(host, port, "/metrics")
    firsts, counts, times, done = [], [], [], asyncio.Event()
    watching = asyncio.create_task(watch(host, port, times, done))
    begun = time.monotonic()
    await asyncio.gather(*(stream(host, port, options, i, firsts, counts) for i in range(options.streams)))
    seconds = time.monotonic() - begun
    done.set()
    await watching
    after = await get(host, port, "/metrics")
    cpu = metric(after, "tessera_network_cpu_seconds_total") - metric(before, "tessera_network_cpu_seconds_total")
    print(f"{len(counts)} of {options.streams} streams complete, {sum(counts)} tokens in {seconds:.2f} s: {sum(counts) / seconds:.0f} tokens/s")
    print(f"first text after {quantile(firsts, 0.5):.2f} s (median), {quantile(firsts, 0.99):.2f} s (99 %)")
    print(f"network thread: {cpu:.2f} s, {100 * cpu / seconds:.1f} % of a processor")
    print(f"/health: {len(times)} requests, {1000 * quantile(times, 0.5):.1f} ms (median), {1000 * quantile(times, 0.99):.1f} ms (99 %)")


asyncio.run(main())
