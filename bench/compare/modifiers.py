"""Masks and scores that models have, as tessera's options and as functions for PyTorch's FlexAttention."""

SEQ_LEN = 4096
CAP = 30.0
DOCUMENT = 512  # tokens
PREFIX = 1024
WINDOW = 256
WIDTH, RADIUS = 64, 6  # NATTEN's image, 64 x 64

SLOPES = "--modifier-tensor slope=f32[16]:slopes"
# By name: options of `tessera bench attention`, without blanks within a text.
OPTIONS = {
    "causal": "--modifier-visible kv_idx<=q_idx",
    "window": f"--modifier-visible abs(q_idx-kv_idx)<=w --modifier-scalar w={WINDOW}",
    "prefix-LM": f"--modifier-visible kv_idx<=q_idx||kv_idx<prefix[b] --modifier-tensor prefix=i32[2]:{PREFIX}",
    "sinks and window": f"--modifier-visible kv_idx<=q_idx&&(q_idx-kv_idx<w||kv_idx<4) --modifier-scalar w={WINDOW}",
    "causal documents": f"--modifier-visible kv_idx<=q_idx&&doc[q_idx]==doc[kv_idx] --modifier-tensor doc=i32[{SEQ_LEN}]:steps/{DOCUMENT}",
    "NATTEN": "--modifier-visible abs(q_idx%W-kv_idx%W)<=r&&abs(q_idx/W-kv_idx/W)<=r "
    f"--modifier-scalar W={WIDTH} --modifier-scalar r={RADIUS}",
    "ALiBi": f"--modifier-score score-slope[h]*float(abs(q_idx-kv_idx)) {SLOPES}",
    "ALiBi, linear": f"--modifier-score score+slope[h]*float(kv_idx-q_idx) --modifier-visible kv_idx<=q_idx {SLOPES}",
    "softcap": f"--modifier-score cap*tanh(score/cap) --modifier-scalar cap={CAP:g}",
    "ALiBi as a term": "--alibi",
    "softcap as a term": f"--softcap {CAP:g}",
}


def functions(name, torch):
    """(score_mod, mask_mod) of OPTIONS[name], either may be None. They take whole tensors of indices, too."""
    document = torch.arange(SEQ_LEN, device="cuda", dtype=torch.int32) // DOCUMENT
    prefix = torch.full((2,), PREFIX, device="cuda", dtype=torch.int32)
    slope = torch.tensor([2 ** (-8 * (h + 1) / 16) for h in range(16)], device="cuda")

    def causal(b, h, q, k):
        return k <= q

    def alibi(s, b, h, q, k):
        return s - slope[h] * (q - k).abs()

    def softcap(s, b, h, q, k):
        return CAP * torch.tanh(s / CAP)

    return {
        "causal": (None, causal),
        "window": (None, lambda b, h, q, k: (q - k).abs() <= WINDOW),
        "prefix-LM": (None, lambda b, h, q, k: (k <= q) | (k < prefix[b])),
        "sinks and window": (None, lambda b, h, q, k: (k <= q) & ((q - k < WINDOW) | (k < 4))),
        "causal documents": (None, lambda b, h, q, k: (k <= q) & (document[q] == document[k])),
        "NATTEN": (
            None,
            lambda b, h, q, k: ((q % WIDTH - k % WIDTH).abs() <= RADIUS) & ((q // WIDTH - k // WIDTH).abs() <= RADIUS),
        ),
        "ALiBi": (alibi, None),
        "ALiBi, linear": (lambda s, b, h, q, k: s + slope[h] * (k - q), causal),
        "softcap": (softcap, None),
        "ALiBi as a term": (alibi, None),
        "softcap as a term": (softcap, None),
    }[name]
