"""Megatron-core as trainer and as teacher: one model over tensor, pipeline and data-parallel ranks.

library        what is used of Megatron-core, imported once
cpu            the two things it asks of CUDA, where there is none
layout         this rank's place among the others
architecture   what the config.json of a checkpoint says, and what is refused
mapping        tensors of a checkpoint to those of a rank, and back
model          building and loading
inputs         rows of tokens side by side: padded or packed
packing        the arithmetic of packed rows, over context-parallel ranks too
stage          this rank's part of a forward pass and its neighbours in the pipeline
vocabulary     log-probs, top k and logits where the LM head is cut over ranks
scorer, trainer, optimizer, state
"""
