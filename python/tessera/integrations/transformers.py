"""Hugging Face models on tessera's attention.

    import tessera.integrations.transformers
    tessera.integrations.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="tessera")

Inference only: under torch.no_grad() or torch.inference_mode(), as generate() is.
"""

from __future__ import annotations

import functools

import torch
from transformers import AttentionInterface, AutoModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask

from .._errors import UnsupportedError
from ..attention import sdpa


# What models hand to attention beside its usual arguments, and which would be a wrong result to leave out.
_NOT_COMPUTED = ("indices", "block_indices", "sinks")


def _refuse_what_is_not_computed(module: torch.nn.Module, arguments: dict) -> None:
    for name in _NOT_COMPUTED:
        if arguments.get(name) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} hands {name} to its attention, which tessera does not compute; expected another attn_implementation"
            )
    if arguments.get("output_attentions"):
        raise UnsupportedError("output_attentions asks for weights, which tessera never has as a whole; expected attn_implementation='eager'")


def _biased(mask: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    """One mask of a mask and what is added to the scores, each of which may be None."""
    if mask is None or bias is None:
        return bias if mask is None else mask
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
                      sliding_window: int | None = None, softcap: float | None = None,
                      s_aux: torch.Tensor | None = None, is_causal: bool | None = None,
                      position_bias: torch.Tensor | None = None, **others) -> tuple:  # fmt: skip
    """query: (batch, heads, seq_q, head_dim); key, value: (batch, kv_heads, seq_kv, head_dim). Returns ((batch, seq_q,
    heads, head_dim), None).

    A mask holds all that hides a key. Without one transformers means: causal from the top left corner, so that a static
    cache's first prompt does not see the cache's empty rest; and for one query all keys, of which it is the last.
    s_aux: (heads), logits of attention sinks. position_bias: added to the scores, (batch or 1, heads or 1, seq_q, seq_kv).
    Raises UnsupportedError for arguments that select keys otherwise, and for output_attentions.
    """
    _refuse_what_is_not_computed(module, others)
    if torch.is_autocast_enabled(query.device.type):
        # Rotation leaves queries and keys in fp32 beside values of 16 bits; torch's own attention is cast so, too.
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    without_mask = attention_mask is None and is_causal
    window = (sliding_window - 1, -1) if without_mask and sliding_window else (-1, -1)
    result = sdpa(
        query,
        key,
        value,
        _biased(attention_mask, position_bias),
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


@functools.cache
def _class_takes_boolean_masks(config: type) -> bool:
    """Whether a model hands its masks on as they are. One for which transformers has neither torch's attention, whose masks
    are boolean, nor flex, whose are no tensors, may count on numbers: DeepSeek V4 appends some.

    Raises UnsupportedError for models that compute attention themselves. transformers lets any registered name pass, and such
    models would add boolean masks to their scores."""
    try:
        models = AutoModel._model_mapping[config]
    except KeyError:  # a model that transformers doesn't hold
        return True
    models = models if isinstance(models, tuple) else (models,)
    for model in models:
        if not (model._supports_sdpa or model._supports_attention_backend):
            raise UnsupportedError(
                f"{model.__name__} computes its attention itself, as transformers has no 'sdpa' for it either; "
                "expected attn_implementation='eager'"
            )
    return all(model._supports_sdpa or model._supports_flex_attn for model in models)


@torch.compiler.assume_constant_result  # torch.compile can't trace the look-up
def _takes_boolean_masks(config) -> bool:
    return _class_takes_boolean_masks(type(config))


def attention_mask(*args, config=None, **kwargs) -> torch.Tensor | None:
    """transformers' masks for sdpa, or for eager attention; without masks padding would be ignored."""
    make = sdpa_mask if config is None or _takes_boolean_masks(config) else eager_mask
    return make(*args, config=config, **kwargs)


def register(name: str = "tessera") -> None:
    """Makes attn_implementation=name known to transformers."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
