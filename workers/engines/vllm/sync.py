"""What runs inside vLLM's worker, by name through ``collective_rpc``: weights in place, and what hangs on them.

Raw log-probs, and those of prompts, are taken of the logits as the model's logits processor gives them. So it is there
that the temperature goes in, and that the padding of the LM head is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class WeightSync:
    """Methods that vLLM adds to its worker (``worker_extension_cls``)."""

    model_runner: Any

    def take_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load *tensors*, named as in the Hugging Face checkpoint, over those in use."""
        self.model_runner.reload_weights(weights_iterator=iter(tensors.items()))
        repack_tied_head(self.model_runner.get_model())

    def limit_vocabulary(self, size: int) -> None:
        """Ids from *size* on are padding of the LM head: outside every softmax."""
        self._processor.org_vocab_size = min(self._processor.org_vocab_size, size)

    def divide_logits(self, now: float, before: float) -> None:
        """Divide all logits by *now* instead of by *before*."""
        self._processor.scale *= before / now

    @property
    def _processor(self) -> Any:
        return self.model_runner.get_model().logits_processor


def repack_tied_head(model: Any) -> None:
    """Pack the LM head again where it is the embedding.

    On a CPU the head multiplies by a packed copy of its weight, which a reload of the embedding leaves as it was.
    """
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    weight = getattr(head, "weight", None)
    if head is None or embedding is None or weight is None or head is embedding:
        return
    if weight.device.type == "cpu" and weight.data_ptr() == embedding.weight.data_ptr():
        head.quant_method.process_weights_after_loading(head)
