"""A tensor's memory as bytes and bytes as a tensor, copied only where they must be.

The one module below the clients that imports torch; `cells` imports it when it meets a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from transferqueue.dtypes import TENSOR_ITEMSIZE
from transferqueue.wire.values import CannotCarry, type_name

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Stays = Callable[[torch.device], bool]
"""Whether the bytes of tensors on a device are left there."""


def nowhere(device: torch.device) -> bool:
    """A `Stays`: all bytes are wanted on the host."""
    del device
    return False


TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, name) for name in TENSOR_ITEMSIZE if hasattr(torch, name)
}
"""Every dtype of the wire format that this version of torch has."""


def dtype_name(tensor: torch.Tensor) -> str:
    """The torch dtype's name, e.g. ``"bfloat16"``."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_bytes(tensor: torch.Tensor) -> Bytes:
    """The elements in C order, uint8 ``[bytes]``.

    The tensor's own memory when it is contiguous on the CPU. Otherwise one copy of just its
    elements, however large the tensor is that it is a slice of. A tensor that requires a gradient
    is detached, one of a GPU is copied to the CPU. Raises `CannotCarry`.
    """
    found = tensor_block(tensor, nowhere)
    assert isinstance(found, np.ndarray)
    return found


def tensor_block(tensor: torch.Tensor, stays: Stays) -> Bytes | torch.Tensor:
    """`tensor_bytes`, but of a tensor that stays on its device a uint8 tensor ``[bytes]`` there:
    its own memory when that is contiguous, else a copy on the device."""
    refuse_unless_plain(tensor)
    if tensor.numel() == 0:
        return np.empty(0, dtype=np.uint8)
    plain = tensor.detach().resolve_conj().resolve_neg()
    on_device = plain.device.type != "cpu" and stays(plain.device)
    try:
        block = (plain if on_device else plain.cpu()).contiguous().reshape(-1).view(torch.uint8)
        if on_device:
            return block
        array: Bytes = block.numpy()
    except (RuntimeError, TypeError) as error:  # a subclass without memory of its own
        raise CannotCarry(type_name(tensor), f"make it a plain torch.Tensor ({error})") from error
    return array


def tensor_from_bytes(
    payload: Bytes | torch.Tensor, dtype: str, shape: tuple[int, ...]
) -> torch.Tensor:
    """Inverse of `tensor_bytes`; shares the memory of ``payload``, which must be writable. Of a
    uint8 tensor ``[bytes]`` it is on the same device.

    The caller has checked that the sizes agree. Raises ``ValueError`` for a dtype that this
    version of torch does not have, and for an empty shape whose other sizes are beyond it.
    """
    torch_dtype = TORCH_DTYPES.get(dtype)
    if torch_dtype is None:
        raise ValueError(f"torch {torch.__version__} has no dtype {dtype!r}")
    block = payload if isinstance(payload, torch.Tensor) else torch.from_numpy(payload)
    if payload.nbytes == 0:
        try:
            return torch.empty(shape, dtype=torch_dtype, device=block.device)
        except RuntimeError as error:
            raise ValueError(f"no tensor of shape {shape}: {error}") from error
    return block.view(torch_dtype).view(shape)


def pick(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """A copy of the positions ``index`` (int64 [n], of the tensor's device) along ``dim``."""
    signed = _SIGNED.get(tensor.dtype)
    if signed is None:
        return tensor.index_select(dim, index)
    return tensor.view(signed).index_select(dim, index).view(tensor.dtype)


_SIGNED: Final = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
"""torch 2.13 cannot ``index_select`` a one-dimensional tensor of these; of the same bits it can."""


def refuse_unless_plain(tensor: torch.Tensor) -> None:
    """Raise `CannotCarry`, with the way out, unless it is strided memory of a known dtype."""
    if tensor.is_quantized:
        raise CannotCarry("quantized tensor", "put .dequantize(), or .int_repr() and the scale")
    if tensor.is_nested:
        raise CannotCarry(*_nested_refusal(tensor))
    if tensor.layout is not torch.strided:
        raise CannotCarry(f"tensor of layout {tensor.layout}", "put .to_dense()")
    if tensor.device.type == "meta":
        raise CannotCarry("tensor on the meta device", "it has no data; materialize it first")
    if dtype_name(tensor) not in TORCH_DTYPES:
        raise CannotCarry(f"tensor of dtype {tensor.dtype}", "convert it with .to(...)")
    wraps_another: bool = is_traceable_wrapper_subclass(tensor)
    if wraps_another:
        raise CannotCarry(type_name(tensor), "put a plain tensor, e.g. .full_tensor()")


def _nested_refusal(tensor: torch.Tensor) -> tuple[str, str]:
    if tensor.layout is torch.jagged:
        return "nested tensor in an object", "put it as a field of its own, or .unbind() it"
    return (
        "nested tensor of the strided layout",
        "put torch.nested.nested_tensor(list(t.unbind()), layout=torch.jagged)",
    )
