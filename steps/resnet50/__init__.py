"""ResNet-50 inference under MLCommons LoadGen, with its overhead and interference.

`benchmark`, `overhead` and `interference` are the three benchmarks. They start
`python -m perfdag.steps.resnet50` on a host, a program that holds LoadGen and PyTorch, and read
its JSON. Only modules of the program import torch or LoadGen at their top.
"""
