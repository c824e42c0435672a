"""PyTorch programs that ask for `cuda`, on a machine without a GPU: their tensors live on the CPU.

Imports `base`. While a mapping is active, `device="cuda"` means the CPU and `torch.cuda` answers
as the chip of a target would. `tensor.device` says `cpu`. As a move to or from a GPU would,
`.cuda()`, `.cpu()` and `.to(device)` copy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from tilewright.base import lazy
from tilewright.base.targets import Target

_MEMORY_BYTES = 80 * 2**30
_REGISTERS = 65536


@dataclass
class Replacements:
    """Attributes that were replaced, and what they were."""

    _before: list[tuple[Any, str, Any]] = field(default_factory=list[tuple[Any, str, Any]])

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute, or add it."""
        self._before.append((owner, name, cast("dict[str, Any]", vars(owner)).get(name, _ABSENT)))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Put every attribute back, the last replaced first."""
        for owner, name, value in reversed(self._before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._before.clear()


_ABSENT = object()


@dataclass
class DeviceMapping:
    """Maps the device `cuda` to the CPU, in this thread and in those that start later."""

    target: Target
    active: bool = False
    _replaced: Replacements = field(default_factory=Replacements)
    _modes: dict[int, Any] = field(default_factory=dict[int, Any])

    def install(self) -> None:
        """Map from now on, if PyTorch is imported and there is no GPU; may be called again."""
        torch = lazy.loaded("torch")
        if torch is None or self.active or torch.cuda.is_available():
            return
        self.active = True
        for name, value in _cuda_names(self.target).items():
            self._replaced.replace(torch.cuda, name, value)
        for owner, names in _markers(torch).items():
            for name in names:
                self._replaced.replace(owner, name, _nothing)
        self._replaced.replace(torch, "Generator", _generator(torch))
        context = lazy.optional("torch.utils._device", purpose="map devices").DeviceContext
        self._replaced.replace(context, "__init__", _mapped_init(torch, context.__init__))
        start = cast(Any, threading.Thread)._bootstrap_inner
        self._replaced.replace(threading.Thread, "_bootstrap_inner", self._in_thread(start))
        self._enter(torch)

    def uninstall(self) -> None:
        """Restore everything; modes of other threads stay, without effect."""
        if not self.active:
            return
        self.active = False
        self._replaced.restore()
        torch = lazy.loaded("torch")
        if torch is not None:
            self._leave(torch)
        self._modes.clear()

    def _in_thread(self, start: Callable[[threading.Thread], None]) -> Callable[..., None]:
        def start_mapped(thread: threading.Thread) -> None:
            torch = lazy.loaded("torch")
            if torch is None or not self.active:
                start(thread)
                return
            self._enter(torch)
            try:
                start(thread)
            finally:
                # A mode that a thread leaves behind is freed when the system ends the thread,
                # which may be after Python has ended: PyTorch would abort the process.
                self._leave(torch)

        return start_mapped

    def _enter(self, torch: ModuleType) -> None:
        mode = _mode(torch, self)
        mode.__enter__()
        self._modes[threading.get_ident()] = mode

    def _leave(self, torch: ModuleType) -> None:
        """Take this thread's mode off, if it is the innermost."""
        mode = self._modes.pop(threading.get_ident(), None)
        if mode in torch.overrides._get_current_function_mode_stack()[-1:]:
            mode.__exit__(None, None, None)


# ---------------------------------------------------------------------------- devices


