"""Language models that generate and stream."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from . import _library as c
from ._generation import (
    STOP_REASONS,
    GenerateOptions,
    Generation,
    json_text,
    packed_options,
    pointer,
    token_array,
    top_logprobs_of,
)
from ._handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ACTIVATION_DTYPES = {None: 0, "f32": c.F32, "float32": c.F32, "f16": c.F16, "float16": c.F16, "bf16": c.BF16,
                      "bfloat16": c.BF16}  # fmt: skip
_KV_DTYPES = {**_ACTIVATION_DTYPES, "fp8": c.F8_E4M3, "f8e4m3": c.F8_E4M3, "float8_e4m3fn": c.F8_E4M3}


def _dtype_code(codes: dict, name: str | None, argument: str, expected: str) -> int:
    if name not in codes:
        raise c.InvalidArgumentError(f"{argument} is {name!r}; expected {expected} or None")
    return codes[name]


def kv_dtype_code(name: str | None) -> int:
    return _dtype_code(_KV_DTYPES, name, "kv_dtype", "'fp8', or the activations' dtype,")


class ModelInfo(NamedTuple):
    """Sizes are in elements, tokens or bytes as their names say; dtypes by name; device such as "cuda:0".

    weight_bytes: of all weights as stored; decode_bytes: of those that one decode step reads, all but an untied embedding
    table. max_seq_len: tokens that a sequence may take here. kv_dtype: of the KV cache. quantization: how
    a folder stores matrices as codes and scales, "fp8", "gptq, 4 bits", which are widened when it is loaded; "": it doesn't.
    """

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
    kv_dtype: str
    quantization: str


class ChatMessage(NamedTuple):
    role: str
    content: str


class _Turns:
    """A lock for which calls from a callback of the call that has it don't wait, as they would forever."""

    def __init__(self):
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise c.InvalidArgumentError(
                "the model is called from a callback of its own, while it runs; expected the call after that one has returned"
            )
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *_: Any) -> None:
        self._owner = None
        self._lock.release()


