"""The same shapes through PyTorch: SDPA's backends and the row kernels of its eager mode, by replays of CUDA graphs."""

import math
import re
import statistics
import time
import warnings

import modifiers
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

REPLAY_MS = 4  # a replay's length
MAX_CALLS = 400  # of a graph
WARM_UP_S = 0.1  # of replays
MIN_SAMPLES = 5
warnings.filterwarnings("ignore", category=UserWarning)  # why a backend of SDPA does not take a shape
MATH_SCORES_BYTES = 8 << 30  # more scores than this, and PyTorch's unfused backend is left out

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def family():
    """Tessera's name for PyTorch's kind of GPU, which calls AMD's "cuda", too."""
    return "hip" if torch.version.hip else "cuda"


def environment():
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "hip_of_torch": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
    }


def time_graph(call, copies, seconds):
    """Median, least and most milliseconds of call(n), n counting calls of which `copies` differ."""
    stream = torch.cuda.Stream()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        for n in range(2):
            start.record()
            call(n % copies)
            stop.record()
            stop.synchronize()
        calls = min(max(math.ceil(REPLAY_MS / max(start.elapsed_time(stop), 1e-3)), 1), MAX_CALLS)
        calls = math.ceil(calls / copies) * copies
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for n in range(calls):
                call(n % copies)

        def replay():
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            return start.elapsed_time(stop) / calls

        begin = time.perf_counter()
        replay()
        while time.perf_counter() - begin < WARM_UP_S:
            replay()
        begin = time.perf_counter()
        samples = []
        while len(samples) < MIN_SAMPLES or time.perf_counter() - begin < seconds:
            samples.append(replay())
    return {"ms": statistics.median(samples), "ms_min": min(samples), "ms_max": max(samples), "samples": len(samples)}


def copies_beyond_cache(size_bytes):
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return min(max(math.ceil(2 * l2_bytes / size_bytes), 1), 256)


def random_inputs(shape):
    """q, k, v of SDPA's (batch, heads, tokens, head_dim), in memory (batch, tokens, heads, head_dim) like tessera's."""
    dtype = DTYPES[shape["dtype"]]

    def tensor(tokens, heads):
        x = torch.randn(shape["batch"], tokens, heads, shape["head_dim"], device="cuda", dtype=dtype)
        return x.transpose(1, 2)

    kv_heads = shape["num_kv_heads"]
    return (
        tensor(shape["seq_len_q"], shape["num_heads"]),
        tensor(shape["seq_len_kv"], kv_heads),
        tensor(shape["seq_len_kv"], kv_heads),
    )


def error_of(out, inputs, causal, score_mod=None, mask_mod=None):
    """Largest absolute error of the first sequence's first head against fp64."""
    q, k, v = (x[0, 0].double() for x in inputs)
    scores = q @ k.T / math.sqrt(q.shape[1])
    zero = torch.zeros((), device=scores.device, dtype=torch.long)
    rows, columns = (torch.arange(n, device=scores.device) for n in scores.shape)
    place = (zero, zero, rows[:, None], columns[None, :])
    if score_mod:
        scores = score_mod(scores, *place)
    if mask_mod:
        scores = scores.masked_fill(~mask_mod(*place), -math.inf)
    if causal:
        scores += torch.full_like(scores, -math.inf).triu(1)
    return (out[0, 0].double() - scores.softmax(-1) @ v).abs().max().item()


def inputs_in_turn(shape, warm):
    """What calls take in turn, so that unless `warm` none finds its inputs in the cache."""
    torch.manual_seed(0)
    inputs = [random_inputs(shape)]
    size_bytes = sum(x.numel() * x.element_size() for x in inputs[0])
    if not warm:
        inputs += [tuple(x.clone() for x in inputs[0]) for _ in range(copies_beyond_cache(size_bytes) - 1)]
    return inputs


def flex_attention(shape, seconds, warm):
    """{"flex": {"ms", "error", "mask_ms"} or {"failure": why}} of a shape with a modifier. Compiled for the shape; the mask of blocks
    is made before what is timed, in `mask_ms` of eager PyTorch."""
    from torch.nn.attention import flex_attention as flex

    score_mod, mask_mod = modifiers.functions(shape["modifier"], torch)
    inputs = inputs_in_turn(shape, warm)
    torch._dynamo.reset()  # each with a code of its own
    try:
        with torch.no_grad():
            begin = time.perf_counter()
            lengths = shape["seq_len_q"], shape["seq_len_kv"]
            mask = flex.create_block_mask(mask_mod, shape["batch"], None, *lengths, device="cuda") if mask_mod else None
            torch.cuda.synchronize()
            mask_ms = (time.perf_counter() - begin) * 1e3
            compiled = torch.compile(flex.flex_attention, dynamic=False)

            def call(n):
                return compiled(*inputs[n], score_mod=score_mod, block_mask=mask)

            error = error_of(call(0), inputs[0], False, score_mod, mask_mod)
            return {"flex": {**time_graph(call, len(inputs), seconds), "error": error, "mask_ms": mask_ms}}
    except RuntimeError as failure:
        return {"flex": {"failure": str(failure).splitlines()[0]}}


def attention(shape, seconds, warm):
    """{backend: {"ms", "error", ...} or {"failure": why}}."""
    is_gqa = shape["num_heads"] != shape["num_kv_heads"]
    inputs = inputs_in_turn(shape, warm)
    scores_bytes = 4 * shape["batch"] * shape["num_heads"] * shape["seq_len_q"] * shape["seq_len_kv"]
    results = {}
    for name, backend in BACKENDS.items():
        if name == "math" and scores_bytes > MATH_SCORES_BYTES:
            results[name] = {"failure": "left out: its scores are too large"}
            continue

        def call(n):
            q, k, v = inputs[n]
            return F.scaled_dot_product_attention(q, k, v, is_causal=shape["causal"], enable_gqa=is_gqa)

        try:
            with sdpa_kernel(backend), torch.no_grad():
                error = error_of(call(0), inputs[0], shape["causal"])
                results[name] = {**time_graph(call, len(inputs), seconds), "error": error}
        except RuntimeError as failure:
            results[name] = {"failure": str(failure).splitlines()[0]}
        torch.cuda.empty_cache()
    return results


def row_call(kernel, shape):
    """A call of PyTorch's counterpart of a row kernel that tessera measured, or None."""
    match = re.search(r"(\d+) x (\d+)", shape)
    if not match:
        return None
    rows, columns = int(match.group(1)), int(match.group(2))

    def random():
        return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)

    if kernel == "softmax":
        x = random()
        return lambda n: torch.softmax(x, -1)
    if kernel == "rms_norm" and "residual" not in shape:
        x, weight = random(), torch.ones(columns, device="cuda", dtype=torch.bfloat16)
        return lambda n: F.rms_norm(x, (columns,), weight, 1e-5)
    if kernel == "gated_activation" and "swiglu" in shape.lower():
        x, y = random(), random()
        return lambda n: F.silu(x) * y
    return None


def row_kernel(result, seconds):
    """PyTorch's time for the kernel, dtype and shape of one of tessera's results; None where it has no counterpart."""
    if result["dtype"] != "bf16":
        return None
    call = row_call(result["kernel"], result["shape"])
    if call is None:
        return None
    try:
        with torch.no_grad():
            return time_graph(call, 1, seconds)
    except RuntimeError as failure:
        return {"failure": str(failure).splitlines()[0]}
