"""ResNet-50 inference under MLCommons LoadGen, with its overhead and interference.

`benchmark`, `overhead` and `interference` are the three benchmarks. They start `program` on a host,
which holds LoadGen and PyTorch, and read its JSON. Only the program imports torch or LoadGen.
"""
