"""C calls on a handle that an earlier call of the loop has written."""

from __future__ import annotations

from numba import carray, int64

from .native import _address_as_void_pointer, _c_call, _compiled_address


def _call_with_handle(function: int, where: int) -> int:
    """A function of one handle, which is at an address: a callee that takes a C int reads its first
    half, on a machine that stores the low bytes first."""
    handles = carray(_address_as_void_pointer(where), (1,), int64)
    code: int = _c_call(function, (handles[0],))
    return code


def call_with_handle() -> int:
    """The address of that function, as machine code."""
    return _compiled_address(_call_with_handle)
