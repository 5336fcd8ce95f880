// For tests that take the place of the C library's `syscall`: a thread that is held in the middle of a pass.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <semaphore>
#include <string_view>
#include <thread>
#include <utility>

#include "base_opened_beneath.h"

namespace everlong {

inline std::atomic<bool> g_holds_reader = false;
inline std::binary_semaphore g_reader_is_held{0};
inline std::binary_semaphore g_reader_may_go{0};

// Ask it before a file is opened. The first that opens a segment to read it waits there, once that is wanted.
inline void HoldReaderOfSegment(const OpenedBeneath& opened) {
  const bool reads = (opened.flags & (O_WRONLY | O_RDWR)) == 0 && std::string_view(opened.name).ends_with(".kvseg");
  if (!reads || !g_holds_reader.exchange(false)) return;
  g_reader_is_held.release();
  g_reader_may_go.acquire();
}

// A thread that does something and is held where it first opens a segment, until this goes.
class HeldReader {
 public:
  template <class Call>
  explicit HeldReader(Call call) {
    g_holds_reader = true;
    thread_ = std::thread(std::move(call));
    g_reader_is_held.acquire();
  }
  ~HeldReader() {
    g_reader_may_go.release();
    thread_.join();
  }
  HeldReader(const HeldReader&) = delete;
  HeldReader& operator=(const HeldReader&) = delete;

 private:
  std::thread thread_;
};

}  // namespace everlong
