"""Memory that a `CudaDevice` copies from and to: the driver's, torch's, and the host's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from transferqueue.devices.base import DeviceBlock, Registration
from transferqueue.errors import Closed
from transferqueue.memory.copying import as_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


class CudaBlock(DeviceBlock):
    """A pointer of the driver's."""

    def __init__(
        self,
        uuid: str,
        pointer: int,
        nbytes: int,
        token: str | None,
        let_go: Callable[[int, str | None], None],
    ) -> None:
        """``token``: of the handle that it was opened by, ``None`` for one's own. ``let_go``: hears
        of the pointer and the token when the block is closed."""
        self.uuid, self.nbytes, self.is_own = uuid, nbytes, token is None
        self._token, self._let_go = token, let_go
        self._pointer: int | None = pointer

    @property
    def address(self) -> int:
        if self._pointer is None:
            raise Closed("this block of device memory")
        return self._pointer

    def close(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._let_go(pointer, self._token)


class TensorBlock(DeviceBlock):
    """Memory of torch's, which frees it."""

    def __init__(self, uuid: str, pointer: int, nbytes: int) -> None:
        self.uuid, self.nbytes, self.is_own = uuid, nbytes, False
        self._pointer = pointer

    @property
    def address(self) -> int:
        return self._pointer

    def close(self) -> None:
        pass


class CudaRegistration(Registration):
    """Page-locked memory of the host."""

    def __init__(self, memory: memoryview, unlock: Callable[[int], None]) -> None:
        """``unlock``: undoes it for the memory at an address."""
        self._memory: memoryview | None = memory
        self._unlock = unlock

    def close(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(Closed):
                self._unlock(as_bytes(memory).ctypes.data)


class CudaArray:
    """Memory of a device as torch takes it without a copy, and what is to live as long. It is not
    said to be read-only, as torch refuses that."""

    def __init__(self, pointer: int, nbytes: int, keep: object) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }
        self._keep = keep
