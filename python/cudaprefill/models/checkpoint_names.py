"""What the checkpoints of a family call the tensors of a layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CheckpointNames:
    """Parts of a layer, after ``model.layers.N.`` and before ``.weight`` or ``.bias``. The defaults are Llama's.

    Several names of one matrix are its rows, one name below the other.
    """

    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    o: str = "self_attn.o_proj"
    attention_output_norm: str = ""  # only where the model has output norms
    feed_forward_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    feed_forward_output_norm: str = ""
    router: str = "mlp.gate"  # of a layer with experts, as the two below
    expert_gate_up: tuple[str, str] = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")  # {}: its number
    expert_down: str = "mlp.experts.{}.down_proj"
