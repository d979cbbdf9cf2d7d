"""ResNet-50 inference under MLCommons LoadGen: Offline, Server, SingleStream, peak rate, accuracy, overhead, interference.

`benchmark`, `overhead` and `interference` are the three benchmarks; they start `python -m perfdag.steps.resnet50` on a host, a program of
its own that holds LoadGen and PyTorch, and read the JSON that it prints. Nothing here imports torch or LoadGen at its top.
"""