class Model(c.Unique):
    """A language model with its KV cache, opened from a Hugging Face folder or a .gguf file.

    Generations and logits from several threads take turns; an Engine runs requests side by side. Also a context manager,
    which frees the model at its end.
    """

    def __init__(self, path: str | os.PathLike, *, backend: str = "auto", device: int | None = None, max_seq_len: int = 0,
                 max_batch: int = 1, page_size: int = 16, max_kv_tokens: int = 0, activation_dtype: str | None = None,
                 kv_dtype: str | None = None, batch_invariant: bool = False, prefill_chunk: int = 0, cache: bool = True,
                 on_progress: Callable[[str, int, int], Any] | None = None):  # fmt: skip
        """backend: "auto" (a GPU if there is one), "cuda", "hip", "cpu", "reference". device: index of the GPU.
        max_seq_len: tokens of KV cache a sequence may take, 0: the model's context length; max_batch: sequences at the
        same time; max_kv_tokens: tokens of KV cache in all, 0: max_batch * max_seq_len. activation_dtype: "f32", "f16" or
        "bf16"; None: as the weights suggest. kv_dtype: of the cache: "fp8", which takes half of a 16-bit one's memory; None:
        the activations'. cache=False: weights and tokenizer only, for tokens, conversations and engines. on_progress: gets ("load" or "prefill", done, total), in bytes or tokens.
        Raises tessera.Error."""
        self._handle = Handle("model", c.library.tessera_model_free)
        self._lock = _Turns()
        self._raised: list[BaseException] = []
        options = c.made(c.model_options)
        options.backend = c.c_text("backend", backend)
        if device is not None:
            options.flags |= c.MODEL_HAS_DEVICE
            kind = backend if backend in c.DEVICE_KINDS else "cpu" if backend != "auto" else "cuda"
            options.device = c.device(c.DEVICE_KINDS.index(kind), c.whole_of_32_bits("device", device))
        if batch_invariant:
            options.flags |= c.MODEL_BATCH_INVARIANT
        options.max_seq_len = max_seq_len
        options.max_kv_tokens = max_kv_tokens
        if not cache:
            options.flags |= c.MODEL_WITHOUT_CACHE
        options.max_batch = max_batch if cache or max_batch != 1 else 0
        options.page_size = page_size if cache or page_size != 16 else 0
        options.prefill_chunk = prefill_chunk
        options.activation_dtype = _dtype_code(_ACTIVATION_DTYPES, activation_dtype, "activation_dtype", "'f32', 'f16', 'bf16'")
        options.kv_dtype = kv_dtype_code(kv_dtype)
        if on_progress is not None:
            options.on_progress = self._on_progress = c.ON_PROGRESS(
                lambda _, stage, done, total: self._guarded(on_progress, "prefill" if stage else "load", done, total)
            )
        self._check(c.library.tessera_model_load(c.c_text("path", os.fsencode(path)), ctypes.byref(options), ctypes.byref(self._handle.pointer)))

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

    def close(self) -> None:
        """Frees the model, once calls of other threads have returned. It can't be used afterwards."""
        with self._lock:
            self._handle.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def info(self) -> ModelInfo:
        """What the model is and takes."""
        info = c.made(c.model_info)
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_model_get_info(handle, ctypes.byref(info)))
            values = {name: getattr(info, name) for name in ModelInfo._fields if name != "device"}
        kind = c.DEVICE_KINDS[info.device.kind]
        for name, value in values.items():
            if isinstance(value, bytes):
                values[name] = value.decode()
        for name in ("weight_dtype", "activation_dtype", "kv_dtype"):
            values[name] = c.library.tessera_dtype_name(values[name]).decode()
        values["has_tokenizer"] = bool(info.has_tokenizer)
        values["has_chat_template"] = bool(info.has_chat_template)
        return ModelInfo(device=kind if kind == "cpu" else f"{kind}:{info.device.index}", **values)

    # ---- Tokens

    def _taken_tokens(self, tokens: c.tokens) -> list[int]:
        taken = tokens.data[: tokens.size]
        c.library.tessera_tokens_free(ctypes.byref(tokens))
        return taken

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text. Raises UnsupportedError if the model has no tokenizer."""
        data, tokens = text.encode("utf-8", "surrogatepass"), c.tokens()
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_model_encode(handle, data, len(data), add_special_tokens, ctypes.byref(tokens)))
        return self._taken_tokens(tokens)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of tokens."""
        array, text = token_array(tokens), c.text()
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_model_decode(handle, pointer(array), len(array), skip_special_tokens, ctypes.byref(text)))
        return c.taken_text(text)

    def _chat(self, function: str, out: Any, messages: Sequence, options: dict) -> Any:
        given = c.made(c.chat_options)
        given.template_name = c.c_text("template", options["template"]) if options["template"] else None
        given.tools = json_text("tools", options["tools"])
        given.variables = json_text("variables", options["variables"])
        given.no_generation_prompt = int(not options["add_generation_prompt"])
        how = ctypes.byref(given)
        for i, m in enumerate(messages):
            if not isinstance(m, Mapping) and (isinstance(m, str) or len(m) != 2 or not isinstance(m[1], str)):
                raise c.InvalidArgumentError(f"messages[{i}] is {m!r}; expected a pair of role and content, or a dict")
        if any(isinstance(m, Mapping) and (m.keys() != {"role", "content"} or not isinstance(m["content"], str)) for m in messages):
            whole = [dict(m if isinstance(m, Mapping) else zip(("role", "content"), m)) for m in messages]
            with self._handle.in_use() as handle:
                c.check(getattr(c.library, function + "_json")(handle, json_text("messages", whole), how, ctypes.byref(out)))
            return out
        array = (c.chat_message * len(messages))()
        for i, message in enumerate(messages):
            role, content = (message["role"], message["content"]) if isinstance(message, Mapping) else message
            data = content.encode("utf-8", "surrogatepass")
            array[i] = c.chat_message(c.c_text("a message's role", role), data, len(data))
        with self._handle.in_use() as handle:
            c.check(getattr(c.library, function)(handle, array, len(messages), how, ctypes.byref(out)))
        return out

    def render_chat(self, messages: Sequence, *, add_generation_prompt: bool = True, template: str = "", tools: Any = None,
                    variables: Any = None) -> str:  # fmt: skip
        """A conversation as text, as the model's chat template writes it. messages: (role, content) pairs, or dicts with these
        keys and whatever else the template knows ("tool_calls", …), as transformers' apply_chat_template takes them. tools: a
        list, or its JSON; variables: a dict, or its JSON, of further variables of the template."""
        options = dict(add_generation_prompt=add_generation_prompt, template=template, tools=tools, variables=variables)
        return c.taken_text(self._chat("tessera_model_render_chat", c.text(), messages, options))

    def encode_chat(self, messages: Sequence, *, add_generation_prompt: bool = True, template: str = "", tools: Any = None,
                    variables: Any = None) -> list[int]:  # fmt: skip
        """The same as tokens. Text of the messages never makes control tokens."""
        options = dict(add_generation_prompt=add_generation_prompt, template=template, tools=tools, variables=variables)
        return self._taken_tokens(self._chat("tessera_model_encode_chat", c.tokens(), messages, options))

    def logits(self, tokens: Sequence[int], all: bool = False) -> np.ndarray:
        """Logits after each of the tokens, (tokens, vocab_size), or after the last one, (vocab_size); fp32."""
        array, floats = token_array(tokens), c.floats()
        with self._lock, self._handle.in_use() as handle:
            self._check(c.library.tessera_model_logits(handle, pointer(array), len(array), all, ctypes.byref(floats)))
        values = np.frombuffer(ctypes.string_at(floats.data, floats.size * 4), np.float32)
        c.library.tessera_floats_free(ctypes.byref(floats))
        return values.reshape(len(array), -1) if all else values

    # ---- Generation

    def _prompt(self, prompt: str | Sequence[int]) -> np.ndarray:
        return token_array(self.encode(prompt) if isinstance(prompt, str) else prompt)

    def _taken_generation(self, handle: ctypes.c_void_p, text: str | np.ndarray, stops: Sequence[str] = ()) -> Generation:
        """text: what came of it, or the prompt, of which it is to be made."""
        info = c.made(c.generation_info)
        c.check(c.library.tessera_generation_get_info(handle, ctypes.byref(info)))
        tokens = info.tokens[: info.num_tokens]
        logprobs = top_logprobs = None
        if info.logprobs:
            count = info.num_top_logprobs
            logprobs = info.logprobs[: info.num_tokens]
            top_logprobs = [top_logprobs_of(info.top_logprobs, i * count, count) for i in range(info.num_tokens)]
        c.library.tessera_generation_free(handle)
        if not isinstance(text, str):
            text = self._text_behind(text, tokens, stops if STOP_REASONS[info.stop_reason] == "stop_string" else ())
        return Generation(text, tokens, STOP_REASONS[info.stop_reason], info.prompt_tokens, info.cached_tokens,
                          info.generated_tokens, info.prefill_ms, info.decode_ms, logprobs, top_logprobs)  # fmt: skip

    def generate(self, prompt: str | Sequence[int], *, on_token: Callable[[int, str], Any] | None = None,
                 **options: Unpack[GenerateOptions]) -> Generation:  # fmt: skip
        """Continues a prompt, a text or tokens. options: those of tessera.GenerateOptions.

        on_token: gets each token and the text that it completes, never half a character; returns True to stop.
        """
        array = self._prompt(prompt)
        given = packed_options(**options)
        pieces: list[str] = []
        raised: list[BaseException] = []

        def take(_, token, data, size) -> int:
            try:
                pieces.append(ctypes.string_at(data, size).decode("utf-8", "replace"))
                return 1 if on_token is not None and on_token(token, pieces[-1]) is True else 0
            except BaseException as error:  # to be raised where generate was called
                raised.append(error)
                return 1

        generation, callback = ctypes.c_void_p(), c.ON_TOKEN(take)
        with self._lock, self._handle.in_use() as handle:
            status = c.library.tessera_model_generate(handle, pointer(array), len(array), ctypes.byref(given), callback, None,
                                                      ctypes.byref(generation))  # fmt: skip
            if raised:
                c.library.tessera_generation_free(generation)
                raise raised[0]
            self._check(status)
        return self._taken_generation(generation, "".join(pieces))

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

        Times are of the whole batch.
        """
        given = packed_options(**options)
        arrays = [self._prompt(p) for p in prompts]
        count = len(arrays)
        tokens = (c.tokens * max(1, count))()
        for i, array in enumerate(arrays):
            tokens[i] = c.tokens(ctypes.cast(pointer(array), ctypes.POINTER(ctypes.c_int32)), len(array))
        pointers = (ctypes.c_void_p * max(1, count))(*[ctypes.addressof(given)] * count)
        handles = (ctypes.c_void_p * max(1, count))()
        with self._lock, self._handle.in_use() as handle:
            self._check(c.library.tessera_model_generate_batch(handle, tokens, count, pointers, handles))
        stop = options.get("stop") or ()
        stops = [stop] if isinstance(stop, str) else list(stop)
        return [self._taken_generation(ctypes.c_void_p(handles[i]), arrays[i], stops) for i in range(count)]

    def _text_behind(self, prompt: np.ndarray, tokens: list[int], stops: Sequence[str]) -> str:
        """The text that tokens add to a prompt's, up to a stop string."""
        if not self.info.has_tokenizer:
            return ""
        head, last = "", prompt[-1:].tolist()
        if last and not (head := self.decode(last)).endswith("\ufffd"):  # else a character's bytes may go on
            text = self.decode(last + tokens)[len(head) :]
        else:
            text = self.decode(tokens)
        return text[: min((at for at in map(text.find, stops) if at >= 0), default=None)]

    def chat(self, messages: Sequence, **options: Any) -> Generation:
        """generate() of a conversation's next message; messages as in render_chat."""
        return self.generate(self.encode_chat(messages), **options)
