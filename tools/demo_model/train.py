#!/usr/bin/env python3
"""Trains the demo model on generated stories for a given time, and writes it as a Hugging Face folder.

    python train_tokenizer.py --out models/demo
    python train.py --tokenizer models/demo --out models/demo --minutes 5

The network is Llama's, written out here so that it compiles well; its parameters have transformers' names. Rows of
1024 tokens hold whole stories one after another and always begin with the beginning of a story.
"""

import argparse
import json
import math
import multiprocessing
import os
import threading
import time
from pathlib import Path

import numpy as np
import stories
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 704,
    "max_position_embeddings": 1024,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_hidden_layers": 7,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.48.0",
    "use_cache": True,
}
FIRST_TRAINING_SEED = 1_000_000  # the seeds below it are for the tokenizer and for tests on unseen stories
STORIES_PER_CHUNK = 2000
PEAK_LEARNING_RATE, FINAL_SHARE, WARMUP_STEPS = 3e-3, 0.01, 100


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (projection(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
                   for projection in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(batch, length, -1))


def rotate(x, cos, sin):
    """RoPE with pairs (i, i + head_dim / 2); cos and sin are (length, head_dim / 2)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RmsNorm(config["hidden_size"], config["rms_norm_eps"])
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config["hidden_size"], config["rms_norm_eps"])
        self.mlp = Mlp(config)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RmsNorm(config["hidden_size"], config["rms_norm_eps"])


class Llama(nn.Module):
    """Llama with a tied output head; `forward` gives the mean cross-entropy of the next token."""

    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        dims, length = config["head_dim"], config["max_position_embeddings"]
        angles = torch.outer(torch.arange(length), config["rope_theta"] ** -(torch.arange(0, dims, 2) / dims))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * config["num_hidden_layers"]) if residual else 1))

    def forward(self, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.model.embed_tokens(inputs)
        cos, sin = self.cos[: inputs.shape[1]], self.sin[: inputs.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class StoryRows:
    """Rows of tokens that other processes generate while training already uses the first ones."""

    def __init__(self, tokenizer_path, chunks, workers):
        self.rows, self.done = [], False
        context = multiprocessing.get_context("fork")  # before this process uses CUDA or threads
        self.pool = context.Pool(workers, initializer=start_worker, initargs=(str(tokenizer_path),))
        self.thread = threading.Thread(target=self.collect, args=(chunks,), daemon=True)
        self.thread.start()

    def collect(self, chunks):
        for rows in self.pool.imap_unordered(rows_of_chunk, range(chunks)):
            self.rows.append(rows)
        self.done = True

    def wait_for(self, chunks):
        while len(self.rows) < chunks and not self.done:
            time.sleep(0.1)

    def batch(self, size, generator):
        """(size, length + 1) rows, drawn at random from all that exist by now."""
        known = len(self.rows)
        picks = generator.integers(known, size=size)
        return np.stack([self.rows[chunk][generator.integers(len(self.rows[chunk]))] for chunk in picks]).astype(np.int64)


def start_worker(tokenizer_path):
    global worker_tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    worker_tokenizer = Tokenizer.from_file(tokenizer_path)


def rows_of_chunk(chunk):
    length = CONFIG["max_position_embeddings"] + 1
    eos = worker_tokenizer.token_to_id("<|end_of_text|>")
    first_seed = FIRST_TRAINING_SEED + chunk * STORIES_PER_CHUNK
    rows, row = [], []
    for seed in range(first_seed, first_seed + STORIES_PER_CHUNK):
        row += worker_tokenizer.encode(stories.generate(seed)[0]).ids + [eos]
        if len(row) >= length:
            rows.append(row[:length])
            row = []
    return np.array(rows, dtype=np.uint16)


def save_model(network, config, bos, eos, out):
    """The checkpoint in bf16 with its configuration; written beside and moved, so that a stop leaves the last whole one."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: parameter.detach().to("cpu", torch.bfloat16).contiguous() for name, parameter in network.named_parameters()}
    save_file(weights, out / "new.safetensors", metadata={"format": "pt"})
    (out / "new.safetensors").rename(out / "model.safetensors")
    full = dict(sorted((config | {"bos_token_id": bos, "eos_token_id": eos}).items()))
    (out / "config.json").write_text(json.dumps(full, indent=2) + "\n")
    generation = {"bos_token_id": bos, "do_sample": True, "eos_token_id": eos, "temperature": 0.8, "top_p": 0.95}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def learning_rate(step, progress):
    cosine = FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return PEAK_LEARNING_RATE * cosine * min(1.0, (step + 1) / WARMUP_STEPS)


def optimizer_for(network, device):
    matrices = [parameter for parameter in network.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in network.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), fused=device == "cuda")


def train(arguments):
    tokenizer_path = arguments.tokenizer / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    bos, eos = tokenizer.token_to_id("<|begin_of_text|>"), tokenizer.token_to_id("<|end_of_text|>")
    config = CONFIG | {"vocab_size": tokenizer.get_vocab_size()}
    rows = StoryRows(tokenizer_path, arguments.chunks, arguments.workers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    network = Llama(config).to(device)
    optimizer = optimizer_for(network, device)
    loss_of = torch.compile(network) if device == "cuda" and not arguments.eager else network
    print(f"{sum(parameter.numel() for parameter in network.parameters())} parameters on {device}", flush=True)
    rows.wait_for(arguments.first_chunks)
    generator = np.random.default_rng(0)
    start = last_save = None
    step, total_tokens, losses = 0, 0, []
    while True:
        batch = torch.from_numpy(rows.batch(arguments.batch, generator))
        if device == "cuda":
            batch = batch.pin_memory().to(device, non_blocking=True)
        progress = 0.0 if start is None else (time.monotonic() - start) / (60 * arguments.minutes)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, progress)
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        step, total_tokens = step + 1, total_tokens + arguments.batch * (batch.shape[1] - 1)
        if start is None:  # the first step compiles; it is not counted
            losses[-1].item()
            start = last_save = time.monotonic()
        if step % arguments.log_every == 0:
            mean = torch.stack(losses).mean().item()
            losses = []
            elapsed = time.monotonic() - start
            print(f"step {step}  {elapsed:.0f} s  loss {mean:.4f}  {total_tokens / max(elapsed, 1e-9) / 1e6:.2f} M tokens/s  "
                  f"{len(rows.rows)} chunks", flush=True)
            if time.monotonic() - last_save > arguments.save_every:
                save_model(network, config, bos, eos, arguments.out)
                last_save = time.monotonic()
    save_model(network, config, bos, eos, arguments.out)
    print(f"trained {step} steps, {total_tokens / 1e6:.0f} M tokens, {len(rows.rows) * STORIES_PER_CHUNK} distinct stories",
          flush=True)
    rows.pool.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True, help="the folder with tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--batch", type=int, default=128, help="rows a step")
    parser.add_argument("--chunks", type=int, default=800, help=f"chunks of {STORIES_PER_CHUNK} stories to generate")
    parser.add_argument("--first-chunks", type=int, default=64, help="chunks to wait for before training")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--save-every", type=float, default=60, help="seconds")
    parser.add_argument("--eager", action="store_true", help="do not compile the network")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
