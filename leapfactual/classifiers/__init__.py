"""Classifiers: what answers with class probabilities."""

from .callables import from_labels, from_logits

__all__ = ["from_labels", "from_logits"]
