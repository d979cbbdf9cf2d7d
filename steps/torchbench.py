"""torchbench: models of pytorch/benchmark, timed by its own run.py at a pinned commit, on CPU or GPU."""

import json
import os
import re
import statistics
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from perfdag.benchmark import Benchmark, Failed, Gang, Invalid, Measurement, Metric, Output, Params, Skip
from perfdag.hosts import Host
from perfdag.shape import Shape
from perfdag.stats.percentiles import nearest_rank, needed
from perfdag.steps import devices, gpu
from perfdag.steps.profile import parts
from perfdag.steps.torchbench_run import MARK

COMMIT = "0e83c440a51cd63464fee34724d01b7c814ce39b"
IMAGE_CHECKOUT = "/opt/torchbench"
RUNNER = Path(__file__).with_name("torchbench_run.py")
_MODELS = """
BERT_pytorch Background_Matting LearningToPaint Super_SloMo alexnet basic_gnn_edgecnn basic_gnn_gcn basic_gnn_gin basic_gnn_sage
cm3leon_generate dcgan demucs densenet121 detectron2_fasterrcnn_r_101_c4 detectron2_fasterrcnn_r_101_dc5 detectron2_fasterrcnn_r_101_fpn
detectron2_fasterrcnn_r_50_c4 detectron2_fasterrcnn_r_50_dc5 detectron2_fasterrcnn_r_50_fpn detectron2_fcos_r_50_fpn detectron2_maskrcnn
detectron2_maskrcnn_r_101_c4 detectron2_maskrcnn_r_101_fpn detectron2_maskrcnn_r_50_c4 detectron2_maskrcnn_r_50_fpn dlrm
doctr_det_predictor doctr_reco_predictor drq fastNLP_Bert functorch_dp_cifar10 functorch_maml_omniglot hf_Albert hf_Bart hf_Bert
hf_Bert_large hf_BigBird hf_DistilBert hf_GPT2 hf_GPT2_large hf_Longformer hf_Reformer hf_Roberta_base hf_T5 hf_T5_base hf_T5_generate
hf_T5_large hf_Whisper hf_clip hf_distil_whisper lennard_jones llama llama_v2_7b_16h llava maml maml_omniglot
microbench_unbacked_tolist_sum mnasnet1_0 mobilenet_v2 mobilenet_v2_quantized_qat mobilenet_v3_large moco modded_nanogpt moondream
nanogpt nvidia_deeprecommender opacus_cifar10 phlippe_densenet phlippe_resnet pyhpc_equation_of_state pyhpc_isoneutral_mixing
pyhpc_turbulent_kinetic_energy pytorch_CycleGAN_and_pix2pix pytorch_stargan pytorch_unet resnet152 resnet18 resnet50
resnet50_quantized_qat resnext50_32x4d sam sam_fast shufflenet_v2_x1_0 simple_gpt simple_gpt_tp_manual soft_actor_critic
speech_transformer squeezenet1_1 stable_diffusion_text_encoder stable_diffusion_unet tacotron2 timm_efficientdet timm_efficientnet
timm_nfnet timm_regnet timm_resnest timm_vision_transformer timm_vision_transformer_large timm_vovnet torch_multimodal_clip tts_angular
vgg16 vision_maskrcnn yolov3
"""
MODELS = frozenset(_MODELS.split())
"""Folders of torchbenchmark/models at COMMIT."""
_EVAL_ONLY = {"llama"}
# run.py refuses the others, but for amp on a CPU, which it takes and computes as fp32
_PRECISIONS = {"cpu": ("fp32", "bf16", "amp_bf16"), "cuda": ("fp32", "tf32", "fp16", "bf16", "amp", "amp_fp16")}
_PARTS = 100  # of a run whose batches are told apart; its text in the store has each
_PRINTED = re.compile(r"^(?:CPU Wall Time|GPU Time) per batch:\s*([0-9.]+) milliseconds", re.M)
_COMPILE = re.compile(r"^PT2 Compilation time:\s*([0-9.]+) seconds", re.M)
# no way out: a model that wants to download fails at once, and the row says so
_OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9") | {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class TorchbenchParams(Params):
    """What run.py is asked for."""

    model: str = Field("resnet50", description="model of pytorch/benchmark, for example alexnet, resnet50, llama")
    test: Literal["eval", "train"] = Field("eval", description="inference or training; some models have inference only")
    device: Literal["cpu", "cuda"] = Field("cpu", description="cuda: one GPU, which is what run.py drives")
    batch_size: int = Field(1, ge=1, le=65536, description="samples of a batch")
    precision: Literal["fp32", "tf32", "fp16", "bf16", "amp", "amp_fp16", "amp_bf16"] | None = Field(
        None, description="default as upstream: fp32 on CPU, fp16 for many models' inference on CUDA"
    )
    compile: bool = Field(False, description="torch.compile (inductor) instead of eager; its time is measured apart")
    iterations: int = Field(10, ge=3, le=100_000, description="measured batches")
    warmup: int = Field(3, ge=0, le=10_000, description="batches before, after the first")
    gpus: int = Field(1, ge=1, description="GPUs used; run.py uses one, so 1 is the only value")
    threads: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="CPU threads of torch; default its own choice")
    path: str | None = Field(None, description="checkout of pytorch/benchmark; default $PERFDAG_TORCHBENCH, or the image's")
    python: str | None = Field(None, description="interpreter that has torch; default the one that runs perfdag")

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model not in MODELS:
            import difflib

            near = difflib.get_close_matches(model, MODELS, n=3, cutoff=0.4)
            raise ValueError(
                f"{model!r} is not a model of pytorch/benchmark at {COMMIT[:7]}; near: {', '.join(near) or 'none'}; {len(MODELS)} are known"
            )
        return model

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.test == "train" and self.model in _EVAL_ONLY:
            raise ValueError(f"{self.model} has no train, only eval")
        if self.gpus != 1:
            raise ValueError(f"gpus: {self.gpus}: run.py drives one GPU; the only value is 1")
        if self.precision and self.precision not in _PRECISIONS[self.device]:
            raise ValueError(f"precision {self.precision}: device {self.device} has {', '.join(_PRECISIONS[self.device])}")
        return self


