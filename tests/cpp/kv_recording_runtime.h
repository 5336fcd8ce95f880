// A GPU's runtime that only records what waits for what.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "everlong/kv/stream_runtime.h"

namespace everlong::kv::recording {

inline constexpr int64_t kFails = 666;  // a copy of so many bytes fails when it runs

// Streams of operations in the order of their enqueueing, and which others each begins after. A copy is made when it
// passes.
class RecordingRuntime : public StreamRuntime {
 public:
  ~RecordingRuntime() override { EXPECT_TRUE(events_.empty()) << "every event is destroyed"; }

  // Work of a consumer; names the operation.
  size_t Work(void* stream) {
    const std::scoped_lock lock(mutex_);
    return Add(stream, false);
  }
  // Copies so far, as operations.
  std::vector<size_t> copies() {
    const std::scoped_lock lock(mutex_);
    return copies_;
  }
  // Whether `first` is over before `second` begins.
  bool Precedes(size_t first, size_t second) {
    const std::scoped_lock lock(mutex_);
    return operations_[second].after.contains(first);
  }
  void PassAll() {
    const std::scoped_lock lock(mutex_);
    Pass(operations_.size());
  }
  size_t events() {
    const std::scoped_lock lock(mutex_);
    return events_.size();
  }

  Result<void*> CreateStream() override {
    if (streams_left-- <= 0) return IoError("no stream");
    return static_cast<void*>(this);
  }
  void DestroyStream(void* /*stream*/) override {
    PassAll();
    ++streams_destroyed;
  }
  Result<std::byte*> AllocateHost(int64_t bytes) override { return new std::byte[static_cast<size_t>(bytes)]; }
  void FreeHost(std::byte* buffer) override { delete[] buffer; }

  Status Copy(void* stream, const CopyRun& run) override {
    const std::scoped_lock lock(mutex_);
    if (copies_left-- <= 0) return IoError("no copy");
    copies_.push_back(Add(stream, run.bytes == kFails));
    operations_.back().copy = run;
    return OkStatus();
  }
  Result<Event> Record(void* stream) override {
    const std::scoped_lock lock(mutex_);
    if (records_left-- <= 0) return IoError("no event");
    const size_t operation = Add(stream, false);  // passing it is an operation too
    operations_[operation].fails = operation > 0 && FailsBefore(operation);
    auto event = std::make_unique<size_t>(operation);
    auto* const handle = static_cast<Event>(event.get());
    events_.emplace(handle, std::move(event));
    return handle;
  }
  Status HoldBack(void* stream, Event event) override {
    const std::scoped_lock lock(mutex_);
    const size_t operation = *events_.at(event);
    std::set<size_t>& held = held_[stream];
    held.insert(operations_[operation].after.begin(), operations_[operation].after.end());
    held.insert(operation);
    return OkStatus();
  }
  Status WaitFor(Event event) override {
    if (while_waiting) while_waiting();
    const std::scoped_lock lock(mutex_);
    const size_t operation = *events_.at(event);
    Pass(operation + 1);
    ++waits;
    return operations_[operation].fails ? IoError("copy failed") : OkStatus();
  }
  Result<bool> HasPassed(Event event) override {
    const std::scoped_lock lock(mutex_);
    const size_t operation = *events_.at(event);
    if (operation >= passed_) return false;
    if (operations_[operation].fails) return IoError("copy failed");
    return true;
  }
  void Destroy(Event event) override {
    const std::scoped_lock lock(mutex_);
    EXPECT_EQ(events_.erase(event), 1U);
  }
  void Synchronize(void* /*stream*/) override {
    PassAll();
    ++synchronized;
  }

  // Calls that succeed from now on.
  int copies_left = 1 << 30;
  int records_left = 1 << 30;
  int streams_left = 1 << 30;
  int streams_destroyed = 0;
  int waits = 0;
  std::atomic<int> synchronized = 0;
  std::function<void()> while_waiting;  // of the host, for an event

 private:
  struct Operation {
    void* stream;
    std::set<size_t> after;
    bool fails;
    CopyRun copy;
  };

  // The first `count` operations.
  void Pass(size_t count) {
    for (; passed_ < count; ++passed_) {
      const CopyRun& copy = operations_[passed_].copy;
      if (copy.to != nullptr) std::copy_n(copy.from, copy.bytes, copy.to);
    }
  }

  size_t Add(void* stream, bool fails) {
    std::set<size_t>& held = held_[stream];
    operations_.push_back({stream, held, fails, {}});
    held.insert(operations_.size() - 1);  // a stream runs in order
    return operations_.size() - 1;
  }
  // Whether the copies since the stream's last event hold one that fails.
  [[nodiscard]] bool FailsBefore(size_t event) const {
    for (size_t i = event; i-- > 0;) {
      if (operations_[i].stream != operations_[event].stream) continue;
      const bool is_copy = std::ranges::find(copies_, i) != copies_.end();
      if (!is_copy) return false;
      if (operations_[i].fails) return true;
    }
    return false;
  }

  std::mutex mutex_;
  std::vector<Operation> operations_;
  std::map<void*, std::set<size_t>> held_;
  std::vector<size_t> copies_;
  std::map<Event, std::unique_ptr<size_t>> events_;  // those alive, and the operations that they are
  size_t passed_ = 0;
};

}  // namespace everlong::kv::recording
