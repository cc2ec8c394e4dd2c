"""What a model is: every number that the engine and the decoder need."""

from __future__ import annotations

from dataclasses import dataclass, field

from cudaprefill.models.checkpoint_names import CheckpointNames
from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.models.rope import RopeConfig

HEAD_SIZES = (64, 80, 96, 128, 256)
MAX_POSITIONS = 2**24  # the integers that the float32 angles of RoPE tell apart
ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """A layer whose feed-forward part is a mixture: each token runs through the experts that its router prefers."""

    num_experts: int
    num_chosen: int  # experts that each token runs through
    intermediate_size: int  # of one expert
    renormalise: bool  # the probabilities of the chosen ones are divided by their sum

    def __post_init__(self) -> None:
        if not 1 <= self.num_chosen <= self.num_experts:
            raise UnsupportedModelError(f"a token must choose 1 .. {self.num_experts} experts, got {self.num_chosen}")


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """In what one layer may differ from the next."""

    rope: RopeConfig
    window: int = 0  # keys that a query sees, itself included; 0 = all
    experts: ExpertsConfig | None = None  # None: one dense gated MLP


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only model: RMSNorm, RoPE, grouped-query attention, gated MLP or experts.

    Raises UnsupportedModelError for sizes that the kernels do not take.
    """

    family: str  # a key of families.FAMILIES; a Mistral GGUF calls itself llama
    layers: tuple[LayerConfig, ...]
    hidden_size: int
    intermediate_size: int  # of a dense layer
    num_q_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int  # rows of the embedding, which may exceed what the tokenizer knows
    max_model_len: int  # positions that the model was made for
    rms_norm_eps: float
    activation: str = "silu"  # of the gate; one of ACTIVATIONS
    attention_scale: float = 0.0  # of the scores; 0 = 1 / sqrt(head_size)
    attention_softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0 = off
    logits_softcap: float = 0.0
    embedding_scale: float = 1.0
    norm_offset: float = 0.0  # added to the weights of every norm as the checkpoint stores them
    output_norms: bool = False  # what attention and feed-forward give is normed before it is added to the residual
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm of each head of q and k before RoPE
    tied_embeddings: bool = False  # logits from the embedding
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    names: CheckpointNames = field(default=CheckpointNames(), repr=False)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

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
        if self.activation not in ACTIVATIONS:
            raise UnsupportedModelError(f"activation {self.activation!r} is not supported, only {ACTIVATIONS}")