class Torchbench(Benchmark[TorchbenchParams]):
    """Time of one batch of a model of pytorch/benchmark, by its own run.py.

    Clock: run.py's. It starts before one call of the model, its input in place, and stops when the call has returned: time.time_ns() on CPU,
    on CUDA events between two synchronisations. Imports, construction, the first call and the warm-up are outside.
    """

    name: ClassVar[str] = "torchbench"
    image: ClassVar[str] = "torchbench"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[TorchbenchParams]] = TorchbenchParams
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("batch_time", "s", "lower", "median time of one batch: GPU events on cuda, wall time on cpu", headline=True),
        Metric("samples_rate", "1/s", "higher", "samples a second: batch size by the median wall time of a batch"),
        Metric("batch_time_spread", "s", "lower", "time of one batch: min, mean, max and, where the batches suffice, p90 and p99"),
        Metric("iteration_time", "s", "none", f"time of each batch in order; of more than {_PARTS} the mean of each of so many parts"),
        Metric("time_to_first_batch", "s", "lower", "construction of the model and its first call, compilation included; imports not"),
        Metric("compile_time", "s", "lower", "time in torch.compile"),
        Metric("cpu_memory", "B", "lower", "peak resident memory of the process"),
        Metric("gpu_memory", "B", "lower", "peak memory allocated by torch on the GPU"),
        Metric("gpus_used", "1", "none", "GPUs on which the process allocated memory"),
        Metric("gpus_visible", "1", "none", "GPUs that the process could have used"),
    )

    def check(self, params: TorchbenchParams, shape: Shape) -> list[str]:
        problems = []
        gpus = devices.gpus(shape)
        if params.device == "cpu" and gpus:
            problems.append(f"device: cpu would hold {gpus[0]} idle; drop the resource, or use device: cuda")
        if shape.hosts.count > 1:
            problems.append(f"run.py runs on one host, and hosts.count is {shape.hosts.count}; leave hosts.count out")
        return problems

    def seconds(self, params: TorchbenchParams) -> float:
        work = {"eval": 0.15, "train": 0.5}[params.test] * params.batch_size * (0.02 if params.device == "cuda" else 1)
        return 15 + (params.iterations + params.warmup + 3) * work + (60 if params.compile else 0)

    def prepare(self, gang: Gang, params: TorchbenchParams) -> None:
        host, python = gang.hosts[0], _python(params)
        checkout = params.path or os.environ.get("PERFDAG_TORCHBENCH") or IMAGE_CHECKOUT
        for file in ("run.py", f"torchbenchmark/models/{params.model}/__init__.py"):
            if host.run(["test", "-f", f"{checkout}/{file}"], timeout=10).code != 0:
                raise Skip(
                    f"no {file} in {checkout} on {host.name}: git clone https://github.com/pytorch/benchmark, check out {COMMIT[:12]}, "
                    "and name the folder with the parameter path or PERFDAG_TORCHBENCH"
                )
        if host.run([python, "-c", "import torch, torchvision"], timeout=120).code != 0:
            how = "pip install 'perfdag[torch]' (with uv: uv pip install)"
            raise Skip(f"{python} on {host.name} has no torch and torchvision: {how}, or use the parameter python")
        if params.device == "cuda":
            lacking = gpu.problem(host)
            if lacking:
                raise Skip(lacking)
        # an image's TORCH_HOME is not ours to write to; what it lacks is made in a folder of our own
        homes = [*([os.environ["TORCH_HOME"]] if os.environ.get("TORCH_HOME") else []), f"{gang.scratch}/torch-home"]
        made = host.run([python, str(RUNNER), "weights", *homes, params.model], timeout=gang.timeout, env=_OFFLINE)
        home = made.check("writing random weights").stdout.rpartition(MARK)[2].strip()
        gang.notes |= {"checkout": checkout, "home": home, "commit": _commit(host, checkout)}

    def provenance(self, gang: Gang, params: TorchbenchParams) -> dict[str, Any]:
        facts: dict[str, Any] = {"torchbench_commit": gang.notes["commit"], "weights": "random, seeded: speed only, no accuracy"}
        if params.device == "cuda":
            facts["gpus"] = gpu.facts(gang.hosts[0])
        return facts

    def run(self, gang: Gang, params: TorchbenchParams) -> Output:
        host = gang.hosts[0]
        argv = [_python(params), str(RUNNER), "run", gang.notes["checkout"], str(params.warmup), str(params.iterations), *arguments(params)]
        env = {**_OFFLINE, "TORCH_HOME": gang.notes["home"], "PYTHONDONTWRITEBYTECODE": "1"}
        if params.threads:
            env |= {"OMP_NUM_THREADS": str(params.threads), "MKL_NUM_THREADS": str(params.threads)}
        watching: AbstractContextManager[dict[str, Any]] = gpu.watched(host) if params.device == "cuda" else nullcontext({})
        with watching as facts:
            finished = host.run(argv, timeout=gang.timeout, env=env, cwd=gang.scratch)
        if finished.timed_out:
            raise Failed(f"{params.model} did not end within {gang.timeout:g} s", finished.texts())
        if finished.code != 0:
            raise _explained(params, finished.stdout + finished.stderr, finished.texts()) or Failed(
                f"run.py {params.model} exited {finished.code}: {finished.tail()}", finished.texts()
            )
        report = read_report(finished.stdout)
        tool = f"torch {report['torch']}, pytorch/benchmark {gang.notes['commit'][:12]}"
        return Output(finished.texts(), [argv], tool, facts)

    def series(self, output: Output) -> str:
        return output.tool

    def parse(self, output: Output, params: TorchbenchParams) -> list[Measurement]:
        stdout = output.texts.get("stdout", "")
        report = read_report(stdout)
        walls = _times(report, "wall_s", params)
        own = _times(report, "gpu_s", params) if params.device == "cuda" else walls
        printed = _PRINTED.search(stdout)
        median = statistics.median(own)
        # the printed median has three decimals of a millisecond; the two differ only if the raw times are not those of run.py
        if printed is None or abs(float(printed[1]) / 1e3 * report["batches"] - median) > 1e-6 + 0.001 * median:
            raise Failed("the median that run.py prints is not that of the raw times", output.texts)
        n = len(own)
        made = [
            Measurement("batch_time", median, n=n),
            Measurement("samples_rate", params.batch_size / statistics.median(walls), n=n),
            Measurement("batch_time_spread", min(own), "min", n=n),
            Measurement("batch_time_spread", statistics.fmean(own), "mean", n=n),
            Measurement("batch_time_spread", max(own), "max", n=n),
            Measurement("time_to_first_batch", report["construct_s"] + report["first_call_s"]),
        ]
        for stat, part in (("p90", 0.9), ("p99", 0.99)):
            if n >= needed(part):
                made.append(Measurement("batch_time_spread", nearest_rank(own, part), stat, n=n))
        made += parts("iteration_time", "iteration", own, _PARTS)
        made += _memory(report)
        compiled = _COMPILE.search(stdout)
        if params.compile:
            took = report.get("compile_s") or (float(compiled[1]) if compiled else None)
            if took is None:
                raise Failed("compile: true, but torch names no compilation time", output.texts)
            made.append(Measurement("compile_time", float(took)))
        _check_claims(report, params, output, made)
        return made


