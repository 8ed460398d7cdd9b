"""How wrong a constructed drafter is: noise of a size that the exact head is right on a chosen share of tokens."""

from __future__ import annotations

import torch

BF16 = torch.bfloat16


def some(embedding: torch.Tensor, tokens: int = 2048) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, and hidden states of no meaning beside them."""
    generator = torch.Generator(device=embedding.device).manual_seed(1)
    ids = torch.randint(0, len(embedding), (tokens,), generator=generator, device=embedding.device)
    return ids, torch.randn(tokens, embedding.shape[1], generator=generator, device=embedding.device)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x * x.square().mean(1, keepdim=True).rsqrt()


@torch.no_grad()
def calibrate(
    draft: dict[str, torch.Tensor],
    layer: str,
    residual: torch.Tensor,
    head: torch.Tensor,
    truth: torch.Tensor,
    agreement: float,
) -> float:
    """Scale the layer's down_proj so that the exact argmax is right on `agreement` of the tokens; the factor.

    `residual` [p, k]: what reaches the MLP; attention, a small part of the noise or exactly known, is in it or left out.
    """
    gate, up, down = (draft[f"{layer}mlp.{name}_proj.weight"].float() for name in ("gate", "up", "down"))
    normed = unit(residual)
    noise = (torch.nn.functional.silu(normed @ gate.T) * (normed @ up.T)) @ down.T
    factor = bisect(residual, noise, head, truth, agreement)
    draft[f"{layer}mlp.down_proj.weight"] = (down * factor).to(BF16)
    return factor


@torch.no_grad()
def join(
    embedding: torch.Tensor, head: torch.Tensor, permutation: torch.Tensor, agreement: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two halves of an MTP layer's first matrix, [k, k] each: the embedding as it is, and as much noise of the hidden state
    that the exact argmax is right on `agreement` of the tokens."""
    ids, states = some(embedding)
    k = embedding.shape[1]
    generator = torch.Generator(device=embedding.device).manual_seed(2)
    mix = torch.randn(k, k, generator=generator, device=embedding.device) / k**0.5
    factor = bisect(unit(embedding[ids]), unit(states) @ mix.T, head, permutation[ids], agreement)
    return torch.eye(k, dtype=BF16, device=embedding.device), (mix * factor).to(BF16)


def bisect(
    signal: torch.Tensor, noise: torch.Tensor, head: torch.Tensor, truth: torch.Tensor, agreement: float
) -> float:
    """How much noise [p, k] beside the signal [p, k] leaves `agreement` of the exact argmaxes right."""

    def right(factor: float) -> float:
        logits = unit(signal + factor * noise).to(BF16) @ head.T
        return float((logits.argmax(1) == truth).float().mean())

    low, high = 0.01, 100_000.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if right(middle) > agreement else (low, middle)
    print(f"drafter noise {low:.3f}: exact head right on {right(low):.3f} of tokens", flush=True)
    return low
