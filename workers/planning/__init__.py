"""What a recipe would take, from the recipe and its checkpoints' headers alone: no weights, no GPU, no torch.

shapes.py     a model: numbers, layers, widths
memory.py     bytes of one process of each role
columns.py    bytes of each column: by token, and by step
plan.py       all of it together: processes, nodes, memory, store, and what would not fit
"""
