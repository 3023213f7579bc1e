"""What a generation is asked for and what comes of it, for models and engines alike."""

from __future__ import annotations

import ctypes
import json
from typing import Any, Mapping, NamedTuple, Sequence, TypedDict

import numpy as np

from . import _library as c

STOP_REASONS = ("end_of_text", "max_tokens", "context_full", "cancelled", "stop_string")


class GenerateOptions(TypedDict, total=False):
    """How a prompt is continued; every one may be left out.

    max_tokens: 256. temperature: 0 is greedy. top_k: 0 is all. top_p: in (0, 1]. min_p: in [0, 1]. The order is logit_bias,
    presence and frequency penalty, repetition penalty, temperature, top_k, top_p, min_p.
    seed: the same seed gives the same tokens.
    logit_bias: from token to what is added to its logit. presence_penalty: taken from the logits of tokens that were drawn
    before; frequency_penalty: the same, times how often. repetition_penalty: 1 is none.
    stop: a text or texts that end the generation, and are left out of its text. ignore_eos: goes on where the model would end.
    json_schema: a dict or its JSON: the text is JSON that fits it. regex: all of the text matches it. json_object: the text is
    a JSON object, any. One of the three at most; docs/structured_output.md says what is understood.
    top_logprobs: log probabilities of each token and of that many likeliest, 0 to 64; None: none.
    prompt_logprobs: (Engine only) with top_logprobs, the same of the prompt, which is computed whole then; max_tokens may be 0.
    keep_cache: (Model only) keeps keys and values for the next call with it, which computes only what its prompt does not share.
    prefix_cache: (Engine only) False: neither takes nor leaves keys and values of prompts that begin alike.
    """

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    ignore_eos: bool
    json_schema: Any
    regex: str | None
    json_object: bool
    top_logprobs: int | None
    prompt_logprobs: bool
    keep_cache: bool
    prefix_cache: bool


class TokenLogprob(NamedTuple):
    """`logprob`: natural logarithm of the model's probability, before biases, temperature and filters."""

    token: int
    logprob: float


class PromptLogprobs(NamedTuple):
    """Of a prompt's tokens but its first, as the model expected them: `logprobs`, and the likeliest in their places."""

    logprobs: list[float]
    top_logprobs: list[list[TokenLogprob]]


class Generation(NamedTuple):
    """What a model made of a prompt. `text` is "" without a tokenizer; `tokens` lack the end-of-text token.

    stop_reason: "end_of_text", "max_tokens", "context_full", "cancelled" or "stop_string". logprobs and top_logprobs, the
    likeliest first, are of each token; None unless they were asked for. prompt_logprobs: of the prompt's tokens but its first.
    """

    text: str
    tokens: list[int]
    stop_reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prefill_ms: float
    decode_ms: float
    logprobs: list[float] | None = None
    top_logprobs: list[list[TokenLogprob]] | None = None
    prompt_logprobs: PromptLogprobs | None = None


def whole_array(numbers: Sequence[int], name: str, dtype: type) -> np.ndarray:
    array = np.asarray(numbers)
    if array.ndim != 1:
        raise c.InvalidArgumentError(f"{name} have {array.ndim} dimensions; expected 1")
    if array.size and array.dtype.kind not in "iu":
        raise c.InvalidArgumentError(f"{name} are of dtype {array.dtype}; expected whole numbers")
    kept = np.ascontiguousarray(array.astype(dtype))
    for bad in array[kept != array][:1]:
        raise c.InvalidArgumentError(f"one of the {name} is {bad}; expected numbers of {8 * kept.itemsize} bits")
    return kept


def token_array(tokens: Sequence[int]) -> np.ndarray:
    return whole_array(tokens, "tokens", np.int32)


def pointer(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def json_text(name: str, value: Any) -> bytes | None:
    """JSON, of which a text is some already."""
    return None if value is None else c.c_text(name, value if isinstance(value, str) else json.dumps(value))


def top_logprobs_of(array: Any, begin: int, count: int) -> list[TokenLogprob]:
    return [TokenLogprob(array[i].token, array[i].logprob) for i in range(begin, begin + count)]


def _biases(logit_bias: Mapping[int, float]) -> tuple[Any, int]:
    """As an array, and its length. Tokens may be texts, as they are in JSON."""
    if not isinstance(logit_bias, Mapping):
        raise c.InvalidArgumentError(f"logit_bias is {logit_bias!r}; expected a dict from tokens to what is added to their logits")
    given = [int(t) if isinstance(t, str) else t for t in logit_bias]
    tokens = whole_array(given, "tokens of logit_bias", np.int32) if given else ()
    biases = (c.logit_bias * max(1, len(given)))()
    for entry, token, bias in zip(biases, tokens, logit_bias.values()):
        entry.token, entry.bias = token, bias
    return biases, len(given)


def packed_options(max_tokens=256, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
                   presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, seed=0, stop=(), ignore_eos=False,
                   json_schema=None, regex=None, json_object=False, top_logprobs=None, prompt_logprobs=False,
                   keep_cache=False, prefix_cache=True) -> c.generate_options:  # fmt: skip
    """GenerateOptions as the struct. Raises TypeError for one that there is not."""
    forms = [name for name, value in (("json_schema", json_schema), ("regex", regex), ("json_object", json_object or None)) if value is not None]
    if len(forms) > 1:
        raise c.InvalidArgumentError(f"{' and '.join(forms)} are given; expected one at most")
    options = c.made(c.generate_options)
    options.flags = c.GENERATE_HAS_MAX_TOKENS | c.GENERATE_HAS_TOP_P | c.GENERATE_HAS_REPETITION_PENALTY
    for flag, is_set in (
        (c.GENERATE_IGNORE_EOS, ignore_eos),
        (c.GENERATE_KEEP_CACHE, keep_cache),
        (c.GENERATE_HAS_LOGPROBS, top_logprobs is not None),
        (c.GENERATE_JSON_OBJECT, json_object),
        (c.GENERATE_NO_PREFIX_CACHE, not prefix_cache),
        (c.GENERATE_PROMPT_LOGPROBS, prompt_logprobs),
    ):
        options.flags |= flag if is_set else 0
    options.seed = seed + 2**64 if -(2**63) <= seed < 0 else seed
    options.max_tokens, options.temperature, options.top_k = max_tokens, temperature, top_k
    options.top_p, options.min_p, options.repetition_penalty = top_p, min_p, repetition_penalty
    options.presence_penalty, options.frequency_penalty = presence_penalty, frequency_penalty
    options.logit_bias, options.num_logit_bias = _biases({} if logit_bias is None else logit_bias)
    texts = [stop] if isinstance(stop, str) else list(stop or ())
    options.stop = (ctypes.c_char_p * max(1, len(texts)))(*[c.c_text("a stop string", t) for t in texts])
    options.num_stop = len(texts)
    options.json_schema = json_text("json_schema", json_schema)
    options.regex = None if regex is None else c.c_text("regex", regex)
    options.top_logprobs = top_logprobs or 0
    return options
