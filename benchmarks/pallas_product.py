"""The product of `peers.py` in JAX Pallas, for Mosaic GPU.

It issues `wgmma`: the interpreter of JAX 0.10 has no Tensor Memory, hence no `tcgen05`.
"""

# pyright: reportMissingImports=false

import jax
from jax import numpy as jnp
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as mosaic

IN_FLIGHT = 2
ROW = 64  # elements of float16 in a swizzled line of 128 bytes


def product(size: int, tile: int, step: int):  # type: ignore[no-untyped-def]
    """Give a function that multiplies square matrices, a square tile of the result per block."""
    laid = (mosaic.TilingTransform((8, ROW)), mosaic.SwizzleTransform(2 * ROW))

    def kernel(a, b, d, staged):  # type: ignore[no-untyped-def]
        row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")

        def total(accumulator):  # type: ignore[no-untyped-def]
            mosaic.emit_pipeline(
                lambda _, left, right: mosaic.wgmma(accumulator, left, right),
                grid=(size // step,),
                in_specs=[
                    mosaic.BlockSpec(
                        (tile, step), lambda k: (row, k), transforms=laid, delay_release=1
                    ),
                    mosaic.BlockSpec(
                        (step, tile), lambda k: (k, column), transforms=laid, delay_release=1
                    ),
                ],
                max_concurrent_steps=IN_FLIGHT,
            )(a, b)
            return accumulator[...]

        staged[...] = pl.run_scoped(total, mosaic.ACC((tile, tile)))
        mosaic.commit_smem()
        place = d.at[pl.ds(row * tile, tile), pl.ds(column * tile, tile)]
        mosaic.copy_smem_to_gmem(staged, place)
        mosaic.wait_smem_to_gmem(0)

    return jax.jit(
        mosaic.kernel(
            kernel,
            out_type=jax.ShapeDtypeStruct((size, size), jnp.float32),
            scratch_types=[mosaic.SMEM((tile, tile), jnp.float32)],
            grid=(size // tile, size // tile),
            grid_names=("row", "column"),
            interpret=InterpretGPUParams(),
        )
    )
