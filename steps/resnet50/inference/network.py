"""torchvision's ResNet-50 in fp32, with seeded weights or those of a file."""

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
import torchvision

from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.inference.images import images, preprocess

KNOWN = {"0676ba61", "11ad3fa6", "19c8e357"}
"""First digits of the SHA-256 of torchvision's files of weights (ResNet50_Weights)."""


def build(
    weights: str, seed: int, sha256: str | None = None
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return an fp32 model in eval mode on the CPU, and its weights. Raises UnusableError."""
    torch.manual_seed(seed)
    net = torchvision.models.resnet50(weights=None)
    if weights == "random":
        # With the untrained statistics 0 and 1, the activations of 16 blocks overflow fp16.
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
            if isinstance(module, torchvision.models.resnet.Bottleneck):
                # Untrained blocks would amplify every rounding tenfold. Trained ones add little.
                torch.nn.init.constant_(module.bn3.weight, 0.2)
        with torch.no_grad():
            net.train()(torch.from_numpy(preprocess(images(seed, range(4)))))
        return net.eval(), {"weights": f"random, seed {seed}", "trained": False}
    path = Path(weights)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnusableError(
            "weights",
            f"weights {weights}: {error.strerror}; give a file of torchvision's ResNet-50 or"
            " `random`",
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    named = re.fullmatch(r"resnet50-([0-9a-f]{8,64})\.pth", path.name)
    wanted = sha256 or (named[1] if named else "")
    if not digest.startswith(wanted):
        advice = "correct weights_sha256" if sha256 else "rename it, or set weights_sha256"
        raise UnusableError(
            "weights",
            f"weights {weights} are not what they claim: sha256 {digest[:16]}...,"
            f" {wanted[:16]} expected; download the file again, or {advice}",
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(state, dict) and "state_dict" in state:
            raise ValueError("it is a checkpoint; save what its `state_dict` holds alone")
        net.load_state_dict(state)
    except Exception as error:
        # The first line of load_state_dict()'s message only counts the errors.
        message = " ".join(" ".join(str(error).splitlines()[:2]).split())
        raise UnusableError(
            "weights",
            f"weights {weights} are no state dict of torchvision's ResNet-50: {message[:200]}",
        ) from None
    verified = bool(wanted) or digest[:8] in KNOWN
    return net.eval(), {
        "weights": str(path),
        "weights_sha256": digest,
        "weights_verified": verified,
        "trained": True,
    }
