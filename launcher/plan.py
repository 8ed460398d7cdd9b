"""Profile + options + environment -> ServePlan: everything that `radiance serve` will do, as a value.

Plan, then act: `build` is pure (no disk, no network, no clock), so `radiance plan` shows on a laptop what a GPU machine
would run, and a test compares plans instead of watching processes. supervise.py is the one that acts.

Who wins: command line > environment > user's file > built-in profile (layers.py). Every time an environment variable beats
the profile, `notes` says so; `settled` knows where each value came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from launcher import arguments, smollm2
from launcher.errors import SettingsConflict
from launcher.estimate import Estimate, estimate, gain_line, memory_lines
from launcher.fetch import Repository, repositories
from launcher.layers import Layer
from launcher.overlay import MODES, Settled, files_of, settle_all
from launcher.profiles import Profile, looks_secret, warnings
from radiance import settings
from radiance.errors import SettingsError
from radiance.settings import Mode, Require

#: vLLM reports usage to its authors unless told not to
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
NO_LINKS = "set enableServiceLinks: false"
# What the kubelet writes into VLLM_PORT and its like when a Service is called "vllm": vLLM would take it for a number.
_SERVICE_URI = re.compile(r"^(tcp|udp|sctp)://")


@dataclass(frozen=True)
class Options:
    """What a command line adds to a profile."""

    host: str = "0.0.0.0"
    port: int = 8000
    metrics_host: str = "0.0.0.0"
    metrics_port: int = 9410
    vllm: str = "vllm"
    grace_seconds: float = 30.0
    warm_up: bool = True
    extra: tuple[str, ...] = ()
    #: running requests and no token for so long: wedged
    wedge_seconds: float = 120.0
    #: vLLM's own metrics on the launcher's port too
    passthrough: bool = False
    #: FIELD=VALUE over everything else
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServePlan:
    """`env` is what gets set on top of the inherited environment, `unset` what is taken out of it."""

    profile: str
    summary: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    #: inherited variables whose values are never shown
    secrets: tuple[str, ...]
    #: folders that must hold a checkpoint before vLLM starts
    model_folders: tuple[Path, ...]
    embedded: str | None
    #: what comes from the model hub
    repositories: tuple[Repository, ...]
    #: where the private state folder is made; None = the system's temporary folder
    state_parent: Path | None
    options: Options
    mode: Mode
    require: Require
    rerank: int | None
    draft_vocab: Path | None
    startup_budget_seconds: int
    #: draft tokens of a draft; None: the profile does not speculate
    depth: int | None
    acceptance_per_draft_min: float | None
    draft_head_latency_seconds_max: float | None
    #: decisions worth a line, and warnings
    notes: tuple[str, ...]
    #: the profile after all layers, and who said what
    settled: Settled
    #: memory and gain, from the facts the profile states
    estimate: Estimate


def build(source: Profile | Sequence[Layer], options: Options, environ: Mapping[str, str]) -> ServePlan:
    """Decide everything. Raises ProfileError (a file), SettingsConflict (environment) or UsageProblem (command line)."""
    try:
        user = settings.read(environ)
    except SettingsError as error:
        raise SettingsConflict(str(error)) from error
    notes = [_service_links(user.ignored)] if user.ignored else []
    unset = tuple(
        sorted(name for name, value in environ.items() if name.startswith("VLLM_") and _SERVICE_URI.match(value))
    )
    notes += [
        f"{name} is dropped: its value is a Kubernetes service link, no vLLM setting; {NO_LINKS} or rename the Service"
        for name in unset
    ]

    passed = {name: value for name, value in environ.items() if name not in unset}
    settled = settle_all(files_of(source), user, passed, options.sets)
    profile, mode = settled.profile, MODES[settled.profile.fast_draft]
    notes += settled.notes
    env = dict(QUIET)
    if profile.model.id is None and not (profile.drafter and profile.drafter.id):
        env["HF_HUB_OFFLINE"] = "1"
    env = {name: passed.get(name) or value for name, value in env.items()} | profile.env | _plugin(profile, mode)

    guess = estimate(profile)
    argv, more = arguments.build(
        profile, options.extra, _model(profile, environ), _drafter(profile, environ), options.host, options.port
    )
    return ServePlan(
        profile=profile.name,
        summary=profile.summary,
        argv=(options.vllm, "serve", *argv),
        env=MappingProxyType(dict(sorted(env.items()))),
        unset=unset,
        secrets=tuple(sorted(name for name, value in environ.items() if value and looks_secret(name))),
        model_folders=_folders(profile, environ),
        embedded=profile.model.embedded,
        repositories=tuple(repositories(profile)),
        state_parent=user.state_dir,
        options=options,
        mode=mode,
        require=profile.require,
        rerank=profile.rerank,
        draft_vocab=profile.draft_vocab,
        startup_budget_seconds=profile.startup_budget_seconds,
        depth=profile.speculative.num_speculative_tokens if profile.speculative else None,
        acceptance_per_draft_min=profile.expected.acceptance_per_draft_min,
        draft_head_latency_seconds_max=profile.expected.draft_head_latency_seconds_max,
        notes=(*notes, *more, *guess.warnings, *warnings(profile)),
        settled=settled,
        estimate=guess,
    )


def _plugin(profile: Profile, mode: Mode) -> dict[str, str]:
    """The plugin's settings; what is not given keeps the plugin's own default."""
    given = {
        "RADIANCE_FAST_DRAFT": mode,
        "RADIANCE_REQUIRE": profile.require,
        "RADIANCE_DRAFT_RERANK": profile.rerank,
        "RADIANCE_DRAFT_VOCAB": profile.draft_vocab,
        "RADIANCE_SHADOW_SAMPLE": profile.shadow_sample,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _service_links(names: tuple[str, ...]) -> str:
    return f"ignored, Kubernetes service links and not settings: {', '.join(names)}; {NO_LINKS} to be rid of them"


def _model(profile: Profile, environ: Mapping[str, str]) -> str:
    model = profile.model
    if model.embedded:
        return str(smollm2.folder(environ))
    return model.id or str(model.path)


def _drafter(profile: Profile, environ: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Where the drafter lies and its revision; None if the model carries it."""
    drafter = profile.drafter
    if drafter is None:
        return None
    if drafter.same_as_model:
        return _model(profile, environ), profile.model.revision
    return drafter.id or str(drafter.path), drafter.revision


