"""The manifests that people install: current, valid for each Kubernetes version, consistent."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from kubernetes_validate import utils
from schemas import SCHEMAS
from shipped import FOLDER, documents, objects, of_kind, paths

from controlplane.commands.render import render
from controlplane.config import load
from controlplane.planner.budget import KvBudget
from controlplane.planner.kv import kv_shape
from controlplane.planner.model_config import ModelConfig
from controlplane.planner.weights import counted_weights
from controlplane.render.manifests.engine_plan import DoesNotFitError, arguments
from controlplane.render.manifests.files import manifest_files
from controlplane.render.manifests.settings import (
    LLAMA_3_1_8B,
    Gpu,
    ManifestSettings,
    ManifestSettingsError,
    Pool,
)
from controlplane.render.manifests.settings import (
    load as load_settings,
)

# Each call reads a megabyte of definitions anew.
utils.schema_contents = cache(utils.schema_contents)

VERSIONS = [f"1.{minor}" for minor in range(30, 38)]


def workloads() -> list[dict[str, Any]]:
    return [one for _, one in objects() if one["kind"] in ("Deployment", "StatefulSet", "DaemonSet")]


def test_what_is_checked_in_is_current() -> None:
    told = CliRunner().invoke(render, ["manifests", "--check", "--out", str(FOLDER)])
    assert told.exit_code == 0, told.output


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_passes_the_schemas_of(version: str) -> None:
    checked = 0
    for path, one in objects():
        if (one["apiVersion"], one["kind"]) not in SCHEMAS:
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                pytest.fail(f"{path} {one['kind']} {one['metadata']['name']}: {error}")
            checked += 1
    assert checked > 40


def test_the_schemas_would_find_a_mistake() -> None:
    wrong = documents("engines/pool-short.yaml")[0]
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.30", strict=True)


def test_custom_objects_have_documented_fields_only() -> None:
    seen = set()
    for path, one in objects():
        key = one["apiVersion"], one["kind"]
        if key in SCHEMAS:
            seen.add(key)
            problems = [
                error.message for error in jsonschema.Draft202012Validator(SCHEMAS[key]).iter_errors(one)
            ]
            assert not problems, (path, problems)
    assert seen == set(SCHEMAS)


def test_kustomizations_name_every_file_and_no_other() -> None:
    for path in paths():
        if not path.endswith("kustomization.yaml"):
            continue
        folder, (head,) = (FOLDER / path).parent, documents(path)
        if path != "kustomization.yaml":
            there = {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"}
            assert set(head["resources"]) == there, path
        assert head["kind"] == ("Component" if path.startswith("components/") else "Kustomization")


def test_no_object_is_there_twice_unless_either_is_chosen() -> None:
    either = ("components/keda-external", "components/keda-metrics-api")
    for chosen in either:
        left = [one for path, one in objects() if not path.startswith(either) or path.startswith(chosen)]
        keys = [
            (one["apiVersion"], one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
            for one in left
        ]
        assert len(keys) == len(set(keys))


def test_every_container_is_locked_down() -> None:
    assert len(workloads()) == 5
    for one in workloads():
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        writable = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        writable |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "startupProbe" in container
            assert container["livenessProbe"] != container["readinessProbe"]
            for mount in container["volumeMounts"]:
                assert mount.get("readOnly") or mount["name"] in writable


def test_the_image_runs_as_the_user_of_the_manifests() -> None:
    container_file = (FOLDER.parent / "Containerfile").read_text()
    user = of_kind("StatefulSet")[0]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in container_file


def test_an_engine_knows_who_it_is_and_writes_where_it_may() -> None:
    for one in of_kind("Deployment"):
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        told = {variable["name"]: variable["value"] for variable in container["env"]}
        assert told["USER"], "torch asks for it, and an image need not know the user"
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in empty]
        for name in ("HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"):
            assert any(Path(told[name]).is_relative_to(path) for path in writable), name


def test_services_select_the_pods_and_the_label_that_is_flipped_owns_none() -> None:
    pods = {}
    for one in workloads():
        labels, selector = (
            one["spec"]["template"]["metadata"]["labels"],
            one["spec"]["selector"]["matchLabels"],
        )
        assert selector.items() <= labels.items()
        assert "controlplane.llm/serving" not in selector, "a flipped pod would be replaced"
        pods[one["metadata"]["name"]] = labels
    for service in of_kind("Service"):
        selector = service["spec"]["selector"]
        found = [name for name, labels in pods.items() if selector.items() <= labels.items()]
        assert len(found) == 1, service["metadata"]["name"]
        assert ("controlplane.llm/serving" in selector) is found[0].startswith("engines-")
    for one in of_kind("PodDisruptionBudget"):
        assert one["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for one in of_kind(kind):
            spec = one["spec"]
            labels = (spec.get("selector") or spec["podSelector"])["matchLabels"]
            assert any(labels.items() <= there.items() for there in pods.values()), one["metadata"]["name"]


def test_the_operators_monitors_find_their_services_and_pods() -> None:
    path = FOLDER.parents[1] / "alerts/operator/monitors.yaml"
    for monitor in yaml.safe_load_all(path.read_text()):
        spec, name = monitor["spec"], monitor["metadata"]["name"]
        wanted = spec["selector"]["matchLabels"].items()
        if name == "controlplane-engines":
            (port,) = [one["port"] for one in spec["podMetricsEndpoints"]]
            for one in of_kind("Deployment"):
                pod = one["spec"]["template"]
                assert wanted <= pod["metadata"]["labels"].items()
                assert port in [there["name"] for there in pod["spec"]["containers"][0]["ports"]]
        elif name != "controlplane-gpus":  # dcgm-exporter is not ours
            found = [one for one in of_kind("Service") if wanted <= one["metadata"]["labels"].items()]
            (service,) = found
            assert spec["endpoints"][0]["port"] in [there["name"] for there in service["spec"]["ports"]]


def test_who_else_may_ask_the_engines_is_said_in_the_settings() -> None:
    def sources(settings: ManifestSettings) -> list[str]:
        policy = yaml.safe_load(manifest_files(settings)["engines/network.yaml"])
        (rule,) = policy["spec"]["ingress"]
        spaces = [one["namespaceSelector"]["matchLabels"] for one in rule["from"] if "podSelector" not in one]
        return [space["kubernetes.io/metadata.name"] for space in spaces]

    assert sources(ManifestSettings()) == ["monitoring"]
    assert sources(ManifestSettings(engine_clients=("web", "batch"))) == ["monitoring", "web", "batch"]


def test_an_engine_ends_no_answer_before_its_time() -> None:
    settings = ManifestSettings()
    for one in of_kind("Deployment"):
        pod = one["spec"]["template"]["spec"]
        container = pod["containers"][0]
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in container["args"])
        drain, wait = int(flags["shutdown-timeout"]), container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert drain >= settings.longest_generation
        assert pod["terminationGracePeriodSeconds"] > drain + wait
        assert any(volume.get("persistentVolumeClaim") for volume in pod["volumes"]), (
            "weights are on a volume"
        )


def test_the_engines_arguments_fit_the_model_and_the_gpu() -> None:
    settings = ManifestSettings()
    shape = kv_shape(ModelConfig(LLAMA_3_1_8B))
    weights = counted_weights(ModelConfig(LLAMA_3_1_8B))
    assert weights is not None
    for pool in settings.pools.values():
        derived = arguments(settings, pool)
        gpu = settings.gpu
        budget = KvBudget(
            shape, gpu.count, gpu.memory, derived.gpu_memory_utilization, weights.bytes, gpu.other
        )
        usual = budget.sequences(pool.usual)
        assert usual is not None
        assert usual - 8 < derived.max_num_seqs <= usual
        assert derived.max_model_len == pool.context
    short, long = (arguments(settings, pool) for pool in settings.pools.values())
    assert short.max_num_seqs > 4 * long.max_num_seqs


def test_what_does_not_fit_is_said() -> None:
    small = ManifestSettings(gpu=Gpu(memory="16GiB"))
    with pytest.raises(DoesNotFitError, match="weights take"):
        manifest_files(small)
    with pytest.raises(DoesNotFitError, match="over the model's 131072"):
        manifest_files(ManifestSettings(pools={"long": Pool(context=200_000, usual=1000)}))
    tight = ManifestSettings(gpu=Gpu(memory="24GiB"), pools={"long": Pool(context=131_072, usual=1000)})
    with pytest.raises(DoesNotFitError, match="fewer than 4 sequences of 131072 tokens"):
        manifest_files(tight)


def test_the_configuration_is_one_that_daemon_and_gateway_take(tmp_path: Path) -> None:
    (one,) = of_kind("ConfigMap", "base")
    path = tmp_path / "controlplane.yaml"
    path.write_text(one["data"]["controlplane.yaml"])
    config = load(path)
    assert set(config.pools) == {"short", "long"}
    assert not config.daemon.modes, "installed, it observes"
    services = {f"{s['metadata']['name']}.{s['metadata']['namespace']}.svc" for s in of_kind("Service")}
    for gateway in config.gateways:
        host = gateway.url.removeprefix("http://").rpartition(":")[0]
        assert host.partition(".")[2] in services
    for name, pool in config.pools.items():
        assert pool.targets is not None
        assert pool.targets.kubernetes is not None
        key, _, value = pool.targets.kubernetes.selector.partition("=")
        (engine,) = of_kind("Deployment", f"engines/pool-{name}.yaml")
        assert engine["spec"]["template"]["metadata"]["labels"][key] == value
        assert engine["metadata"]["namespace"] == pool.targets.kubernetes.namespace


def amount(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))


def test_kueue_knows_each_pool_by_a_label() -> None:
    local = {one["metadata"]["name"]: one["spec"]["clusterQueue"] for one in of_kind("LocalQueue")}
    quotas = {one["metadata"]["name"]: one for one in of_kind("ClusterQueue")}
    for one in of_kind("Deployment"):
        queue = one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
        assert "annotations" not in one["metadata"]
        cluster_queue = quotas[local[queue]]["spec"]
        (group,) = cluster_queue["resourceGroups"]
        given = {quota["name"]: quota for quota in group["flavors"][0]["resources"]}
        assert group["coveredResources"] == list(given), "in the same order, or it is refused"
        (container,) = one["spec"]["template"]["spec"]["containers"]
        requests = container["resources"]["requests"]
        assert given.keys() == requests.keys(), "a pod that asks for anything else is not admitted"
        pool = ManifestSettings().pools[queue]
        for name, quota in given.items():
            nominal, lent, each = map(amount, (quota["nominalQuota"], quota["lendingLimit"], requests[name]))
            assert (nominal, lent) == (pool.most * each, pool.lend * each), name
        assert cluster_queue["cohortName"] == "serving"
    assert len(local) == 2


def test_keda_scales_each_pool_and_nothing_while_the_daemon_is_away() -> None:
    engines = {one["metadata"]["name"] for one in of_kind("Deployment")}
    for folder in ("components/keda-external", "components/keda-metrics-api"):
        scaled = of_kind("ScaledObject", folder)
        assert {one["spec"]["scaleTargetRef"]["name"] for one in scaled} == engines
        (authentication,) = of_kind("TriggerAuthentication", folder)
        for one in scaled:
            (trigger,) = one["spec"]["triggers"]
            assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
            assert trigger["metricType"] == "AverageValue"
            assert one["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"
        (head,) = documents(f"{folder}/kustomization.yaml")
        assert "/spec/replicas" in head["patches"][0]["patch"], "else each apply sets the count back"


def test_an_exact_hpa_is_told_exact_counts() -> None:
    texts = manifest_files(ManifestSettings(hpa_tolerance=True))
    for kind, told in (("keda-external", 'tolerance": "0"'), ("keda-metrics-api", "?tolerance=0")):
        for one in yaml.safe_load_all(texts[f"components/{kind}/scaled-objects.yaml"]):
            if one["kind"] == "ScaledObject":
                behavior = one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
                assert behavior["scaleUp"]["tolerance"] == behavior["scaleDown"]["tolerance"] == "0"
                assert told in json.dumps(one["spec"]["triggers"])


def test_settings_from_a_file_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "{serving: llm, gpu: {memory: 141GB, count: 2}, pools: {chat: {context: 4096, usual: 700, most: 20}}}"
    )
    assert load_settings(path).gpu.memory == 141 * 10**9
    told = CliRunner().invoke(render, ["manifests", "--settings", str(path), "--out", str(tmp_path / "out")])
    assert told.exit_code == 0, told.output
    assert "namespace: llm" in (tmp_path / "out/engines/pool-chat.yaml").read_text()
    assert not (tmp_path / "out/engines/pool-short.yaml").exists()
    for text, why in (
        ("pools: {a: {context: 100, usual: 1}}", "pools.a.context: Input should be greater than or equal to"),
        ("pools: {a: {context: 4096, usual: 5000}}", r"pools.a: usual \(5000\) is over context"),
        ("pools: {}", "pools: Dictionary should have at least 1 item"),
        ("serving: controlplane", r"namespace and serving are the same \(controlplane\): give each its own"),
        ("serving: default", r"serving \(default\) is the cluster's: give it one of its own"),
        ("namespace: kube-system", r"namespace \(kube-system\) is the cluster's"),
        ("serving: keda", r"serving and keda are the same \(keda\)"),
        ("gpu: {product: NVIDIA H100}", "gpu.product: String should match pattern"),
        ("gpu: {memory: lots}", r"gpu.memory: not a size like 80GB.*got 'lots'"),
        ("nope: 1", "nope: Extra inputs"),
        ("{", "is not YAML"),
    ):
        path.write_text(text)
        with pytest.raises(ManifestSettingsError, match=why):
            load_settings(path)
        told = CliRunner().invoke(
            render, ["manifests", "--settings", str(path), "--out", str(tmp_path / "out")]
        )
        assert told.exit_code == 1
        assert str(path) in told.output
