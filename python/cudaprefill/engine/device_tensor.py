"""Small tensors made on the host for the device that the logits are on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def device_tensor(
    values: Sequence[float] | npt.NDArray[np.generic], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """`values` as a tensor on `device`, without waiting for what the device still has to do."""
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)