def _is_cuda(torch: ModuleType, device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and (device == "cuda" or device.startswith("cuda:"))


def _is_number(device: Any) -> bool:
    return isinstance(device, int) and not isinstance(device, bool)


def _mapped(torch: ModuleType, device: Any) -> Any:
    """Give the CPU for the GPU, by whatever it is named; other values pass."""
    return torch.device("cpu") if _is_cuda(torch, device) else device


def _mode(torch: ModuleType, mapping: DeviceMapping) -> Any:
    class CpuForCuda(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., Any],
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            named = dict(kwargs or {})
            if not mapping.active:
                return func(*args, **named)
            return _call(torch, func, args, named)

    return CpuForCuda()


def _call(
    torch: ModuleType, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Call a function of PyTorch with the CPU in the place of the GPU."""
    tensor = torch.Tensor
    if func in (tensor.cuda, tensor.cpu):
        return args[0].clone()
    if func is tensor.pin_memory:
        return args[0]
    if func is tensor.to:
        return _move(torch, args, named)
    if func is torch.device and args and isinstance(args[0], str):
        return torch.device("cpu") if _is_cuda(torch, args[0]) else func(*args, **named)
    if "device" in named:
        device = named["device"]
        named["device"] = torch.device("cpu") if _is_number(device) else _mapped(torch, device)
    named.pop("pin_memory", None)
    return func(*(_mapped(torch, each) for each in args), **named)


def _move(torch: ModuleType, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Carry out `Tensor.to`; a move between devices copies."""
    source, *rest = args
    devices = (*rest[:1], named.get("device"))
    moves = any(_is_number(each) or isinstance(each, str | torch.device) for each in devices)
    cpu = torch.device("cpu")
    rest[:1] = [cpu if _is_number(each) else _mapped(torch, each) for each in rest[:1]]
    if "device" in named:
        device = named["device"]
        named["device"] = cpu if _is_number(device) else _mapped(torch, device)
    moved = source.to(*rest, **named)
    return moved.clone() if moves and moved is source else moved


def _mapped_init(torch: ModuleType, init: Callable[..., None]) -> Callable[..., None]:
    def mapped_init(context: Any, device: Any) -> None:
        init(context, _mapped(torch, device))

    return mapped_init


def _generator(torch: ModuleType) -> type:
    real = torch.Generator

    class AnyGenerator(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __call__(cls, device: Any = "cpu") -> Any:
            return real(device="cpu" if _is_number(device) else _mapped(torch, device))

    return AnyGenerator("Generator", (), {"__doc__": real.__doc__})


# ---------------------------------------------------------------------------- torch.cuda


class Stream:
    """A stream of a chip on which everything has already happened."""

    cuda_stream = 0
    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_event(self, event: Event) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Stream) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Tell that all work is done."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here."""
        event = event or Event()
        event.record()
        return event


class Event:
    """A point in time, by the host's clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Give the milliseconds from this event to another."""
        return (end._time - self._time) * 1000

    def query(self) -> bool:
        """Tell that it has happened."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait(self, stream: Stream | None = None) -> None:
        """Wait for nothing."""


def properties(target: Target) -> SimpleNamespace:
    """Describe a target's chip as `torch.cuda.get_device_properties` does."""
    major, minor = divmod(target.capability, 10)
    return SimpleNamespace(
        name=f"{target.chip} (simulated by Tilewright)",
        major=major,
        minor=minor,
        multi_processor_count=target.multiprocessors,
        max_threads_per_multi_processor=target.threads_per_multiprocessor,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=target.shared_bytes,
        shared_memory_per_multiprocessor=target.shared_bytes_per_multiprocessor,
        regs_per_multiprocessor=_REGISTERS,
        total_memory=_MEMORY_BYTES,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


def _context(value: Any = None) -> nullcontext[Any]:
    """Stand for a context in which a stream or a device is current."""
    return nullcontext(value)


def _nothing(*_: Any, **__: Any) -> None:
    """Stand for what only speaks to a profiler of GPUs."""


def _markers(torch: Any) -> dict[ModuleType, tuple[str, ...]]:
    """List the functions that tell profilers of GPUs something, by their modules."""
    return {
        torch.cuda.profiler: ("init", "start", "stop"),
        torch.cuda.nvtx: ("range_push", "range_pop", "range_start", "range_end", "mark"),
    }


def _cuda_names(target: Target) -> dict[str, Any]:
    """List what replaces names of `torch.cuda`."""
    chip = properties(target)
    stream = Stream()

    def always(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    return {
        "is_available": always(True),
        "is_initialized": always(True),
        "device_count": always(1),
        "current_device": always(0),
        "get_device_properties": always(chip),
        "get_device_capability": always((chip.major, chip.minor)),
        "get_device_name": always(chip.name),
        "get_arch_list": always([target.arch]),
        "mem_get_info": always((chip.total_memory, chip.total_memory)),
        "memory_allocated": always(0),
        "max_memory_allocated": always(0),
        "current_stream": always(stream),
        "default_stream": always(stream),
        "stream": _context,
        "device": _context,
        "Stream": Stream,
        "Event": Event,
        **{
            name: always(None)
            for name in (
                *("init", "set_device", "set_stream", "synchronize", "empty_cache"),
                *("reset_peak_memory_stats", "manual_seed", "manual_seed_all"),
            )
        },
    }
