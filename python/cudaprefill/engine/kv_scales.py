"""The scales of a float8 KV cache: for K and for V of every layer, one for each KV head.

e4m3 numbers end at 448, and below 2^-6 they get coarse. A scale moves the numbers of a head into that range: x is
stored as x / scale. Scales come with a checkpoint, or a text is run through the model to see how large numbers get.

Such a scale is a power of two, so the division is exact, and twice as large as it had to be for the numbers that were
seen, or more. That costs nothing: e4m3 has the same relative precision over 14 powers of two, and only what is 2^13
times smaller than the largest number loses some. What it gains: RoPE turns pairs of elements, which may raise one by
the root of two at another position, and other texts have larger numbers. What is larger still is stored as 448 times
the scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cudaprefill.engine.dry_run import prompt_batch
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.models import Decoder
from cudaprefill.text.tokenizer import Tokenizer

FLOAT8 = torch.float8_e4m3fn
MARGIN = 2.0
MAX_TOKENS = 512
BLOCK_SIZE = 16

# Prose, a dialogue, code, numbers and other scripts, as prompts have them.
TEXT = """\
The committee met on Tuesday, 14 March 2023, to settle a question that had divided the town for years: should the old \
mill by the river be torn down? "It is falling apart," said Ms Alvarez, who owns the bakery across the street. "But my \
grandmother worked there when she was 16, and so did half of her class." Repairs would cost $1,250,000; a new library, \
which some would rather have, about twice as much.

User: What is the capital of Australia, and how many people live there?
Assistant: Canberra. It has about 470,000 inhabitants, far fewer than Sydney (5.3 million) or Melbourne (5.1 million).

```python
def mean(values: list[float]) -> float:
    \"\"\"The arithmetic mean; raises ValueError for an empty list.\"\"\"
    if not values:
        raise ValueError("mean of no values")
    return sum(values) / len(values)
```

{"id": 42, "name": "Zoë", "tags": ["a", "b"], "price": 19.99, "available": true, "next": null}
SELECT name, COUNT(*) FROM orders WHERE total > 100 AND status != 'void' GROUP BY name ORDER BY 2 DESC;

Die Würde des Menschen ist unantastbar. Todos los seres humanos nacen libres e iguales. Все люди рождаются свободными. \
人人生而自由。すべての人間は、生まれながらにして自由である。 يولد جميع الناس أحرارا.

x^2 + y^2 = r^2, e = 2.718281828459045, 1/3 + 1/6 = 1/2; 0x7fff, 192.168.0.1, https://example.org/a?b=c#d
"""  # noqa: RUF001


def scales_for(largest: Tensor) -> Tensor:
    """The smallest power of two with which numbers `MARGIN` times as large as these can be stored; 1 for zeros.

    It is a normal float32 number for all of these, as the ops ask: of a subnormal one the inverse is infinite.
    """
    needed = largest.double() * MARGIN / torch.finfo(FLOAT8).max
    return torch.where(largest > 0, needed.log2().ceil().exp2().clamp(min=torch.finfo(torch.float32).tiny), 1.0).float()


def calibrated_scales(model: Decoder, tokenizer: Tokenizer, max_model_len: int) -> Tensor:
    """[num_layers, 2, Hkv] float32 on the model's device. Runs the model once, over at most 512 tokens."""
    known = [token for token in tokenizer.encode(TEXT) if token < model.config.vocab_size]
    token_ids = known[: min(MAX_TOKENS, max_model_len)]
    return scales_for(largest_numbers(model, torch.tensor(token_ids, device=model.device)))


def largest_numbers(model: Decoder, token_ids: Tensor) -> Tensor:
    """Of K and V of a prompt, [num_layers, 2, Hkv] float32."""
    config, num_blocks = model.config, -(-len(token_ids) // BLOCK_SIZE)
    kv_cache = KVCache(
        config.num_layers,
        num_blocks,
        config.num_kv_heads,
        BLOCK_SIZE,
        config.head_size,
        model.activation_dtype,
        model.device,
    )
    kv_cache.data.zero_()  # the last block is not full
    ModelRunner(model, kv_cache).hidden(prompt_batch(token_ids, BLOCK_SIZE))
    return kv_cache.data.abs().amax(dim=(2, 4, 5)).float()


def describe(scales: Tensor) -> str:
    """From where to where the scales of K and of V go."""
    ranges = [f"{name} {of.min():.3g} to {of.max():.3g}" for name, of in zip("KV", scales.unbind(1), strict=True)]
    return ", ".join(ranges)
