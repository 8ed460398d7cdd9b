"""`radiance demo`: the same chats through the 2-bit head and through the stock head, on a real `radiance serve`, compared."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from launcher import smollm2, trial
from launcher.acceptance import ENOUGH_DRAFTS
from launcher.profiles import Profile
from launcher.trial import Trial, Work
from radiance.settings import Mode

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Explain in a few sentences why the sky is blue.",
    "How do I make pancakes? Give me the steps.",
    "Write a short story about a lighthouse keeper and a lost seal.",
    "What is the difference between a virus and a bacterium?",
    "Give me three tips for learning to play the piano.",
    "Describe the water cycle to a child.",
    "What causes the seasons on Earth?",
    "Write a polite email that asks for a day off.",
    "Why do people dream? Answer briefly.",
    "List five vegetables and one dish for each.",
    "What is a binary search, and when is it useful?",
    "Tell me about the life of a honey bee.",
    "How does a refrigerator keep food cold?",
    "Write a four-line poem about rain.",
    "What should I pack for a week in the mountains?",
    "Explain what a black hole is.",
    "How do plants make their food?",
    "Give me a simple plan for saving money.",
    "What were the causes of the First World War?",
    "Write a Python function that reverses a string, and explain it.",
    "How can I sleep better at night?",
    "What makes a good friend?",
    "Describe a busy market in the morning.",
)
WORK = Work(PROMPTS, max_tokens=112, at_once=8)


def run(profile: Profile, profiles_dir: Path | None, vllm: str, environ: Mapping[str, str]) -> int:
    """Print the comparison; the exit code says whether it may be believed."""
    if profile.model.embedded:
        smollm2.prepare(smollm2.folder(environ), _say)
    command = [sys.executable, "-m", "launcher", "serve", "--profile", profile.name, "--vllm", vllm]
    if profiles_dir:
        command += ["--profiles-dir", str(profiles_dir)]
    with tempfile.TemporaryDirectory(prefix="radiance-demo-") as logs:
        fast = trial.run(command, Mode.ON, environ, Path(logs), WORK, _say)
        stock = trial.run(command, Mode.OFF, environ, Path(logs), WORK, _say)
    same = sum(a == b for a, b in zip(fast.texts, stock.texts, strict=True))
    _say("")
    for prompt, text in list(zip(PROMPTS, fast.texts, strict=True))[:3]:
        _say(f"> {prompt}\n{text.strip()}\n")
    _say(f"draft head: fast run {fast.head}; stock run {stock.head}")
    _say(f"ready after {fast.seconds_to_ready:.0f} s (2-bit head), {stock.seconds_to_ready:.0f} s (stock head)")
    _say(
        f"identical answers: {same} of {len(PROMPTS)} (greedy; bf16 near-ties may fall differently when batches differ)"
    )
    ratio = fast.acceptance / stock.acceptance if stock.acceptance else 0.0
    _say(
        f"acceptance_per_draft fast={fast.acceptance:.3f} stock={stock.acceptance:.3f} "
        f"drafts_fast={fast.drafts} drafts_stock={stock.drafts} ratio={ratio:.3f}"
    )
    _say(
        f"both servers are stopped; `make serve PROFILE={profile.name}` leaves one up (metrics: http://{trial.HOST}:9410/metrics)"
    )
    faults = judge([fast, stock])
    for fault in faults:
        _say(f"FAILED: {fault}")
    return 1 if faults else 0


def judge(trials: list[Trial]) -> list[str]:
    """Why the figures of these trials may not be believed; empty when they may."""
    return [
        *(f"the 2-bit head was not active: {one.head}" for one in trials if not one.head_ok),
        *(
            f"only {one.drafts} drafts with the {trial.NAMES[one.mode]}, too few to compare (want {ENOUGH_DRAFTS})"
            for one in trials
            if one.drafts < ENOUGH_DRAFTS
        ),
    ]


def _say(line: str) -> None:
    print(line, flush=True)
