"""What a model is: every number that the engine and the decoder need."""

from __future__ import annotations

from dataclasses import dataclass

from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.models.rope import RopeConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
HEAD_SIZES = (64, 80, 96, 128, 256)
MAX_POSITIONS = 2**24  # the integers that the float32 angles of RoPE tell apart


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A dense decoder-only model: RMSNorm, RoPE, grouped-query attention, gated SiLU MLP.

    Raises UnsupportedModelError for sizes that the kernels do not take.
    """

    family: str  # one of FAMILIES; a Mistral GGUF calls itself llama
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int  # rows of the embedding, which may exceed what the tokenizer knows
    max_model_len: int  # positions that the model was made for
    rms_norm_eps: float
    rope: RopeConfig
    window: int = 0  # keys that a query sees, itself included; 0 = all
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm of each head of q and k before RoPE
    tied_embeddings: bool = False  # logits from the embedding
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "intermediate_size",
            "num_q_heads",
            "num_kv_heads",
            "vocab_size",
            "max_model_len",
        ):
            if getattr(self, name) < 1:
                raise UnsupportedModelError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_model_len > MAX_POSITIONS:
            raise UnsupportedModelError(f"max_model_len must be at most {MAX_POSITIONS}, got {self.max_model_len}")
        if self.head_size not in HEAD_SIZES:
            raise UnsupportedModelError(f"head size {self.head_size} is not supported, only {HEAD_SIZES}")
        if self.num_q_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"the number of query heads must be a multiple of the {self.num_kv_heads} KV heads, "
                f"got {self.num_q_heads}"
            )
        if not self.rms_norm_eps > 0:
            raise UnsupportedModelError(f"rms_norm_eps must be above 0, got {self.rms_norm_eps}")
