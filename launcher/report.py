"""What /status says: the same facts as /metrics for a person or a script, with the reasons in full. Plain data.

`text` makes one screen of it, for `radiance status`.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from launcher.acceptance import ENOUGH_DRAFTS
from launcher.engine import Engine, Exit
from launcher.exporter import versions


def report(engine: Engine) -> dict[str, Any]:
    plan = engine.plan
    workers, errors = engine.workers()
    ready, reason = engine.readiness()
    head, now = engine.verdict(), time.time()
    return {
        "profile": plan.profile,
        **{("radiance" if name == "version" else name): value for name, value in versions().items()},
        "phase": str(engine.phase),
        "phases": {str(phase): at for phase, at in list(engine.since.items())},
        "phase_seconds": {str(phase): round(spent, 3) for phase, spent in engine.timeline.durations().items() if spent},
        "ready": ready,
        "ready_reason": reason,
        "engine": {
            "url": engine.url if plan.leader is None else None,
            "leader": plan.leader,
            "up": engine.up,
            "pid": engine.pid,
            "restarts": engine.restarts,
            "exit_code": engine.exit_code,
            "last_exit": engine.last_exit,
            "exits": {str(reason): engine.exits[reason] for reason in Exit},
            "wedged": bool(engine.wedge()),
        },
        "fast_draft": {
            "mode": plan.mode.name.lower(),
            "fell_back": engine.fell_back,
            "require": str(plan.require),
            "ok": head.ok,
            "reason": head.reason,
        },
        "workers": [
            {
                "engine": worker.engine,
                "heartbeat_age_seconds": round(worker.age(now), 1),
                "stale": worker.stale(now),
                **asdict(worker.snapshot),
            }
            for worker in workers
        ],
        "status_file_errors": [str(error) for error in errors],
        "acceptance": _acceptance(engine),
        "notes": list(plan.notes),
    }


def _acceptance(engine: Engine) -> dict[str, Any]:
    scrape, plan = engine.scrape, engine.plan
    if plan.leader:
        return {"available": False, "reason": f"the leader counts drafts: {plan.leader}/status"}
    if not scrape.spec:
        why = (
            "vLLM counts no drafts: speculation or its statistics are off"
            if scrape.success
            else "vLLM's /metrics has not been read"
        )
        return {"available": False, "reason": why}
    found = scrape.acceptance
    return {
        "available": True,
        "at": scrape.at,
        "drafts": found.drafts,
        "draft_tokens": found.draft_tokens,
        "accepted_tokens": found.accepted_tokens,
        "accepted_per_position": list(found.per_position),
        "acceptance_per_draft": found.per_draft,
        "expected_min": plan.acceptance_per_draft_min,
    }


def text(found: dict[str, Any]) -> str:
    """One screen of what `report` gave, for a person; a line for each head of each rank."""
    engine, draft = found["engine"], found["fast_draft"]
    vllm = "wedged" if engine["wedged"] else "up" if engine["up"] else "down"
    rows = [
        ("profile", f"{found['profile']}, radiance {found['radiance']}, vllm {found['vllm']}"),
        ("phase", f"{found['phase']}, {'ready' if found['ready'] else 'not ready: ' + found['ready_reason']}"),
        ("spent", ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in found["phase_seconds"].items())),
        (
            "vllm",
            f"{vllm}, {engine['url'] or 'follows ' + engine['leader']}, pid {engine['pid']}, restarts {engine['restarts']}",
        ),
        ("draft", f"mode {draft['mode']}, {'ok' if draft['ok'] else 'NOT AS ASKED'}: {draft['reason']}"),
    ]
    if engine["last_exit"]:
        rows.append(("ended", engine["last_exit"]))
    for worker in found["workers"]:
        where = f"rank {worker['rank']}" + (f" of engine {worker['engine']}" if worker["engine"] else "")
        if worker["stale"]:
            rows.append(("worker", f"{where}: STALE, last sign {worker['heartbeat_age_seconds']:.0f} s ago"))
        if worker["problem"]:
            rows.append(("worker", f"{where}: {worker['problem']}"))
        rows += [("head", f"{where} {_head(head)}") for head in worker["heads"]]
    rows.append(("accepted", accepted(found["acceptance"])))
    rows += [("error", error) for error in found["status_file_errors"]]
    rows += [("note", note) for note in found["notes"]]
    return "\n".join(f"{name:<9} {value}" for name, value in rows)


def _head(head: dict[str, Any]) -> str:
    calls, timed = head["calls"], sum(head["latency"]["counts"])
    parts = [f"{head['name']}: {head['state'].upper()}" + (f" ({head['reason']})" if head["reason"] else "")]
    parts.append(f"{calls} calls")
    if head["rows"]:
        parts.append(f"{head['rescued_rows'] / head['rows']:.1%} of rows rescued")
    if timed:
        parts.append(f"{head['latency']['sum_seconds'] / timed * 1e6:.0f} us a call ({head['latency']['clock']} clock)")
    if head["checked_rows"]:
        parts.append(f"{head['missed_rows'] / head['checked_rows']:.2%} of checked rows missed")
    if stock := sum(head["stock_calls"].values()):
        why = ", ".join(f"{reason} {count}" for reason, count in sorted(head["stock_calls"].items()) if count)
        parts.append(f"{stock} stock calls ({why})")
    if head["packed_bytes"]:
        parts.append(f"{head['packed_bytes'] / 2**20:.1f} MiB")
    return ", ".join(parts)


def accepted(found: dict[str, Any]) -> str:
    """One line of /status' `acceptance`."""
    if not found["available"]:
        return str(found["reason"])
    mean, floor = found["acceptance_per_draft"], found["expected_min"]
    if mean is None:
        return "no draft yet"
    text = f"{mean:.2f} tokens per draft over {found['drafts']} drafts"
    if floor is None:
        return text
    if found["drafts"] < ENOUGH_DRAFTS:
        return f"{text}, too few to compare with the profile's {floor}"
    return f"{text}, {'BELOW' if mean < floor else 'at least'} the profile's {floor}"
