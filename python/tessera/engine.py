"""Engines, which run any number of requests over one model side by side."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterator, NamedTuple, Sequence

import numpy as np

from . import _library as c
from ._generation import (
    STOP_REASONS,
    GenerateOptions,
    Generation,
    PromptLogprobs,
    TokenLogprob,
    packed_options,
    pointer,
    token_array,
    top_logprobs_of,
    whole_array,
)
from ._handle import Handle
from .model import Model, kv_dtype_code

if TYPE_CHECKING:
    from typing_extensions import Unpack

_POOLINGS = ("mean", "last")


class Event(NamedTuple):
    """What became of a request in a step. Requests to continue a prompt get events of type "token", and each request then
    one of "finished" or "error", which is its last.

    id: the request's. text: what is certain now, never half a character, never what may become a stop string; also with
    "finished". token: the one drawn, with "finished" that which ended the text. logprob and top_logprobs: with that option.
    prompt_logprobs: of a request's first event, with that option. stop_reason, the counts and times: of "finished".
    embedding: (hidden_size), fp32. attention: (layers, heads, positions, tokens), fp32. error: of "error", to be raised.
    """

    id: int
    type: str
    text: str = ""
    token: int = 0
    logprob: float = 0.0
    top_logprobs: Sequence[TokenLogprob] = ()
    stop_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    embedding: np.ndarray | None = None
    attention: np.ndarray | None = None
    error: c.Error | None = None
    prompt_logprobs: PromptLogprobs | None = None


class EngineStats(NamedTuple):
    """What an engine does and has done; counters only grow.

    running: requests that have pages. waiting: those that have none yet, or have lost them. kv_pages: in all; kv_pages_used:
    by running requests; kv_pages_cached: by nobody, kept for prompts that begin the same. kv_cache_bytes: of all pages.
    requests_finished: the cancelled ones included; requests_failed: with an error; requests_refused: since the queue was full.
    prompt_tokens: of requests that have begun; cached_tokens: of these, found in the prefix cache; computed_tokens: that went
    through the model, again after preemption; generated_tokens: drawn. preemptions: requests that gave their pages to others.
    """

    running: int
    waiting: int
    kv_pages: int
    kv_pages_used: int
    kv_pages_cached: int
    kv_cache_bytes: int
    requests_submitted: int
    requests_finished: int
    requests_cancelled: int
    requests_failed: int
    requests_refused: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    preemptions: int
    steps: int


class EngineOptions(NamedTuple):
    """An engine's sizes as they are used."""

    max_seq_len: int
    max_kv_tokens: int
    max_batch: int
    max_waiting: int
    page_size: int
    prefill_chunk: int
    kv_dtype: str
    prefix_cache: bool
    batch_invariant: bool


def _floats(address: int | None, size: int) -> np.ndarray | None:
    return np.frombuffer(ctypes.string_at(address, 4 * size), np.float32) if address and size else None


def _prompt_logprobs_of(e: Any) -> PromptLogprobs | None:
    count, top = e.num_prompt_logprobs, e.num_prompt_top_logprobs
    if not count:
        return None
    return PromptLogprobs(e.prompt_logprobs[:count], [top_logprobs_of(e.prompt_top_logprobs, i * top, top) for i in range(count)])


def _event_of(e: Any, heads: int, shapes: dict[int, tuple]) -> Event:
    """A c.event as an Event. shapes: of the attention that was asked for."""
    text = ctypes.string_at(e.text, e.text_bytes).decode("utf-8", "replace") if e.text_bytes else ""
    if e.type == c.EVENT_TOKEN:
        return Event(e.id, "token", text, e.token, e.logprob, top_logprobs_of(e.top_logprobs, 0, e.num_top_logprobs),
                     prompt_logprobs=_prompt_logprobs_of(e))  # fmt: skip
    shape = shapes.get(e.id, ())
    if e.type == c.EVENT_ERROR:
        return Event(e.id, "error", error=c.error_of(e.error, e.error_message))
    attention = _floats(e.attention, e.attention_size)
    return Event(e.id, "finished", text, e.token, stop_reason=STOP_REASONS[e.stop_reason], prompt_tokens=e.prompt_tokens,
                 cached_tokens=e.cached_tokens, generated_tokens=e.generated_tokens, prefill_ms=e.prefill_ms,
                 decode_ms=e.decode_ms, embedding=_floats(e.embedding, e.embedding_size),
                 attention=attention if attention is None else attention.reshape(shape[0], heads, *shape[1:]),
                 prompt_logprobs=_prompt_logprobs_of(e))  # fmt: skip


