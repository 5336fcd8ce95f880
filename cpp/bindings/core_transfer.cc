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
#include "core_gil.h"
#include "everlong/kv/copy_queue.h"
#include "everlong/kv/transfer_engine.h"

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

Result<std::shared_ptr<CopyQueue>> MakeQueue([[maybe_unused]] int32_t device) {
#ifdef EVERLONG_GPU
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<CopyQueue> queue, MakeGpuCopyQueue(device));
  return std::shared_ptr<CopyQueue>(std::move(queue));
#else
  return NoGpuError(device);
#endif
}

std::unique_ptr<TransferEngine> MakeEngine(std::optional<int32_t> device, int64_t pool_bytes) {
  if (pool_bytes < 1) {
    throw py::value_error("pool_bytes is " + std::to_string(pool_bytes) + "; expected at least 1");
  }
  if (!device.has_value()) {
    const std::shared_ptr<CopyQueue> worker = kv::MakeWorkerCopyQueue();
    return std::make_unique<TransferEngine>(worker, worker, pool_bytes);
  }
  const std::shared_ptr<CopyQueue> to_device = ValueOrRaise(MakeQueue(*device));
  const std::shared_ptr<CopyQueue> to_host = ValueOrRaise(MakeQueue(*device));
  return std::make_unique<TransferEngine>(to_device, to_host, pool_bytes);
}

std::shared_ptr<StagingBuffer> Acquire(TransferEngine& self, int64_t bytes) {
  return ValueOrRaise(Unlocked([&] { return self.Acquire(bytes); }));
}

std::optional<std::shared_ptr<StagingBuffer>> TryAcquire(TransferEngine& self, int64_t bytes, int64_t keep_free) {
  auto buffer = ValueOrRaise(Unlocked([&] { return self.TryAcquire(bytes, keep_free); }));
  return buffer == nullptr ? std::nullopt : std::optional(std::move(buffer));
}

// Return the buffer's bytes as a numpy array. The array keeps the buffer alive.
py::array_t<uint8_t> ArrayOfBytes(const py::object& self) {
  const auto& buffer = self.cast<const StagingBuffer&>();
  const auto bytes = buffer.bytes();
  return py::array_t<uint8_t>({static_cast<py::ssize_t>(bytes.size())}, {py::ssize_t{1}},
                              reinterpret_cast<const uint8_t*>(bytes.data()), self);
}

// A StreamPoint as a Python object.
struct HeldPoint {
  StreamPoint point;
};

HeldPoint PointOf(TransferEngine& self, uintptr_t stream) {
  return {ValueOrRaise(Unlocked([&] { return self.PointOf(reinterpret_cast<void*>(stream)); }))};
}

using HandOver = Result<Transfer> (TransferEngine::*)(std::shared_ptr<const StagingBuffer>,
                                                      std::span<const kv::TransferSegment>, const StreamPoint&);

template <HandOver kHandOver>
Transfer HandOverWhole(TransferEngine& self, const std::shared_ptr<StagingBuffer>& buffer, uintptr_t device_address,
                       const std::optional<HeldPoint>& after) {
  const kv::TransferSegment whole{0, static_cast<int64_t>(buffer->bytes().size()),
                                  reinterpret_cast<std::byte*>(device_address)};
  const StreamPoint point = after.has_value() ? after->point : nullptr;
  return ValueOrRaise(Unlocked([&] { return (self.*kHandOver)(buffer, {&whole, 1}, point); }));
}

void OrderAfter(TransferEngine& self, const Transfer& transfer, uintptr_t stream) {
  RaiseIfError(Unlocked([&] { return self.OrderAfter(transfer, reinterpret_cast<void*>(stream)); }));
}

}  // namespace

void BindTransfer(py::module_& module) {
  py::class_<StagingBuffer, std::shared_ptr<StagingBuffer>>(
      module, "StagingBuffer",
      R"(Host memory of a TransferEngine's pool, pinned where there is a GPU. It goes back when nobody holds it.

It must not be touched from a hand-over to the end of its transfer.)")
      .def_property_readonly("array", &ArrayOfBytes, "The memory itself, [bytes]. It keeps the buffer alive.");
  py::class_<Transfer>(module, "Transfer", "A batch of copies that was handed over.");
  py::class_<HeldPoint>(module, "StreamPoint",
                        "A place in a GPU stream: what had been enqueued there when it was made.");
  py::class_<TransferEngine>(
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
          [](TransferEngine& self, const Transfer& transfer) {
            RaiseIfError(Unlocked([&] { return self.Wait(transfer); }));
          },
          py::arg("transfer"));
}

}  // namespace everlong::bindings
