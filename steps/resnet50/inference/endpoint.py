"""A server that speaks the Open Inference Protocol as the system under test."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.inference import open_inference
from perfdag.steps.resnet50.inference.images import IMAGE, preprocess
from perfdag.steps.resnet50.inference.open_inference import (
    Client,
    HttpClient,
    ServerMetadata,
    Tensor,
)
from perfdag.steps.resnet50.inference.pipeline import Pipeline
from perfdag.steps.resnet50.inference.subject import Subject

CHANNELS_FIRST, CHANNELS_LAST = (IMAGE[2], *IMAGE[:2]), IMAGE
CLASSES = 1000


def subject(spec: Mapping[str, Any], repetitions: int) -> Subject:
    """Return the subject of a served model.

    Raises UnusableError if the server does not answer, or the model is unknown or another.
    """
    client = open_inference.connect(spec["endpoint"], spec["model"])
    served = client.served()
    where = f"endpoint {spec['endpoint']}, model {spec['model']}"
    source, sink = tensors(served, spec["batch"], where)
    pipeline = Endpoint(spec, client, source, sink, where)
    classes = pipeline.choose_wire().shape[1]
    facts = {
        "model": {
            "system": "resnet50",
            "runtime": "endpoint",
            "weights": where,
            "wire": client.wire,
        },
        "device": {"name": where, "cuda": None, "memory": None},
        "versions": {"endpoint": f"{served.server} {served.version}"},
    }
    if spec["scenario"] == "accuracy" and classes != CLASSES:
        raise UnusableError(
            "endpoint",
            f"{where} knows {classes} classes: accuracy needs ImageNet's {CLASSES}",
        )
    client.error_kind = "server"  # from here on an error is a failure, and not what is absent
    return Subject(spec, repetitions, pipeline, facts)


def tensors(served: ServerMetadata, batch: int, where: str) -> tuple[Tensor, Tensor]:
    """Return the model's input and output. Raises UnusableError if they are not ResNet-50's."""
    outputs = [output for output in served.outputs if output.datatype == "FP32"]
    if len(served.inputs) != 1 or not outputs:
        raise UnusableError(
            "endpoint",
            f"{where} lists {len(served.inputs)} inputs and {len(outputs)} FP32 outputs:"
            " ResNet-50 has one input, and an FP32 output of logits",
        )
    source = served.inputs[0]
    if source.datatype != "FP32" or not any(
        _takes(source.shape, order) for order in (CHANNELS_FIRST, CHANNELS_LAST)
    ):
        raise UnusableError(
            "endpoint",
            f"{where} takes {source.datatype} {list(source.shape)}:"
            " ResNet-50 takes FP32 [-1, 3, 224, 224] or [-1, 224, 224, 3]",
        )
    if source.shape[0] not in (-1, batch):
        raise UnusableError(
            "endpoint",
            f"{where} takes batches of {source.shape[0]} alone: set batch: {source.shape[0]}",
        )
    return source, outputs[0]


def _takes(shape: tuple[int, ...], order: tuple[int, ...]) -> bool:
    return len(shape) == 4 and all(
        side in (-1, wanted) for side, wanted in zip(shape[1:], order, strict=True)
    )


class Endpoint(Pipeline):
    """Sends each batch as one request, in the layout of the model's input."""

    def __init__(
        self, spec: Mapping[str, Any], client: Client, source: Tensor, sink: Tensor, where: str
    ) -> None:
        super().__init__(spec, lambda batch: client.infer(batch, source, sink.name))
        self._client, self._where = client, where
        self._first = _takes(source.shape, CHANNELS_FIRST)
        if source.shape[0] > 0:
            self.sizes, self.smallest = [source.shape[0]], source.shape[0]

    def prepare(self, raw: np.ndarray) -> np.ndarray:
        pixels = preprocess(raw)
        return np.ascontiguousarray(pixels if self._first else pixels.transpose(0, 2, 3, 1))

    def logits(self, batch: np.ndarray) -> np.ndarray:
        out: np.ndarray = super().logits(batch)
        if out.ndim != 2 or len(out) != len(batch):
            raise UnusableError(
                "endpoint",
                f"{self._where} answers a batch of {len(batch)} with {list(out.shape)}:"
                f" [{len(batch)}, classes] expected",
            )
        return out

    def choose_wire(self) -> np.ndarray:
        """Return the logits of the fixed images, sent as JSON if no binary tensors are taken."""
        try:
            return self.alone()
        except UnusableError:
            if not isinstance(self._client, HttpClient):
                raise
            self._client.binary = False
            return self.alone()