def arguments(params: TorchbenchParams) -> list[str]:
    """run.py's arguments."""
    argv = [params.model, "-d", params.device, "-t", params.test, "--bs", str(params.batch_size)]
    argv += ["--metrics", "cpu_peak_mem,ttfb" + (",gpu_peak_mem" if params.device == "cuda" else "")]
    if params.precision:
        argv += ["--precision", params.precision]
    if params.compile:
        argv += ["--torchdynamo", "inductor"]
    return argv


def read_report(text: str) -> dict[str, Any]:
    """The runner's last line. Raises Failed where it is absent or cut."""
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    try:
        report: dict[str, Any] = dict(json.loads(lines[-1].removeprefix(MARK)))
    except (IndexError, ValueError, TypeError):
        raise Failed("run.py ended without a whole report", {"stdout": text}) from None
    absent = {"wall_s", "batches", "batch_size", "construct_s", "first_call_s", "max_rss_bytes", "device", "torch"} - report.keys()
    if absent:
        raise Failed(f"the report lacks {', '.join(sorted(absent))}", {"stdout": text})
    return report


def _commit(host: Host, checkout: str) -> str:
    """The checkout's commit, from the image's stamp or git. Raises Skip: a figure whose program is unknown compares with nothing."""
    stamp = host.run(["cat", f"{checkout}/.perfdag-commit"], timeout=10)
    if stamp.code == 0:
        return stamp.stdout.strip()
    asked = ["git", "-c", f"safe.directory={checkout}", "-C", checkout, "rev-parse", "HEAD"]
    head = host.run(asked, timeout=10) if host.which("git") else None
    if head is None or head.code != 0:
        raise Skip(
            f"{checkout} on {host.name} does not say which commit of pytorch/benchmark it is: make it a git clone (git must be installed), "
            f"or write the commit to {checkout}/.perfdag-commit"
        )
    return head.stdout.strip()


