"""The kernels around attention, against torch in float64 or bit for bit where bytes only move."""

from __future__ import annotations

import math

import pytest
import torch

from cudaprefill import ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_as_exact_as_torch(actual: torch.Tensor, exact: torch.Tensor, in_torch: torch.Tensor) -> None:
    """The error against float64 is at most twice that of torch, beside a few units of float32 rounding."""
    error = (actual.double() - exact).abs().max().item()
    allowed = 2 * (in_torch.double() - exact).abs().max().item() + 4e-7 * exact.abs().max().item()
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_write_kv_writes_its_slots_and_no_other(backend, head_size, dtype):
    fused = random(4, 3 * 2 * head_size, dtype=dtype)
    k = fused[:, 2 * head_size : 4 * head_size].unflatten(1, (2, head_size))
    v = fused[:, 4 * head_size :].unflatten(1, (2, head_size))
    fused[3] = math.nan
    k_cache = random(6, 2, 16, head_size, dtype=dtype, seed=1)
    v_cache = random(6, 2, 16, head_size, dtype=dtype, seed=2)
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    for token, slot in enumerate([5, 37, 90]):
        expected_k[slot // 16, :, slot % 16] = k[token]
        expected_v[slot // 16, :, slot % 16] = v[token]
    ops.write_kv(k, v, k_cache, v_cache, torch.tensor([5, 37, 90, -1]))
    assert torch.equal(k_cache, expected_k)
    assert torch.equal(v_cache, expected_v)


def test_a_slot_outside_the_cache_is_a_fault(emulated):
    k = torch.zeros(1, 2, 64)
    cache = torch.zeros(3, 2, 16, 64)
    with pytest.raises(RuntimeError, match=r"write_kv: .* invalid global write of 16 bytes: at byte \d+ of ._cache"):
        ops.write_kv(k, k, cache, cache.clone(), torch.tensor([3 * 16]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_blocks_takes_the_pairs_in_order(backend, dtype):
    k_cache = random(8, 3, 16, 80, dtype=dtype, seed=1)
    v_cache = random(8, 3, 16, 80, dtype=dtype, seed=2)
    expected = [cache.clone() for cache in (k_cache, v_cache)]
    pairs = [[0, 7], [7, 3], [5, 0]]
    for source, destination in pairs:
        for cache in expected:
            cache[destination] = cache[source]
    ops.copy_blocks(k_cache, v_cache, torch.tensor(pairs))
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])


def rotate(x: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rotary_dim = cos_sin.shape[1]
    half = rotary_dim // 2
    cosine = cos_sin[positions, None, :half].to(x.dtype)
    sine = cos_sin[positions, None, half:].to(x.dtype)
    low, high, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine, rest], dim=-1)


def head_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head_size", "rotary_dim", "with_norm"),
    [(64, 64, True), (80, 32, False), (96, 96, True), (128, 128, False), (128, 64, True), (256, 256, True)],
)
def test_rope_write_kv(backend, head_size, rotary_dim, with_norm, dtype):
    q_heads, kv_heads, tokens, eps = 6, 2, 3, 1e-6
    fused = random(tokens, (q_heads + 2 * kv_heads) * head_size, dtype=dtype).unflatten(1, (-1, head_size))
    q, k, v = fused.split([q_heads, kv_heads, kv_heads], dim=1)
    before_q, before_k = q.clone(), k.clone()
    norms = [random(head_size, dtype=dtype, seed=s) if with_norm else None for s in (3, 4)]
    angles = random(40, rotary_dim // 2, dtype=torch.float32, seed=5)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.tensor([39, 0, 17])
    slots = torch.tensor([33, -1, 2])
    caches = [torch.full((3, kv_heads, 16, head_size), math.nan, dtype=dtype) for _ in range(2)]
    ops.rope_write_kv(q, k, v, cos_sin, positions, *caches, slots, *norms, eps)

    def reference(x, norm, compute):
        return rotate(head_norm(x.to(compute), norm, eps), cos_sin, positions)

    assert_as_exact_as_torch(
        q, reference(before_q, norms[0], torch.float64), reference(before_q, norms[0], torch.float32).to(dtype)
    )
    exact = reference(before_k, norms[1], torch.float64)
    in_torch = reference(before_k, norms[1], torch.float32).to(dtype)
    for token, slot in ((0, 33), (2, 2)):
        assert_as_exact_as_torch(caches[0][slot // 16, :, slot % 16], exact[token], in_torch[token])
        assert torch.equal(caches[1][slot // 16, :, slot % 16], v[token])
    assert caches[0].isfinite().sum() == 2 * kv_heads * head_size
    assert torch.equal(k, before_k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden_size", [64, 576, 4096, 5120, 16384])
def test_rms_norm_with_and_without_a_residual(backend, hidden_size, dtype):
    x = random(3, hidden_size + 64, dtype=dtype)[:, :hidden_size]
    weight = random(hidden_size, dtype=dtype, seed=1)

    def norm(rows, compute):
        return head_norm(rows.to(compute), weight, 1e-5)

    assert_as_exact_as_torch(ops.rms_norm(x, weight, 1e-5), norm(x, torch.float64), norm(x, torch.float32).to(dtype))
    residual = random(3, hidden_size, dtype=dtype, seed=2)
    total = residual + x
    out = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert_as_exact_as_torch(out, norm(total, torch.float64), norm(total, torch.float32).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 1536, 2056])
@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_activate_and_mul(backend, op, size, dtype):
    x = random(3, 2 * size, dtype=dtype) * 8

    def reference(compute):
        gate, up = x.to(compute).chunk(2, dim=1)
        if op == "silu_and_mul":
            return torch.nn.functional.silu(gate) * up
        return torch.nn.functional.gelu(gate, approximate="tanh") * up

    assert_as_exact_as_torch(getattr(ops, op)(x), reference(torch.float64), reference(torch.float32).to(dtype))


def test_no_tokens_are_no_work(backend):
    k = torch.empty(0, 2, 64)
    cache = torch.zeros(2, 2, 16, 64)
    ops.write_kv(k, k, cache, cache.clone(), torch.empty(0, dtype=torch.int64))
    assert ops.rms_norm(torch.empty(0, 64), torch.ones(64), 1e-5).shape == (0, 64)
    assert ops.silu_and_mul(torch.empty(0, 128)).shape == (0, 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.rms_norm(torch.ones(2, 66), torch.ones(66), 1e-5),
            "rms_norm: hidden_size must be a multiple of 4",
        ),
        (lambda: ops.rms_norm(torch.ones(2, 65)[:, 1:], torch.ones(64), 1e-5), "rms_norm: x must"),
        (lambda: ops.silu_and_mul(torch.ones(2, 20)), "silu_and_mul: size must be a multiple of 4, got 10"),
        (
            lambda: ops.rms_norm(torch.ones(1, 32768), torch.ones(32768), 1e-5),
            "rms_norm: hidden_size must be at most 16384, got 32768",
        ),
    ],
)
def test_what_16_byte_accesses_cannot_reach_is_refused_by_name(backend, call, message):
    with pytest.raises(Exception, match=message):
        call()
