from __future__ import annotations

import torch

from radiance import feedback, pack, quantise, reference, rotation
from radiance.source import Source

N, K = 3000, 128


def structured() -> tuple[Source, torch.Tensor]:
    """Rows that vary much in few directions, and hidden states that live in the others: what a trained head looks like."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(K, K)).Q
    spread = torch.logspace(0.7, -0.7, K)
    rows = (torch.randn(N, K) * spread) @ basis.T
    states = (torch.randn(2000, K) / spread) @ basis.T
    return Source(rows.bfloat16()), states


def logit_error(source: Source, plan: quantise.Plan, states: torch.Tensor) -> float:
    rows = source.rows(0, N)
    codes, steps = quantise.quantise_rows(
        quantise.turn_rows(source, 0, N, plan), plan, pack.Format("quarter", N, K, plan.group)
    )
    held = (codes.float() * 2 - 3) * steps.repeat_interleave(plan.group, 1)[:, :K]
    error = plan.rotation.rotate_w(rows - plan.mean) - held
    return float((plan.rotation.rotate_x(states) @ error.T).square().mean())


def test_later_columns_make_errors_good_without_data() -> None:
    source, states = structured()
    plan = quantise.prepare(source, N)
    with_feedback = logit_error(source, plan, states)
    plan.follow = None
    assert with_feedback < 0.75 * logit_error(source, plan, states)


def test_hidden_states_help_further() -> None:
    source, states = structured()
    without = logit_error(source, quantise.prepare(source, N), states[1000:])
    assert logit_error(source, quantise.prepare(source, N, states[:1000]), states[1000:]) < without


def test_a_random_head_is_rounded_plainly() -> None:
    """Nothing to learn from noise: the shrunk Hessian is near the identity, and Gaussian recall does not fall."""
    torch.manual_seed(1)
    source = Source(torch.randn(4000, 256).bfloat16())
    x = torch.randn(400, 256).bfloat16()
    truth = (x.float() @ source.weight.float().T).argmax(1)

    def recall(plain: bool) -> float:
        plan = quantise.prepare(source, 4000)
        if plain:
            plan.follow = None
        codes, steps = quantise.quantise_rows(
            quantise.turn_rows(source, 0, 4000, plan), plan, pack.Format("quarter", 4000, 256, plan.group)
        )
        held = (codes.float() * 2 - 3) * steps.repeat_interleave(plan.group, 1)
        ids = reference.select((plan.rotation.rotate_x(x) @ held.T).bfloat16(), 8, 4000)
        return float((ids == truth[:, None]).any(1).float().mean())

    _, _, shrink = feedback.moments(source.rows, 4000)
    assert shrink > 0.8
    assert recall(plain=False) > recall(plain=True) - 0.02


def test_matrix_is_strictly_upper_and_nothing_for_a_head_of_noise() -> None:
    turn = rotation.make(64)
    shrunk = feedback.matrix(torch.eye(64), 1.0, turn, None)
    assert shrunk.abs().max() < 1e-3
    random = torch.randn(64, 64)
    gram = random @ random.T / 64
    found = feedback.matrix(gram / gram.diagonal().mean(), 0.0, turn, None)
    assert found.abs().max() > 0.1
    assert torch.equal(found, found.triu(1))


def test_mean_is_of_all_rows_and_survives_a_far_offset() -> None:
    rows = torch.randn(5000, 64) * 0.01 + 100
    mean, gram, _ = feedback.moments(lambda a, b: rows[a:b], 5000)
    assert torch.allclose(mean, rows.double().mean(0).float())
    assert torch.allclose(gram.diagonal(), torch.ones(64), atol=0.15)
    assert (gram - torch.eye(64)).abs().max() < 0.2
