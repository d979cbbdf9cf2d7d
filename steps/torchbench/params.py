"""Parameters of torchbench, and the models that pytorch/benchmark has at the pinned commit."""

import difflib
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from perfdag.benchmark.contract import Params, refuse

COMMIT = "0e83c440a51cd63464fee34724d01b7c814ce39b"
_MODELS = """
BERT_pytorch Background_Matting LearningToPaint Super_SloMo alexnet basic_gnn_edgecnn basic_gnn_gcn
basic_gnn_gin basic_gnn_sage cm3leon_generate dcgan demucs densenet121
detectron2_fasterrcnn_r_101_c4 detectron2_fasterrcnn_r_101_dc5 detectron2_fasterrcnn_r_101_fpn
detectron2_fasterrcnn_r_50_c4 detectron2_fasterrcnn_r_50_dc5 detectron2_fasterrcnn_r_50_fpn
detectron2_fcos_r_50_fpn detectron2_maskrcnn detectron2_maskrcnn_r_101_c4
detectron2_maskrcnn_r_101_fpn detectron2_maskrcnn_r_50_c4 detectron2_maskrcnn_r_50_fpn dlrm
doctr_det_predictor doctr_reco_predictor drq fastNLP_Bert functorch_dp_cifar10
functorch_maml_omniglot hf_Albert hf_Bart hf_Bert hf_Bert_large hf_BigBird hf_DistilBert hf_GPT2
hf_GPT2_large hf_Longformer hf_Reformer hf_Roberta_base hf_T5 hf_T5_base hf_T5_generate hf_T5_large
hf_Whisper hf_clip hf_distil_whisper lennard_jones llama llama_v2_7b_16h llava maml maml_omniglot
microbench_unbacked_tolist_sum mnasnet1_0 mobilenet_v2 mobilenet_v2_quantized_qat
mobilenet_v3_large moco modded_nanogpt moondream nanogpt nvidia_deeprecommender opacus_cifar10
phlippe_densenet phlippe_resnet pyhpc_equation_of_state pyhpc_isoneutral_mixing
pyhpc_turbulent_kinetic_energy pytorch_CycleGAN_and_pix2pix pytorch_stargan pytorch_unet resnet152
resnet18 resnet50 resnet50_quantized_qat resnext50_32x4d sam sam_fast shufflenet_v2_x1_0 simple_gpt
simple_gpt_tp_manual soft_actor_critic speech_transformer squeezenet1_1
stable_diffusion_text_encoder stable_diffusion_unet tacotron2 timm_efficientdet timm_efficientnet
timm_nfnet timm_regnet timm_resnest timm_vision_transformer timm_vision_transformer_large
timm_vovnet torch_multimodal_clip tts_angular vgg16 vision_maskrcnn yolov3
"""
MODELS = frozenset(_MODELS.split())
"""Folders of torchbenchmark/models at COMMIT."""
# Their train() raises NotImplementedError, or returns one, which invoke() drops.
_WITHOUT_TRAIN = """
doctr_det_predictor doctr_reco_predictor hf_Whisper hf_distil_whisper llama llava maml
microbench_unbacked_tolist_sum modded_nanogpt moondream pyhpc_equation_of_state
pyhpc_isoneutral_mixing pyhpc_turbulent_kinetic_energy sam sam_fast simple_gpt simple_gpt_tp_manual
stable_diffusion_text_encoder stable_diffusion_unet
"""
_EVAL_ONLY = frozenset(_WITHOUT_TRAIN.split())
# run.py refuses the others, except amp on a CPU, which it accepts and computes as fp32.
_PRECISIONS = {
    "cpu": ("fp32", "bf16", "amp_bf16"),
    "cuda": ("fp32", "tf32", "fp16", "bf16", "amp", "amp_fp16"),
}


class TorchbenchParams(Params):
    """Options of run.py, and how long it measures."""

    model: str = Field(
        "resnet50", description="model of pytorch/benchmark, for example alexnet, resnet50, llama"
    )
    test: Literal["eval", "train"] = Field(
        "eval", description="inference or training; some models have inference only"
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="cuda: one GPU, which is what run.py drives"
    )
    batch_size: int = Field(1, ge=1, le=65536, description="samples of a batch")
    precision: Literal["fp32", "tf32", "fp16", "bf16", "amp", "amp_fp16", "amp_bf16"] | None = (
        Field(
            None,
            description="default as upstream: fp32 on CPU,"
            " fp16 for many models' inference on CUDA; the rows and charts name the one used",
        )
    )
    compile: bool = Field(
        False,
        description="torch.compile (inductor) instead of eager; its time is reported separately",
    )
    iterations: int = Field(10, ge=3, le=100_000, description="measured batches")
    warmup: int = Field(
        3, ge=0, le=10_000, description="batches after the first and before the measured ones"
    )
    gpus: int = Field(1, ge=1, description="GPUs used; run.py uses one, so 1 is the only value")
    threads: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="CPU threads of torch; default its own choice"
    )
    path: str | None = Field(
        None,
        description="checkout of pytorch/benchmark; default $PERFDAG_TORCHBENCH, or the image's",
    )
    python: str | None = Field(
        None, description="interpreter that has torch; default the one that runs perfdag"
    )

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model not in MODELS:
            near = difflib.get_close_matches(model, MODELS, n=3, cutoff=0.4)
            raise ValueError(
                f"{model!r} is not a model of pytorch/benchmark at {COMMIT[:7]}; near:"
                f" {', '.join(near) or 'none'}; {len(MODELS)} can be measured"
            )
        return model

    @model_validator(mode="after")
    def _agree(self) -> Self:
        precisions = _PRECISIONS[self.device]
        refuse(
            (
                self.test == "train" and self.model in _EVAL_ONLY,
                f"{self.model} has no train, only eval",
            ),
            (
                self.gpus != 1,
                f"gpus: {self.gpus}: run.py drives one GPU; the only value is 1",
            ),
            (
                self.precision and self.precision not in precisions,
                f"precision {self.precision}: device {self.device} has {', '.join(precisions)}",
            ),
        )
        return self
