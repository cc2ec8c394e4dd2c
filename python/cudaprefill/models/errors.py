"""Why a model is refused at load."""

from __future__ import annotations


class UnsupportedModelError(ValueError):
    """The model's configuration asks for something that this engine does not compute."""


class WeightsError(ValueError):
    """The model's files are missing, damaged or do not hold the tensors that its configuration needs."""