class Stream(c.Unique):
    """The text of a request as it comes, piece by piece; made by Engine.stream. Also an asynchronous iterator.

    Ending the iteration, or losing the stream, ends the request. An interrupt (Ctrl-C) does not; whoever goes on afterwards
    may miss the piece that came with it, which result() has. Attributes: id, tokens (those that have come).
    """

    def __init__(self, engine: Engine, id: int, wants_logprobs: bool = False, wants_prompt_logprobs: bool = False):
        self.id = id
        self._engine = engine
        self._inbox: list[Event] = []  # all that have come, which stay, so that an interrupt loses none
        self._num_read = 0  # of these
        self._is_closed = False
        self._wants_logprobs, self._wants_prompt_logprobs = wants_logprobs, wants_prompt_logprobs
        self._untaken: asyncio.Future | None = None  # the next piece, whose waiter was cancelled
        engine._register(id, self._inbox)

    def _read(self, type: str) -> list[Event]:
        return [event for event in self._inbox[: self._num_read] if event.type == type]

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self._read("token")]

    @property
    def _is_over(self) -> bool:
        return self._is_closed or (self._num_read > 0 and self._inbox[self._num_read - 1].type != "token")

    def _next_event(self) -> Event | None:
        """The next event; None behind the last one. Raises the request's error."""
        if self._is_over:
            return None
        self._engine._wait_for(lambda: self._is_closed or len(self._inbox) > self._num_read)
        if self._is_closed:  # by another thread
            return None
        event = self._inbox[self._num_read]
        self._num_read += 1
        if event.error is not None:
            raise event.error
        return event

    def events(self) -> Iterator[Event]:
        """The same, event by event, with tokens and log probabilities."""
        while (event := self._next_event()) is not None:
            yield event

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        piece = self._next_piece()
        if piece is None:
            raise StopIteration
        return piece

    def _next_piece(self) -> str | None:
        while (event := self._next_event()) is not None:
            if event.text:
                return event.text
        return None

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        coming, self._untaken = self._untaken, None
        if coming is None:
            coming = asyncio.get_running_loop().run_in_executor(None, self._next_piece)
        try:
            piece = await asyncio.shield(coming)
        except asyncio.CancelledError:
            self._untaken = coming
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    def result(self) -> Generation:
        """Goes on to the end and returns all of it. Raises the request's error."""
        for _ in self.events():
            pass
        read = self._inbox[: self._num_read]
        last = Event(self.id, "finished", stop_reason="cancelled") if self._is_closed else read[-1]
        if last.error is not None:
            raise last.error
        tokens = self._read("token")
        logprobs = top_logprobs = prompt_logprobs = None
        if self._wants_logprobs:
            logprobs, top_logprobs = [event.logprob for event in tokens], [list(event.top_logprobs) for event in tokens]
        if self._wants_prompt_logprobs:  # a prompt of one token has none, in an event that says nothing of them
            prompt_logprobs = next((e.prompt_logprobs for e in read if e.prompt_logprobs is not None), PromptLogprobs([], []))
        return Generation("".join(event.text for event in read), self.tokens, last.stop_reason or "cancelled", last.prompt_tokens,
                          last.cached_tokens, last.generated_tokens, last.prefill_ms, last.decode_ms, logprobs, top_logprobs,
                          prompt_logprobs)  # fmt: skip

    def cancel(self) -> None:
        """Ends the request; what has come so far stays its result, with the stop_reason "cancelled"."""
        if not self._is_over:
            self._engine.cancel(self.id)

    def close(self) -> None:
        """Ends the request and forgets what comes of it."""
        if not self._is_over:
            self._is_closed = True
            self._engine._drop(self.id)

    def __del__(self):
        with contextlib.suppress(Exception):  # at the interpreter's end
            self.close()