def _folders(profile: Profile, environ: Mapping[str, str]) -> tuple[Path, ...]:
    paths = [profile.model.path, profile.drafter.path if profile.drafter else None]
    embedded = [smollm2.folder(environ)] if profile.model.embedded else []
    return tuple(dict.fromkeys([*embedded, *(path for path in paths if path is not None)]))


def to_json(plan: ServePlan, hide: Mapping[str, str]) -> str:
    value = {
        "profile": plan.profile,
        "argv": list(plan.argv),
        "env": dict(plan.env) | dict.fromkeys(plan.secrets, "(inherited, not shown)"),
        "unset": list(plan.unset),
        "state_dir": f"made at start, private, in {plan.state_parent or 'the temporary folder'}",
        "api": f"http://{plan.options.host}:{plan.options.port}",
        "metrics": f"http://{plan.options.metrics_host}:{plan.options.metrics_port}/metrics",
        "fast_draft": plan.mode.name.lower(),
        "require": str(plan.require),
        "startup_budget_seconds": plan.startup_budget_seconds,
        "repositories": [asdict(repository) for repository in plan.repositories],
        "estimate": asdict(plan.estimate),
        "notes": list(plan.notes),
    }
    return redact(json.dumps(value, indent=2), plan, hide)


def to_shell(plan: ServePlan, hide: Mapping[str, str]) -> str:
    """A command to paste: the same vLLM without the launcher around it (no exporter, no state folder, no readiness)."""
    parts = ["env", *(f"-u {name}" for name in plan.unset)]
    parts += [f"{name}={arguments.quote(value)}" for name, value in plan.env.items()]
    return redact(" \\\n  ".join([*parts, " ".join(map(arguments.quote, plan.argv))]), plan, hide)


def to_text(plan: ServePlan, hide: Mapping[str, str]) -> str:
    options = plan.options
    rows = [("profile", f"{plan.profile}: {plan.summary}"), ("command", " ".join(map(arguments.quote, plan.argv)))]
    rows += [("env", f"{name}={value}") for name, value in plan.env.items()]
    rows += [("env", f"{name} (inherited, not shown)") for name in plan.secrets]
    rows += [("unset", name) for name in plan.unset]
    rows += [
        ("state", f"a private folder, made at start, in {plan.state_parent or 'the temporary folder'}"),
        *(("model", str(folder)) for folder in plan.model_folders),
        *(("hub", str(repository)) for repository in plan.repositories),
        ("api", f"http://{options.host}:{options.port}"),
        ("metrics", f"http://{options.metrics_host}:{options.metrics_port}/metrics"),
        ("ready in", f"at most {plan.startup_budget_seconds} s, else exit 124"),
    ]
    if plan.estimate.memory:
        rows += [("memory", line) for line in memory_lines(plan.estimate.memory)]
    rows += [("gain", gain_line(gain)) for gain in plan.estimate.gains]
    rows += [("note", note) for note in plan.notes]
    return redact("\n".join(f"{name:<9} {value}" for name, value in rows), plan, hide)


def redact(text: str, plan: ServePlan, environ: Mapping[str, str]) -> str:
    """`text` without the value of any secret variable, wherever it got in."""
    for name in plan.secrets:
        value = environ.get(name, "")
        if len(value) >= 6:
            text = text.replace(value, "***").replace(json.dumps(value)[1:-1], "***")
    return text
