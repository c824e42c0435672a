"""Reading of DLPack capsules, for the element types that NumPy cannot import.

Imports `base`. NumPy's own `from_dlpack` knows neither bfloat16 nor the 8-bit floats, so the C
structures are read here (DLPack 1.1, `dlpack.h`).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_CPU_DEVICES = {1: "cpu", 3: "pinned", 13: "managed"}
_DEVICES = {**_CPU_DEVICES, 2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm"}
_READ_ONLY = 1
# DLDataTypeCode: the element type, where the number of bits does not have to complete it
_FLOATS = {
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
    15: "float6_e2m3fn",
    16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}
_SIZED = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _Tensor),
    )


@dataclass(frozen=True)
class Exchanged:
    """What a DLPack capsule says; `strides` count elements, `dtype` is the dialects' name.

    `capsule` owns the memory: keep it as long as the address is used.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    bits: int
    writable: bool
    capsule: Any


def device_of(exporter: Any) -> str:
    """Name the device that an object's data lives on: "cpu", "cuda:0", …"""
    kind, number = exporter.__dlpack_device__()
    if int(kind) in _CPU_DEVICES:
        return "cpu"
    return f"{_DEVICES.get(int(kind), f'device type {int(kind)}')}:{number}"


def read(exporter: Any, **options: Any) -> Exchanged:
    """Read an object's capsule without copying; its exceptions pass.

    `options` go to `__dlpack__`: `stream=-1` says that nothing must be waited for.
    """
    try:
        capsule = exporter.__dlpack__(max_version=(1, 1), **options)
    except TypeError:
        capsule = exporter.__dlpack__(**options)
    tensor, flags = _open(capsule)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = (
        tuple(tensor.strides[axis] for axis in range(tensor.ndim))
        if tensor.strides
        else compact(shape)
    )
    return Exchanged(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        _type_name(tensor.dtype),
        tensor.dtype.bits * tensor.dtype.lanes,
        not flags & _READ_ONLY,
        capsule,
    )


# Prototypes of our own: those of `ctypes.pythonapi` are shared with the whole process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _open(capsule: Any) -> tuple[_Tensor, int]:
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise BufferError(f"DLPack of version {versioned.major}.{versioned.minor}")
        return versioned.dl_tensor, versioned.flags
    return _Tensor.from_address(_pointer(capsule, b"dltensor")), 0


def _type_name(kind: _DataType) -> str:
    if kind.code == 6:
        name = "bool"
    elif kind.code in _SIZED:
        name = f"{_SIZED[kind.code]}{kind.bits}"
    else:
        name = _FLOATS.get(kind.code, f"a DLPack type of code {kind.code}")
    return name if kind.lanes == 1 else f"{name}x{kind.lanes}"


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Give the strides of an array without gaps, in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
