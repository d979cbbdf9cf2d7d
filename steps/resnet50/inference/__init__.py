"""The network under test on its device: images, weights, batches, timing and checks."""