class Engine(c.Unique):
    """Runs any number of requests over one model: a KV cache and a scheduler.

    Every step takes one token of each sequence that is decoding, and prompt tokens of the others, shared out evenly. Requests
    that begin alike share what was computed for their beginnings. An error ends the request that it belongs to.

    There are two ways to use it, which may be mixed. `stream`, `generate`, `generate_batch` and `embed` may be called from
    any number of threads: whoever waits for a result runs the steps, and everybody gets what is theirs. Or one's own loop:
    `submit`, `cancel` and `step`, which returns events. Also a context manager, which frees the engine at its end.

        engine = tessera.Engine("models/demo", max_batch=8)
        for text in engine.stream("Once upon a time", temperature=0.8):
            print(text, end="", flush=True)
    """

    def __init__(self, model: Model | str | os.PathLike, *, max_seq_len: int = 0, max_batch: int = 16, max_waiting: int = 256,
                 page_size: int = 16, max_kv_tokens: int = 0, prefill_chunk: int = 0, kv_dtype: str | None = None,
                 prefix_cache: bool = True, batch_invariant: bool = False, **load_options: Any):  # fmt: skip
        """model: an open one, whose weights the engine shares, or a path with `load_options` (backend, device,
        activation_dtype, on_progress) as of tessera.Model.

        max_seq_len: tokens of KV cache a sequence may take, 0: the model's context length. max_batch: sequences at the same
        time. max_waiting: requests that wait for their turn; more are a QueueFullError. page_size: tokens in a KV page.
        max_kv_tokens: tokens of KV cache in all, 0: max_batch * max_seq_len. prefill_chunk: prompt tokens in a step, 0: 512
        on a CPU, 2048 on a GPU. kv_dtype: "fp8" takes half of a 16-bit cache's memory. prefix_cache: keeps what was computed
        for prompts that begin the same. batch_invariant: a request's logits don't depend, to the bit, on what else runs.
        Raises tessera.Error.
        """
        self._handle = Handle("engine", c.library.tessera_engine_free, c.library.tessera_engine_wake)
        # Guards all that follows. An interrupt (Ctrl-C) may come anywhere; entering and leaving a lock of C's is not parted by one.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stepper: int | None = None  # the thread whose turn it is to step; one that was interrupted before it did goes on
        self._undelivered = ctypes.c_void_p()  # events of a step, which an interrupt may have kept from who waits for them
        self._inboxes: dict[int, list[Event] | None] = {}  # of requests that live; None: nobody wants to know
        self._early: dict[int, list[Event]] = {}  # of requests whose submit has not returned
        self._own: list[Event] = []  # of those submitted by submit()
        self._shapes: dict[int, tuple] = {}  # of attention asked for, without heads
        if isinstance(model, Model):
            if load_options:
                raise TypeError(f"{', '.join(load_options)} came with an open model; expected them with a path")
            self.model = model
        else:
            self.model = Model(model, cache=False, **load_options)
        options = c.made(c.engine_options)
        options.flags = (c.ENGINE_BATCH_INVARIANT if batch_invariant else 0) | (0 if prefix_cache else c.ENGINE_NO_PREFIX_CACHE)
        options.max_seq_len, options.max_kv_tokens, options.prefill_chunk = max_seq_len, max_kv_tokens, prefill_chunk
        options.max_batch, options.max_waiting, options.page_size = max_batch, max_waiting, page_size
        options.kv_dtype = kv_dtype_code(kv_dtype)
        with self.model._handle.in_use() as weights:
            c.check(c.library.tessera_engine_create(weights, ctypes.byref(options), ctypes.byref(self._handle.pointer)))
        self._heads = self.model.info.num_heads

    # ---- Being open

    def close(self) -> None:
        """Frees the engine, once calls of other threads have returned. What it still runs is lost; streams raise."""
        self._handle.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self):
        c.library.tessera_events_free(getattr(self, "_undelivered", None))

    # ---- Requests and steps

    def _prompt(self, prompt: str | Sequence[int]) -> np.ndarray:
        return token_array(self.model.encode(prompt) if isinstance(prompt, str) else prompt)

    def _submit(self, function: Callable, *arguments: Any) -> int:
        id = ctypes.c_uint64()
        with self._handle.in_use() as handle:
            c.check(function(handle, *arguments, ctypes.byref(id)))
        return id.value

    def _submit_prompt(self, prompt: str | Sequence[int], options: GenerateOptions) -> int:
        array, given = self._prompt(prompt), packed_options(**options)
        return self._submit(c.library.tessera_engine_submit, pointer(array), len(array), ctypes.byref(given))

    def _submit_embedding(self, prompt: str | Sequence[int], pooling: str, normalize: bool) -> int:
        if pooling not in _POOLINGS:
            raise c.InvalidArgumentError(f"pooling is {pooling!r}; expected 'mean' or 'last'")
        array, given = self._prompt(prompt), c.made(c.embedding_options)
        given.pooling, given.no_normalize = _POOLINGS.index(pooling), int(not normalize)
        return self._submit(c.library.tessera_engine_submit_embedding, pointer(array), len(array), ctypes.byref(given))

    def submit(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> int:
        """Asks for the continuation of a prompt, a text or tokens; options: tessera.GenerateOptions. Returns the request's
        id, whose events step() returns. Raises QueueFullError if max_waiting requests wait."""
        id = self._submit_prompt(prompt, options)
        self._register(id, self._own)
        return id

    def submit_embedding(self, prompt: str | Sequence[int], *, pooling: str = "mean", normalize: bool = True) -> int:
        """Asks for a prompt's hidden states, after the last norm, as one vector: their mean, or the last one's. normalize:
        to Euclidean length 1."""
        id = self._submit_embedding(prompt, pooling, normalize)
        self._register(id, self._own)
        return id

    def submit_attention(self, tokens: Sequence[int], positions: Sequence[int], layers: Sequence[int] = ()) -> int:
        """Asks which earlier tokens some tokens of a text look at. positions: of those that look, ascending. layers:
        ascending; all if there is none."""
        array = token_array(tokens)
        looking, of = whole_array(positions, "positions", np.int64), whole_array(layers, "layers", np.int32)
        id = self._submit(c.library.tessera_engine_submit_attention, pointer(array), len(array), pointer(looking), len(looking),
                          pointer(of), len(of))  # fmt: skip
        num_layers = len(of) or self.model.info.num_layers
        with self._lock:
            self._shapes[id] = (num_layers, len(looking), len(array))
        self._register(id, self._own)
        return id

    def cancel(self, id: int) -> bool:
        """Ends a request: the next step reports it finished, with the stop_reason "cancelled". Returns False if it had ended,
        or never was."""
        was_alive = ctypes.c_int32()
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_engine_cancel(handle, id, ctypes.byref(was_alive)))
        return bool(was_alive.value)

    def step(self) -> list[Event]:
        """Runs one step, and returns the events of requests that submit() and its like made. Those of streams go to them."""
        with self._lock:
            while self._is_others_turn():
                self._changed.wait()
            self._stepper = threading.get_ident()
        self._step()
        with self._lock:
            events = self._own.copy()
            self._own.clear()
            return events

    @property
    def has_work(self) -> bool:
        """Whether step() has something to do or to return."""
        has_work = ctypes.c_int32()
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_engine_has_work(handle, ctypes.byref(has_work)))
        return bool(has_work.value or self._own or self._undelivered)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleeps until there is work, wake() is called, or `timeout` seconds are over. Returns has_work."""
        has_work = ctypes.c_int32()
        milliseconds = 2**62 if timeout is None else max(0, int(timeout * 1000))
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_engine_wait(handle, milliseconds, ctypes.byref(has_work)))
        return bool(has_work.value or self._own or self._undelivered)

    def wake(self) -> None:
        """Ends one wait(), the next one if none is on."""
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_engine_wake(handle))

    @property
    def stats(self) -> EngineStats:
        """As of now, from any thread."""
        stats = c.made(c.engine_stats)
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_engine_get_stats(handle, ctypes.byref(stats)))
        return EngineStats(*[getattr(stats, name) for name in EngineStats._fields])

    @property
    def options(self) -> EngineOptions:
        """The sizes that the engine was made with, none of them 0 or None."""
        options = c.made(c.engine_options)
        with self._handle.in_use() as handle:
            c.check(c.library.tessera_engine_get_options(handle, ctypes.byref(options)))
        sizes = [getattr(options, name) for name in EngineOptions._fields[:6]]
        return EngineOptions(*sizes, c.library.tessera_dtype_name(options.kv_dtype).decode(),
                             not options.flags & c.ENGINE_NO_PREFIX_CACHE, bool(options.flags & c.ENGINE_BATCH_INVARIANT))  # fmt: skip

    # ---- Whose events are whose

    def _register(self, id: int, inbox: list[Event]) -> None:
        """From now on a request's events go there, and those that came before submit returned."""
        with self._lock:
            self._inboxes[id] = inbox
            for event in self._early.pop(id, ()):
                self._deliver(event)
            self._changed.notify_all()

    def _drop(self, id: int) -> None:
        """Ends a request whose events nobody wants."""
        with self._lock:
            if id in self._inboxes:
                self._inboxes[id] = None
            self._changed.notify_all()
        self.cancel(id)

    def _deliver(self, event: Event) -> None:
        if event.id not in self._inboxes:
            self._early.setdefault(event.id, []).append(event)
            return
        inbox = self._inboxes[event.id]
        if inbox is not None:
            inbox.append(event)
        if event.type != "token":
            del self._inboxes[event.id]
            self._shapes.pop(event.id, None)

    def _is_others_turn(self) -> bool:
        return self._stepper not in (None, threading.get_ident())

    def _step(self) -> None:
        """One step by who has set _stepper."""
        try:
            if not self._undelivered:
                with self._handle.in_use() as handle:
                    c.check(c.library.tessera_engine_step(handle, ctypes.byref(self._undelivered)))
            size, event = ctypes.c_size_t(), c.made(c.event)
            c.check(c.library.tessera_events_size(self._undelivered, ctypes.byref(size)))
            events = []
            for i in range(size.value):
                c.check(c.library.tessera_events_get(self._undelivered, i, ctypes.byref(event)))
                events.append(_event_of(event, self._heads, self._shapes))
            with self._lock:
                taken, self._undelivered = self._undelivered, ctypes.c_void_p()
                for e in events:
                    self._deliver(e)
            c.library.tessera_events_free(taken)
        finally:
            with self._lock:
                self._stepper = None
                self._changed.notify_all()

    def _wait_for(self, is_there: Callable[[], bool]) -> None:
        """Runs steps, unless another thread does, until `is_there`."""
        while True:
            with self._lock:
                while not is_there() and self._is_others_turn():
                    self._changed.wait()
                if is_there():
                    return
                self._stepper = threading.get_ident()
            self._step()

    # ---- Results

    def stream(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Stream:
        """The text of a prompt's continuation as it comes; options: tessera.GenerateOptions. The request is taken at once,
        and runs while anybody waits for a result of this engine. Raises QueueFullError if max_waiting requests wait."""
        return Stream(self, self._submit_prompt(prompt, options), options.get("top_logprobs") is not None,
                      bool(options.get("prompt_logprobs")))  # fmt: skip

    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Generation:
        """Continues a prompt, a text or tokens. Raises the request's error."""
        return self.stream(prompt, **options).result()

    def generate_batch(self, prompts: Sequence[str | Sequence[int]], **options: Unpack[GenerateOptions]) -> list[Generation]:
        """Continues prompts side by side, max_batch at a time and at most max_waiting in all."""
        with contextlib.ExitStack() as streams:  # which ends the others' requests if one fails
            begun = [streams.enter_context(contextlib.closing(self.stream(prompt, **options))) for prompt in prompts]
            return [stream.result() for stream in begun]

    def chat(self, messages: Sequence, **options: Unpack[GenerateOptions]) -> Stream:
        """stream() of a conversation's next message; messages as in tessera.Model.render_chat."""
        return self.stream(self.model.encode_chat(messages), **options)

    def embed(self, prompts: Sequence[str | Sequence[int]], *, pooling: str = "mean", normalize: bool = True) -> np.ndarray:
        """One vector a prompt, (prompts, hidden_size), fp32; as submit_embedding."""
        with contextlib.ExitStack() as streams:
            begun = []
            for prompt in prompts:
                id = self._submit_embedding(prompt, pooling, normalize)
                begun.append(streams.enter_context(contextlib.closing(Stream(self, id))))
            rows = [event.embedding for stream in begun for event in stream.events() if event.embedding is not None]
        return np.stack(rows) if rows else np.empty((0, self.model.info.hidden_size), np.float32)
