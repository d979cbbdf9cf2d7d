"""torchbench: time of a training or inference batch of a model."""
