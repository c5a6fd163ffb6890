"""What the modules of compiled loops share: how they are compiled, and what numba lacks.

Compiled code is cached on disk and releases the GIL. It computes bit for bit what numpy does: no
fused multiply-add, no reordered sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from embmap.forking import hold_for_forks

__all__ = [
    "bitcast",
    "compiled",
    "copy_items",
    "load64",
    "prefetch",
    "prepare",
    "product_folded",
]


# A child forked while another thread compiles would wait for ever for the compiler's lock.
hold_for_forks(global_compiler_lock)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function when it is first called."""
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # there is no folder for the cache: each process compiles again
        return numba.njit(function, **options)


def prepare(function: Any, arguments: tuple[Any, ...]) -> None:
    """Compile a function for the types of some arguments, or read it from the cache."""
    function.compile(tuple(map(numba.typeof, arguments)))


def _in_llvm(function: Callable[..., Any]) -> Any:
    """Return a function for compiled loops, given one that returns its signature and its code."""
    return intrinsic(function)


def bitcast(source: Any, target: Any) -> Any:
    """Return a function that reinterprets the bits of a number as another type."""

    def reinterpret(_typing: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return _in_llvm(reinterpret)


def _address(context: Any, builder: Any, of: Any, item: tuple[Any, Any]) -> Any:
    """Return the address of an item of a contiguous array of a type."""
    array = context.make_array(of)(context, builder, item[0])
    return builder.gep(array.data, [item[1]])


@_in_llvm
def load64(_typing: Any, data: Any, _at: Any) -> Any:
    """Return the eight bytes from an offset in an array of uint8 on as a little-endian uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments)
        return builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


@_in_llvm
def prefetch(_typing: Any, array: Any, _at: Any) -> Any:
    """Ask the processor for the memory of an item of a contiguous array.

    An index beyond the array does no harm.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        address = builder.bitcast(_address(context, builder, signature.args[0], arguments), byte)
        flag = ir.IntType(32)
        of_type = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [byte], of_type)
        builder.call(instruction, [address, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@_in_llvm
def product_folded(_typing: Any, _left: Any, _right: Any) -> Any:
    """Return the lower half of a product of 128 bits, combined with its upper half by XOR."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(each, wide) for each in arguments))
        upper = builder.lshr(product, ir.Constant(wide, 64))
        return builder.trunc(builder.xor(product, upper), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@_in_llvm
def copy_items(_typing: Any, _target: Any, _to: Any, _source: Any, _at: Any, _n: Any) -> Any:
    """Copy items between places of contiguous arrays of one dtype."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, at, n = arguments
        types_ = signature.args
        dst = _address(context, builder, types_[0], (target, to))
        src = _address(context, builder, types_[2], (source, at))
        size = context.get_abi_sizeof(context.get_data_type(types_[0].dtype))
        cgutils.raw_memcpy(builder, dst, src, n, size)
        return context.get_dummy_value()

    at = types.int64
    return types.void(_target, at, _source, at, at), generate
