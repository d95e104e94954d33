"""The commands `draftwing k8s render` and `draftwing k8s check`. Ray is imported by `check` alone."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from draftwing.commands.common import add_config_flags, config_flags, config_from_args, help_of, print_json, say
from draftwing.errors import ConfigError
from draftwing_serve.k8s import PodShape, as_yaml, ray_service, serve_config

CRDS_VARIABLE = "DRAFTWING_CRDS"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("k8s", help="make and check the files for KubeRay")
    parser.set_defaults(run=help_of(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    render = commands.add_parser(
        "render",
        help="an overlay's rendered.yaml from a config",
        description="Print the part of a RayService that a config decides: serveConfigV2 and the worker pods.",
    )
    add_config_flags(render)
    pod = PodShape()
    render.add_argument("--gpus-per-pod", type=int, default=pod.gpus, metavar="N", help="GPUs of one node (default 8)")
    render.add_argument("--cpus", type=int, default=pod.cpus, metavar="N", help="CPUs of one pod (default 16)")
    render.add_argument("--memory", default=pod.memory, metavar="SIZE", help="memory of one pod (default 128Gi)")
    render.add_argument("--image", default=pod.image, metavar="IMAGE", help="container image of the workers")
    render.add_argument("--serve-config", action="store_true", help="only what `serve deploy` takes")
    render.set_defaults(run=run_render)
    check = commands.add_parser(
        "check",
        help="render an overlay and validate it against KubeRay's CRDs",
        description="Run kubectl kustomize on an overlay and check every custom resource, and Serve's config in it.",
    )
    check.add_argument("overlay", type=Path, metavar="OVERLAY", help="folder with a kustomization.yaml")
    check.add_argument("--crds", type=Path, metavar="DIR", help=f"folder with the CRDs (${CRDS_VARIABLE})")
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.set_defaults(run=run_check)


def run_render(args: argparse.Namespace) -> int:
    for flag in ("gpus_per_pod", "cpus"):
        if getattr(args, flag) < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} is {getattr(args, flag)}; expected at least 1")
    config = config_from_args(args).config
    if args.serve_config:
        document = serve_config(config)
    else:
        document = ray_service(config, PodShape(args.gpus_per_pod, args.cpus, args.memory, args.image))
    say(as_yaml(document, f"Made by: {_command(args)}\nChange the config and make it again.").rstrip())
    return 0


def _command(args: argparse.Namespace) -> str:
    """The command that makes the same document, run in the config's folder."""
    pod, parts = PodShape(), ["draftwing k8s render"]
    if args.config_file is not None:
        parts.append(f"-c {shlex.quote(args.config_file.name)}")
    parts += config_flags(args)
    for flag, name in (("gpus_per_pod", "gpus"), ("cpus", "cpus"), ("memory", "memory"), ("image", "image")):
        if (value := getattr(args, flag)) != getattr(pod, name):
            parts.append(f"--{flag.replace('_', '-')} {value}")
    return " ".join([*parts, *(["--serve-config"] if args.serve_config else [])])


def run_check(args: argparse.Namespace) -> int:
    """Exit code 1 when a cluster would refuse something."""
    folder = args.crds or (Path(os.environ[CRDS_VARIABLE]) if os.environ.get(CRDS_VARIABLE) else None)
    if folder is None:
        raise ConfigError(f"no CRD folder; give --crds DIR or set {CRDS_VARIABLE}")
    from draftwing_serve.k8s_check import problems, rendered, schemas

    known = schemas(folder)
    documents = rendered(args.overlay)
    found = list(problems(documents, known))
    if args.json:
        names = [f"{each['kind']}/{each['metadata']['name']}" for each in documents]
        print_json({"schema": "draftwing.k8s-check/1", "documents": names, "problems": found})
    else:
        for line in found:
            say(line)
        say(f"{len(documents)} documents, {len(found)} problems")
    return 1 if found else 0
