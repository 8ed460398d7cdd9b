"""The `radiance` command. Parses, calls, turns errors into exit codes; decides nothing itself."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher import logs
from launcher.commands import catalogue, measure, prepare
from launcher.commands.common import json_option, profile_option, profiles_dir, set_option
from launcher.commands.supervision import supervision
from launcher.errors import EngineMissing, LauncherError
from launcher.options import OnWedge, Options

if TYPE_CHECKING:
    from launcher.plan import ServePlan
    from launcher.signals import Signals


class ServeByDefault(click.Group):
    """`radiance --profile X` is `radiance serve --profile X`, so that a container needs no sub-command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LauncherError as error:
            click.echo(f"radiance: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=ServeByDefault, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Serve language models with vLLM and a 2-bit draft head, by profile.

    Without a command, `radiance --profile X` serves.
    """
    logs.configure(logs.Form.TEXT)


def serve_options(command: Any) -> Any:
    """What `serve` and `plan` share. Defaults are those of vLLM: every address, port 8000."""
    command = supervision(command)
    for option in reversed(
        [
            profile_option,
            profiles_dir,
            set_option,
            click.option("--host", default="0.0.0.0", show_default=True, help="Address of the API."),
            click.option(
                "--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Port of the API."
            ),
            click.option(
                "--metrics-host", default=None, help="Address of /metrics and the probes.  [default: as --host]"
            ),
            click.option(
                "--metrics-port",
                default=9410,
                show_default=True,
                type=click.IntRange(0, 65535),
                help="Port of /metrics and the probes.",
            ),
            click.option(
                "--passthrough/--no-passthrough",
                default=False,
                show_default=True,
                help="Also give vLLM's own metrics on the port of /metrics.",
            ),
            click.option("--vllm", default="vllm", show_default=True, help="The vllm executable."),
            click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM_ARGS...]"),
        ]
    ):
        command = option(command)
    return command


def _options(host: str, metrics_host: str | None, log_format: str, on_wedge: str, **options: Any) -> Options:
    return Options(
        host=host,
        metrics_host=metrics_host or host,
        log_format=logs.Form(log_format),
        on_wedge=OnWedge(on_wedge),
        **options,
    )


@main.command()
@serve_options
@click.option("--dry-run", is_flag=True, help="Print the plan instead; the same as `radiance plan`.")
def serve(profile: str, profiles_dir: Path | None, dry_run: bool, **options: Any) -> None:
    """Start vLLM as the profile says and look after it until it is stopped."""
    from launcher.signals import received

    chosen = _options(**options)
    if dry_run:
        from launcher import plan, profiles

        click.echo(plan.to_text(plan.build(profiles.stack(profile, profiles_dir), chosen, os.environ), os.environ))
        return
    logs.configure(chosen.log_format)
    try:
        with received() as signals:
            _supervise(profile, profiles_dir, chosen, signals)
    except LauncherError as error:
        logging.getLogger("radiance").error("%s", error)
        sys.exit(error.exit_code)


def _supervise(profile: str, profiles_dir: Path | None, chosen: Options, signals: Signals) -> None:
    from launcher import plan, profiles, supervise, termination, web
    from launcher.engine import Engine
    from launcher.secrets import Redactor, resolve

    log = logging.getLogger("radiance")
    with termination.message(chosen.termination_log, Redactor(os.environ)):
        environ = resolve(os.environ, chosen.api_key_file)
        logs.configure(chosen.log_format, Redactor(environ))
        planned = plan.build(profiles.stack(profile, profiles_dir), chosen, environ)
        _check_version(planned)
        for note in planned.notes:
            log.warning("%s", note)
        engine = Engine(planned)
        with web.serving(engine, chosen.metrics_host, chosen.metrics_port) as port:
            log.info("metrics: http://%s:%d/metrics", chosen.metrics_host, port)
            supervise.serve(engine, environ, signals)


def _check_version(planned: ServePlan) -> None:
    """Refuse a vLLM that the profile does not allow, before it loads for minutes. Another --vllm speaks for itself."""
    from launcher.checks import software

    version = software.installed()
    problem = software.out_of_range(version, planned.settled.profile) if version else ""
    if problem and planned.options.vllm == Options.vllm:
        raise EngineMissing(f"{problem}; install such a release, or --set min_vllm and max_vllm if you know better")


@main.command("plan")
@serve_options
@click.option("--format", "form", type=click.Choice(["text", "json", "shell"]), default="text", show_default=True)
def plan_command(profile: str, profiles_dir: Path | None, form: str, **options: Any) -> None:
    """Print what `serve` would run. Needs no vLLM, no GPU and no model; secrets are not shown."""
    from launcher import plan, profiles

    planned = plan.build(profiles.stack(profile, profiles_dir), _options(**options), os.environ)
    click.echo({"text": plan.to_text, "json": plan.to_json, "shell": plan.to_shell}[form](planned, os.environ))


@main.command("explain")
@serve_options
@click.option("--all", "everything", is_flag=True, help="Also what nobody set and so has its default.")
@json_option
def explain_command(profile: str, profiles_dir: Path | None, everything: bool, as_json: bool, **options: Any) -> None:
    """Print who set each value and what that beat: command line > environment > your file > built-in profile."""
    from launcher import explain, plan, profiles

    planned = plan.build(profiles.stack(profile, profiles_dir), _options(**options), os.environ)
    context, default = click.get_current_context(), click.core.ParameterSource.DEFAULT
    given = {
        name: context.get_parameter_source(name) is not default for name in options if name not in ("extra", "sets")
    }
    found = explain.rows(planned, given)
    if as_json:
        click.echo(explain.to_json(found, planned, os.environ))
    else:
        click.echo(explain.to_text(found, planned, os.environ, everything))


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", default=9410, show_default=True, type=click.IntRange(1, 65535), help="The --metrics-port of the server."
)
def health(host: str, port: int) -> None:
    """Exit 0 when the server on this machine is ready, 1 when not."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        click.echo(f"not ready: no launcher answers on {host}:{port} ({error})", err=True)
        sys.exit(1)
    finally:
        connection.close()
    click.echo(text)
    sys.exit(0 if answer.status == 200 else 1)


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", default=9410, show_default=True, type=click.IntRange(1, 65535), help="The --metrics-port of the server."
)
@click.option("--json", "as_json", is_flag=True, help="All of it, as /status gives it.")
def status(host: str, port: int, as_json: bool) -> None:
    """What a running server does, on one screen. Exit 0 when it is ready, 1 when not."""
    import httpx

    from launcher import report
    from launcher.engine import base_url

    try:
        found = httpx.get(f"{base_url(host, port)}/status", trust_env=False, timeout=10).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        click.echo(f"no launcher answers on {host}:{port} ({error})", err=True)
        sys.exit(1)
    click.echo(json.dumps(found, indent=2) if as_json else report.text(found))
    sys.exit(0 if found["ready"] else 1)


@main.command()
def version() -> None:
    """Versions of Radiance and of the vLLM beside it."""
    from importlib import metadata

    for name in ("radiance-vllm", "vllm"):
        try:
            click.echo(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            click.echo(f"{name} not installed")


for command in (
    catalogue.profiles_group,
    measure.demo,
    measure.compare,
    measure.accuracy,
    measure.tune,
    measure.bench,
    measure.vocab,
    prepare.fetch,
    prepare.doctor,
):
    main.add_command(command)
