"""ResNet-50 inference under MLCommons LoadGen.

It measures Offline, Server, SingleStream, peak rate, accuracy, overhead and interference.
`benchmark`, `overhead` and `interference` are the three benchmarks. They start
`python -m perfdag.steps.resnet50` on a host, a program that holds LoadGen and PyTorch, and read
its JSON. No module here imports torch or LoadGen at its top, except those the program imports.
"""
