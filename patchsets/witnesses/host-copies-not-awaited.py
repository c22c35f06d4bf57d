"""Results of a worker are copied to the host without waiting for the copy.

tensordict 0.9.1 copies non-blocking, then calls `_sync_all`, which knows CUDA and MPS only (base.py:13948). Ended by
verl cc2799b235 (verl/__init__.py), and by tensordict 0.10.0.

A device whose non-blocking copies land when the device is synchronized stands in for the NPU's. A second copy is made
with torch.cuda's functions in the NPU's place, as torch_npu.contrib.transfer_to_npu puts them: that one arrives.
"""

import json

import torch
import torch_npu  # noqa: F401
from tensordict import TensorDict

torch.npu.is_available = lambda: True  # verl cc2799b235 asks, at its import and at each copy

from verl import DataProto  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

pending = []
real_to = torch.Tensor.to
computed = torch.arange(1.0, 9).view(4, 2)


def to(self, *args, **kwargs):
    result = real_to(self, *args, **{**kwargs, "non_blocking": False})
    if kwargs.get("non_blocking"):
        late = torch.zeros_like(result)
        pending.append((late, result.clone()))
        return late
    return result


def synchronize(*_):
    while pending:
        late, value = pending.pop()
        late.copy_(value)


def sent():
    """Return the content of a worker's `output.to("cpu")` at the time it returns."""
    batch = DataProto(batch=TensorDict({"old_log_probs": computed.clone()}, [4]))
    torch.Tensor.to = to
    try:
        return batch.to("cpu").batch["old_log_probs"].clone()
    finally:
        torch.Tensor.to = real_to


torch.npu.synchronize = synchronize
plain = sent()
pending.clear()
torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
torch.cuda.synchronize = synchronize
transferred = sent()
figures = {
    "arrived": int((plain == computed).sum()),
    "arrived with transfer_to_npu": int((transferred == computed).sum()),
    "of": computed.numel(),
}
print(json.dumps({"fault": not torch.equal(plain, computed), **figures}))
