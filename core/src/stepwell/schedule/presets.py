"""Named presets of `Timing`: a model on a device. Of the device each says which share of its data sheet is reached."""

from __future__ import annotations

from stepwell.schedule.timing import Timing


def _llama8b(*, flops: float, bandwidth: float, link: float, overhead: float) -> Timing:
    """Llama 3.1 8B in bfloat16: 32 layers, 32 heads and 8 KV heads of 128."""
    return Timing(
        parameters=7.5e9,
        weight_bytes=15.0e9,
        kv_bytes=32 * 2 * 8 * 128 * 2,
        pair_flops=4 * 32 * 32 * 128,
        layers=32,
        flops=flops,
        bandwidth=bandwidth,
        link=link,
        overhead=overhead,
    )


def _qwen30b(*, flops: float, bandwidth: float, link: float, overhead: float) -> Timing:
    """Qwen3 30B A3B in bfloat16: 48 layers of 32 heads and 4 KV heads of 128, hidden size 2,048.

    Each layer has 128 experts, of which a token chooses 8, of 3 matrices of 2,048 x 768; 151,936 tokens are known.
    """
    experts = 48 * 128 * 3 * 2048 * 768
    attention = 48 * 2048 * (2 * 32 + 2 * 4) * 128
    always = attention + 48 * 2048 * 128 + 2048 * 151_936
    return Timing(
        parameters=always + experts * 8 / 128,
        weight_bytes=2.0 * always,
        kv_bytes=48 * 2 * 4 * 128 * 2,
        pair_flops=4 * 48 * 32 * 128,
        layers=48,
        flops=flops,
        bandwidth=bandwidth,
        link=link,
        overhead=overhead,
        expert_bytes=2.0 * experts,
        expert_share=8 / 128,
        experts=128,
        expert_parameters=experts,
    )


PRESETS: dict[str, Timing] = {
    # 989 TFLOP/s dense bf16 at 60%, 4.8 TB/s at 75%, PCIe 5 x16 at 80% of 63 GB/s
    "h200-llama8b": _llama8b(flops=593e12, bandwidth=3.6e12, link=50e9, overhead=5e-4),
    "h200-qwen3-30b-a3b": _qwen30b(flops=593e12, bandwidth=3.6e12, link=50e9, overhead=5e-4),
    # 70 TFLOP/s dense bf16 at 60%, 600 GB/s at 75%, PCIe 4 x16 at 76% of 31.5 GB/s
    "a10g-llama8b": _llama8b(flops=42e12, bandwidth=450e9, link=24e9, overhead=5e-4),
    # SmolLM2-135M in float32 on two server cores: 100 GFLOP/s, 15 GB/s; "link" is a copy in memory
    "cpu-smollm2": Timing(
        parameters=1.345e8,
        weight_bytes=5.4e8,
        kv_bytes=30 * 2 * 3 * 64 * 4,
        pair_flops=4 * 30 * 9 * 64,
        layers=30,
        flops=100e9,
        bandwidth=15e9,
        link=5e9,
        overhead=2e-3,
    ),
}
