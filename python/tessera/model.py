"""Language models that generate and stream."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import threading
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import _library as c

STOP_REASONS = ("end_of_text", "max_tokens", "context_full", "cancelled", "stop_string")
_ACTIVATION_DTYPES = {None: 0, "f32": c.F32, "float32": c.F32, "f16": c.F16, "float16": c.F16, "bf16": c.BF16,
                      "bfloat16": c.BF16}  # fmt: skip


class ModelInfo(NamedTuple):
    """Sizes are in elements, tokens or bytes as their names say; dtypes by name; device such as "cuda:0"."""

    architecture: str
    backend: str
    device: str
    num_parameters: int
    weight_bytes: int
    decode_bytes: int
    kv_cache_bytes: int
    weight_dtype: str
    activation_dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    max_seq_len: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_tokenizer: bool
    has_chat_template: bool


class ChatMessage(NamedTuple):
    role: str
    content: str


class Generation(NamedTuple):
    """What a model made of a prompt. `text` is "" without a tokenizer; `tokens` lack the end-of-text token.

    stop_reason: "end_of_text", "max_tokens", "context_full", "cancelled" or "stop_string".
    """

    text: str
    tokens: list[int]
    stop_reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prefill_ms: float
    decode_ms: float


def _token_array(tokens: Sequence[int]) -> np.ndarray:
    array = np.ascontiguousarray(tokens, dtype=np.int32)
    if array.ndim != 1:
        raise c.InvalidArgumentError(f"tokens have {array.ndim} dimensions; expected 1")
    return array


def _pointer(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _optional_json(value: Any) -> bytes | None:
    return None if value is None else (value if isinstance(value, str) else json.dumps(value)).encode()


class Model:
    """A language model with its KV cache, opened from a Hugging Face folder or a .gguf file.

    Calls from several threads take turns. Also a context manager, which frees the model at its end.
    """

    def __init__(self, path: str | os.PathLike, *, backend: str = "auto", device: int | None = None, max_seq_len: int = 0,
                 max_batch: int = 1, page_size: int = 16, max_kv_tokens: int = 0, activation_dtype: str | None = None,
                 batch_invariant: bool = False, prefill_chunk: int = 0,
                 on_progress: Callable[[str, int, int], Any] | None = None):  # fmt: skip
        """backend: "auto" (a GPU if there is one), "cuda", "hip", "cpu", "reference". device: index of the GPU.
        max_seq_len: tokens of KV cache a sequence may take, 0: the model's context length; max_batch: sequences at the
        same time; max_kv_tokens: tokens of KV cache in all, 0: max_batch * max_seq_len. activation_dtype: "f32", "f16" or
        "bf16"; None: as the weights suggest. on_progress: gets ("load" or "prefill", done, total), in bytes or tokens.
        Raises tessera.Error."""
        self._handle = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._raised: list[BaseException] = []
        options = c.made(c.model_options)
        options.backend = backend.encode()
        if device is not None:
            options.flags |= c.MODEL_HAS_DEVICE
            kind = backend if backend in c.DEVICE_KINDS else "cpu" if backend != "auto" else "cuda"
            options.device = c.device(c.DEVICE_KINDS.index(kind), device)
        if batch_invariant:
            options.flags |= c.MODEL_BATCH_INVARIANT
        options.max_seq_len = max_seq_len
        options.max_kv_tokens = max_kv_tokens
        options.max_batch = max_batch
        options.page_size = page_size
        options.prefill_chunk = prefill_chunk
        if activation_dtype not in _ACTIVATION_DTYPES:
            raise c.InvalidArgumentError(f"activation_dtype is {activation_dtype!r}; expected 'f32', 'f16', 'bf16' or None")
        options.activation_dtype = _ACTIVATION_DTYPES[activation_dtype]
        if on_progress is not None:
            options.on_progress = self._on_progress = c.ON_PROGRESS(
                lambda _, stage, done, total: self._guarded(on_progress, "prefill" if stage else "load", done, total)
            )
        self._check(c.library.tessera_model_load(os.fsencode(path), ctypes.byref(options), ctypes.byref(self._handle)))

    def _guarded(self, function: Callable, *args: Any) -> int:
        """Calls what the user gave from within the library, where no exception may pass."""
        try:
            function(*args)
            return 0
        except BaseException as error:
            self._raised.append(error)
            return 1

    def _check(self, status: int) -> None:
        if self._raised:
            raised, self._raised = self._raised[0], []
            raise raised
        c.check(status)

    def _open_handle(self) -> ctypes.c_void_p:
        if not self._handle:
            raise c.InvalidArgumentError("the model is closed; expected an open one")
        return self._handle

    def close(self) -> None:
        """Frees the model. It can't be used afterwards."""
        with self._lock:
            if self._handle:
                c.library.tessera_model_free(self._handle)
                self._handle = ctypes.c_void_p()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            c.library.tessera_model_free(self._handle)

    @property
    def info(self) -> ModelInfo:
        info = c.made(c.model_info)
        c.check(c.library.tessera_model_get_info(self._open_handle(), ctypes.byref(info)))
        kind = c.DEVICE_KINDS[info.device.kind]
        values = {name: getattr(info, name) for name in ModelInfo._fields if name != "device"}
        for name, value in values.items():
            if isinstance(value, bytes):
                values[name] = value.decode()
        for name in ("weight_dtype", "activation_dtype"):
            values[name] = c.library.tessera_dtype_name(values[name]).decode()
        values["has_tokenizer"] = bool(info.has_tokenizer)
        values["has_chat_template"] = bool(info.has_chat_template)
        return ModelInfo(device=kind if kind == "cpu" else f"{kind}:{info.device.index}", **values)

    # ---- Tokens

    def _taken_tokens(self, tokens: c.tokens) -> list[int]:
        taken = tokens.data[: tokens.size]
        c.library.tessera_tokens_free(ctypes.byref(tokens))
        return taken

    def _taken_text(self, text: c.text) -> str:
        taken = ctypes.string_at(text.data, text.size_bytes).decode("utf-8", "replace")
        c.library.tessera_text_free(ctypes.byref(text))
        return taken

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text. Raises UnsupportedError if the model has no tokenizer."""
        data, tokens = text.encode("utf-8", "surrogatepass"), c.tokens()
        c.check(c.library.tessera_model_encode(self._open_handle(), data, len(data), add_special_tokens, ctypes.byref(tokens)))
        return self._taken_tokens(tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of tokens."""
        array, text = _token_array(tokens), c.text()
        c.check(c.library.tessera_model_decode(self._open_handle(), _pointer(array), len(array), skip_special_tokens, ctypes.byref(text)))
        return self._taken_text(text)

    def _chat(self, function: Callable, out: Any, messages: Sequence, options: dict) -> Any:
        given = c.made(c.chat_options)
        given.template_name = options["template"].encode() if options["template"] else None
        given.tools = _optional_json(options["tools"])
        given.variables = _optional_json(options["variables"])
        given.no_generation_prompt = int(not options["add_generation_prompt"])
        array = (c.chat_message * len(messages))()
        for i, message in enumerate(messages):
            role, content = (message["role"], message["content"]) if isinstance(message, Mapping) else message
            data = content.encode("utf-8", "surrogatepass")
            array[i] = c.chat_message(role.encode(), data, len(data))
        c.check(function(self._open_handle(), array, len(messages), ctypes.byref(given), ctypes.byref(out)))
        return out

    def render_chat(self, messages: Sequence, *, add_generation_prompt: bool = True, template: str = "", tools: Any = None,
                    variables: Any = None) -> str:  # fmt: skip
        """A conversation as text, as the model's chat template writes it. messages: (role, content) pairs or dicts with
        these keys. tools: a list, or its JSON; variables: a dict, or its JSON, of further variables of the template."""
        options = dict(add_generation_prompt=add_generation_prompt, template=template, tools=tools, variables=variables)
        return self._taken_text(self._chat(c.library.tessera_model_render_chat, c.text(), messages, options))

    def encode_chat(self, messages: Sequence, *, add_generation_prompt: bool = True, template: str = "", tools: Any = None,
                    variables: Any = None) -> list[int]:  # fmt: skip
        """The same as tokens. Text of the messages never makes control tokens."""
        options = dict(add_generation_prompt=add_generation_prompt, template=template, tools=tools, variables=variables)
        return self._taken_tokens(self._chat(c.library.tessera_model_encode_chat, c.tokens(), messages, options))

    def logits(self, tokens: Sequence[int], all: bool = False) -> np.ndarray:
        """Logits after each of the tokens, (tokens, vocab_size), or after the last one, (vocab_size); fp32."""
        array, floats = _token_array(tokens), c.floats()
        with self._lock:
            self._check(c.library.tessera_model_logits(self._open_handle(), _pointer(array), len(array), all, ctypes.byref(floats)))
        values = np.frombuffer(ctypes.string_at(floats.data, floats.size * 4), np.float32)
        c.library.tessera_floats_free(ctypes.byref(floats))
        return values.reshape(len(array), -1) if all else values

    # ---- Generation

    def _prompt(self, prompt: str | Sequence[int]) -> np.ndarray:
        return _token_array(self.encode(prompt) if isinstance(prompt, str) else prompt)

    @staticmethod
    def _options(max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, ignore_eos, keep_cache):
        options = c.made(c.generate_options)
        options.flags = c.GENERATE_HAS_MAX_TOKENS | c.GENERATE_HAS_TOP_P | c.GENERATE_HAS_REPETITION_PENALTY
        options.flags |= (c.GENERATE_IGNORE_EOS if ignore_eos else 0) | (c.GENERATE_KEEP_CACHE if keep_cache else 0)
        options.max_tokens, options.seed, options.temperature, options.top_k = max_tokens, seed, temperature, top_k
        options.top_p, options.min_p, options.repetition_penalty = top_p, min_p, repetition_penalty
        texts = [stop] if isinstance(stop, str) else list(stop)
        options.stop = (ctypes.c_char_p * max(1, len(texts)))(*[t.encode() for t in texts])
        options.num_stop = len(texts)
        return options

    def _taken_generation(self, handle: ctypes.c_void_p, text: str | None) -> Generation:
        info = c.made(c.generation_info)
        c.check(c.library.tessera_generation_get_info(handle, ctypes.byref(info)))
        tokens = info.tokens[: info.num_tokens]
        c.library.tessera_generation_free(handle)
        if text is None:
            text = self.decode(tokens) if self.info.has_tokenizer else ""
        return Generation(text, tokens, STOP_REASONS[info.stop_reason], info.prompt_tokens, info.cached_tokens,
                          info.generated_tokens, info.prefill_ms, info.decode_ms)  # fmt: skip

    def generate(self, prompt: str | Sequence[int], *, max_tokens: int = 256, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0,
                 stop: str | Sequence[str] = (), ignore_eos: bool = False, keep_cache: bool = False,
                 on_token: Callable[[int, str], Any] | None = None) -> Generation:  # fmt: skip
        """Continues a prompt, a text or tokens.

        temperature: 0 is greedy. top_k: 0 is all. stop: texts that end it, and are left out of the text.
        keep_cache: keeps keys and values for the next call with it, which computes only what its prompt does not share.
        on_token: gets each token and the text that it completes, never half a character; returns True to stop.
        """
        array = self._prompt(prompt)
        options = self._options(max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, ignore_eos, keep_cache)
        pieces: list[str] = []
        raised: list[BaseException] = []

        def take(_, token, data, size) -> int:
            try:
                pieces.append(ctypes.string_at(data, size).decode("utf-8", "replace"))
                return 1 if on_token is not None and on_token(token, pieces[-1]) is True else 0
            except BaseException as error:  # to be raised where generate was called
                raised.append(error)
                return 1

        handle, callback = ctypes.c_void_p(), c.ON_TOKEN(take)
        with self._lock:
            status = c.library.tessera_model_generate(self._open_handle(), _pointer(array), len(array), ctypes.byref(options),
                                                      callback, None, ctypes.byref(handle))  # fmt: skip
            if raised:
                c.library.tessera_generation_free(handle)
                raise raised[0]
            self._check(status)
        return self._taken_generation(handle, "".join(pieces))

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[str]:
        """Yields the text of generate(prompt, **options) as it comes. Ending the iteration ends the generation."""
        pieces: queue.SimpleQueue = queue.SimpleQueue()
        ended = threading.Event()
        on_token = options.pop("on_token", None)

        def put(token: int, text: str) -> bool:
            pieces.put(text)
            return ended.is_set() or (on_token is not None and on_token(token, text) is True)

        def work() -> None:
            try:
                self.generate(prompt, on_token=put, **options)
                pieces.put(None)
            except BaseException as error:  # to be raised where the text is taken
                pieces.put(error)

        thread = threading.Thread(target=work, name="tessera.Model.stream", daemon=True)
        thread.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                if piece:
                    yield piece
        finally:
            ended.set()
            thread.join()

    def generate_batch(self, prompts: Sequence[str | Sequence[int]], **options: Any) -> list[Generation]:
        """Continues several prompts side by side, at most max_batch; options as generate's without on_token.

        Unlike generate's, the text holds a stop string that ended it. Times are of the whole batch.
        """
        defaults = dict(max_tokens=256, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0,
                        stop=(), ignore_eos=False, keep_cache=False)  # fmt: skip
        unknown = set(options) - set(defaults)
        if unknown:
            raise TypeError(f"generate_batch has no option {', '.join(sorted(unknown))}")
        given = self._options(**{**defaults, **options})
        arrays = [self._prompt(p) for p in prompts]
        count = len(arrays)
        tokens = (c.tokens * max(1, count))()
        for i, array in enumerate(arrays):
            tokens[i] = c.tokens(ctypes.cast(_pointer(array), ctypes.POINTER(ctypes.c_int32)), len(array))
        pointers = (ctypes.c_void_p * max(1, count))(*[ctypes.addressof(given)] * count)
        handles = (ctypes.c_void_p * max(1, count))()
        with self._lock:
            self._check(c.library.tessera_model_generate_batch(self._open_handle(), tokens, count, pointers, handles))
        return [self._taken_generation(ctypes.c_void_p(handles[i]), None) for i in range(count)]

    def chat(self, messages: Sequence, **options: Any) -> Generation:
        """generate() of a conversation's next message; messages as in render_chat."""
        return self.generate(self.encode_chat(messages), **options)
