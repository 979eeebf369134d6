"""``--engine kubernetes``: an indexed Job, or a JobSet, whose pods are the ranks.

A pod is a rank, so a job of N hosts with P processes each is N·P pods of one process. They find each other by a
headless service; `initialize()` reads its rank from the pod's index. The manifest is JSON, which `kubectl` takes as it
takes YAML.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshrt.errors import ConfigError
from meshrt.launch import environment
from meshrt.launch.model import NEVER_RESTART
from meshrt.launch.placing import options
from meshrt.launch.placing.plans import HIDDEN, Front, Plan, Wanted, module_command

__all__ = ["HAS_AGENTS", "JOBSET_VERSION", "SCRIPTS_ARE_HERE", "Options", "manifest", "plan"]

SCRIPTS_ARE_HERE = False  # they are in the image
HAS_AGENTS = False  # pods do not reach a launcher outside of the cluster

JOBSET_VERSION = "jobset.x-k8s.io/v1alpha2"
_NAME_LIMIT = 40  # of the 63 that a host name may have; pods get numbers behind it
_LABEL = re.compile(r"(\d+): ")
_INSTANCE = "app.kubernetes.io/instance"
_GROUP = "ranks"  # the name of the one replicated job of a JobSet


@dataclass(frozen=True, slots=True)
class Options:
    """image            the container image, which has the script and meshrt; needed
    kind             ``job``, or ``jobset``, which can start all again (--max-restarts)
    namespace, context, kubectl   of kubectl
    resources        what each pod takes (``nvidia.com/gpu=1,memory=8Gi``)
    node_selector    labels of the nodes that pods go to
    service_account, pull_policy   of the pods
    keep             whether everything stays in the cluster after the end
    python           the interpreter in the image
    """

    image: str | None = None
    kind: str = "job"
    namespace: str | None = None
    context: str | None = None
    kubectl: str = "kubectl"
    resources: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    service_account: str | None = None
    pull_policy: str | None = None
    keep: bool = False
    python: str = "python"


def plan(wanted: Wanted) -> Plan:
    """One front: a driver of kubectl, or kubectl alone if the job is left to the cluster. ConfigError if hosts are
    named, or where the options make no job."""
    chosen = options.read(Options, "kubernetes", wanted.options)
    if wanted.hosts:
        raise ConfigError("the engine 'kubernetes' finds hosts by itself: give --nodes N in place of --hosts")
    kubectl = [chosen.kubectl]
    kubectl += [f"--context={chosen.context}"] if chosen.context else []
    kubectl += [f"--namespace={chosen.namespace}"] if chosen.namespace else []
    content = manifest(wanted, chosen)
    preview = f"{' '.join(kubectl)} apply -f - <<'END'\n{json.dumps(_hidden(content, wanted), indent=1)}\nEND"
    if wanted.detach:
        apply = (*kubectl, "apply", "-f", "-")
        data = json.dumps(content).encode()
        return Plan("kubernetes", (Front("kubernetes", apply, data, preview=preview, detached=True),))
    told = {
        "kubectl": kubectl, "manifest": content, "kind": chosen.kind, "name": _name(wanted.name), "keep": chosen.keep,
        "selector": f"{_INSTANCE}={_name(wanted.name)}",
    }  # fmt: skip
    command = module_command("_kubernetes_driver", sys.executable)
    data = json.dumps(told).encode() + b"\n"
    return Plan("kubernetes", (Front("kubernetes", command, data, preview=preview, label=_LABEL),))


def manifest(wanted: Wanted, chosen: Options) -> dict[str, Any]:
    """A List of what is applied: the Job or JobSet, the service by which its pods find each other, their secret.

    ConfigError where the options make no job.
    """
    if chosen.image is None:
        raise ConfigError("the engine 'kubernetes' needs an image: -o image=NAME, or image in [launch.options]")
    if chosen.kind not in ("job", "jobset"):
        raise ConfigError(f"option kind = {chosen.kind!r}: known are: job, jobset")
    if wanted.max_restarts and chosen.kind == "job":
        raise ConfigError("--max-restarts: a Job cannot start all of its pods again; -o kind=jobset can")
    name, items = _name(wanted.name), list[dict[str, Any]]()
    if wanted.work.secrets:
        secret = {"type": "Opaque", "stringData": dict(wanted.work.secrets)}
        items.append({"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(name), **secret})
    if chosen.kind == "jobset":
        items.append(_jobset(name, wanted, chosen))
    else:
        service = {"clusterIP": "None", "selector": {_INSTANCE: name}, "publishNotReadyAddresses": True}
        items.append({"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name), "spec": service})
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(name)}
        items.append({**job, "spec": _job_spec(name, wanted, chosen)})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _jobset(name: str, wanted: Wanted, chosen: Options) -> dict[str, Any]:
    """All pods start again together; one that ends with the code for wrong configuration ends the set."""
    policy: dict[str, Any] = {
        "maxRestarts": wanted.max_restarts,
        "rules": [{"name": "configuration", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
    return {
        "apiVersion": JOBSET_VERSION,
        "kind": "JobSet",
        "metadata": _metadata(name),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": policy,
            "replicatedJobs": [
                {"name": _GROUP, "replicas": 1, "template": {"spec": _job_spec(None, wanted, chosen)}}
            ],
        },
    }  # fmt: skip


def _job_spec(subdomain: str | None, wanted: Wanted, chosen: Options) -> dict[str, Any]:
    """An indexed Job. One pod that fails fails it: the ranks need each other."""
    never = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [NEVER_RESTART]}}
    labels = {"metadata": {"labels": _labels(_name(wanted.name))}}
    spec: dict[str, Any] = {
        "completionMode": "Indexed", "completions": wanted.count, "parallelism": wanted.count, "backoffLimit": 0,
        "podFailurePolicy": {"rules": [never]},
        "template": {**labels, "spec": _pod_spec(subdomain, wanted, chosen)},
    }  # fmt: skip
    if wanted.timeout is not None:
        spec["activeDeadlineSeconds"] = math.ceil(wanted.timeout)
    return spec


def _pod_spec(subdomain: str | None, wanted: Wanted, chosen: Options) -> dict[str, Any]:
    secret = _name(wanted.name)
    told = {"PYTHONUNBUFFERED": "1", environment.NUM_PROCESSES: str(wanted.count), **wanted.work.variables}
    variables: list[dict[str, Any]] = [{"name": n, "value": v} for n, v in told.items()]
    variables += [
        {"name": n, "valueFrom": {"secretKeyRef": {"name": secret, "key": n}}} for n in wanted.work.secrets
    ]  # fmt: skip
    container: dict[str, Any] = {
        "name": "rank", "image": chosen.image, "command": [chosen.python, *wanted.work.arguments], "env": variables,
    }  # fmt: skip
    if chosen.resources:
        container["resources"] = {"limits": dict(chosen.resources), "requests": dict(chosen.resources)}
    if chosen.pull_policy:
        container["imagePullPolicy"] = chosen.pull_policy
    given = {
        "subdomain": subdomain, "serviceAccountName": chosen.service_account,
        "nodeSelector": dict(chosen.node_selector) or None,
    }  # fmt: skip
    return {
        "restartPolicy": "Never", "enableServiceLinks": False, "containers": [container],
        "terminationGracePeriodSeconds": math.ceil(wanted.grace),
        **{k: v for k, v in given.items() if v is not None},
    }  # fmt: skip


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "labels": _labels(name)}


def _labels(name: str) -> dict[str, str]:
    return {_INSTANCE: name, "app.kubernetes.io/managed-by": "meshrt"}


def _name(text: str) -> str:
    """A name as hosts may have it."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    head, _, number = cleaned.rpartition("-")  # what makes it different from others stands at its end
    cut = f"{head[: _NAME_LIMIT - len(number) - 1].strip('-')}-{number}" if head else number[:_NAME_LIMIT]
    return cut if cut[:1].isalpha() else f"m{cut}"


def _hidden(content: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    items = content["items"]
    hidden = dict.fromkeys(wanted.work.secrets, HIDDEN)
    return {**content, "items": [{**i, "stringData": hidden} if i["kind"] == "Secret" else i for i in items]}
