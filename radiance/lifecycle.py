"""PackedHead: the life of the 2-bit copy of one LM head. When it is packed, verified, packed again, given up.

Its state is a HeadStatus that only this class changes; a state change is logged and kept with its time, reason and phase.
What fails in here declines the head: the stock head, which radiance/hook keeps, answers from then on.
"""

from __future__ import annotations

import logging
import time

import torch

from radiance import ledger, pack, quantise, rotation, shortlist, tuning
from radiance import rerank as rerank_pass
from radiance.errors import UnsupportedHead
from radiance.settings import DEFAULT_RERANK
from radiance.source import Source
from radiance.status import HeadState, HeadStatus, Phase

log = logging.getLogger("vllm.radiance")

#: rows of the source head whose bytes are kept at packing time and compared before the first use
SAMPLE_ROWS = 64


class PackedHead:
    """One head. `n_valid` rows of the source are real, the rest is padding; `dtype` is that of the draft rows; `vocab` int32,
    ascending: the only rows that may be drafted (radiance/vocab.py)."""

    def __init__(
        self,
        source: Source,
        status: HeadStatus,
        *,
        n_valid: int,
        rerank: int | None,
        dtype: torch.dtype = torch.bfloat16,
        vocab: torch.Tensor | None = None,
        shadow: bool = False,
        shadow_sample: int = 0,
        round_to: torch.dtype | None = None,
    ) -> None:
        self.source = source
        self.vocab = None if vocab is None else vocab.to(source.weight.device)
        self._host_vocab = None if vocab is None else vocab.cpu()
        self.packed_rows = n_valid if vocab is None else len(vocab)
        self.dtype = dtype
        #: logits are compared, and rows given, in this: what the target that judges the drafts has (vLLM's head_dtype)
        self.round_to = round_to if round_to in rerank_pass.ROUND else dtype
        self.status = status
        self.n_valid = n_valid
        self.rerank = min(rerank or DEFAULT_RERANK, self.packed_rows)
        self.asked_rerank = rerank
        self.shadow = shadow
        self.shadow_sample = shadow_sample
        self.quantised: quantise.Quantised | None = None
        self._sample_ids = self._spread().to(source.weight.device)
        self._sample: torch.Tensor | None = None
        #: of the whole source and of the packed copy, in host memory: a deep sleep takes the copy and the sample alike
        self._digests = (0, 0)
        self._verified = False
        #: a graph may hold the addresses of the packed copy: it then lives as long as this head
        self._captured = False
        self._kept: quantise.Quantised | None = None
        self._eager_calls = 0
        device = source.weight.device
        self.ledger = ledger.make(device, 0 if shadow else shadow_sample)  # shadow mode compares every row as it is
        #: CUDA kernels count, check and compare on the device, in graphs too
        self.on_device = self.ledger.board is not None
        status.latency.clock = "host" if device.type == "cpu" else "device"
        self.crossover = _crossover(source)
        status.n, status.k, status.rerank = source.n, source.k, self.rerank

    def _spread(self) -> torch.Tensor:
        return torch.linspace(0, self.n_valid - 1, min(SAMPLE_ROWS, self.n_valid)).round().long()

    # -- state ---------------------------------------------------------------------------------------------------------

    def move(self, state: HeadState, reason: str = "", phase: Phase = Phase.LOAD) -> None:
        """Change the state: kept, timed, logged. The same state and reason again is no change."""
        if self.status.enter(state, reason, phase):
            log.log(
                logging.WARNING if state is HeadState.DECLINED else logging.INFO,
                "Radiance draft head %s (%s): %s%s, phase %s",
                self.status.name,
                self.status.drafter,
                state.upper(),
                f" ({reason})" if reason else "",
                phase,
            )

    def decline(self, reason: str, detail: str = "", phase: Phase = Phase.SERVING) -> None:
        """Give up for good: the stock head answers from here on, and the packed copy is freed unless captured graphs, which
        go on replaying what they captured, still read it."""
        if detail:
            log.warning("Radiance draft head %s: %s", self.status.name, detail)
        if self._captured:
            log.warning("Radiance draft head %s: captured graphs keep using the packed copy", self.status.name)
            self._kept = self.quantised
        else:
            self.status.packed_bytes = 0
        self.quantised = self._sample = None
        self._verified = False
        self.move(HeadState.DECLINED, reason, phase)

    # -- packing -------------------------------------------------------------------------------------------------------

    def looks_empty(self) -> bool:
        """True if every sampled row is zero or not finite: nothing has been loaded into this head yet.

        Only a reason to wait, never a proof that the head is final: _settle() compares bytes before the first answer.
        """
        rows = self.source.gather(self._sample_ids)
        return not bool(((rows != 0) & rows.isfinite()).any())

    def pack(self, phase: Phase, *, late: bool) -> None:
        """Quantise now. `late`: the head was not final when the drafter was loaded. Declines instead of raising."""
        fresh = self.quantised is None
        self._verified = False
        try:
            # Not inference tensors, though vLLM may be in inference mode: they could never be written to again.
            with torch.inference_mode(False), torch.no_grad():
                if self.looks_empty():
                    self.move(HeadState.WAITING, "empty", phase)
                    return
                self._sample = self.source.sample(self._sample_ids)
                kept = self.source if self.vocab is None else self.source.only(self.vocab)
                log.info("Radiance draft head %s (%s): packing begins", self.status.name, self.status.drafter)
                fmt = pack.choose(kept.n, kept.k, self.source.weight.device)
                self.quantised = quantise.quantise(
                    kept, self.packed_rows, fmt.layout, measure=phase is Phase.LOAD, into=self.quantised
                )
                self._digests = (self.source.digest(), self.quantised.digest())
                if fresh:
                    self._warm()
        except UnsupportedHead as error:
            if not fresh and error.reason == "not_finite":  # weights that a sleep took and nobody has brought back yet
                self.move(HeadState.WAITING, error.reason, phase)
            else:
                self.decline(error.reason, str(error), phase)
            return
        except Exception as error:  # whatever fails in here, the server must go on with the stock head
            log.exception("Radiance draft head %s: packing failed", self.status.name)
            self.decline("packing_failed", repr(error), phase)
            return
        status, done = self.status, self.quantised
        status.packed_bytes, status.peak_bytes = done.packed_bytes, done.peak_bytes
        status.quantise_seconds = done.seconds
        if late:
            status.lazy_fired += 1
            status.lazy_fired_at = time.time()
            status.lazy_phase = phase
        self.move(HeadState.SHADOW if self.shadow else HeadState.ACTIVE, phase=phase)
        log.info(
            "Radiance draft head %s: %d rows of [%d, %d] %s -> 2 bits, %.1f MiB, %.2f s, rerank %d",
            status.name,
            self.packed_rows,
            status.n,
            status.k,
            self.source.weight.dtype,
            status.packed_bytes / 2**20,
            status.quantise_seconds,
            status.rerank,
        )

    def follow_weights(self, *, woken: bool = False) -> None:
        """The weights of the engine were replaced: pack again, into the same memory, if the head is another one now or the
        copy is gone. `woken`: the engine has slept, and its weights may or may not be back.

        After a deep sleep all that was allocated while loading holds garbage, our constants too: they come first.
        """
        self._sample_ids.copy_(self._spread())
        if self.vocab is not None and self._host_vocab is not None:
            self.vocab.copy_(self._host_vocab)
        rotation.refill(self.source.weight.device)
        if self.quantised is None:
            return
        source, copy = self.source.digest(), self.quantised.digest()
        if (source, copy) == self._digests and self.status.state is not HeadState.WAITING:
            return
        if woken and source != self._digests[0]:
            return  # what must follow a sleep that took the weights, a reload or a transfer, is still to come
        self.status.repacked += 1
        log.warning(
            "Radiance draft head %s: its weights were replaced or its copy lost, packing again", self.status.name
        )
        self.pack(Phase.SERVING, late=False)

    def verify(self) -> bool:
        """True if the sampled rows of the source head still hold the bytes that were packed."""
        return self._sample is not None and torch.equal(self._sample, self.source.sample(self._sample_ids))

    def _warm(self) -> None:
        """Build every GPU kernel before a graph is captured or a user waits; nothing to do on a CPU."""
        done = self._packed()
        if done.packed.device.type != "cpu":
            shortlist.warm(
                done.packed, done.plan.rotation, self.source, self.rerank, self.packed_rows, self.dtype, self.crossover,
                round_to=self.round_to, counters=ledger.make(done.packed.device, self.ledger.every),
            )  # fmt: skip
            torch.cuda.synchronize(done.packed.device)

    def usable(self, m: int, capturing: bool) -> bool:
        """May this call of m draft rows use the 2-bit path? Does the lazy work, outside graph capture, and counts refusals.

        The size comes last: vLLM's profiling call has more rows than the 2-bit path serves, and must still verify the head,
        or a capture might be the next call.
        """
        if not self._verified and not self._settle(capturing):
            return False
        if m > self.crossover:
            return self.count_stock("rows")
        self._captured |= capturing
        return True

    def _settle(self, capturing: bool) -> bool:
        """Pack if that is still to be done, and compare the packed head with the one in memory before its first use."""
        if self.status.state is HeadState.DECLINED:
            return self.count_stock(self.status.reason)
        if capturing:
            return self.count_stock("capture")
        stale = self.quantised is not None and not self.verify()
        if stale:
            log.warning("Radiance draft head %s: its memory changed after packing, packing again", self.status.name)
            if not self._captured:  # else in place: graphs read it
                self.quantised = None
        if stale or self.quantised is None or self.status.state is HeadState.WAITING:
            self.pack(Phase.SERVING, late=True)
        self._verified = self.status.state in (HeadState.ACTIVE, HeadState.SHADOW)
        return self._verified or self.count_stock(self.status.reason or "waiting")

    def count_stock(self, reason: str) -> bool:
        """False, and one more for `reason`."""
        self.ledger.count_stock(reason)
        return False

    def refresh(self) -> None:
        """Bring the counters that the kernels keep into the status. No synchronisation (ledger.py)."""
        self.ledger.into(self.status)

    def _packed(self) -> quantise.Quantised:
        assert self.quantised is not None, "usable() comes first"
        return self.quantised


def _crossover(source: Source) -> int:
    """Most draft rows for which the 2-bit path beats the stock product; no limit on a CPU, where speed is not the point."""
    device = source.weight.device
    return tuning.crossover_rows(source.n, source.k, tuning.device(device)) if device.type == "cuda" else 1 << 30
