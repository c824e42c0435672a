"""Kernels on a real GPU, packed on a machine without one: the same bytes as on the simulator?

`pack` needs Tilewright and NVRTC and writes cubins, inputs and the bytes that the simulator
gives. `run` needs NumPy, `cuda.bindings` and a GPU, and nothing else: what makes a short time
on a GPU count.

    python tools/device.py pack build/device
    python tools/device.py run build/device
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
SILENCE = 60.0  # seconds after which a kernel is said to hang


# ---------------------------------------------------------------------------- run


class Failure(Exception):
    """A call of the driver failed; `lost` says that the context is too."""

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


class Device:
    """The first GPU, by the driver's bindings."""

    def __init__(self) -> None:
        self.driver: Any = importlib.import_module("cuda.bindings.driver")
        self.call("cuInit", 0)
        (device,) = self.call("cuDeviceGet", 0)
        (context,) = self.call("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxSetCurrent", context)
        self.name = self.call("cuDeviceGetName", 128, device)[0].split(b"\0")[0].decode()

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        status, *values = getattr(self.driver, name)(*arguments)
        if int(status):
            text = self.driver.cuGetErrorName(status)[1]
            raise Failure(f"{name}: {(text or b'?').decode()}", int(status) >= 700)
        return tuple(values)

    def check(self, folder: Path, case: dict[str, Any]) -> str:
        """Run a case; give what is wrong, or nothing."""
        import numpy as np

        data = np.load(folder / case["data"], allow_pickle=False)
        buffers = [np.ascontiguousarray(data[f"given{i}"]) for i in range(case["arrays"])]
        addresses = [self.upload(each) for each in buffers]
        (module,) = self.call("cuModuleLoadData", (folder / case["cubin"]).read_bytes())
        for launch in case["launches"]:
            self.launch(module, launch, addresses)
        self.call("cuCtxSynchronize")
        wrong = ""
        for i, (address, buffer) in enumerate(zip(addresses, buffers, strict=True)):
            expected = data[f"expected{i}"]
            if buffer.nbytes:
                self.call("cuMemcpyDtoH", buffer.ctypes.data, address, buffer.nbytes)
            places = np.flatnonzero(buffer != expected)
            if places.size and not wrong:
                wrong = self.difference(case, i, buffer, expected, places)
            self.call("cuMemFree", address)
        self.call("cuModuleUnload", module)
        return wrong

    def difference(
        self, case: dict[str, Any], i: int, found: Any, expected: Any, places: Any
    ) -> str:
        first = int(places[0])
        word = slice(first // 4 * 4, first // 4 * 4 + 4)
        notes = [each for each in case["regions"] if each[0] == i]
        inside = {text for _, start, end, text in notes for p in places if start <= p < end}
        where = f" in {', '.join(sorted(inside)[:4])} ({len(inside)})" if inside else ""
        return (
            f"array {i}: {places.size} of {found.size} bytes differ from {first}{where}: "
            f"{found[word].tobytes().hex()} for {expected[word].tobytes().hex()}"
        )

    def upload(self, buffer: Any) -> Any:
        (address,) = self.call("cuMemAlloc", max(buffer.nbytes, 16))
        if buffer.nbytes:
            self.call("cuMemcpyHtoD", address, buffer.ctypes.data, buffer.nbytes)
        return address

    def parameter(self, given: Any, addresses: list[Any]) -> Any:
        """Give the bytes of a parameter: of an address, a number or a tensor map."""
        import numpy as np

        match given:
            case int():
                return np.array([int(addresses[given])], np.uint64)
            case str():
                return np.frombuffer(bytes.fromhex(given), np.uint8)
            case _:
                return self.tensor_map(given, int(addresses[given["array"]]) + given["offset"])

    def tensor_map(self, given: dict[str, Any], address: int) -> Any:
        """Encode a tensor map to where it is aligned; the bindings would write it anywhere."""
        import numpy as np

        raw = np.zeros(128 + 64, np.uint8)
        start = -raw.ctypes.data % 64
        bits = raw[start : start + 128]
        kinds = (np.uint64, np.uint64, np.uint32, np.uint32)
        axes = [np.array(each, kind) for each, kind in zip(given["axes"], kinds, strict=True)]
        encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
        status = encode(
            ctypes.c_void_p(bits.ctypes.data),
            given["format"],
            len(axes[0]),
            ctypes.c_void_p(address),
            *(ctypes.c_void_p(each.ctypes.data) for each in axes),
            *given["options"],
        )
        if status:
            raise Failure(f"cuTensorMapEncodeTiled: error {status}", False)
        return bits

    def launch(self, module: Any, launch: dict[str, Any], addresses: list[Any]) -> None:
        import numpy as np

        driver = self.driver
        (function,) = self.call("cuModuleGetFunction", module, launch["kernel"].encode())
        if launch["shared"] > 48 * 1024:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call("cuFuncSetAttribute", function, attribute, launch["shared"])
        values = [self.parameter(each, addresses) for each in launch["params"]]
        pointers = np.array([each.ctypes.data for each in values], np.uint64)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch["grid"]
        config.blockDimX, config.blockDimY, config.blockDimZ = launch["block"]
        config.sharedMemBytes = launch["shared"]
        attributes = []
        for number, given in launch["attributes"]:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID(number)
            attribute.value.pad = bytes.fromhex(given)
            attributes.append(attribute)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        self.call("cuLaunchKernelEx", config, function, pointers.ctypes.data, 0)


def work(folder: Path, first: int) -> None:
    """Run the cases from a number on, a line of JSON for each, until the context is lost."""
    cases = json.loads((folder / MANIFEST).read_text())["cases"]
    device = Device()
    print(json.dumps({"device": device.name}), flush=True)
    for number in range(first, len(cases)):
        lost = False
        try:
            wrong = device.check(folder, cases[number])
        except Failure as failure:
            wrong, lost = str(failure), failure.lost
        except Exception:
            wrong = traceback.format_exc().strip().replace("\n", " | ")
        print(json.dumps({"case": number, "wrong": wrong}), flush=True)
        if lost:
            return


def run(folder: Path) -> int:
    """Run every case, in a process that is begun anew whenever one has been lost."""
    cases = json.loads((folder / MANIFEST).read_text())["cases"]
    results: dict[int, str] = {}
    name = ""
    while len(results) < len(cases):
        first = len(results)
        for line in _worker(folder, first):
            if "device" in line:
                if not name:
                    print(f"on {line['device']}:")
                name = line["device"]
            elif "case" in line:
                results[line["case"]] = line["wrong"]
                _report(cases[line["case"]]["name"], line["wrong"])
            elif not name:
                print(f"there is no GPU to run on: {line['died']}\n0 passed, {len(cases)} failed")
                return 1
            else:
                results[len(results)] = line["died"]
                _report(cases[len(results) - 1]["name"], line["died"])
                break
    failed = sum(bool(wrong) for wrong in results.values())
    print(f"{len(results) - failed} passed, {failed} failed")
    return int(failed > 0)


def _report(name: str, wrong: str) -> None:
    print(f"{'FAILED' if wrong else 'passed'}  {name}{': ' if wrong else ''}{wrong}", flush=True)


def _worker(folder: Path, first: int) -> Iterator[dict[str, Any]]:
    """Yield the lines of a worker; at last `died`, unless it ended after a case it reported."""
    command = [sys.executable, __file__, "work", str(folder), "--first", str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    reported, other, rest = 0, [], b""
    try:
        while True:
            if not select.select([process.stdout], [], [], SILENCE)[0]:
                yield {"died": f"no answer for {SILENCE:.0f} s"}
                return
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for text in lines:
                if text.startswith(b'{"'):
                    line = json.loads(text)
                    reported += "case" in line
                    yield line
                else:
                    other.append(text.decode(errors="replace"))
        if not reported:
            yield {"died": " | ".join(other[-6:]) or f"exit {process.wait()}"}
    finally:
        process.kill()
        process.wait()


# ---------------------------------------------------------------------------- pack


def pack(folder: Path, target: str, names: list[str]) -> int:
    """Write the cubins, inputs and expected bytes of every kernel that the target has."""
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "src")]
    import device_pack

    folder.mkdir(parents=True, exist_ok=True)
    cases = device_pack.pack(folder, target, names)
    text = json.dumps({"target": target, "cases": cases}, indent=1)
    (folder / MANIFEST).write_text(text + "\n")
    print(f"{len(cases)} kernels for {target} in {folder}")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="build and simulate, on any machine")
    packing.add_argument("folder", type=Path)
    packing.add_argument("names", nargs="*", help="only kernels whose name has one of these")
    packing.add_argument("--target", default="sm_90a")
    commands.add_parser("run", help="launch and compare").add_argument("folder", type=Path)
    working = commands.add_parser("work")
    working.add_argument("folder", type=Path)
    working.add_argument("--first", type=int, default=0)
    parsed = parser.parse_args()
    if parsed.command == "pack":
        return pack(parsed.folder, parsed.target, parsed.names)
    if parsed.command == "run":
        return run(parsed.folder)
    work(parsed.folder, parsed.first)
    return 0


if __name__ == "__main__":
    sys.exit(main())
