"""Do the kernels' tiles fit other GPUs? Compiles them for a compute capability, on any machine, without a GPU.

Prints shared memory, registers and spilled bytes of each kernel in the table, and what exceeds the limits. With
`--search` it tries smaller tiles for those that do not fit, and prints the first that do in the form of
`kernels/tiles.py`.

    python benchmarks/gpu_compile.py [--capabilities 8.0,8.6,8.9,12.0] [--only jvp] [--search]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from howsmooth.kernels.tiles import LESS_MEMORY, SHARED_MEMORY, TABLE, Tiles, table_of

# Pointers by the type of their elements: half-precision data, float32 sums, masks.
FLOAT32 = {"norm_ptr", "mu_ptr", "rows_ptr", "lse_ptr", "r_ptr", "c_ptr"}
MASKS = {"padding_ptr", "bias_ptr", "tiles_ptr", "starts_ptr", "entries_ptr"}
# Bytes of a thread in local memory from which tiles count as too large.
MAX_SPILLED = 1024
SMALLER = [(64, 64, 4), (64, 32, 4), (32, 32, 4), (64, 16, 4), (32, 16, 4), (16, 16, 4)]


def kernel_of(kind: str):
    """Return the kernel function of a line of the table, and its constants after PARTS."""
    from howsmooth.kernels import cotangent, curvature, primal, table, tangent

    return {
        "forward": (primal.forward_kernel, ()),
        "jvp": (tangent.jvp_kernel, (1, True)),
        "jvps": (tangent.jvp_kernel, (None, True)),
        "dq": (cotangent.dq_kernel, (False,)),
        "dkdv": (cotangent.dkdv_kernel, ()),
        "hvp queries": (curvature.queries_kernel, (False,)),
        "hvp keys": (curvature.keys_kernel, ()),
        "table": (table.table_kernel, (True,)),
    }[" ".join(word for word in kind.split() if word not in ("causal", "short", "sparse", "biased"))]


def compiled(
    kind: str, itemsize: int, width: int, tiles: Tiles, capability: int, biased: bool = False, sparse: bool = False
) -> dict:
    """Compile one kernel for one capability; return its shared memory, registers and spilled bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, extra = kernel_of(kind)
    causal = "causal" in kind
    data = "bf16" if itemsize == 2 else "fp32"
    constants = dict(
        zip(
            [p.name for p in kernel.params if p.is_constexpr],
            [
                *(width, width, width, width, False, True, "tf32" if itemsize == 2 else "tf32x3"),
                *(causal, False, False, int(biased), 128 if sparse else 0, tiles.rows, tiles.keys),
                6 if causal or sparse else 2,
                *(tiles.tangents if x is None else x for x in extra),
            ],
            strict=True,
        )
    )
    signature, attributes = {}, {}
    for position, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            of_mask = (
                "i32" if name in ("tiles_ptr", "starts_ptr", "entries_ptr") else "fp32" if name == "bias_ptr" else "u8"
            )
            signature[name] = "*" + ("fp32" if name in FLOAT32 else of_mask if name in MASKS else data)
        else:
            signature[name] = "fp32" if name in ("scale", "cap") else "i32"
        if not parameter.is_constexpr and name not in ("scale", "cap"):
            attributes[(position,)] = [["tt.divisibility", 16]]
    options = dict(num_warps=tiles.warps, num_stages=tiles.stages, maxnreg=tiles.registers)
    found = triton.compile(
        ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )
    return dict(shared=found.metadata.shared, **usage(found.asm["cubin"]))


def usage(cubin: bytes) -> dict:
    """Return registers and spilled bytes (local memory) of a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(rf"{word}:(\d+)", text) for word in ("REG", "STACK"))
    return dict(registers=int(registers[1]) if registers else 0, stack=int(stack[1]) if stack else 0)


def check(job: tuple) -> dict:
    """Compile one line, and say whether it fits."""
    try:
        found = compiled(*job)
    except Exception as reason:
        return dict(job=job, failed=str(reason).splitlines()[0][:100] if str(reason) else type(reason).__name__)
    fits = found["shared"] <= SHARED_MEMORY[job[4]] and found["stack"] < MAX_SPILLED
    return dict(job=job, fits=fits, **found)


def is_used(kind: str, itemsize: int, width: int, biased: bool, sparse: bool) -> bool:
    """Return whether a line of the table is used with a table of scores, with a sparse mask, or without both."""
    if kind.endswith((" biased", " sparse")):
        return (kind.endswith(" biased") and biased) or (kind.endswith(" sparse") and sparse)
    special = f"{kind} {'biased' if biased else 'sparse'}"
    return not (biased or sparse) or (special, itemsize, width) not in TABLE


def main() -> int:
    """Compile the table for all capabilities asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", default="8.0,8.6,8.9,9.0,12.0")
    parser.add_argument("--only", default="", help="kinds of kernels that begin with this")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--biased", action="store_true", help="with a table of scores")
    parser.add_argument("--sparse", action="store_true", help="with a sparse mask")
    arguments = parser.parse_args()
    capabilities = [int(c.replace(".", "")) for c in arguments.capabilities.split(",")]
    jobs = [
        (kind, itemsize, width, tiles, capability, arguments.biased, arguments.sparse)
        for capability in capabilities
        for (kind, itemsize, width), tiles in table_of((capability // 10, capability % 10)).items()
        if kind.startswith(arguments.only)
        and is_used(kind, itemsize, width, arguments.biased, arguments.sparse)
        and not (kind == "table" and SHARED_MEMORY[capability] in LESS_MEMORY)  # no tables there
    ]
    bad = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(check, jobs):
            kind, itemsize, width, tiles, capability, *masks = row["job"]
            name = f"{capability / 10:.1f} {kind:20s} {itemsize} bytes, width {width:3d}"
            if row.get("fits"):
                print(
                    f"{name}  {row['shared'] >> 10:4d} KiB  {row['registers']:3d} registers  {row['stack']:5d} spilled"
                )
                continue
            bad += 1
            why = row.get("failed") or f"{row['shared'] >> 10} KiB, {row['stack']} spilled"
            print(f"{name}  {tiles} does not fit: {why}", flush=True)
            if arguments.search:
                print(f"    {best(kind, itemsize, width, tiles, capability, *masks)}", flush=True)
    return bad > 0


def best(kind: str, itemsize: int, width: int, tiles: Tiles, capability: int, *masks: bool) -> str:
    """Return the first smaller tiles that fit, as a line of the table."""
    for rows, keys, warps in SMALLER:
        for stages in (tiles.stages, 2, 1):
            smaller = Tiles(rows, keys, warps, stages, tiles.tangents)
            found = check((kind, itemsize, width, smaller, capability, *masks))
            if found.get("fits"):
                return f"({kind!r}, {itemsize}, {width}): {smaller},  # {found['shared'] >> 10} KiB, {found['stack']}"
    return "nothing fits"


if __name__ == "__main__":
    sys.exit(main())
