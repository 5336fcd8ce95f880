#include "core_transfer.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core_bindings.h"
#include "core_errors.h"
#include "everlong/kv/copy_queue.h"

#ifdef EVERLONG_GPU
#include "core_gpu_queue.h"
#endif

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using kv::CopyQueue;
using kv::StagingBuffer;
using kv::StreamPoint;
using kv::Transfer;
using kv::TransferEngine;
using EngineHandle = Held<TransferEngine>;

Result<std::shared_ptr<CopyQueue>> MakeQueue([[maybe_unused]] int32_t device) {
#ifdef EVERLONG_GPU
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<CopyQueue> queue, MakeGpuCopyQueue(device));
  return std::shared_ptr<CopyQueue>(std::move(queue));
#else
  return NoGpuError(device);
#endif
}

std::unique_ptr<EngineHandle> MakeEngine(std::optional<int32_t> device, int64_t pool_bytes) {
  if (pool_bytes < 1) {
    throw py::value_error("pool_bytes is " + std::to_string(pool_bytes) + "; expected at least 1");
  }
  const std::shared_ptr<CopyQueue> to_device = device ? ValueOrRaise(MakeQueue(*device)) : kv::MakeWorkerCopyQueue();
  const std::shared_ptr<CopyQueue> to_host = device ? ValueOrRaise(MakeQueue(*device)) : to_device;
  auto engine = std::make_shared<TransferEngine>(to_device, to_host, pool_bytes);
  return std::make_unique<EngineHandle>(std::move(engine), "the TransferEngine");
}

std::unique_ptr<BufferHandle> Handle(std::shared_ptr<StagingBuffer> buffer) {
  return std::make_unique<BufferHandle>(std::move(buffer), "the StagingBuffer");
}

std::unique_ptr<BufferHandle> Acquire(const EngineHandle& self, int64_t bytes) {
  return Handle(ValueOrRaise(self.Call([&](TransferEngine& engine) { return engine.Acquire(bytes); })));
}

std::optional<std::unique_ptr<BufferHandle>> TryAcquire(const EngineHandle& self, int64_t bytes, int64_t keep_free) {
  auto buffer = ValueOrRaise(self.Call([&](TransferEngine& engine) { return engine.TryAcquire(bytes, keep_free); }));
  return buffer == nullptr ? std::nullopt : std::optional(Handle(std::move(buffer)));
}

// Return the buffer's bytes as a numpy array. The array keeps the buffer alive.
py::array_t<uint8_t> ArrayOfBytes(const py::object& self) {
  const auto bytes = self.cast<const BufferHandle&>().Share()->bytes();
  return py::array_t<uint8_t>({static_cast<py::ssize_t>(bytes.size())}, {py::ssize_t{1}},
                              reinterpret_cast<const uint8_t*>(bytes.data()), self);
}

// A StreamPoint as a Python object.
struct HeldPoint {
  StreamPoint point;
};

HeldPoint PointOf(const EngineHandle& self, uintptr_t stream) {
  void* const consumer = reinterpret_cast<void*>(stream);
  return {ValueOrRaise(self.Call([&](TransferEngine& engine) { return engine.PointOf(consumer); }))};
}

using HandOver = Result<Transfer> (TransferEngine::*)(std::shared_ptr<const StagingBuffer>,
                                                      std::span<const kv::TransferSegment>, const StreamPoint&);

template <HandOver kHandOver>
Transfer HandOverWhole(const EngineHandle& self, const BufferHandle& held, uintptr_t device_address,
                       const std::optional<HeldPoint>& after) {
  const std::shared_ptr<StagingBuffer> buffer = held.Share();
  const kv::TransferSegment whole{0, static_cast<int64_t>(buffer->bytes().size()),
                                  reinterpret_cast<std::byte*>(device_address)};
  const StreamPoint point = after.has_value() ? after->point : nullptr;
  return ValueOrRaise(
      self.Call([&](TransferEngine& engine) { return (engine.*kHandOver)(buffer, {&whole, 1}, point); }));
}

void OrderAfter(const EngineHandle& self, const Transfer& transfer, uintptr_t stream) {
  void* const consumer = reinterpret_cast<void*>(stream);
  RaiseIfError(self.Call([&](TransferEngine& engine) { return engine.OrderAfter(transfer, consumer); }));
}

}  // namespace

void BindTransfer(py::module_& module) {
  py::class_<BufferHandle>(
      module, "StagingBuffer",
      R"(Host memory of a TransferEngine's pool, pinned where there is a GPU. It goes back when nobody holds it.

It must not be touched from a hand-over to the end of its transfer. Thread-safe, but for its bytes: they are as an
array's.)")
      .def_property_readonly("array", &ArrayOfBytes, "The memory itself, [bytes]. It keeps the buffer alive.");
  py::class_<Transfer>(module, "Transfer", "A batch of copies that was handed over. Immutable.");
  py::class_<HeldPoint>(module, "StreamPoint",
                        "A place in a GPU stream: what had been enqueued there when it was made. Immutable.");
  py::class_<EngineHandle>(
      module, "TransferEngine",
      R"(Moves bytes between host and device through staging buffers, beside what computes. Thread-safe.

`device` is a GPU's index: copies run on side streams, one a direction. None: the device is the host, and copies run
on a worker thread. `stream` is the handle of the stream on which the device's side is used. A transfer begins after
the point `after` and after earlier transfers in its direction. Nothing waits for it but what `order_after` and
`wait` name. A worker thread knows no streams: its points hold nothing, and `order_after` waits.)")
      .def(py::init(&MakeEngine), py::arg("device"), py::arg("pool_bytes"))
      .def("acquire", &Acquire, py::arg("bytes"),
           R"(Return a buffer of `bytes`. It waits for the oldest transfers when the pool is used up.

CapacityError when the pool cannot hold it, or what is held was never handed over.)")
      .def("try_acquire", &TryAcquire, py::arg("bytes"), py::arg("keep_free") = 0,
           "Do the same without waiting. None where there is no room for it and `keep_free` bytes now, or never.")
      .def("to_device", &HandOverWhole<&TransferEngine::ToDevice>, py::arg("buffer").none(false),
           py::arg("device_address"), py::arg("after") = py::none(),
           "Copy the whole buffer there, without waiting. `after`: the last use of what lies there.")
      .def("to_host", &HandOverWhole<&TransferEngine::ToHost>, py::arg("buffer").none(false), py::arg("device_address"),
           py::arg("after") = py::none(),
           "Fill the whole buffer from there, without waiting. `after`: what writes that.")
      .def("point_of", &PointOf, py::arg("stream"), "Return a point for what has been enqueued on the stream so far.")
      .def("order_after", &OrderAfter, py::arg("transfer"), py::arg("stream"),
           "Start what is enqueued on the stream from now on after the transfer.")
      .def(
          "wait",
          [](const EngineHandle& self, const Transfer& transfer) {
            RaiseIfError(self.Call([&](TransferEngine& engine) { return engine.Wait(transfer); }));
          },
          py::arg("transfer"));
}

}  // namespace everlong::bindings
