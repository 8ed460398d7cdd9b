"""Tensor parallel ranks agree, once for each drafter, on how they use the 2-bit head: token ids, rows, or not at all.

Ranks that disagree would wait for each other's collectives for ever: token ids are gathered as pairs, rows whole. The vote
goes through the key-value store with which torch.distributed began, not through a collective: a rank where the plugin is off
never votes, and the others must find out, not hang. Whoever writes the verdict first has decided for all.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

log = logging.getLogger("vllm.radiance")

#: a rank may be this much slower to load its part of the drafter. vLLM itself waits that long for its workers
PATIENCE = timedelta(minutes=10)

_votes: dict[str, int] = {}


def agree(wanted: str, group: Any, patience: timedelta = PATIENCE) -> str:
    """`wanted` if every rank of vLLM's tensor parallel `group` calls this with the same, else "no". Each must call it once
    for each drafter."""
    from torch.distributed import distributed_c10d

    name = f"{group.unique_name}/{','.join(map(str, group.ranks))}"
    _votes[name] = _votes.get(name, 0) + 1
    return decide(distributed_c10d._get_default_store(), f"radiance/{name}/{_votes[name]}",
                  group.rank_in_group, group.world_size, wanted, patience)  # fmt: skip


def decide(store: Any, key: str, rank: int, ranks: int, wanted: str, patience: timedelta) -> str:
    """The vote itself, on a torch.distributed.Store. A vote that does not come in time is a no."""
    store.set(f"{key}/{rank}", wanted)
    try:
        store.wait([f"{key}/{other}" for other in range(ranks)], patience)
        votes = [store.get(f"{key}/{other}").decode() for other in range(ranks)]
        verdict = wanted if set(votes) == {wanted} else "no"
        if wanted != verdict:
            log.warning(
                "Radiance declined: ranks differ in how they use the 2-bit draft head (%s), so none does", votes
            )
    except Exception as late:  # torch raises a RuntimeError of its own kind
        log.warning("Radiance declined: not every one of %d ranks said within %s whether it uses the 2-bit draft head "
                    "(is the plugin on in all of them?): %s", ranks, patience, late)  # fmt: skip
        verdict = "no"
    decided: bytes = store.compare_set(f"{key}/verdict", "", verdict)
    return decided.decode()
