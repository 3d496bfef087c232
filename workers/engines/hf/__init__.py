"""The transformers library as generator, teacher and trainer, on a CPU or a GPU."""
