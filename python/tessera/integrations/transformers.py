"""Hugging Face models on tessera's attention.

    import tessera.integrations.transformers
    tessera.integrations.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="tessera")

Inference only: under torch.no_grad() or torch.inference_mode(), as generate() is.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ..attention import sdpa


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
                      sliding_window: int | None = None, softcap: float | None = None,
                      s_aux: torch.Tensor | None = None, is_causal: bool | None = None, **_) -> tuple:  # fmt: skip
    """query: (batch, heads, seq_q, head_dim); key, value: (batch, kv_heads, seq_kv, head_dim). Returns ((batch, seq_q,
    heads, head_dim), None).

    A mask holds all that hides a key. Without one transformers means: causal from the top left corner, so that a static
    cache's first prompt does not see the cache's empty rest; and for one query all keys, of which it is the last.
    s_aux: (heads), logits of attention sinks.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    without_mask = attention_mask is None and is_causal
    window = (sliding_window - 1, -1) if without_mask and sliding_window else (-1, -1)
    result = sdpa(
        query,
        key,
        value,
        attention_mask,
        dropout if module.training else 0.0,
        is_causal=without_mask,
        scale=scaling,
        enable_gqa=True,
        softcap=softcap,
        window_size=window,
        sinks=None if s_aux is None else s_aux.detach().float(),
        causal_alignment="top_left" if query.shape[2] > 1 else "bottom_right",
    )
    return result.transpose(1, 2).contiguous(), None


def register(name: str = "tessera") -> None:
    """Makes attn_implementation=name known to transformers, with masks as torch's sdpa has them: without these, padding
    would be ignored."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)
