"""Export torchvision's ResNet-50 to ONNX, with the weights that the torch runtime would have.

    python -m perfdag.steps.resnet50.inference.onnx_export FILE.onnx [--weights FILE] [--seed 0]

It needs PyTorch and onnxscript. The input is `input`, float32 (batch, 3, 224, 224), and the
output `logits`, float32 (batch, 1000).
"""

import argparse
import contextlib
import sys
import warnings
from typing import Any

import numpy as np
import torch

from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.inference.network import build, reference


def export(
    path: str, weights: str, seed: int, sha256: str | None = None
) -> tuple[dict[str, Any], np.ndarray]:
    """Write the model; return its weights' facts and the reference logits.

    Raises UnusableError as `build` does, ModuleNotFoundError without onnxscript.
    """
    net, facts = build(weights, seed, sha256)
    # The exporter prints its progress, and warns of its own deprecated calls.
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            net,
            (torch.zeros(2, 3, 224, 224),),
            dynamo=True,
            input_names=["input"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    program.save(path)
    return facts, reference(net, seed)


def main() -> int:
    """Export to a file. Exit 2 if the weights cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m perfdag.steps.resnet50.inference.onnx_export",
        description="write ResNet-50 as ONNX, for ONNX Runtime, OpenVINO or a server",
    )
    parser.add_argument("file", help="the ONNX file to write")
    parser.add_argument("--weights", default="random", help="torchvision's state dict")
    parser.add_argument("--seed", type=int, default=0, help="seed of random weights")
    args = parser.parse_args()
    try:
        export(args.file, args.weights, args.seed)
    except UnusableError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
