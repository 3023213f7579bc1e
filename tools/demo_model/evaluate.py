#!/usr/bin/env python3
"""Measures the demo model on stories it has not seen: perplexity, and how well it recalls what a story said earlier.

    python evaluate.py --model models/demo [--samples samples.txt] [--json evaluation.json]

A recall is a name, object, place, list or phrase that the story introduced before and repeats; it counts as right if
greedy decoding from the true text before it writes all of it. Recalls at the beginning of a sentence are left out, since
there the story could go on in another way. They are also counted by the distance to the last mention.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import stories
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FIRST_SEED = 500_000  # neither the tokenizer nor the training uses these
PROMPTS = ["Once upon a time", "One day, a girl named Mia", "There once was a brave fox called Bramble", "Tom had a red kite.",
           "Once upon a time, there was a dragon named Spark who lived"]
DISTANCES = [(0, 32), (32, 96), (96, 192), (192, 1024)]


def recalled_spans(text, recalls, offsets):
    """(first token, end token, kind, tokens since the last mention) of each recall that does not begin a sentence."""
    for start, end, kind in recalls:
        if text[max(0, start - 2) : start].strip().endswith((".", "!", "?", '"')) or start == 0:
            continue
        previous = text.lower().rfind(text[start:end].lower(), 0, start)
        tokens = [i for i, (a, b) in enumerate(offsets) if a < end and b > start and b > a]
        if previous < 0 or not tokens:
            continue
        mention = next(i for i, (a, b) in enumerate(offsets) if b > previous and b > a)
        yield tokens[0], tokens[-1] + 1, kind, tokens[0] - mention


@torch.no_grad()
def evaluate(model, tokenizer, count, device):
    loss, predicted = 0.0, 0
    right, total = defaultdict(int), defaultdict(int)
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        text, recalls = stories.generate(seed)
        encoded = tokenizer(text, return_offsets_mapping=True)
        ids = torch.tensor([encoded["input_ids"] + [tokenizer.eos_token_id]], device=device)
        logits = model(ids).logits[0].float()
        loss += float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum"))
        predicted += ids.shape[1] - 1
        choices = logits.argmax(-1)
        for first, end, kind, distance in recalled_spans(text, recalls, encoded["offset_mapping"]):
            is_right = bool((choices[first - 1 : end - 1] == ids[0, first:end]).all())
            bucket = next((f"{low} to {high - 1} tokens ago" for low, high in DISTANCES if low <= distance < high))
            for key in ("all", kind, bucket):
                right[key] += is_right
                total[key] += 1
    return {
        "stories": count,
        "tokens": predicted,
        "loss": round(loss / predicted, 4),
        "perplexity": round(math.exp(loss / predicted), 4),
        "recall_accuracy": {key: round(right[key] / total[key], 4) for key in sorted(total)},
        "recalls": {key: total[key] for key in sorted(total)},
    }


@torch.no_grad()
def write_samples(model, tokenizer, device):
    """Greedy and sampled continuations of PROMPTS."""
    parts = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids.to(device)
        for number, settings in enumerate([{"do_sample": False}] + 2 * [{"do_sample": True, "temperature": 0.8, "top_p": 1.0, "top_k": 0}]):
            torch.manual_seed(number)
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=600, pad_token_id=tokenizer.eos_token_id, **settings)
            ended = int(out[0, -1]) == tokenizer.eos_token_id
            title = "temperature 0.8" if settings["do_sample"] else "greedy"
            parts.append(f"=== {prompt} | {title} | {'ended' if ended else 'cut off'}\n{tokenizer.decode(out[0], skip_special_tokens=True)}\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--stories", type=int, default=500)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--samples", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).to(device).eval()
    result = json.dumps(evaluate(model, tokenizer, arguments.stories, device), indent=2)
    print(result, flush=True)
    if arguments.json:
        arguments.json.write_text(result + "\n")
    if arguments.samples:
        arguments.samples.write_text(write_samples(model, tokenizer, device))


if __name__ == "__main__":
    main()