def _python(params: TorchbenchParams) -> str:
    return params.python or sys.executable


def _times(report: dict[str, Any], name: str, params: TorchbenchParams) -> list[float]:
    times = [float(each) for each in report.get(name, [])]
    if len(times) != params.iterations or not all(each > 0 for each in times):
        raise Failed(f"{len(times)} of {params.iterations} iterations have a time ({name})")
    return times


def _memory(report: dict[str, Any]) -> list[Measurement]:
    # not the `CPU Peak Memory` that run.py prints: at COMMIT it takes a percentage for a fraction, 100 times too much
    made = [Measurement("cpu_memory", float(report["max_rss_bytes"]))]
    if report["device"] == "cuda":
        made.append(Measurement("gpu_memory", float(sum(report["gpu_peak_bytes"]))))
        made.append(Measurement("gpus_used", float(report["gpus_used"])))
        made.append(Measurement("gpus_visible", float(report["gpus_visible"])))
    return made


def _check_claims(report: dict[str, Any], params: TorchbenchParams, output: Output, made: list[Measurement]) -> None:
    """Raise Invalid where another device, batch, precision or number of GPUs was measured than asked for."""
    if report["device"] != params.device or (params.device == "cuda" and report["gpus_used"] != params.gpus):
        raise Invalid(
            f"ran on {report['device']} with {report.get('gpus_used', 0)} GPUs, not {params.device} with {params.gpus}", output.texts, made
        )
    if report["batch_size"] != params.batch_size:
        raise Invalid(f"{params.model} used batch size {report['batch_size']}, not {params.batch_size}", output.texts, made)
    if params.precision and report.get("precision") != params.precision:
        raise Invalid(f"{params.model} used precision {report.get('precision')}, not {params.precision}", output.texts, made)
    if output.facts.get("slowed"):
        raise Invalid(output.facts["slowed"], output.texts, made)


def _explained(params: TorchbenchParams, said: str, texts: dict[str, str]) -> Skip | Failed | None:
    if "127.0.0.1:9" in said or "urlopen error" in said or "OfflineModeIsEnabled" in said or "ProxyError" in said:
        return Failed(
            f"{params.model} wants to download weights or data, and measuring has no network; use a model that builds its own", texts
        )
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", said)
    if missing:
        return Skip(
            f"{params.model} needs the Python package {missing[1]}: pip install -r requirements.txt of the checkout",
            texts,
        )
    if "out of memory" in said:
        return Failed(f"{params.model} with batch size {params.batch_size} does not fit into memory", texts)
    return None
